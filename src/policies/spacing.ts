/**
 * Spacing: permits at least `every` apart, and no bursts.
 *
 * Made for an API that counts strictly: a quiet minute buys nothing. A caller that comes too early
 * may reserve the next free place and wait for it; up to `reserve` places can be out at once, and
 * with none (the default) it is simply told when to try again.
 *
 *     every = 6 s, reserve = 2          now         due          due
 *     ───────●────────────────────────────┼──────────●────────────●────────────◇──▶ time
 *          granted                        ask      reserved 1   reserved 2    `nextAt`
 *
 * The whole state is one instant, `nextAt`: the earliest place nobody has. Every place that is
 * still to come lies a multiple of `every` before it, so how many are out can be counted from it,
 * exactly: a place that is nearly due still counts as one.
 *
 * A permit that is not used within `expire` of being due is wasted: whoever overslept asks again.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER, wait } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { addRoundingUp } from './float-time.ts';
import { type Policy, timeToOpen } from './policy.ts';

/** Calls at least so far apart. */
export interface SpacingOptions {
  /** The least time between two permits: `'6s'`, or a number of milliseconds. */
  readonly every: Duration;
  /** How many places may be reserved ahead. Default 0: nobody waits, everybody is told when. */
  readonly reserve?: number;
  /** A permit not used this long after it was due is wasted. Default: it stays good. */
  readonly expire?: Duration;
}

/** What part of a step may be floating-point dust. */
const EPSILON = 1e-9;

export function spacing(options: SpacingOptions, path = 'spacing'): Policy {
  const reader = OptionReader.collecting(path, options);
  const ownMs = reader.duration('every');
  const reserve = reader.integer('reserve', 0, 0);
  const expireMs = reader.duration('expire', Infinity);
  reader.finish();

  /** Longer if others have their places too. */
  let everyMs = ownMs;

  /** The distance between two places: `every`, or the next one instants of this size can tell. */
  const stepAt = (at: Millis): Millis => addRoundingUp(at, everyMs) - at;

  const reservedAt = (nextAt: Millis, now: Millis): number => {
    const step = stepAt(now);
    return Math.max(0, Math.ceil((nextAt - now) / step - 1 - EPSILON));
  };

  const isOpen = (nextAt: Millis, now: Millis): boolean =>
    now >= nextAt || reservedAt(nextAt, now) < reserve;

  /** Whole milliseconds until an ask is not refused; what it says must then be true. */
  const retryAfter = (nextAt: Millis, now: Millis): Millis => {
    const ms = Math.max(1, Math.ceil(nextAt - reserve * stepAt(now) - now - EPSILON));
    return isOpen(nextAt, now + ms) ? ms : ms + 1;
  };

  const kind = 'spacing';
  const policy: Policy = {
    kind,
    width: 1,
    // A permit handed out on yesterday's time may stand too close to the next one.
    needsExactTime: true,
    needsOutcome: false,
    canReserve: reserve > 0,
    expireMs,
    specs: [{ kind, params: [ownMs, reserve, expireMs] }],

    init(state, i, now, freshAt = now) {
      state[i] = Math.max(now, freshAt);
    },

    check(state, i, cost, now) {
      requireCost(cost);
      const nextAt = state[i];
      if (cost > 1) return deny(NEVER); // two at once would be a burst
      if (now >= nextAt) {
        if (cost > 0) state[i] = addRoundingUp(now, everyMs);
        return allow(cost > 0 ? 0 : 1);
      }
      if (cost === 0) return allow(0);
      if (isOpen(nextAt, now)) {
        state[i] = addRoundingUp(nextAt, everyMs);
        return wait(nextAt - now);
      }
      return deny(retryAfter(nextAt, now));
    },

    deferTo(state, i, _cost, dueAt) {
      state[i] = Math.max(state[i], addRoundingUp(dueAt, everyMs));
    },

    available: (state, i, now) => (now >= state[i] ? 1 : 0),

    /** A place nobody used is given back if it is the last one: those behind it keep theirs. */
    settle(state, i, { outcome, cost, dueAt }, now) {
      if (outcome !== 'ignored' || cost <= 0 || now > dueAt + expireMs) return; // used, or wasted
      const rounding = 2 * Number.EPSILON * Math.abs(state[i]);
      const dust = Math.min(everyMs / 4, Math.max(EPSILON * everyMs, rounding));
      const isLast = Math.abs(state[i] - addRoundingUp(dueAt, everyMs)) <= dust;
      if (isLast) state[i] = dueAt;
    },

    update(state, i, news, now) {
      if (!('hits' in news)) return false;
      if (news.hits > 0) state[i] = addRoundingUp(Math.max(state[i], now), news.hits * everyMs);
      return true;
    },

    /** As a rate: that calls of several processes keep their distance, a division alone cannot promise. */
    divide(part) {
      everyMs = ownMs * part.size;
    },

    ratePerSecond: () => 1000 / everyMs,
    refillMs: ownMs,

    removableAt: (state, i) => state[i],
    evictableAt: (state, i) => state[i],

    keyState: (state, i, now) => ({
      remaining: now >= state[i] ? 1 : 0,
      reserved: reservedAt(state[i], now),
    }),

    ruleStatuses(state, i, now) {
      const freshInMs = Math.ceil(Math.max(0, state[i] - now));
      const remaining = freshInMs === 0 ? 1 : 0;
      const terms = { quota: 1, windowMs: everyMs };
      return [{ kind, ...terms, remaining, freshInMs, ...timeToOpen(policy, state, i, now) }];
    },
  };
  return policy;
}
