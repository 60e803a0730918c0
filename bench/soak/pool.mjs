/**
 * Pods that divide a limit through a real Redis, NATS server or etcd, and what happens to them and to it.
 *
 *     npm run soak:pool                     each thing five times, outages of 15 s, with one store after the other
 *     npm run soak:pool -- --store etcd     with that one only: redis, nats, etcd
 *     npm run soak:pool -- --short          once, outages of 4 s, as in the tests
 *     npm run soak:pool -- --member-timeout 1500ms   who is silent for so long is gone; 2s by default
 *     npm run soak:pool -- --json           for a machine
 *     npm run soak:pool -- --write          and write what came out into docs/reliability.md
 *
 * Everything happens on loopback with processes of its own, whose clocks are hours apart; the store's clock is this machine's,
 * so its seconds are. Exit code 1 if in any second they took more than the limit, or did not soon take all of it again; then
 * nothing more happens to that store.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { isToWrite, loadLine, machineLine, madeBy, table, writeFigures } from '../report.mjs';
import { Pods } from './pods.mjs';
import { STORES } from './pool-stores.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const writes = isToWrite(
  !['--short', '--store', '--member-timeout'].some((word) => words.includes(word)),
);
const TIMES = isShort ? 1 : 5;
const OUTAGE_MS = isShort ? 4000 : 15_000;

/** No number of pods divides it. */
const LIMIT = 103;
const PODS = 5;
const TIMEOUT_FLAG = words.indexOf('--member-timeout');
const MEMBER_TIMEOUT = TIMEOUT_FLAG < 0 ? '2s' : words[TIMEOUT_FLAG + 1];
const OPTIONS = { name: 'soak', staleFor: '30s', memberTimeout: MEMBER_TIMEOUT };

const WHOLE_WITHIN_MS = 30_000;

/** Things happen so long after each other, and in another part of a second each time. */
let played = 0;
const apartMs = () => 1000 + ((played++ * 370) % 1000);

/** What happens to pods and to their store. It is over when the act is. */
const actsWith = ({ forget }) => ({
  'one more comes': async (pods) => pods.start(),
  'one leaves': (pods) => pods.leave(),
  'one comes': async (pods) => pods.start(),
  'one is killed (`kill -9`)': (pods) => pods.kill(),
  'another comes': async (pods) => pods.start(),
  [`the store stands still for ${OUTAGE_MS / 1000} s`]: async (_, server) => {
    server.pause();
    await sleep(OUTAGE_MS);
    server.resume();
  },
  [`the store is killed, and back after ${OUTAGE_MS / 1000} s without a memory`]: async (
    _,
    server,
  ) => {
    await server.kill();
    await sleep(OUTAGE_MS);
    await server.restartEmpty();
  },
  'the store comes back without a memory, and one comes at once': async (pods, server) => {
    await server.kill();
    await server.restartEmpty();
    pods.start();
  },
  'the store forgets everything, and one is killed': async (pods, server) => {
    await forget(server);
    await pods.kill();
  },
});

const isHeld = ({ most, wholeAfterMs }) => most <= LIMIT && wholeAfterMs < Infinity;

/** Plays one thing, until all of the limit is in use again. */
async function play(act, pods, server) {
  const from = Date.now(); // in the middle of a second, all of which counts
  await sleep(apartMs());
  const startedAt = Date.now();
  await act(pods, server);
  const since = Date.now();
  const wholeAfterMs = (await pods.wholeFrom(since, LIMIT, WHOLE_WITHIN_MS)) - since;
  const meanwhile = Array.from(
    { length: Math.max(0, Math.floor(since / 1000) - Math.ceil(startedAt / 1000)) },
    (_, n) => pods.sums.get(Math.ceil(startedAt / 1000) + n) ?? 0,
  );
  return {
    most: pods.mostSince(from),
    leastMeanwhile: meanwhile.length > 0 ? Math.min(...meanwhile) : Infinity,
    wholeAfterMs,
  };
}

/** Plays everything with one store; what each thing came to, by its name. */
async function soak(store) {
  const server = await STORES[store].start();
  const limit = { ramp: { min: LIMIT, max: LIMIT, over: '1s' } };
  const pods = new Pods({ store, port: server.port, limit, options: OPTIONS });
  const plays = {};
  try {
    const startAll = async () => {
      for (let n = 0; n < PODS; n++) pods.start();
    };
    const acts = actsWith(STORES[store]);
    const rounds = Array.from({ length: TIMES }, () => Object.entries(acts)).flat();
    for (const [name, act] of [[`${PODS} start at once`, startAll], ...rounds]) {
      plays[name] ??= [];
      const latest = await play(act, pods, server);
      plays[name].push(latest);
      if (!isHeld(latest)) break;
    }
  } finally {
    await pods.stop();
    await server.stop();
  }
  return {
    unsure: pods.unsure,
    judged: Object.entries(plays).map(([name, own]) => judge(name, own)),
  };
}

const judge = (name, plays) => ({
  name,
  times: plays.length,
  limit: LIMIT,
  most: Math.max(...plays.map((own) => own.most)),
  leastMeanwhile: Math.min(...plays.map((own) => own.leastMeanwhile)),
  wholeAfterMs: Math.max(...plays.map((own) => own.wholeAfterMs)),
  holds: plays.every(isHeld),
});

/** One row for each thing: what it came to with any of the stores, and with each how soon all was in use again. */
function tell(results) {
  const stores = Object.keys(results);
  const names = new Set(stores.flatMap((store) => results[store].judged.map(({ name }) => name)));
  const plays = [...names].map((name) =>
    stores.map((store) => results[store].judged.find((own) => own.name === name)),
  );
  const ofAll = (read) => (own) => read(own.filter((play) => play !== undefined));
  const columns = {
    'what happens': ofAll(([{ name }]) => name),
    times: ofAll(([{ times }]) => times),
    'most in a second': ofAll((own) => `${Math.max(...own.map(({ most }) => most))} of ${LIMIT}`),
    'least meanwhile': ofAll((own) => {
      const least = Math.min(...own.map(({ leastMeanwhile }) => leastMeanwhile));
      return least === Infinity ? '' : least;
    }),
    ...Object.fromEntries(
      stores.map((store, n) => [
        n > 0 ? STORES[store].title : `all in use again after, at most: ${STORES[store].title}`,
        (own) =>
          own[n] === undefined ? 'not played' : `${(own[n].wholeAfterMs / 1000).toFixed(1)} s`,
      ]),
    ),
  };
  const unsure = stores.map((store) => `${results[store].unsure} with ${STORES[store].title}`);
  return `${table(columns, plays)}

Calls taken while one second became the next, which have to fit into one of the two: ${unsure.join(', ')}.`;
}

const asked = words.includes('--store')
  ? [words[words.indexOf('--store') + 1]]
  : Object.keys(STORES);
if (!(asked[0] in STORES)) {
  console.error(`expected \`--store\` to be ${Object.keys(STORES).join(', ')}, got ${asked[0]}`);
  process.exit(2);
}
const results = {};
for (const store of asked) {
  console.error(`with ${STORES[store].title} ...`);
  results[store] = await soak(store);
}
const all = Object.values(results).flatMap(({ judged }) => judged);
const hasHeld = all.every(({ holds }) => holds);
if (words.includes('--json')) console.log(JSON.stringify(all));
else console.log(`${machineLine()}\n\n${tell(results)}`);
if (writes && hasHeld) {
  const made = madeBy('npm run soak:pool', loadLine());
  writeFigures('docs/reliability.md', 'pool', `${tell(results)}\n\n${made}`);
}
process.exitCode = hasHeld ? 0 : 1;
