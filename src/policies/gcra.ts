/**
 * GCRA, the generic cell rate algorithm, as redis-cell runs it: rate and burst come with every call.
 *
 * A key's state is one instant, `earnedAt`: when all that was taken will have been earned back. Each unit
 * moves it by one interval, and it may be at most `limit` intervals ahead:
 *
 *     ──────┼─────────────────────────────┼──────────────┼────▶ time
 *          now        resetAfter ──▶    earnedAt    now + limit × interval
 *                                         └─ remaining ──┘
 *
 * The next call may bring other terms and meets the same instant. So a key can be removed once that
 * instant has passed, no matter what its terms were.
 */

import type { Millis } from '../core/clock.ts';
import { NEVER } from '../core/decision.ts';
import type { Policy, State } from './policy.ts';

/**
 * Tolerance for floating-point error: a microsecond, at most a thousandth of an interval, and at least
 * the rounding error of sums of instants of this size.
 */
const EPSILON_MS = 0.001;
const EPSILON_INTERVALS = 0.001;
const EPSILON = 64 * Number.EPSILON;

/**
 * What a key table needs to keep such keys. A new key may take on the instant of an evicted one, whose terms were others:
 * it owes at most one burst of its own terms, `toleranceMs`.
 */
export class GcraLifecycle implements Pick<Policy, 'width' | 'init' | 'freshAt'> {
  readonly width = 1;
  /** Interval × limit of the check that is about to begin a key. */
  toleranceMs: Millis = 0;

  init(state: State, i: number, now: Millis, freshAt = now): void {
    state[i] = Math.min(freshAt, now + this.toleranceMs);
  }

  freshAt(state: State, i: number): Millis {
    return state[i];
  }
}

/** Results are fields, because an object per check would cost more than the check. */
export class Gcra {
  isLimited = false;
  /** Units that would still fit at this instant. */
  remaining = 0;
  /** Time until the same quantity fits; NEVER if it exceeds the limit; 0 if it was allowed. */
  retryAfterMs: Millis = 0;
  /** Time until nothing taken counts any longer. */
  resetAfterMs: Millis = 0;

  /** May `quantity` happen, where up to `limit` fit and one is earned per interval? 0 changes nothing. */
  check(
    state: State,
    i: number,
    limit: number,
    intervalMs: Millis,
    quantity: number,
    now: Millis,
  ): void {
    const earnedAt = Math.max(state[i], now);
    const nextEarnedAt = earnedAt + intervalMs * quantity;
    const toleranceMs = intervalMs * limit;
    const epsilon = Math.max(
      Math.min(EPSILON_MS, intervalMs * EPSILON_INTERVALS),
      Math.abs(nextEarnedAt) * EPSILON,
    );
    const earlyMs = nextEarnedAt - toleranceMs - now;
    this.isLimited = earlyMs > epsilon;
    this.retryAfterMs = this.isLimited ? (quantity > limit ? NEVER : earlyMs) : 0;
    if (!this.isLimited && quantity > 0) state[i] = nextEarnedAt;
    this.resetAfterMs = (this.isLimited ? earnedAt : nextEarnedAt) - now;
    const remaining = (toleranceMs - this.resetAfterMs + epsilon) / intervalMs;
    this.remaining = remaining > 0 ? Math.floor(remaining) : 0;
  }
}
