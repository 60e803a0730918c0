/**
 * How fast one process decides, beside what people use today.
 *
 *     npm run bench               five rounds, medians, written to bench/RESULTS.md
 *     npm run bench -- --smoke    seconds, writes nothing: keeps the benchmark from rotting
 *
 * Ratios travel from machine to machine, figures do not: compare within one run only. Rounds take
 * turns among the contenders, so that a noisy minute hits all of them.
 */

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { contenders } from './contenders.mjs';
import { machineLine, median, millions, row, times, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 5;
const KEYS = smoke ? 10_000 : 1_000_000;
const SPAN_MS = smoke ? 20 : 700;
const BASE = 'rate-limiter-flexible';
const ALL = KEYS.toLocaleString('en');
const COLUMNS = {
  hot: 'one hot key',
  few: '1,000 hot keys',
  uniform: `${ALL} keys, uniform`,
  zipf: `${ALL} keys, Zipf`,
};

const measure = (name) => {
  const script = fileURLToPath(new URL('./measure.mjs', import.meta.url));
  const args = ['--expose-gc', '--max-old-space-size=8192', script, name, KEYS, SPAN_MS];
  return JSON.parse(execFileSync(process.execPath, args.map(String), { encoding: 'utf8' }));
};

const rounds = Object.fromEntries(Object.keys(contenders).map((name) => [name, []]));
for (let round = 1; round <= ROUNDS; round++) {
  for (const name of Object.keys(contenders)) {
    process.stderr.write(`round ${round} of ${ROUNDS}: ${name.padEnd(32)}\r`);
    rounds[name].push(measure(name));
  }
}
process.stderr.write(`${' '.repeat(60)}\r`);

const result = Object.entries(rounds).map(([name, own]) => ({
  name,
  bytesPerKey: median(own.map(({ bytesPerKey }) => bytesPerKey)),
  ...Object.fromEntries(
    Object.keys(COLUMNS).map((column) => [column, median(own.map((round) => round[column]))]),
  ),
}));
const base = result.find(({ name }) => name === BASE);

const table = [
  row(['', ...Object.values(COLUMNS), 'bytes a key']),
  row(['---', ...Object.keys(COLUMNS).map(() => '---:'), '---:']),
  ...result.map((one) =>
    row([
      one.name,
      ...Object.keys(COLUMNS).map(
        (column) => `${millions(one[column])} (${times(one[column] / base[column])})`,
      ),
      Math.round(one.bytesPerKey),
    ]),
  ),
].join('\n');

console.log(table);
if (!smoke) {
  writeSection(
    'One process, local decisions',
    `Decisions a second, and how many times ${BASE} that is. Medians of ${ROUNDS} rounds in one run of
\`npm run bench\`; ${machineLine()}. A limit that is never reached, keys of
some 20 characters; bytes include the key where a contender keeps it.

${table}`,
  );
}
