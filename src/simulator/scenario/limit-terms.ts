import type { Millis } from '../../core/clock.ts';
import { parseDuration, parseRate } from '../../core/duration.ts';
import type { Limit } from '../../policies/limit.ts';

export interface LimitTerms {
  /** Long-term rate in units per millisecond. */
  readonly perMs: number;
  /** Burst: units at once after an idle time. */
  readonly burst: number;
  /** The length of a window limit: any window of this length admits `burst` units. */
  readonly windowMs?: Millis;
}

/** The terms of every rate rule of the limit; none for a limit that learns or counts calls in flight. */
export function termsOf(limit: Limit): LimitTerms[] {
  if (limit.all !== undefined) return limit.all.flatMap(termsOf);
  if (limit.bucket !== undefined) {
    const { count = 0, periodMs = 1 } = parseRate(limit.bucket.rate) ?? {};
    return [{ perMs: count / periodMs, burst: limit.bucket.burst ?? Math.max(1, count) }];
  }
  if (limit.spacing !== undefined)
    return [{ perMs: 1 / durationOf(limit.spacing.every), burst: 1 }];
  if (limit.window !== undefined) {
    const windowMs = durationOf(limit.window.per);
    return [{ perMs: limit.window.limit / windowMs, burst: limit.window.limit, windowMs }];
  }
  return [];
}

const durationOf = (value: unknown): Millis => parseDuration(value) ?? Number.NaN;
