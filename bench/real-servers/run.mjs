/**
 * Runs the live scenarios and says what was expected and what was seen.
 *
 *     npm run demo:real-servers                     all of them, half a minute
 *     npm run demo:real-servers -- climb            one: climb, silence, slowing, quota, flood, busy; or adaptive, the first five
 *     npm run demo:real-servers -- --json           for a program to read
 *     npm run demo:real-servers -- --svg DIR        and draw DIR/adaptive-live.svg and DIR/busy-live.svg
 *
 * Real servers on loopback, real time, the package as it is published. Exits with 1 if something expected
 * was not seen.
 */

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { climb, flood, quota, silence, slowing } from './adaptive.mjs';
import { busy } from './busy.mjs';
import { drawAdaptive, drawBusy } from './charts.mjs';

const SCENARIOS = { climb, silence, slowing, quota, flood, busy };
const NAMES = Object.keys(SCENARIOS);

/** Those that send so little that they do not disturb each other go on at the same time. */
const ACTS = [['climb', 'silence', 'slowing', 'quota'], ['flood'], ['busy']];
const ADAPTIVE = NAMES.filter((name) => name !== 'busy');

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'boolean' }, svg: { type: 'string' } },
});
const wanted = positionals.flatMap((name) => (name === 'adaptive' ? ADAPTIVE : [name]));
const unknown = wanted.find((name) => !NAMES.includes(name));
if (unknown) {
  console.error(
    `no scenario "${unknown}": there are ${NAMES.join(', ')}, and adaptive for the first five`,
  );
  process.exit(2);
}

const say = values.json ? () => {} : console.log;
const line = ({ name, expected, seen, holds }) =>
  `${holds ? 'yes' : 'NO '}  ${name.padEnd(12)} ${expected.padEnd(52)} ${seen}`;
say(`     ${'scenario'.padEnd(12)} ${'expected'.padEnd(52)} seen`);

const results = {};
const rows = [];

async function play(name) {
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
  for (const row of own) say(line(row));
}

for (const act of ACTS) {
  const names = act.filter((name) => wanted.length === 0 || wanted.includes(name));
  await Promise.all(names.map(play));
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
