/** The table of durations: test/durations.json has every file, test/README.md the slowest. */

import { readFileSync, writeFileSync } from 'node:fs';
import { madeBy, table, writeFigures } from '../../bench/report.mjs';

const FILE = new URL('../durations.json', import.meta.url);
const PAGE = 'test/README.md';
const SLOWEST = 10;
const COMMANDS = { basic: 'npm test', system: 'npm run test:system' };

/** `passedAgain`: files that failed and passed when they ran alone. */
export function recordDurations(tier, seconds, results, passedAgain) {
  const all = JSON.parse(readFileSync(FILE, 'utf8'));
  const before = all[tier];
  const secondRuns = { ...before.secondRuns };
  for (const { file } of passedAgain) secondRuns[file] = (secondRuns[file] ?? 0) + 1;
  const files = Object.fromEntries(
    results
      .toSorted((a, b) => a.file.localeCompare(b.file))
      .map(({ file, seconds: own }) => [file, Math.round(own * 10) / 10]),
  );
  const runs = (before.runs ?? 0) + 1;
  all[tier] = { seconds: Math.round(seconds), runs, secondRuns, files };
  writeFileSync(FILE, `${JSON.stringify(all, undefined, 2)}\n`);
  writeFigures(PAGE, `durations-${tier}`, pageOf(tier, all[tier]));
}

function pageOf(tier, { seconds, runs, secondRuns, files }) {
  const slowest = Object.entries(files)
    .toSorted(([, a], [, b]) => b - a)
    .slice(0, SLOWEST);
  const columns = { file: ([file]) => `\`${file}\``, seconds: ([, own]) => `${own}` };
  const again = Object.entries(secondRuns).map(([file, count]) => `\`${file}\` ${count}`);
  const notes = again.length === 0 ? 'none' : again.join(', ');
  return `\`${COMMANDS[tier]}\` took ${seconds} s in all, ${Object.keys(files).length} files. Files that needed a second run in ${runs} recorded runs: ${notes}.

${table(columns, slowest, ['---', '---:'])}

${madeBy(`${COMMANDS[tier]} -- --record`)}`;
}
