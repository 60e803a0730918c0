/**
 * Periods of a calendar: from local midnight to local midnight, from one billing day to the next.
 *
 * The calendar is arithmetic on numbers, without a clock. `backends/redis/lua-quota.ts` has the same in Lua.
 *
 *     local boundaries     00:00              00:00              00:00       every day, every 15 minutes,
 *                            │                  │                  │         on the 31st or the last of a month
 *     ──────────────────────┼──────────────────┼──────────────────┼──▶
 *     periods                 ◀───── 24 h ─────▶◀───── 23 h ─────▶           the offset changed in the second day
 *
 * A period begins at the first instant whose local time has reached its boundary. So a midnight that is skipped begins
 * the day at the change, a midnight that comes twice begins it once, and a day that is skipped has no period.
 *
 * Periods of at most an hour are different where clocks go back: each repeated hour has periods of its own. With one
 * period for both, a quota per minute would have no reset for an hour.
 */

import type { Millis } from '../core/clock.ts';
import type { TimeZone } from './time-zone.ts';

export const HOUR_MS: Millis = 3_600_000;
export const DAY_MS: Millis = 86_400_000;

/** How periods follow each other, in local time since 1970. */
export interface PeriodTerms {
  /** Months per period; 0 for periods of a fixed length. */
  readonly months: number;
  /** Fixed length: the length. Months: the time of day at which a period begins. */
  readonly length: Millis;
  /** Fixed length: a boundary. Months: the number of a month, since 1970, in which a period begins. */
  readonly origin: number;
  /** Months: the day on which a period begins; the last of the month if the month is shorter. */
  readonly day: number;
}

/** The first local boundary after a local time. */
export function nextBoundary({ months, length, origin, day }: PeriodTerms, local: Millis): Millis {
  if (months === 0) return origin + (Math.floor((local - origin) / length) + 1) * length;
  const month = monthOf(Math.floor(local / DAY_MS));
  const first = origin + Math.floor((month - origin) / months) * months;
  const boundary = monthBoundary(first, day, length);
  return boundary > local ? boundary : monthBoundary(first + months, day, length);
}

function monthBoundary(month: number, day: number, timeOfDay: Millis): Millis {
  const start = firstDayOf(month);
  const days = firstDayOf(month + 1) - start;
  return (start + Math.min(day, days) - 1) * DAY_MS + timeOfDay;
}

/** Days from 1970-01-01 to the first of a month; months count from January 1970. Years begin in March, after a leap day. */
export function firstDayOf(month: number): number {
  const fromMarch = month + 1970 * 12 - 2;
  const year = Math.floor(fromMarch / 12);
  const days = Math.floor((153 * (fromMarch - year * 12) + 2) / 5);
  const leapDays = Math.floor(year / 4) - Math.floor(year / 100) + Math.floor(year / 400);
  return year * 365 + leapDays + days - 719_468;
}

/** The month of a day: estimated by the mean length of a month, then corrected. */
export function monthOf(day: number): number {
  const estimate = Math.floor(day / 30.436875);
  if (day < firstDayOf(estimate)) return estimate - 1;
  return day < firstDayOf(estimate + 1) ? estimate : estimate + 1;
}

/** The end of the period that contains `at`. */
export function periodEnd(terms: PeriodTerms, { starts, offsets }: TimeZone, at: Millis): Millis {
  const isRepeated = terms.months === 0 && terms.length <= HOUR_MS;
  let n = offsetIndexAt(starts, at);
  let local = at + offsets[n];
  // Where clocks went back, local time had already come further.
  if (!isRepeated && n > 0) local = Math.max(local, starts[n] + offsets[n - 1] - 1);
  let boundary = nextBoundary(terms, local);
  while (n + 1 < starts.length && boundary - offsets[n] >= starts[n + 1]) {
    n++;
    if (isRepeated) boundary = Math.min(boundary, nextBoundary(terms, starts[n] + offsets[n] - 1));
    if (boundary - offsets[n] <= starts[n]) return starts[n];
  }
  return boundary - offsets[n];
}

/** The start of the period that contains `at`: the last end that is not after it. */
export function periodStart(terms: PeriodTerms, zone: TimeZone, at: Millis): Millis {
  let start = at - longestPeriod(terms);
  for (let end = periodEnd(terms, zone, start); end <= at; end = periodEnd(terms, zone, start))
    start = end;
  return start;
}

/** Where clocks go back, a period is longer: a short one by less than its length, others by up to two hours. */
function longestPeriod({ months, length }: PeriodTerms): Millis {
  if (months > 0) return months * 31 * DAY_MS + 2 * HOUR_MS;
  return length + Math.min(length, 2 * HOUR_MS);
}

/** The index of the offset in force at an instant. */
export function offsetIndexAt(starts: readonly Millis[], at: Millis): number {
  let [low, high] = [0, starts.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= at) low = middle;
    else high = middle;
  }
  return low;
}
