/**
 * Formats results and writes them into pages, with the machine and the day of the measurement.
 *
 * Benchmarks write sections of bench/RESULTS.md. Figures inside a page of docs/ are in a block:
 *
 *     <!-- figures: NAME -->
 *     a table or sentences; the last line has the command, the machine and the day
 *     <!-- /figures -->
 */

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, totalmem } from 'node:os';

const ROOT = new URL('../', import.meta.url);
const FILE = new URL('bench/RESULTS.md', ROOT);

export const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
export const millions = (rate) => `${(rate / 1e6).toFixed(2)} M/s`;
export const times = (ratio) => `${ratio.toFixed(ratio < 10 ? 2 : 0)} ×`;
export const percent = (fraction, digits = 1) => `${(100 * fraction).toFixed(digits)} %`;
export const whole = (value) => Math.round(value).toLocaleString('en');
export const row = (cells) => `| ${cells.join(' | ')} |`;

/** A Markdown table: `columns` maps headings to functions of a result, `rules` are the dashes below the headings. */
export function table(columns, results, rules = []) {
  const names = Object.keys(columns);
  return [
    row(names),
    row(names.map((_, n) => rules[n] ?? '---')),
    ...results.map((result) => row(Object.values(columns).map((cell) => cell(result)))),
  ].join('\n');
}

export function machineLine() {
  const memory = `${Math.round(totalmem() / 2 ** 30)} GiB`;
  const when = new Date().toISOString().slice(0, 10);
  return `${cpus().length} × ${cpus()[0].model.trim()}, ${memory}, Node ${process.versions.node}, ${when}`;
}

/** Load of the machine before the measurement: read when the script is loaded. */
const LOAD = loadavg()[0];
export const loadLine = () => `load ${LOAD.toFixed(1)} at the start`;

/** The last line of a block: the command, the machine, the day and more. */
export const madeBy = (command, ...more) =>
  `${[`\`${command}\`: ${machineLine()}`, ...more].join(', ')}.`;

/** Whether `--write` was given. A shortened run must not write, and fails before it starts. */
export function isToWrite(isFull) {
  const isGiven = process.argv.includes('--write');
  if (isGiven && !isFull) {
    console.error('expected a full run with --write, got a shortened one; nothing was started');
    process.exit(2);
  }
  return isGiven;
}

/** Replaces one section of the results. */
export function writeSection(title, text) {
  const old = existsSync(FILE) ? readFileSync(FILE, 'utf8') : '# Results\n';
  const [head, ...sections] = old.split(/^## /m);
  const place = sections.findIndex((section) => section.startsWith(`${title}\n`));
  sections.splice(place < 0 ? sections.length : place, 1, `${title}\n\n${text}`);
  const all = sections.map((section) => `## ${section.trimEnd()}`).join('\n\n');
  writeFileSync(FILE, `${head.trimEnd()}\n\n${all}\n`);
}

/** Replaces one block of a page. */
export function writeFigures(page, name, text) {
  const { before, after } = blockOf(page, name);
  writeFileSync(new URL(page, ROOT), `${before}\n${text.trim()}\n${after}`);
  console.error(`wrote ${name} in ${page}`);
}

/** The current text of a block. */
export const readFigures = (page, name) => blockOf(page, name).text.trim();

function blockOf(page, name) {
  const [begin, end] = [`<!-- figures: ${name} -->`, '<!-- /figures -->'];
  const [head, rest, ...more] = readFileSync(new URL(page, ROOT), 'utf8').split(begin);
  if (rest === undefined || more.length > 0)
    throw new Error(
      `expected ${begin} once in ${page}, found it ${more.length + (rest === undefined ? 0 : 1)} times`,
    );
  const to = rest.indexOf(end);
  const next = rest.indexOf('<!-- figures: ');
  if (to < 0 || (next >= 0 && next < to))
    throw new Error(`expected ${end} after ${begin} in ${page}, and no other block before it`);
  return { before: head + begin, text: rest.slice(0, to), after: rest.slice(to) };
}
