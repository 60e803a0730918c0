/**
 * Minimum interval (GCRA without burst): permits at least `every` apart.
 *
 * For an API that counts strictly: a quiet minute earns nothing. A caller that comes too early may
 * reserve the next free slot and wait for it, up to `reserve` reservations ahead. With none (the
 * default) it is refused with the time to retry.
 *
 *     every = 6 s, reserve = 2          now         due          due
 *     ───────●────────────────────────────┼──────────●────────────●────────────◇──▶ time
 *          granted                       check     reserved 1   reserved 2    next free slot
 *                                                               `lastAt`
 *
 * The whole state is one instant, `lastAt`: that of the last permit. The next free slot is `every` after it. So the
 * state does not contain the interval: a rule with another interval reads it as it is. Every reservation lies a multiple
 * of `every` before the free slot, so reservations are counted from it exactly: one that is nearly due still counts.
 *
 * A permit that is not used within `expire` of being due has expired: the caller must check again.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER, wait } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { addRoundingUp, subtractRoundingDown } from './float-time.ts';
import {
  COUNTS_ONLY,
  type Policy,
  type PoolPosition,
  type RuleSpec,
  type State,
  timeToOpen,
  UNDIVIDED,
} from './policy.ts';
import { asRule } from './rules.ts';

/** Minimum interval between calls. */
export interface SpacingOptions {
  /** The minimum interval between two permits: `'6s'`, or a number of milliseconds. */
  readonly every: Duration;
  /** Reservations ahead. Default 0: a check is refused with the time to retry, never answered `wait`. */
  readonly reserve?: number | undefined;
  /** A permit not used this long after it was due expires. Default: never. */
  readonly expire?: Duration | undefined;
}

/** Floating-point error tolerated, as a fraction of the interval. */
const EPSILON = 1e-9;

/** `lastAt` of a key without a permit: so long ago that it is free by any interval. Infinite numbers do not travel as text. */
const NEVER_GRANTED: Millis = -1e300;

interface SpacingTerms {
  readonly intervalMs: Millis;
  readonly reserve: number;
  readonly expireMs: Millis;
}

export function spacing(options: SpacingOptions, path = 'spacing'): Policy {
  const reader = OptionReader.collecting(path, options);
  const intervalMs = reader.duration('every');
  const reserve = reader.integer('reserve', 0, 0);
  const expireMs = reader.durationOrInfinity('expire', Infinity);
  reader.finish();
  return spacingAt({ intervalMs, reserve, expireMs }, UNDIVIDED);
}

function spacingAt(terms: SpacingTerms, { size }: PoolPosition): Policy {
  const { intervalMs, reserve, expireMs } = terms;
  const kind = 'spacing';
  const everyMs = intervalMs * size;

  /** The earliest free slot. */
  const nextAtOf = (state: State, i: number): Millis => addRoundingUp(state[i], everyMs);

  /** The distance between two slots: `everyMs`, or the next larger one that instants of this size can represent. */
  const stepAt = (at: Millis): Millis => addRoundingUp(at, everyMs) - at;

  const reservedAt = (nextAt: Millis, now: Millis): number => {
    const step = stepAt(now);
    return Math.max(0, Math.ceil((nextAt - now) / step - 1 - EPSILON));
  };

  const isOpen = (nextAt: Millis, now: Millis): boolean =>
    now >= nextAt || reservedAt(nextAt, now) < reserve;

  /** Whole milliseconds until a check is not refused, corrected so that a retry at that time succeeds. */
  const retryAfter = (nextAt: Millis, now: Millis): Millis => {
    const ms = Math.max(1, Math.ceil(nextAt - reserve * stepAt(now) - now - EPSILON));
    return isOpen(nextAt, now + ms) ? ms : ms + 1;
  };

  const spec: RuleSpec = { kind, params: [intervalMs, reserve, expireMs] };
  const policy: Policy = asRule(spec, {
    kind,
    width: 1,
    traits: {
      ...COUNTS_ONLY,
      needsExactTime: true, // a permit granted on stale time may be too close to the next one
      canReserve: reserve > 0,
      expireMs,
      refillMs: intervalMs,
      instants: [0],
    },

    init(state, i, now, freshAt = now) {
      state[i] = freshAt > now ? subtractRoundingDown(freshAt, everyMs) : NEVER_GRANTED;
    },

    check(state, i, cost, now) {
      requireCost(cost);
      const nextAt = nextAtOf(state, i);
      if (cost > 1) return deny(NEVER); // two at once would be a burst
      if (now >= nextAt) {
        if (cost > 0) state[i] = now;
        return allow(cost > 0 ? 0 : 1);
      }
      if (cost === 0) return allow(0);
      if (isOpen(nextAt, now)) {
        state[i] = nextAt;
        return wait(nextAt - now);
      }
      return deny(retryAfter(nextAt, now));
    },

    chain: {
      deferTo(state, i, _cost, dueAt) {
        state[i] = Math.max(state[i], dueAt);
      },
    },

    available: (state, i, now) => (now >= nextAtOf(state, i) ? 1 : 0),

    /** Releases an unused slot if it is the last one: later reservations keep their instants. */
    settle(state, i, { outcome, cost, dueAt }, now) {
      if (outcome !== 'ignored' || cost <= 0 || now > dueAt + expireMs) return; // used, or expired
      const rounding = 2 * Number.EPSILON * Math.abs(state[i]);
      const tolerance = Math.min(everyMs / 4, Math.max(EPSILON * everyMs, rounding));
      const isLast = Math.abs(state[i] - dueAt) <= tolerance;
      if (isLast) state[i] = subtractRoundingDown(dueAt, everyMs);
    },

    update(state, i, feedback, now) {
      if (!('hits' in feedback)) return false;
      if (feedback.hits > 0) {
        const firstAt = Math.max(nextAtOf(state, i), now);
        state[i] = addRoundingUp(firstAt, (feedback.hits - 1) * everyMs);
      }
      return true;
    },

    /** The last permit keeps its instant: the next one is due the new interval after it. */
    convertFrom: () => (state, i, source, j) => {
      state[i] = source[j];
    },

    divide: {
      /** Divides the rate: a division alone cannot keep calls of several processes apart. */
      ofPool: (position) => spacingAt(terms, position),
      ratePerSecond: () => 1000 / everyMs,
    },
    queue: {
      minIntervalMs: intervalMs,
      drainMs: (units) => units * everyMs,
      timeToGrantMs: (state, i, units, now) =>
        Math.max(0, nextAtOf(state, i) - now + (units - 1) * everyMs),
    },

    freshAt: nextAtOf,

    keyState: (state, i, now) => ({
      remaining: now >= nextAtOf(state, i) ? 1 : 0,
      reserved: reservedAt(nextAtOf(state, i), now),
    }),

    ruleStatuses(state, i, now) {
      const freshInMs = Math.ceil(Math.max(0, nextAtOf(state, i) - now));
      const remaining = freshInMs === 0 ? 1 : 0;
      const terms = { quota: 1, windowMs: everyMs };
      return [{ kind, ...terms, remaining, freshInMs, ...timeToOpen(policy, state, i, now) }];
    },
  });
  return policy;
}
