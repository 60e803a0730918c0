/**
 * How far each constant of the delay rule can change until a mean score changes by 0.02 or more.
 *
 *     npm run build && node bench/adaptive-constants.mjs                  all constants, about half an hour on two cores
 *     npm run build && node bench/adaptive-constants.mjs quick gain       these
 *
 * Each constant is multiplied by some factors. The scores are the means over some servers of one client and some that
 * clients share, medians of five seeds. A factor that changes a score by less is within the range.
 */

import { C } from '../dist/policies/delay/constants.js';
import { CATALOGUE } from '../dist/simulator/laboratory/catalogue.js';
import { findRule } from '../dist/simulator/laboratory/rules.js';
import { evaluate, meanScore } from '../dist/simulator/laboratory/score.js';
import { table } from './report.mjs';

const ONE =
  'mm5,mm20,sharing,far,halved,slower,path-100,quota,overflow,timeouts,lost-5,streams'.split(',');
const SHARED = 'clients-2,clients-8,clients-16,paths-8,step-8'.split(',');
const SEEDS = [501, 502, 503, 504, 505];
const LESS = [0.85, 0.7, 0.5, 0.35];
const MORE = [1.2, 1.5, 2, 3];
const TOLERATED = 0.02;

const sinksOf = (names) => CATALOGUE.filter(({ name }) => names.includes(name));
const rule = { name: 'delay', create: findRule('delay') };
const scoreOf = (names) => meanScore(sinksOf(names).map((sink) => evaluate(rule, sink, SEEDS)));
const scores = () => [scoreOf(ONE), scoreOf(SHARED)];

const asked = process.argv.slice(2);
const names = asked.length > 0 ? asked : Object.keys(C);
const unknown = names.find((name) => !(name in C));
if (unknown !== undefined) {
  console.error(`expected constants of ${Object.keys(C).join(', ')}, got ${unknown}`);
  process.exit(2);
}

const base = scores();
console.error(`one client ${base[0].toFixed(3)}, shared ${base[1].toFixed(3)}`);

/** The last value in a direction with which both scores stay. */
function reach(name, factors) {
  const value = C[name];
  let last = value;
  for (const factor of factors) {
    C[name] = value * factor;
    const changed = scores().some((score, n) => Math.abs(score - base[n]) >= TOLERATED);
    C[name] = value;
    if (changed) break;
    last = value * factor;
  }
  return last;
}

const digits = (value) => `${Number(value.toPrecision(3))}`;
const rows = names.map((name, n) => {
  const row = { name, value: C[name], from: reach(name, LESS), to: reach(name, MORE) };
  console.error(`${n + 1} of ${names.length}: ${name} ${digits(row.from)} to ${digits(row.to)}`);
  return row;
});
console.log(
  table(
    {
      constant: ({ name }) => `\`${name}\``,
      value: ({ value }) => digits(value),
      from: ({ from }) => digits(from),
      to: ({ to }) => digits(to),
    },
    rows,
  ),
);
