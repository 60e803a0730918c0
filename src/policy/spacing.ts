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

import type { Millis } from '../clock.ts';
import { allow, deny, NEVER, wait } from '../decision.ts';
import type { Duration } from '../duration.ts';
import { Fields } from '../options.ts';
import { requireCost } from './cost.ts';
import type { Policy } from './policy.ts';

export interface SpacingOptions {
  /** The least time between two permits: `'6s'`, or a number of milliseconds. */
  readonly every: Duration;
  /** How many places may be reserved ahead. Default 0: nobody waits, everybody is told when. */
  readonly reserve?: number;
  /** A permit not used this long after it was due is wasted. Default: it stays good. */
  readonly expire?: Duration;
}

/** Two instants closer than this are the same one with floating-point dust on it. */
const DUST_MS = 0.001;

export function spacing(options: SpacingOptions, path = 'spacing'): Policy {
  const fields = new Fields(path, options);
  const everyMs = fields.duration('every');
  const reserve = fields.whole('reserve', 0, 0);
  const expireMs = fields.duration('expire', Infinity);
  fields.done();

  const reservedAt = (nextAt: Millis, now: Millis): number =>
    Math.max(0, Math.ceil((nextAt - everyMs - now - DUST_MS) / everyMs));

  /** Whole milliseconds until an ask is not refused; what it says must then be true. */
  const retryAfter = (nextAt: Millis, now: Millis): Millis => {
    const ms = Math.ceil(nextAt - reserve * everyMs - now - DUST_MS / 2);
    return reserve === 0 && now + ms < nextAt ? ms + 1 : ms;
  };

  return {
    kind: 'spacing',
    width: 1,
    // A permit handed out on yesterday's time may stand too close to the next one.
    exactTime: true,
    expireMs,

    start(state, i, now, freshAt = now) {
      state[i] = Math.max(now, freshAt);
    },

    ask(state, i, cost, now) {
      requireCost(cost);
      const nextAt = state[i];
      if (cost > 1) return deny(NEVER); // two at once would be a burst
      if (now >= nextAt) {
        if (cost > 0) state[i] = after(now, everyMs);
        return allow(cost > 0 ? 0 : 1);
      }
      if (cost === 0) return allow(0);
      if (reservedAt(nextAt, now) < reserve) {
        state[i] = after(nextAt, everyMs);
        return wait(nextAt - now);
      }
      return deny(retryAfter(nextAt, now));
    },

    available: (state, i, now) => (now >= state[i] ? 1 : 0),

    /** A place nobody used is given back if it is the last one: those behind it keep theirs. */
    settle(state, i, { outcome, dueAt }) {
      const isLast = Math.abs(state[i] - everyMs - dueAt) <= DUST_MS;
      if (outcome === 'ignored' && isLast) state[i] = dueAt;
    },

    hear(state, i, news, now) {
      if (!('hits' in news)) return false;
      if (news.hits > 0) state[i] = after(Math.max(state[i], now), news.hits * everyMs);
      return true;
    },

    forgetAt: (state, i) => state[i],
    evictAt: (state, i) => state[i],

    view: (state, i, now) => ({
      remaining: now >= state[i] ? 1 : 0,
      reserved: reservedAt(state[i], now),
    }),
  };
}

/**
 * The first instant at least `span` after `at`. Far from zero a sum is rounded, and rounded down it
 * would stand closer than allowed, or not move at all.
 */
function after(at: Millis, span: Millis): Millis {
  const sum = at + span;
  return sum - at >= span ? sum : sum + Math.abs(sum) * Number.EPSILON;
}
