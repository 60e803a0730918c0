/**
 * Runs adaptive and busy limits against real servers on loopback, in real time, and compares the results with
 * expectations.
 *
 *     npm run demo:real-servers                     all scenarios, half a minute
 *     npm run demo:real-servers -- ramp-up          one: ramp-up, outage, slow-down, quota, flood, busy; adaptive: the first five
 *     npm run demo:real-servers -- --json           JSON
 *     npm run demo:real-servers -- --svg DIR        also draws DIR/adaptive-live.svg and DIR/busy-live.svg
 *
 * Exit code 1 if an expectation does not hold, 2 for an unknown scenario.
 */

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { flood, outage, quota, rampUp, slowDown } from './adaptive.mjs';
import { busy } from './busy.mjs';
import { drawAdaptive, drawBusy } from './charts.mjs';

const SCENARIOS = { 'ramp-up': rampUp, outage, 'slow-down': slowDown, quota, flood, busy };
const NAMES = Object.keys(SCENARIOS);

/** Scenarios with little traffic run at the same time. */
const STAGES = [['ramp-up', 'outage', 'slow-down', 'quota'], ['flood'], ['busy']];
const ADAPTIVE = NAMES.filter((name) => name !== 'busy');

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'boolean' }, svg: { type: 'string' } },
});
const wanted = positionals.flatMap((name) => (name === 'adaptive' ? ADAPTIVE : [name]));
const unknown = wanted.find((name) => !NAMES.includes(name));
if (unknown) {
  console.error(
    `expected a scenario of ${NAMES.join(', ')}, adaptive (the first five), got "${unknown}"`,
  );
  process.exit(2);
}

const print = values.json ? () => {} : console.log;
const line = ({ name, expected, seen, holds }) =>
  `${holds ? 'yes' : 'NO '}  ${name.padEnd(12)} ${expected.padEnd(52)} ${seen}`;
print(`     ${'scenario'.padEnd(12)} ${'expected'.padEnd(52)} measured`);

const results = {};
const rows = [];

async function run(name) {
  const result = await SCENARIOS[name]();
  results[name] = result;
  const own = (result.rows ?? [{ ...result, name }]).map(
    ({ name: row, expected, seen, holds }) => ({
      name: row,
      expected,
      seen,
      holds,
    }),
  );
  rows.push(...own);
  for (const row of own) print(line(row));
}

for (const stage of STAGES) {
  const names = stage.filter((name) => wanted.length === 0 || wanted.includes(name));
  await Promise.all(names.map(run));
}

if (values.json) {
  const facts = Object.fromEntries(Object.entries(results).map(([name, one]) => [name, one.facts]));
  console.log(JSON.stringify({ rows, facts }));
}
if (values.svg) {
  mkdirSync(values.svg, { recursive: true });
  const five = ADAPTIVE.map((name) => results[name]).filter(Boolean);
  if (five.length > 0) writeFileSync(join(values.svg, 'adaptive-live.svg'), drawAdaptive(five));
  if (results.busy) writeFileSync(join(values.svg, 'busy-live.svg'), drawBusy(results.busy));
}
process.exitCode = rows.every(({ holds }) => holds) ? 0 : 1;
