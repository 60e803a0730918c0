/**
 * Pods that divide a limit through a real Redis, NATS server or etcd, and what happens to them and to it.
 *
 *     npm run soak:pool                     each thing five times, outages of 15 s, with one store after the other
 *     npm run soak:pool -- --store etcd     with that one only: redis, nats, etcd
 *     npm run soak:pool -- --short          once, outages of 4 s, as in the tests
 *     npm run soak:pool -- --stale 1500ms   who is silent for so long is gone; 2s by default
 *     npm run soak:pool -- --json           for a machine
 *
 * Everything happens on loopback with processes of its own, whose clocks are hours apart; the store's clock is this machine's,
 * so its seconds are. Exit code 1 if in any second they took more than the limit, or did not soon take all of it again; then
 * nothing more happens to that store.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { machineLine, row } from '../report.mjs';
import { Pods } from './pods.mjs';
import { STORES } from './pool-stores.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const TIMES = isShort ? 1 : 5;
const OUTAGE_MS = isShort ? 4000 : 15_000;

/** No number of pods divides it. */
const LIMIT = 103;
const PODS = 5;
const STALE = words.includes('--stale') ? words[words.indexOf('--stale') + 1] : '2s';
const OPTIONS = { name: 'soak', hold: '30s', stale: STALE };

const WHOLE_WITHIN_MS = 30_000;

/** Things happen so long after each other, and in another part of a second each time. */
let played = 0;
const apartMs = () => 1000 + ((played++ * 370) % 1000);

/** What happens to pods and to their store. It is over when the act is. */
const actsWith = ({ title, forget }) => ({
  'one more comes': async (pods) => pods.start(),
  'one leaves': (pods) => pods.leave(),
  'one comes': async (pods) => pods.start(),
  'one is killed (`kill -9`)': (pods) => pods.kill(),
  'another comes': async (pods) => pods.start(),
  [`${title} stands still for ${OUTAGE_MS / 1000} s`]: async (_, server) => {
    server.pause();
    await sleep(OUTAGE_MS);
    server.resume();
  },
  [`${title} is killed, and back after ${OUTAGE_MS / 1000} s without a memory`]: async (
    _,
    server,
  ) => {
    await server.kill();
    await sleep(OUTAGE_MS);
    await server.restartEmpty();
  },
  [`${title} comes back without a memory, and one comes at once`]: async (pods, server) => {
    await server.kill();
    await server.restartEmpty();
    pods.start();
  },
  [`${title} forgets everything, and one is killed`]: async (pods, server) => {
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

const HEADS = [
  ...['what happens', 'times', 'most in a second', 'least meanwhile'],
  'all in use again after, at most',
];

function print(title, { unsure, judged }) {
  console.log(`${title}; taken while a second changed: ${unsure}\n\n${row(HEADS)}`);
  console.log(row(HEADS.map(() => '---')));
  for (const { name, times, most, leastMeanwhile, wholeAfterMs } of judged) {
    const least = leastMeanwhile === Infinity ? '' : leastMeanwhile;
    const whole = `${(wholeAfterMs / 1000).toFixed(1)} s`;
    console.log(row([name, times, `${most} of ${LIMIT}`, least, whole]));
  }
  console.log();
}

const asked = words.includes('--store')
  ? [words[words.indexOf('--store') + 1]]
  : Object.keys(STORES);
if (!(asked[0] in STORES)) {
  console.error(`expected --store to be ${Object.keys(STORES).join(', ')}, got ${asked[0]}`);
  process.exit(2);
}
const isForMachine = words.includes('--json');
if (!isForMachine) console.log(`${machineLine()}\n`);
const all = [];
for (const store of asked) {
  const result = await soak(store);
  all.push(...result.judged);
  if (!isForMachine) print(STORES[store].title, result);
}
if (isForMachine) console.log(JSON.stringify(all));
process.exitCode = all.every(({ holds }) => holds) ? 0 : 1;
