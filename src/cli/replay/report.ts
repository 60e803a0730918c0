import type { Millis } from '../../core/clock.ts';
import { toKeyText } from '../../daemon/keys/binary-key.ts';
import type { LimitCounts } from './deciders.ts';
import { type KeyEvents, type KeyTable, topKeys } from './key-table.ts';
import { quantileOf } from './quantiles.ts';
import type { ReadResult } from './read-calls.ts';
import type { CallTally, Tally } from './tally.ts';
import { isoTime } from './times.ts';

/** Lines that were read, and what was not a call. */
export interface LinesReport {
  readonly read: number;
  readonly bad: number;
  readonly leftOut: number;
  readonly withoutKey: number;
  readonly ofFurtherKeys: number;
  readonly late: number;
  readonly furthestLateMs: Millis;
  readonly problems: readonly string[];
}

export interface DeniedKey {
  readonly key: string;
  readonly calls: number;
  readonly denied: number;
  readonly share: number;
  readonly firstDenied: string;
  readonly lastDenied: string;
}

/** The time that the calls cover. */
export interface SpanReport {
  readonly from: string | undefined;
  readonly to: string | undefined;
  readonly spanMs: Millis;
}

export interface ReplayReport extends SpanReport {
  readonly lines: LinesReport;
  readonly calls: number;
  readonly allowed: number;
  readonly waited: number;
  readonly denied: number;
  readonly keys: number;
  readonly deniedKeys: number;
  readonly callsPerKey: { readonly p50: number; readonly p95: number; readonly max: number };
  /** Quantiles over the keys that were denied at all: the share of their calls that was denied. */
  readonly deniedShare?: { readonly p50: number; readonly p95: number };
  readonly retryAfterMs?: { readonly p50: number; readonly p95: number };
  readonly waitMs?: { readonly p50: number; readonly p95: number };
  readonly top: readonly DeniedKey[];
  readonly limits?: readonly LimitCounts[];
  readonly timeline: TimelineReport;
}

export interface TimelineReport {
  readonly stepMs: Millis;
  readonly from: string | undefined;
  readonly calls: readonly number[];
  readonly denied: readonly number[];
}

export const linesReport = ({ counts, late, furthestMs }: ReadResult): LinesReport => ({
  read: counts.lines,
  bad: counts.bad,
  leftOut: counts.leftOut,
  withoutKey: counts.keyless,
  ofFurtherKeys: counts.furtherKeys,
  late,
  furthestLateMs: furthestMs,
  problems: counts.problems,
});

export function spanReport({ from, to, total, zoneMinutes }: CallTally): SpanReport {
  const time = (at: Millis) => (total === 0 ? undefined : isoTime(at, zoneMinutes));
  return { from: time(from), to: time(to), spanMs: total === 0 ? 0 : to - from };
}

export const share = (part: number, whole: number): number => (whole === 0 ? 0 : part / whole);

/** The keys with the most events, with their times. */
const topDenied = (
  keys: KeyTable,
  calls: CallTally,
  denied: KeyEvents,
  most: number,
): DeniedKey[] =>
  topKeys(keys.size, (id) => denied.of(id), most).map((id) => ({
    key: toKeyText(keys.names[id]),
    calls: calls.byKey.of(id),
    denied: denied.of(id),
    share: share(denied.of(id), calls.byKey.of(id)),
    firstDenied: isoTime(denied.firstAt(id), calls.zoneMinutes),
    lastDenied: isoTime(denied.lastAt(id), calls.zoneMinutes),
  }));

/** Steps of the timeline in a report. */
export const REPORT_STEPS = 480;

export function timelineReport({ timeline, zoneMinutes }: CallTally): TimelineReport {
  const { stepMs, steps } = timeline.steps(REPORT_STEPS);
  return {
    stepMs,
    from: steps.length === 0 ? undefined : isoTime(steps[0].at, zoneMinutes),
    calls: steps.map(({ calls }) => calls),
    denied: steps.map(({ denied }) => denied),
  };
}

/** Keys that have calls: a log that is read twice may have numbered more. */
export function callsPerKeyOf(keys: KeyTable, calls: CallTally): number[] {
  const perKey: number[] = [];
  for (let id = 0; id < keys.size; id++)
    if (calls.byKey.of(id) > 0) perKey.push(calls.byKey.of(id));
  return perKey.sort((a, b) => a - b);
}

export function replayReport(
  keys: KeyTable,
  tally: Tally,
  result: ReadResult,
  most: number,
  limits: readonly LimitCounts[] | undefined,
): ReplayReport {
  const { calls, denied, waited, retryAfterMs, waitMs } = tally;
  const perKey = callsPerKeyOf(keys, calls);
  const shares: number[] = [];
  for (let id = 0; id < keys.size; id++)
    if (denied.of(id) > 0) shares.push(denied.of(id) / calls.byKey.of(id));
  shares.sort((a, b) => a - b);
  const middle = (quantiles: typeof retryAfterMs) => ({
    p50: Math.round(quantiles.at(0.5) ?? 0),
    p95: Math.round(quantiles.at(0.95) ?? 0),
  });
  return {
    ...spanReport(calls),
    lines: linesReport(result),
    calls: calls.total,
    allowed: calls.total - denied.total,
    waited,
    denied: denied.total,
    keys: perKey.length,
    deniedKeys: denied.keys,
    callsPerKey: {
      p50: quantileOf(perKey, 0.5),
      p95: quantileOf(perKey, 0.95),
      max: perKey.at(-1) ?? 0,
    },
    ...(shares.length > 0 && {
      deniedShare: { p50: quantileOf(shares, 0.5), p95: quantileOf(shares, 0.95) },
    }),
    ...(retryAfterMs.count > 0 && { retryAfterMs: middle(retryAfterMs) }),
    ...(waitMs.count > 0 && { waitMs: middle(waitMs) }),
    top: topDenied(keys, calls, denied, most),
    ...(limits && { limits }),
    timeline: timelineReport(calls),
  };
}
