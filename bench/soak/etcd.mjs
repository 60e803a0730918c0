/**
 * Soak test of a spacing shared through three etcd members, while members are killed, paused and partitioned.
 *
 * Six workers share it, with clocks up to two hours apart.
 *
 *     npm run soak:etcd                  in network namespaces, if available: three minutes; needs etcd and curl
 *     npm run soak:etcd -- --loopback    without namespaces: no partitions
 *     npm run soak:etcd -- --short       half a minute on loopback, as in the tests
 *     npm run soak:etcd -- speed         decisions per second: one key and many, one worker and six
 *     npm run soak:etcd -- --json        machine-readable output
 *     npm run soak:etcd -- --write       also writes the table into docs/explanation/guarantees.md; not with --short
 *
 * Exit code 1 if two permits were too close, a call was allowed without a quorum, or a decision missed its deadline.
 */

import {
  isToWrite,
  loadLine,
  machineLine,
  madeBy,
  percent,
  table,
  writeFigures,
} from '../report.mjs';
import { MEMBERS, startCluster } from './etcd/cluster.mjs';
import { runFaults } from './etcd/faults.mjs';
import { gapsOf, judge } from './etcd/judge.mjs';
import { SPEED_COLUMNS, speed } from './etcd/speed.mjs';
import { startWorkers } from './etcd/workers.mjs';
import { createNetwork, hasNamespaces } from './peers/network.mjs';
import { versionOf } from './server.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const isLoopback = isShort || words.includes('--loopback') || !hasNamespaces();
const isSpeed = words.includes('speed');
// The docs show speed on loopback, and faults in namespaces, where members can be partitioned.
const writes = isToWrite(!isShort && isLoopback === isSpeed);

const WORKERS = 6;
const EVERY_MS = 100;
const DEADLINE_MS = 1000;
/** Tolerance beyond the deadline: the processes share two cores. */
const LATENESS_MS = 250;

/** A watchdog: a normal run is much shorter. */
const MAX_RUN_MS = 600_000;

const log = (text) =>
  console.error(`${(performance.now() / 1000).toFixed(0).padStart(4)} s  ${text}`);

// Networks and processes are removed on exit, so signals must exit, too.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));
setTimeout(() => process.exit(1), MAX_RUN_MS).unref();

const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
const COLUMNS = {
  fault: ({ name }) => name,
  times: ({ times }) => times,
  permits: ({ permits }) => permits,
  violations: ({ tooClose }) => tooClose,
  'smallest gap': ({ leastGapMs }) => `${leastGapMs.toFixed(2)} ms`,
  'longest stall after the grant': ({ stallMs }) => ms(stallMs),
  utilisation: ({ utilisation }) => percent(utilisation),
  'longest gap': ({ longestGapMs }) => ms(longestGapMs),
  'next permit after recovery': ({ nextPermitMs }) => ms(nextPermitMs),
  checks: ({ checks }) => checks,
  'slowest decision': ({ slowestMs }) => ms(slowestMs),
};

const holds = ({ tooClose, slowestMs, allowedWithout = 0, startedWithout = 0 }) =>
  tooClose === 0 &&
  slowestMs <= DEADLINE_MS + LATENESS_MS &&
  allowedWithout === 0 &&
  startedWithout <= 1; // a waiter may have had the next permit already

async function strict(network, cluster) {
  const { endpoints } = cluster;
  const limit = { spacing: { every: EVERY_MS } };
  const setting = { limit, endpoints, workers: WORKERS, lines: 2, deadlineMs: DEADLINE_MS };
  const workers = await startWorkers({ ...setting, within: network.within(MEMBERS) });
  const hasPermitSince = (since) => workers.starts.some(({ at }) => at >= since);
  const faults = await runFaults({ cluster, network, isShort, hasPermitSince }, log);
  await workers.stop();
  const observed = { gaps: gapsOf(workers.starts), checks: workers.checks, everyMs: EVERY_MS };
  return faults.map((fault) => judge(fault, observed));
}

// One network for each server, and one for the workers.
const network = await createNetwork(MEMBERS + 1, 'list', isLoopback);
const cluster = await startCluster(network);
log(`${MEMBERS} servers, ${network.about}`);
const results = isSpeed
  ? await speed(cluster.endpoints, network.within(MEMBERS), log)
  : (await strict(network, cluster)).map((result) => ({ ...result, holds: holds(result) }));
await cluster.stop();
network.remove();

const isHeld = results.every((result) => result.holds !== false);
const withoutQuorum = results
  .filter(({ checkedWithout }) => checkedWithout !== undefined)
  .map(
    ({ checkedWithout, allowedWithout, startedWithout }) =>
      `\n\nWithout a quorum: ${checkedWithout} checks, ${allowedWithout} allowed, ${startedWithout} permits started.`,
  );
const report = `${table(isSpeed ? SPEED_COLUMNS : COLUMNS, results)}${withoutQuorum.join('')}`;
if (words.includes('--json')) console.log(JSON.stringify(results));
else console.log(`${machineLine()}, ${network.about}\n\n${report}`);

if (writes && isHeld) {
  const facts = [network.about, `etcd ${versionOf('etcd')}`, loadLine()];
  const reportOf = (command) => `${report}\n\n${madeBy(command, ...facts)}`;
  if (isSpeed) {
    const text = reportOf('npm run soak:etcd -- speed --loopback');
    writeFigures('docs/explanation/guarantees.md', 'etcd-speed', text);
  } else {
    writeFigures('docs/explanation/guarantees.md', 'etcd', reportOf('npm run soak:etcd'));
  }
}
process.exitCode = isHeld ? 0 : 1;
