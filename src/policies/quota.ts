/**
 * Quota: a fixed window that is aligned to the calendar. 10,000 calls a month, 100 a minute.
 *
 * All calls of a period count until its end, and then none of them:
 *
 *      used   limit ┤        ____           ___
 *                   │    ___/    │      ___/   │
 *                   │___/        │_____/       │______
 *                   └────────────┼─────────────┼──────▶ time
 *                             1 March       1 April       the end of a period is the reset time
 *
 * This is how plans and invoices count. Around a reset, twice the limit may pass in a short time: `window` has no such
 * burst, `bucket` a smaller one.
 *
 * A key keeps the end of its period, so that most checks compare two numbers and need no calendar. Time that goes
 * backwards stays below that end, and so never opens a period again. The calendar of that end is kept, too: where a rule
 * has got another calendar, what was used counts to the end of the period in the new one.
 *
 * In a pool of `size` members each member counts its cost `size` times, and members take turns at the remainder.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { HOUR_MS, type PeriodTerms, periodEnd, periodStart } from './calendar.ts';
import { requireCost } from './cost.ts';
import {
  COUNTS_ONLY,
  type Policy,
  type PoolPosition,
  type RuleSpec,
  type State,
  simulatedQueue,
  timeToOpen,
  UNDIVIDED,
} from './policy.ts';
import { type QUOTA_PERIODS, readPeriod, type WEEKDAYS } from './quota-period.ts';
import { asRule } from './rules.ts';
import type { TimeZone } from './time-zone.ts';

/** Quota: a fixed window, aligned to the calendar. */
export interface QuotaOptions {
  /** Calls in each period. */
  readonly limit: number;
  /** The period: a unit of the calendar, or a length such as `'15m'`, counted from 1970 in local time or from `anchor`. */
  readonly per: (typeof QUOTA_PERIODS)[number] | Duration;
  /** The time zone of the calendar, such as `'Europe/Berlin'`. Default `'UTC'`. */
  readonly timeZone?: string | undefined;
  /**
   * When periods begin: the day of the month from 1 to 31 (`per: 'month'` only), or a date, or a date and time, on which
   * one period began. A month that is shorter begins its period on its last day. Default: the start of the unit.
   */
  readonly anchor?: number | string | undefined;
  /** The first day of a week. Default `'monday'`. */
  readonly weekStartsOn?: (typeof WEEKDAYS)[number] | undefined;
}

/** A pool divides periods of at most this length: a member that joins has no part until a period has passed. */
const MAX_DIVIDED_MS = HOUR_MS;

const END = 0; //       of the period in which the last call counted; NaN before the first
const USED = 1; //      in that period
const CALENDAR = 2; //  id of the calendar that has this end
const WIDTH = 3;

interface QuotaTerms {
  readonly limit: number;
  readonly period: PeriodTerms;
  readonly zone: TimeZone;
  /** A number for these periods in this time zone. */
  readonly calendarId: number;
}

export function quota(options: QuotaOptions, path = 'quota'): Policy {
  const reader = OptionReader.collecting(path, options);
  const limit = reader.integer('limit', 1);
  const read = readPeriod(reader);
  reader.finish();
  return quotaAt({ limit, ...read() }, UNDIVIDED);
}

function quotaAt(terms: QuotaTerms, position: PoolPosition): Policy {
  const { limit, period, zone, calendarId } = terms;
  const { size, rank, since } = position;
  const kind = 'quota';

  // The last period that was asked for.
  let start: Millis = Infinity;
  let end: Millis = -Infinity;
  const endAt = (at: Millis): Millis => {
    if (at >= start && at < end) return end;
    end = periodEnd(period, zone, at);
    start = periodStart(period, zone, at);
    return end;
  };

  /** Moves a key to the period of `now`; a period opens once. */
  const open = (state: State, i: number, now: Millis): void => {
    const isSame = now < state[i + END];
    if (isSame && state[i + CALENDAR] === calendarId) return;
    if (!isSame) state[i + USED] = 0;
    state[i + END] = endAt(now);
    state[i + CALENDAR] = calendarId;
  };

  const even = Math.floor(limit / size);
  const remainder = limit - even * size;
  const largestPart = rank >= 0 && remainder > 0 ? even + 1 : even;

  /** This member's part of the period that ends then. */
  const partAt = (endsAt: Millis): number => {
    if (largestPart === even) return even;
    const turn = rank + Math.round(endsAt / period.length);
    return turn - Math.floor(turn / size) * size < remainder ? even + 1 : even;
  };

  const remainingAt = (state: State, i: number, now: Millis): number => {
    const used = now < state[i + END] ? state[i + USED] : 0;
    return partAt(endOf(state, i, now)) - used / size;
  };

  const endOf = (state: State, i: number, now: Millis): Millis =>
    now < state[i + END] && state[i + CALENDAR] === calendarId ? state[i + END] : endAt(now);

  const { months, length, origin, day } = period;
  const isDivisible = months === 0 && length <= MAX_DIVIDED_MS;

  const spec: RuleSpec = { kind, params: [limit, calendarId, months, length, origin, day], zone };
  const policy: Policy = asRule(spec, {
    kind,
    width: WIDTH,
    traits: { ...COUNTS_ONLY, refillMs: isDivisible ? length : undefined },
    queue: simulatedQueue(() => policy),

    init(state, i, now, freshAt = now) {
      state[i + END] = freshAt > now ? freshAt : Number.NaN;
      state[i + USED] = freshAt > now ? largestPart * size : 0;
      state[i + CALENDAR] = calendarId;
    },

    check(state, i, cost, now) {
      requireCost(cost);
      if (cost === 0) return allow(Math.max(0, remainingAt(state, i, now)));
      if (cost > largestPart) return deny(NEVER);
      open(state, i, now);
      const after = state[i + USED] + cost * size;
      const part = partAt(state[i + END]);
      if (after > part * size) return deny(Math.max(1, Math.ceil(state[i + END] - now)));
      state[i + USED] = after;
      return allow(part - after / size);
    },

    available: (state, i, now) => Math.max(0, Math.floor(remainingAt(state, i, now))),

    /** Returns what was not used, if its period is not over; what was used beyond the cost counts now. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      if (unused < 0) {
        open(state, i, now);
        state[i + USED] -= unused * size;
      } else if (unused > 0 && now < state[i + END] && endAt(dueAt) === state[i + END]) {
        const unitCost = dueAt < since ? 1 : size; // never more than was taken for it
        state[i + USED] = Math.max(0, state[i + USED] - unused * unitCost);
      }
    },

    update(state, i, feedback, now) {
      if (!('hits' in feedback || 'remaining' in feedback)) return false;
      open(state, i, now);
      // The server's count may lower ours, never raise it.
      if ('hits' in feedback) state[i + USED] += feedback.hits;
      else state[i + USED] = Math.max(state[i + USED], limit - feedback.remaining);
      return true;
    },

    /** What was used stays used, to the end of the period in the new calendar. */
    convertFrom: () => (state, i, source, j, at) => {
      for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
      if (at < state[i + END]) open(state, i, at);
    },

    chain: {
      /** The calendar stays. What was used in a later period was used before now: it counts to the end of the present one. */
      setBack(state, i, _byMs, now) {
        if (state[i + CALENDAR] === calendarId)
          state[i + END] = Math.min(state[i + END], endAt(now));
      },
    },

    ...(isDivisible && {
      divide: {
        ofPool: (next: PoolPosition) => quotaAt(terms, next),
        ratePerSecond: () => (limit * 1000) / length / size,
      },
    }),

    freshAt: (state, i) => finiteEnd(state, i),

    keyState: (state, i, now) => ({
      remaining: remainingAt(state, i, now),
      resetsAt: endOf(state, i, now),
    }),

    ruleStatuses(state, i, now) {
      const remaining = Math.max(0, Math.floor(remainingAt(state, i, now)));
      const endsAt = endOf(state, i, now);
      const freshInMs = Math.ceil(endsAt - now);
      endAt(now);
      const status = { kind, quota: partAt(endsAt), windowMs: end - start, remaining, freshInMs };
      return [{ ...status, ...timeToOpen(policy, state, i, now) }];
    },
  });
  return policy;
}

const finiteEnd = (state: State, i: number): Millis =>
  Number.isNaN(state[i + END]) ? -Infinity : state[i + END];
