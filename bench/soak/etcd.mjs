/**
 * A spacing shared through three servers that are one etcd, by six workers on clocks up to two hours apart, while servers
 * die, hang and are cut off.
 *
 *     npm run soak:etcd                  in networks of their own, if they can be made: three minutes; needs etcd and curl
 *     npm run soak:etcd -- --loopback    without: nobody can be cut off
 *     npm run soak:etcd -- --short       half a minute on loopback, as in the tests
 *     npm run soak:etcd -- speed         how fast: one key and many, one worker and six
 *     npm run soak:etcd -- --json        for a machine
 *     npm run soak:etcd -- --write       and write what came out into docs/reliability.md: as it is, or with speed
 *
 * Exit code 1 if two permits began too close, if anybody was let in without a quorum, or if an answer came after its deadline.
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
import { playAll } from './etcd/acts.mjs';
import { MEMBERS, startCluster } from './etcd/cluster.mjs';
import { gapsOf, judge } from './etcd/judge.mjs';
import { SPEED_COLUMNS, speed } from './etcd/speed.mjs';
import { startWorkers } from './etcd/workers.mjs';
import { hasNamespaces, makeNetwork } from './peers/network.mjs';
import { versionOf } from './server.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const isLoopback = isShort || words.includes('--loopback') || !hasNamespaces();
const isSpeed = words.includes('speed');
// In the docs speed is that on loopback, and the rest is not, as nobody can be cut off there.
const writes = isToWrite(!isShort && isLoopback === isSpeed);

const WORKERS = 6;
const EVERY_MS = 100;
const DEADLINE_MS = 1000;
/** An answer is late if it comes so much after its deadline: processes share two cores. */
const LATE_MS = 250;

/** It ends by itself long before; this is for what nobody thought of. */
const MAX_LASTS_MS = 600_000;

const tell = (text) =>
  console.error(`${(performance.now() / 1000).toFixed(0).padStart(4)} s  ${text}`);

// Networks and processes are removed on exit, so every end has to be one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));
setTimeout(() => process.exit(1), MAX_LASTS_MS).unref();

const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
const COLUMNS = {
  'what happens': ({ name }) => name,
  times: ({ times }) => times,
  permits: ({ permits }) => permits,
  'too close': ({ tooClose }) => tooClose,
  'least gap': ({ leastGapMs }) => `${leastGapMs.toFixed(2)} ms`,
  'held up after that, at most': ({ heldUpMs }) => ms(heldUpMs),
  use: ({ use }) => percent(use),
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
const results = isSpeed
  ? await speed(cluster.endpoints, network.within(MEMBERS), tell)
  : (await strict(network, cluster)).map((result) => ({ ...result, holds: holds(result) }));
await cluster.stop();
network.remove();

const isHeld = results.every((result) => result.holds !== false);
const withoutQuorum = results
  .filter(({ askedWithout }) => askedWithout !== undefined)
  .map(
    ({ askedWithout, allowedWithout, begunWithout }) =>
      `\n\nWithout a quorum: ${askedWithout} asks, ${allowedWithout} let in, ${begunWithout} permits begun.`,
  );
const told = `${table(isSpeed ? SPEED_COLUMNS : COLUMNS, results)}${withoutQuorum.join('')}`;
if (words.includes('--json')) console.log(JSON.stringify(results));
else console.log(`${machineLine()}, ${network.about}\n\n${told}`);

if (writes && isHeld) {
  const facts = [network.about, `etcd ${versionOf('etcd')}`, loadLine()];
  const toldBy = (command) => `${told}\n\n${madeBy(command, ...facts)}`;
  if (isSpeed) {
    const made = toldBy('npm run soak:etcd -- speed --loopback');
    writeFigures('docs/reliability.md', 'etcd-speed', made);
  } else {
    writeFigures('docs/reliability.md', 'etcd', toldBy('npm run soak:etcd'));
  }
}
process.exitCode = isHeld ? 0 : 1;
