/**
 * Soak run of pools: pods divide a limit through a real Redis, NATS server or etcd, while faults are injected into both.
 *
 *     npm run soak:pool                     each fault five times, outages of 15 s, one store after the other
 *     npm run soak:pool -- --store etcd     one store only: redis, nats, etcd
 *     npm run soak:pool -- --short          each fault once, outages of 4 s, as in the tests
 *     npm run soak:pool -- --member-timeout 1500ms   a member silent for this long is dropped; default 2s
 *     npm run soak:pool -- --json           prints JSON
 *     npm run soak:pool -- --write          writes the figures into docs/explanation/guarantees.md
 *
 * Pods are processes on loopback with clocks hours apart. The store uses this machine's clock, so seconds are this
 * machine's. Exit code 1 if the pods took more than the limit in any second, or did not fully use it again in time; the
 * run of that store then ends.
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

/** Pause before each fault. It varies, so that faults hit different parts of a second. */
let faultCount = 0;
const nextPauseMs = () => 1000 + ((faultCount++ * 370) % 1000);

/** The faults by name. A fault is over when its promise resolves. */
const faultsOf = ({ deleteData }) => ({
  'one more joins': async (pods) => pods.start(),
  'one leaves': (pods) => pods.leave(),
  'one joins': async (pods) => pods.start(),
  'one is killed (`kill -9`)': (pods) => pods.kill(),
  'another joins': async (pods) => pods.start(),
  [`the store is suspended for ${OUTAGE_MS / 1000} s`]: async (_, server) => {
    server.pause();
    await sleep(OUTAGE_MS);
    server.resume();
  },
  [`the store is killed, restarted after ${OUTAGE_MS / 1000} s without its data`]: async (
    _,
    server,
  ) => {
    await server.kill();
    await sleep(OUTAGE_MS);
    server.wipe();
    await server.restart();
  },
  'the store restarts without its data, and one joins at once': async (pods, server) => {
    await server.kill();
    server.wipe();
    await server.restart();
    pods.start();
  },
  "the store's data is deleted, and one is killed": async (pods, server) => {
    await deleteData(server);
    await pods.kill();
  },
});

const isHeld = ({ most, wholeAfterMs }) => most <= LIMIT && wholeAfterMs < Infinity;

/** Injects one fault, and waits until the limit is fully used again. */
async function inject(fault, pods, server) {
  const from = Date.now(); // the whole second counts
  await sleep(nextPauseMs());
  const startedAt = Date.now();
  await fault(pods, server);
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

/** Injects all faults with one store, and summarises the runs of each fault. */
async function soak(store) {
  const server = await STORES[store].start();
  const limit = { ramp: { min: LIMIT, max: LIMIT, over: '1s' } };
  const pods = new Pods({ store, port: server.port, limit, options: OPTIONS });
  const runs = {};
  try {
    const startAll = async () => {
      for (let n = 0; n < PODS; n++) pods.start();
    };
    const faults = faultsOf(STORES[store]);
    const rounds = Array.from({ length: TIMES }, () => Object.entries(faults)).flat();
    for (const [name, fault] of [[`${PODS} members start at once`, startAll], ...rounds]) {
      runs[name] ??= [];
      const latest = await inject(fault, pods, server);
      runs[name].push(latest);
      if (!isHeld(latest)) break;
    }
  } finally {
    await pods.stop();
    await server.stop();
  }
  return {
    unsure: pods.unsure,
    judged: Object.entries(runs).map(([name, each]) => judge(name, each)),
  };
}

const judge = (name, runs) => ({
  name,
  times: runs.length,
  limit: LIMIT,
  most: Math.max(...runs.map(({ most }) => most)),
  leastMeanwhile: Math.min(...runs.map(({ leastMeanwhile }) => leastMeanwhile)),
  wholeAfterMs: Math.max(...runs.map(({ wholeAfterMs }) => wholeAfterMs)),
  holds: runs.every(isHeld),
});

/** One row per fault: the worst figures over all stores, and the recovery time with each store. */
function reportOf(results) {
  const stores = Object.keys(results);
  const names = new Set(stores.flatMap((store) => results[store].judged.map(({ name }) => name)));
  const rows = [...names].map((name) =>
    stores.map((store) => results[store].judged.find((result) => result.name === name)),
  );
  const ofAll = (read) => (row) => read(row.filter((result) => result !== undefined));
  const columns = {
    fault: ofAll(([{ name }]) => name),
    times: ofAll(([{ times }]) => times),
    'peak in a second': ofAll((row) => `${Math.max(...row.map(({ most }) => most))} of ${LIMIT}`),
    'minimum during the outage': ofAll((row) => {
      const least = Math.min(...row.map(({ leastMeanwhile }) => leastMeanwhile));
      return least === Infinity ? '' : least;
    }),
    ...Object.fromEntries(
      stores.map((store, n) => [
        n > 0 ? STORES[store].title : `fully used again after, at most: ${STORES[store].title}`,
        (row) =>
          row[n] === undefined ? 'not run' : `${(row[n].wholeAfterMs / 1000).toFixed(1)} s`,
      ]),
    ),
  };
  const unsure = stores.map((store) => `${results[store].unsure} with ${STORES[store].title}`);
  return `${table(columns, rows)}

Calls taken at the boundary of two seconds, which must fit into one of them: ${unsure.join(', ')}.`;
}

const chosen = words.includes('--store')
  ? [words[words.indexOf('--store') + 1]]
  : Object.keys(STORES);
if (!(chosen[0] in STORES)) {
  console.error(`expected \`--store\` to be ${Object.keys(STORES).join(', ')}, got ${chosen[0]}`);
  process.exit(2);
}
const results = {};
for (const store of chosen) {
  console.error(`with ${STORES[store].title} ...`);
  results[store] = await soak(store);
}
const all = Object.values(results).flatMap(({ judged }) => judged);
const hasHeld = all.every(({ holds }) => holds);
if (words.includes('--json')) console.log(JSON.stringify(all));
else console.log(`${machineLine()}\n\n${reportOf(results)}`);
if (writes && hasHeld) {
  const made = madeBy('npm run soak:pool', loadLine());
  writeFigures('docs/explanation/guarantees.md', 'pool', `${reportOf(results)}\n\n${made}`);
}
process.exitCode = hasHeld ? 0 : 1;
