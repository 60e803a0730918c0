/**
 * Soak test of the peers backend: eight daemons in network namespaces share one limit under faults, while one client sends
 * ten times the limit.
 *
 *     npm run soak:peers                  over multicast, then over a list of addresses; five minutes
 *     npm run soak:peers -- --short       four daemons over multicast, half a minute, as in the tests
 *     npm run soak:peers -- --loopback    without namespaces: no partitions, no loss
 *     npm run soak:peers -- --svg FILE    also draw a chart of admitted calls
 *     npm run soak:peers -- --json        JSON output
 *     npm run soak:peers -- --write       write the results into docs/explanation/guarantees.md and its chart
 *
 * Exit code 1 if a phase exceeds the bound of docs/explanation/accuracy-of-peers.md.
 */

import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { isToWrite, loadLine, machineLine, madeBy, writeFigures } from '../report.mjs';
import { startDaemons } from './peers/daemons.mjs';
import { runPhases } from './peers/faults.mjs';
import { centralOf, judge, wholeRunOf } from './peers/judge.mjs';
import { startLoad } from './peers/load.mjs';
import { startMonitor } from './peers/monitor.mjs';
import { createNetwork, hasNamespaces } from './peers/network.mjs';
import { drawRuns } from './peers/picture.mjs';
import { tablesOf } from './peers/tables.mjs';

const flag = { type: 'boolean', default: false };
const options = { short: flag, loopback: flag, json: flag, write: flag, svg: { type: 'string' } };
const { short: isShort, json, svg, ...flags } = parseArgs({ options }).values;
const isLoopback = flags.loopback || !hasNamespaces();
const writes = isToWrite(!isShort && !isLoopback);

const KEY = 'client';
const rule = { nodes: isShort ? 4 : 8, rate: 100, burst: 100, load: 10, clients: 1 };

/** Watchdog: a run ends long before. */
const MAX_RUN_MS = isShort ? 90_000 : 900_000;

const startedAt = performance.now();
const log = (text) =>
  console.error(`${((performance.now() - startedAt) / 1000).toFixed(0).padStart(4)} s  ${text}`);

// Namespaces and processes are removed by exit handlers, so signals must exit the process.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));
setTimeout(() => {
  log(`not finished after ${MAX_RUN_MS / 1000} s: aborted`);
  process.exit(1);
}, MAX_RUN_MS).unref();

async function run(mode) {
  const network = await createNetwork(rule.nodes, mode, isLoopback);
  log(`${rule.nodes} daemons over ${network.name}, ${network.about}`);
  const fleet = await startDaemons(network, rule.nodes, rule);
  const load = startLoad(fleet.lines, rule.rate * rule.load, KEY);
  const monitor = startMonitor(fleet, KEY, rule.burst);
  const phases = await runPhases({ network, fleet, load, monitor, isShort, rule }, log);
  await load.stop();
  await monitor.stop();
  await fleet.stopAll();
  network.remove();
  const context = { load, monitor, network, rule, central: centralOf(load.calls, rule) };
  const results = [...phases, wholeRunOf(phases)].map((phase) => judge(phase, context));
  return { name: network.name, about: network.about, rule, phases, load, results };
}

if (isLoopback && !flags.loopback) log('network namespaces are not permitted: using loopback');
const modes = isShort || isLoopback ? ['group'] : ['group', 'list'];
const runs = [];
for (const mode of modes) runs.push(await run(mode));

if (json) {
  console.log(JSON.stringify(runs.map(({ name, about, results }) => ({ name, about, results }))));
} else {
  console.log(`${machineLine()}, ${loadLine()}`);
  for (const { name, about, results } of runs)
    console.log(`\n${name}, ${about}\n\n${tablesOf(results)}`);
}
if (svg !== undefined) writeFileSync(svg, drawRuns(runs));

for (const { name, results } of runs) {
  for (const phase of results) {
    for (const { what, calls, bound } of phase.broken) {
      const figures = `${Math.ceil(calls)} calls, the bound is ${Math.floor(bound)}`;
      console.error(`ABOVE THE BOUND: ${name}, ${phase.name}, ${what}: ${figures}`);
      process.exitCode = 1;
    }
  }
}

if (writes && !process.exitCode) {
  const sections = runs.map(({ name, results }) => `Over ${name}:\n\n${tablesOf(results)}`);
  const about = madeBy('npm run soak:peers', runs[0].about, loadLine());
  writeFigures('docs/explanation/guarantees.md', 'peers', [...sections, about].join('\n\n'));
  writeFileSync(new URL('../../docs/pictures/peers-soak.svg', import.meta.url), drawRuns(runs));
}
