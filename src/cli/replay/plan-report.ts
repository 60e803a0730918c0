import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import { toKeyText } from '../../daemon/keys/binary-key.ts';
import { KeyEvents, type KeyTable, topKeys } from './key-table.ts';
import type { ReadResult } from './read-calls.ts';
import {
  callsPerKeyOf,
  type LinesReport,
  linesReport,
  type SpanReport,
  spanReport,
  type TimelineReport,
  timelineReport,
} from './report.ts';
import { CallTally } from './tally.ts';
import { isoTime } from './times.ts';

/** The decisions of two configurations. In the timeline a flip is what a denial is in a replay. */
export class PlanTally {
  readonly calls = new CallTally();
  readonly deniedBefore = new KeyEvents();
  readonly deniedAfter = new KeyEvents();
  readonly newlyDenied = new KeyEvents();
  readonly newlyAllowed = new KeyEvents();

  add(id: number, at: Millis, before: Decision, after: Decision): void {
    const wasDenied = before.verdict === 'deny';
    const isDenied = after.verdict === 'deny';
    this.calls.add(id, at, wasDenied !== isDenied);
    if (wasDenied) this.deniedBefore.add(id, at);
    if (isDenied) this.deniedAfter.add(id, at);
    if (isDenied && !wasDenied) this.newlyDenied.add(id, at);
    if (wasDenied && !isDenied) this.newlyAllowed.add(id, at);
  }
}

interface FlippedKey {
  readonly key: string;
  readonly calls: number;
  readonly deniedBefore: number;
  readonly deniedAfter: number;
  readonly newlyDenied: number;
  readonly newlyAllowed: number;
  readonly firstFlip: string;
}

export interface PlanReport extends SpanReport {
  readonly lines: LinesReport;
  readonly calls: number;
  readonly keys: number;
  /** Calls that one configuration allows and the other denies. */
  readonly flips: number;
  readonly flippedKeys: number;
  readonly deniedBefore: number;
  readonly deniedKeysBefore: number;
  readonly deniedAfter: number;
  readonly deniedKeysAfter: number;
  readonly newlyDenied: number;
  readonly newlyDeniedKeys: number;
  readonly newlyAllowed: number;
  readonly newlyAllowedKeys: number;
  /** Keys with the most newly denied calls first, then those with the most newly allowed ones. */
  readonly top: readonly FlippedKey[];
  /** `denied` are calls that flip. */
  readonly timeline: TimelineReport;
}

export function planReport(
  keys: KeyTable,
  tally: PlanTally,
  result: ReadResult,
  most: number,
): PlanReport {
  const { calls, deniedBefore, deniedAfter, newlyDenied, newlyAllowed } = tally;
  const denied = topKeys(keys.size, (id) => newlyDenied.of(id), Infinity);
  const onlyAllowed = topKeys(
    keys.size,
    (id) => (newlyDenied.of(id) > 0 ? 0 : newlyAllowed.of(id)),
    Infinity,
  );
  const flipped = [...denied, ...onlyAllowed];
  const firstFlipOf = (id: number): Millis =>
    Math.min(
      ...[newlyDenied, newlyAllowed]
        .filter((events) => events.of(id) > 0)
        .map((events) => events.firstAt(id)),
    );
  return {
    ...spanReport(calls),
    lines: linesReport(result),
    calls: calls.total,
    keys: callsPerKeyOf(keys, calls).length,
    flips: newlyDenied.total + newlyAllowed.total,
    flippedKeys: flipped.length,
    deniedBefore: deniedBefore.total,
    deniedKeysBefore: deniedBefore.keys,
    deniedAfter: deniedAfter.total,
    deniedKeysAfter: deniedAfter.keys,
    newlyDenied: newlyDenied.total,
    newlyDeniedKeys: newlyDenied.keys,
    newlyAllowed: newlyAllowed.total,
    newlyAllowedKeys: newlyAllowed.keys,
    top: flipped.slice(0, most).map((id) => ({
      key: toKeyText(keys.names[id]),
      calls: calls.byKey.of(id),
      deniedBefore: deniedBefore.of(id),
      deniedAfter: deniedAfter.of(id),
      newlyDenied: newlyDenied.of(id),
      newlyAllowed: newlyAllowed.of(id),
      firstFlip: isoTime(firstFlipOf(id), calls.zoneMinutes),
    })),
    timeline: timelineReport(calls),
  };
}
