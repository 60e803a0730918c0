/** Numbers that may only fall: compares counts with the recorded ones, and lowers these. */

import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import type { Count } from './counts.ts';

export interface Ratchet {
  /** The major version of Node whose bytecode is recorded. */
  readonly node: number;
  /** A count without a number here is 0. */
  readonly recorded: Readonly<Record<string, number>>;
  readonly targets: Readonly<Record<string, number>>;
  /** Of some counts: the number by folder, file, interface or function. Explains growth, limits nothing. */
  readonly where: Readonly<Record<string, Readonly<Record<string, number>>>>;
}

const FILE = 'test/ratchet.json';

export const readRatchet = (): Ratchet => JSON.parse(readFileSync(FILE, 'utf8')) as Ratchet;

/** By the beginning of a count's name; the first that fits. */
const ADVICE: readonly (readonly [string, string])[] = [
  ['source', 'remove as much code as was added, or use what exists'],
  ['files above', 'split the file'],
  ['longest', 'split the file'],
  ['largest', 'move files that belong together into a folder'],
  ['interface', 'let the new member replace another'],
  ['comparisons', 'add what the comparison decides to the policy'],
  ['switches', 'call a member that both types have'],
  ['test', 'replace cases that another test covers'],
  ['package', 'name the command in the header of its file'],
  ['words', 'shorten or merge pages'],
  ['decision', 'merge the record with one on the same subject'],
  ['files a check enters', 'let one of the files do the work of another'],
  ['bytecode', 'move rare branches into functions of their own'],
];

const RAISE = `If that is not possible, raise the number in ${FILE} by hand, with the reason in the commit.`;

const MAX_LISTED = 12;

/** The entries that grew, `name before → now`; without recorded ones, all of them. */
function growthIn(now: Count['where'] = {}, before?: Count['where']): string[] {
  const entries = Object.entries(now);
  if (before === undefined) return entries.map(([name, n]) => `${name} ${n}`);
  return entries
    .filter(([name, n]) => n > (before[name] ?? 0))
    .map(([name, n]) => `${name} ${before[name] ?? 'new'} → ${n}`);
}

/** One message for each count above its recorded number. */
export const grownCounts = (counts: readonly Count[], { recorded, where }: Ratchet): string[] =>
  counts
    .filter(({ name, value }) => value > (recorded[name] ?? 0))
    .map(({ name, value, ...count }) => {
      const before = recorded[name] ?? 0;
      const grown = growthIn(count.where, where[name]);
      const more = grown.length > MAX_LISTED ? `, and ${grown.length - MAX_LISTED} more` : '';
      const advice = ADVICE.find(([start]) => name.startsWith(start))?.[1] ?? 'reduce it';
      return [
        `${name}: recorded ${before}, counted ${value} (+${value - before})`,
        ...(grown.length > 0 ? [`  grew: ${grown.slice(0, MAX_LISTED).join(', ')}${more}`] : []),
        `  to do: ${advice}`,
      ].join('\n');
    });

/** The ratchet with the numbers of all counts that are lower; undefined if none is. */
export function lowerCounts(counts: readonly Count[], ratchet: Ratchet): Ratchet | undefined {
  const isLower = ({ name, value }: Count) => value < (ratchet.recorded[name] ?? 0);
  if (!counts.some(isLower)) return undefined;
  const recorded = { ...ratchet.recorded };
  const where = { ...ratchet.where };
  for (const count of counts) {
    if (isLower(count)) recorded[count.name] = count.value;
    if (recorded[count.name] === 0 && !(count.name in ratchet.targets)) delete recorded[count.name];
    if (count.name in where) where[count.name] = count.where ?? {};
  }
  return { ...ratchet, recorded, where };
}

/** Counts of 0 for recorded names that begin alike and were not counted: folders that are gone. */
export const goneCounts = (
  prefix: string,
  counts: readonly Count[],
  { recorded }: Ratchet,
): Count[] =>
  Object.keys(recorded)
    .filter((name) => name.startsWith(prefix) && !counts.some((count) => count.name === name))
    .map((name) => ({ name, value: 0 }));

/** The counts that have not reached their target, one a line; the recorded number of what was not counted now. */
export function tableOf(counts: readonly Count[], { recorded, targets }: Ratchet): string {
  const rows = Object.entries(targets).flatMap(([name, target]) => {
    const toBeat = recorded[name] ?? 0;
    const value = counts.find((count) => count.name === name)?.value ?? toBeat;
    return value > target ? [[name, value, toBeat, target, value - target].map(String)] : [];
  });
  const all = [['count', 'now', 'to beat', 'target', 'to go'], ...rows];
  const widths = all[0].map((_, column) => Math.max(...all.map((row) => row[column].length)));
  return all
    .map(([name, ...numbers]) =>
      [name.padEnd(widths[0]), ...numbers.map((n, i) => n.padStart(widths[i + 1]))].join('  '),
    )
    .join('\n');
}

/**
 * Compares counts with the recorded numbers, and records lower ones, unless something grew, git does not know a file, or
 * CI runs the test. @throws if a number grew
 */
export function holdRatchet(counts: readonly Count[], untracked: readonly string[] = []): void {
  const ratchet = readRatchet();
  const grown = grownCounts(counts, ratchet);
  if (grown.length > 0) throw new Error([...grown, RAISE].join('\n'));
  const next = lowerCounts(counts, ratchet);
  if (next === undefined || process.env.CI === 'true') return;
  if (untracked.length > 0) {
    console.log(`${FILE}: not lowered, because git does not know ${untracked.join(', ')}`);
    return;
  }
  writeFileSync(`${FILE}.next`, `${JSON.stringify(next, null, 2)}\n`);
  renameSync(`${FILE}.next`, FILE);
  const lines = Object.entries(ratchet.recorded)
    .filter(([name, before]) => (next.recorded[name] ?? 0) < before)
    .map(([name, before]) => `  ${name}: ${before} → ${next.recorded[name] ?? 0}`);
  console.log([`${FILE}: lowered; commit it`, ...lines].join('\n'));
}
