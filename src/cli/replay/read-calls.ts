/**
 * Reads all logs at once and hands over their calls in the order of time.
 *
 *     web-1.log ──┐
 *     web-2.log ──┼──▶ the log whose next call is the earliest ──▶ Reorder ──▶ sink
 *     web-3.log ──┘
 *
 * So logs of several hosts are merged, and rotated logs may be named in any order.
 */

import type { Millis } from '../../core/clock.ts';
import { CommandError, type Terminal } from '../framework/command.ts';
import type { KeyTable } from './key-table.ts';
import { LineCounts, type LineOptions, LogInput } from './log-input.ts';
import { Progress } from './progress.ts';
import { type CallSink, Reorder } from './reorder.ts';

/** All are open at once. */
const MAX_LOGS = 200;

export interface ReadOptions extends LineOptions {
  readonly reorderMs: Millis;
}

export interface ReadResult {
  readonly counts: LineCounts;
  readonly late: number;
  readonly furthestMs: Millis;
}

/** Called once before the first call, with the zone of its line. */
type OnFirst = (zoneMinutes: number) => void;

/** @throws {CommandError} if a log cannot be read at all. */
export async function readCalls(
  paths: readonly string[],
  options: ReadOptions,
  keys: KeyTable,
  terminal: Terminal,
  sink: CallSink,
  onFirst: OnFirst,
  what = 'replay',
): Promise<ReadResult> {
  if (paths.length > MAX_LOGS)
    throw new CommandError(`expected at most ${MAX_LOGS} logs, got ${paths.length}`);
  const counts = new LineCounts();
  const progress = new Progress(terminal);
  const reorder = new Reorder(options.reorderMs, sink);
  const all: LogInput[] = [];
  try {
    for (const path of paths) all.push(new LogInput(path, options, keys, counts));
    const logs = all.map(({ bytes }) => bytes);
    /** The logs that have a next call. */
    const open: LogInput[] = [];
    for (const input of all) if (await toNextCall(input)) open.push(input);
    if (open.length > 0) onFirst(earliestOf(open).zoneMinutes);
    else if (counts.keyless > 0)
      throw new CommandError(
        `expected lines with the key of --key, got none; the first line has ${counts.keylessFields.join(', ')}`,
      );
    while (open.length > 0) {
      const input = earliestOf(open);
      const others = open.filter((other) => other !== input);
      const until = others.length === 0 ? Infinity : earliestOf(others).at;
      let isOpen = true;
      while (isOpen && input.at <= until) {
        do reorder.push(input.at, input.id, input.cost);
        while (input.advance() && input.at <= until);
        if (input.at > until) break;
        progress.update(what, logs, counts.lines);
        isOpen = await toNextCall(input);
      }
      if (!isOpen) open.splice(open.indexOf(input), 1);
    }
    reorder.flush();
  } finally {
    progress.end();
    await Promise.all(all.map((input) => input.close()));
  }
  const { late, furthestMs } = reorder;
  return { counts, late, furthestMs };
}

/** False if the log has no more calls. */
async function toNextCall(input: LogInput): Promise<boolean> {
  while (!input.advance()) if (!(await input.fill())) return false;
  return true;
}

const earliestOf = (inputs: readonly LogInput[]): LogInput =>
  inputs.reduce((first, input) => (input.at < first.at ? input : first));
