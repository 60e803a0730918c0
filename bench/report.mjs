/**
 * How results are written down: figures, ratios, the machine and the day they were taken.
 *
 * Benchmarks write sections of bench/RESULTS.md. What stands in the midst of a page of docs/ is a block of its own:
 *
 *     <!-- figures: NAME -->
 *     a table, or sentences; the last line says which command made it, where and when
 *     <!-- /figures -->
 */

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, totalmem } from 'node:os';

const ROOT = new URL('../', import.meta.url);
const FILE = new URL('bench/RESULTS.md', ROOT);

export const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
export const millions = (rate) => `${(rate / 1e6).toFixed(2)} M/s`;
export const times = (ratio) => `${ratio.toFixed(ratio < 10 ? 2 : 0)} ×`;
export const percent = (part, digits = 1) => `${(100 * part).toFixed(digits)} %`;
export const whole = (value) => Math.round(value).toLocaleString('en');
export const row = (cells) => `| ${cells.join(' | ')} |`;

/** A table of results, by what each column reads from one of them; `marks` are the dashes below its head. */
export function table(columns, results, marks = []) {
  const names = Object.keys(columns);
  return [
    row(names),
    row(names.map((_, n) => marks[n] ?? '---')),
    ...results.map((result) => row(Object.values(columns).map((cell) => cell(result)))),
  ].join('\n');
}

export function machineLine() {
  const memory = `${Math.round(totalmem() / 2 ** 30)} GiB`;
  const when = new Date().toISOString().slice(0, 10);
  return `${cpus().length} × ${cpus()[0].model.trim()}, ${memory}, Node ${process.versions.node}, ${when}`;
}

/** How busy the machine was before anything began, as this is read when a script is loaded. */
const LOAD = loadavg()[0];
export const loadLine = () => `load ${LOAD.toFixed(1)} at the start`;

/** The last line of a block: the command, where and when, and what else matters. */
export const madeBy = (command, ...more) =>
  `${[`\`${command}\`: ${machineLine()}`, ...more].join(', ')}.`;

/** Whether `--write` was said. Only a run in full may write: others are refused before they begin. */
export function isToWrite(isFull) {
  const isAsked = process.argv.includes('--write');
  if (isAsked && !isFull) {
    console.error('--write takes the run in full: nothing was begun');
    process.exit(2);
  }
  return isAsked;
}

/** Writes one section of the results anew and leaves the others as they are. */
export function writeSection(title, text) {
  const old = existsSync(FILE) ? readFileSync(FILE, 'utf8') : '# Results\n';
  const [head, ...sections] = old.split(/^## /m);
  const place = sections.findIndex((section) => section.startsWith(`${title}\n`));
  sections.splice(place < 0 ? sections.length : place, 1, `${title}\n\n${text}`);
  const all = sections.map((section) => `## ${section.trimEnd()}`).join('\n\n');
  writeFileSync(FILE, `${head.trimEnd()}\n\n${all}\n`);
}

/** Writes one block of a page anew and leaves the rest as it is. */
export function writeFigures(page, name, text) {
  const { before, after } = blockOf(page, name);
  writeFileSync(new URL(page, ROOT), `${before}\n${text.trim()}\n${after}`);
  console.error(`wrote ${name} in ${page}`);
}

/** What a block of a page says now. */
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
