/** How results are written down: figures, ratios, the machine and the day they were taken. */

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';

const FILE = new URL('./RESULTS.md', import.meta.url);

export const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
export const millions = (rate) => `${(rate / 1e6).toFixed(2)} M/s`;
export const times = (ratio) => `${ratio.toFixed(ratio < 10 ? 2 : 0)} ×`;
export const row = (cells) => `| ${cells.join(' | ')} |`;

export function machineLine() {
  const memory = `${Math.round(totalmem() / 2 ** 30)} GiB`;
  const when = new Date().toISOString().slice(0, 10);
  return `${cpus().length} × ${cpus()[0].model.trim()}, ${memory}, Node ${process.versions.node}, ${when}`;
}

/** Writes one section of the results anew and leaves the others as they are. */
export function writeSection(title, text) {
  const old = existsSync(FILE) ? readFileSync(FILE, 'utf8') : '# Results\n';
  const [head, ...sections] = old.split(/^## /m);
  const others = sections.filter((section) => !section.startsWith(`${title}\n`));
  const all = [...others.map((section) => section.trimEnd()), `${title}\n\n${text}`];
  writeFileSync(
    FILE,
    `${head.trimEnd()}\n\n${all.map((section) => `## ${section}`).join('\n\n')}\n`,
  );
}
