/**
 * Decisions per second in one process, compared with other libraries.
 *
 *     npm run bench               medians of five rounds, written to bench/RESULTS.md
 *     npm run bench -- --smoke    a few seconds, writes nothing
 *
 * Compare within one run only: ratios hold across machines, absolute numbers do not. Every round runs all competitors,
 * so that other load affects all of them.
 */

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { competitors } from './competitors.mjs';
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
  const script = fileURLToPath(new URL('./measure-local.mjs', import.meta.url));
  const args = ['--expose-gc', '--max-old-space-size=8192', script, name, KEYS, SPAN_MS];
  return JSON.parse(execFileSync(process.execPath, args.map(String), { encoding: 'utf8' }));
};

const rounds = Object.fromEntries(Object.keys(competitors).map((name) => [name, []]));
for (let round = 1; round <= ROUNDS; round++) {
  for (const name of Object.keys(competitors)) {
    process.stderr.write(`round ${round} of ${ROUNDS}: ${name.padEnd(32)}\r`);
    rounds[name].push(measure(name));
  }
}
process.stderr.write(`${' '.repeat(60)}\r`);

const result = Object.entries(rounds).map(([name, measured]) => ({
  name,
  bytesPerKey: median(measured.map(({ bytesPerKey }) => bytesPerKey)),
  ...Object.fromEntries(
    Object.keys(COLUMNS).map((column) => [column, median(measured.map((round) => round[column]))]),
  ),
}));
const base = result.find(({ name }) => name === BASE);

const table = [
  row(['', ...Object.values(COLUMNS), 'bytes per key']),
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
    `Decisions per second, and the ratio to ${BASE}. Medians of ${ROUNDS} rounds in one run of
\`npm run bench\`; ${machineLine()}. A limit that is never reached, keys of
about 20 characters; bytes include the key where a library keeps it.

${table}`,
  );
}
