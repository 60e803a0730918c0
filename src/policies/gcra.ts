/**
 * Cell: a rate and a burst that come with every call.
 *
 * The rule of redis-cell, the generic cell rate algorithm. A key's state is one instant, the one at
 * which all that it has taken will have been earned back. Everything taken moves it on by an interval,
 * and it may lie no further ahead than `limit` intervals:
 *
 *     ──────┼─────────────────────────────┼──────────────┼────▶ time
 *          now        resetAfter ──▶    earnedAt    now + limit × interval
 *                                         └─ remaining ──┘
 *
 * Whoever asks with other terms next time meets the same instant. So a key can be forgotten once that
 * instant is over, whatever the terms were.
 */

import type { Millis } from '../core/clock.ts';
import { NEVER } from '../core/decision.ts';
import type { Policy, State } from './policy.ts';

/**
 * Floating-point dust, as in a bucket: a microsecond of grace and no more than a thousandth of an
 * interval, but never less than what some sums of instants of this size gather.
 */
const EPSILON_MS = 0.001;
const EPSILON_INTERVALS = 0.001;
const EPSILON = 64 * Number.EPSILON;

/** How a table keeps such keys. */
export const gcraLifecycle: Pick<Policy, 'width' | 'init' | 'removableAt' | 'evictableAt'> = {
  width: 1,
  init(state, i, now, freshAt = now) {
    state[i] = freshAt;
  },
  removableAt: (state, i) => state[i],
  evictableAt: (state, i) => state[i],
};

/** Five results and a hot path: fields of one object cost nothing, an object for each would. */
export class Gcra {
  isLimited = false;
  /** What would still fit at this instant. */
  remaining = 0;
  /** Until the same would fit; NEVER if it is more than the limit; 0 if it was not limited. */
  retryAfterMs: Millis = 0;
  /** Until nothing that was taken counts any more. */
  resetAfterMs: Millis = 0;

  /** May `quantity` happen, where up to `limit` fit and one is earned in each interval? 0 looks. */
  check(
    state: State,
    i: number,
    limit: number,
    intervalMs: Millis,
    quantity: number,
    now: Millis,
  ): void {
    const earnedAt = Math.max(state[i], now);
    const wanted = earnedAt + intervalMs * quantity;
    const toleranceMs = intervalMs * limit;
    const grace = Math.max(
      Math.min(EPSILON_MS, intervalMs * EPSILON_INTERVALS),
      Math.abs(wanted) * EPSILON,
    );
    const earlyMs = wanted - toleranceMs - now;
    this.isLimited = earlyMs > grace;
    this.retryAfterMs = this.isLimited ? (quantity > limit ? NEVER : earlyMs) : 0;
    if (!this.isLimited && quantity > 0) state[i] = wanted;
    this.resetAfterMs = (this.isLimited ? earnedAt : wanted) - now;
    const left = (toleranceMs - this.resetAfterMs + grace) / intervalMs;
    this.remaining = left > 0 ? Math.floor(left) : 0;
  }
}
