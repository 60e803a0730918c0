/**
 * A spacing shared through three servers that are one etcd, by six workers on clocks up to two hours apart, while servers
 * die, hang and are cut off.
 *
 *     npm run soak:etcd                  in networks of their own, if they can be made: three minutes; needs etcd and curl
 *     npm run soak:etcd -- --loopback    without: nobody can be cut off
 *     npm run soak:etcd -- --short       half a minute on loopback, as in the tests
 *     npm run soak:etcd -- speed         how fast: one key and many, one worker and six
 *     npm run soak:etcd -- --json        for a machine
 *
 * Exit code 1 if two permits began too close, if anybody was let in without a quorum, or if an answer came after its deadline.
 */

import { machineLine, row } from '../report.mjs';
import { playAll } from './etcd/acts.mjs';
import { MEMBERS, startCluster } from './etcd/cluster.mjs';
import { gapsOf, judge } from './etcd/judge.mjs';
import { SPEED_COLUMNS, speed } from './etcd/speed.mjs';
import { startWorkers } from './etcd/workers.mjs';
import { hasNamespaces, makeNetwork } from './peers/network.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const isLoopback = isShort || words.includes('--loopback') || !hasNamespaces();

const WORKERS = 6;
const EVERY_MS = 100;
const DEADLINE_MS = 1000;
/** An answer is late if it comes so much after its deadline: processes share two cores. */
const LATE_MS = 250;

/** It ends by itself long before; this is for what nobody thought of. */
const LASTS_MS_MAX = 600_000;

const tell = (text) =>
  console.error(`${(performance.now() / 1000).toFixed(0).padStart(4)} s  ${text}`);

// Networks and processes are removed on exit, so every end has to be one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));
setTimeout(() => process.exit(1), LASTS_MS_MAX).unref();

const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
const COLUMNS = {
  'what happens': ({ name }) => name,
  times: ({ times }) => times,
  permits: ({ permits }) => permits,
  'too close': ({ tooClose }) => tooClose,
  'least gap': ({ leastGapMs }) => `${leastGapMs.toFixed(2)} ms`,
  use: ({ use }) => `${(100 * use).toFixed(1)} %`,
  'longest without a permit': ({ longestGapMs }) => ms(longestGapMs),
  'next permit after it was over': ({ nextPermitMs }) => ms(nextPermitMs),
  asks: ({ asks }) => asks,
  'slowest answer': ({ slowestMs }) => ms(slowestMs),
};

const holds = ({ tooClose, slowestMs, allowedWithout = 0, begunWithout = 0 }) =>
  tooClose === 0 && slowestMs <= DEADLINE_MS + LATE_MS && allowedWithout === 0 && begunWithout <= 1; // whoever had the next place already

async function strict(network, cluster) {
  const { endpoints } = cluster;
  const limit = { spacing: { every: EVERY_MS } };
  const setting = { limit, endpoints, workers: WORKERS, lines: 2, deadlineMs: DEADLINE_MS };
  const workers = await startWorkers({ ...setting, within: network.within(MEMBERS) });
  const played = await playAll({ cluster, network, isShort }, tell);
  await workers.stop();
  const seen = { gaps: gapsOf(workers.starts), asks: workers.asks, everyMs: EVERY_MS };
  return played.map((act) => judge(act, seen));
}

// The workers live in one more network than there are servers.
const network = await makeNetwork(MEMBERS + 1, 'list', isLoopback);
const cluster = await startCluster(network);
tell(`${MEMBERS} servers, ${network.about}`);
const isSpeed = words.includes('speed');
const results = isSpeed
  ? await speed(cluster.endpoints, network.within(MEMBERS), tell)
  : (await strict(network, cluster)).map((result) => ({ ...result, holds: holds(result) }));
await cluster.stop();
network.remove();

if (words.includes('--json')) {
  console.log(JSON.stringify(results));
} else {
  const columns = isSpeed ? SPEED_COLUMNS : COLUMNS;
  const names = Object.keys(columns);
  console.log(`${machineLine()}, ${network.about}\n`);
  console.log([row(names), row(names.map(() => '---'))].join('\n'));
  for (const result of results)
    console.log(row(Object.values(columns).map((cell) => cell(result))));
  for (const { askedWithout, allowedWithout, begunWithout } of results) {
    if (askedWithout === undefined) continue;
    console.log(
      `\nWithout a quorum: ${askedWithout} asks, ${allowedWithout} let in, ${begunWithout} permits begun.`,
    );
  }
}
process.exitCode = results.every((result) => result.holds !== false) ? 0 : 1;
