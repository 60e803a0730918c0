/**
 * A fleet of real daemons that keep one limit without a server, while things happen to it: eight processes in network
 * namespaces, one client that asks all of them for ten times the limit.
 *
 *     npm run soak:peers                  over a multicast group, then over a list of addresses; five minutes
 *     npm run soak:peers -- --short       four daemons and a group, half a minute, as in the tests
 *     npm run soak:peers -- --loopback    without namespaces: nothing can be cut off, nothing lost
 *     npm run soak:peers -- --svg FILE    also draw what was let through
 *     npm run soak:peers -- --json        for a machine
 *     npm run soak:peers -- --write       and write what came out into docs/reliability.md and its picture
 *
 * Exit code 1 if more was let through than docs/accuracy.md says can be; what and when is said.
 */

import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { isToWrite, loadLine, machineLine, madeBy, writeFigures } from '../report.mjs';
import { playAll } from './peers/acts.mjs';
import { startDaemons } from './peers/daemons.mjs';
import { centralOf, judge, wholeOf } from './peers/judge.mjs';
import { startLoad } from './peers/load.mjs';
import { hasNamespaces, makeNetwork } from './peers/network.mjs';
import { drawRuns } from './peers/picture.mjs';
import { tablesOf } from './peers/tables.mjs';
import { startWatch } from './peers/watch.mjs';

const flag = { type: 'boolean', default: false };
const options = { short: flag, loopback: flag, json: flag, write: flag, svg: { type: 'string' } };
const { short: isShort, json, svg, ...wanted } = parseArgs({ options }).values;
const isLoopback = wanted.loopback || !hasNamespaces();
const writes = isToWrite(!isShort && !isLoopback);

const KEY = 'client';
const rule = { nodes: isShort ? 4 : 8, rate: 100, burst: 100, load: 10, clients: 1 };

/** It ends by itself long before; this is for what nobody thought of. */
const MAX_LASTS_MS = isShort ? 90_000 : 900_000;

const began = performance.now();
const tell = (text) =>
  console.error(`${((performance.now() - began) / 1000).toFixed(0).padStart(4)} s  ${text}`);

// Namespaces and processes are removed on exit, so every end has to be one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));
setTimeout(() => {
  tell(`not over after ${MAX_LASTS_MS / 1000} s: given up`);
  process.exit(1);
}, MAX_LASTS_MS).unref();

async function run(way) {
  const network = await makeNetwork(rule.nodes, way, isLoopback);
  tell(`${rule.nodes} daemons through ${network.name}, ${network.about}`);
  const fleet = await startDaemons(network, rule.nodes, rule);
  const load = startLoad(fleet.lines, rule.rate * rule.load, KEY);
  const watch = startWatch(fleet, KEY, rule.burst);
  const acts = await playAll({ network, fleet, load, watch, isShort, rule }, tell);
  await load.stop();
  await watch.stop();
  await fleet.stopAll();
  network.remove();
  const stage = { load, watch, network, rule, central: centralOf(load.asked, rule) };
  const results = [...acts, wholeOf(acts)].map((act) => judge(act, stage));
  return { name: network.name, about: network.about, rule, acts, load, results };
}

if (isLoopback && !wanted.loopback) tell('no namespaces are permitted here: on loopback instead');
const ways = isShort || isLoopback ? ['group'] : ['group', 'list'];
const runs = [];
for (const way of ways) runs.push(await run(way));

if (json) {
  console.log(JSON.stringify(runs.map(({ name, about, results }) => ({ name, about, results }))));
} else {
  console.log(`${machineLine()}, ${loadLine()}`);
  for (const { name, about, results } of runs)
    console.log(`\n${name}, ${about}\n\n${tablesOf(results)}`);
}
if (svg !== undefined) writeFileSync(svg, drawRuns(runs));

for (const { name, results } of runs) {
  for (const act of results) {
    for (const { what, calls, bound } of act.broken) {
      const figures = `${Math.ceil(calls)} calls, at most ${Math.floor(bound)} were stated`;
      console.error(`ABOVE THE BOUND: ${name}, ${act.name}, ${what}: ${figures}`);
      process.exitCode = 1;
    }
  }
}

if (writes && !process.exitCode) {
  const told = runs.map(({ name, results }) => `Through ${name}:\n\n${tablesOf(results)}`);
  const about = madeBy('npm run soak:peers', runs[0].about, loadLine());
  writeFigures('docs/reliability.md', 'peers', [...told, about].join('\n\n'));
  writeFileSync(new URL('../../docs/pictures/peers-soak.svg', import.meta.url), drawRuns(runs));
}
