/**
 * A rule for permits that start some unknown time after they were decided.
 *
 *        now              dueAt     start tolerance  usableUntil             next permit
 *     ────┼─────────────────┼────── may start ──────────┼──────── every ────────▶┼
 *      decided,         no sooner                   no later: then
 *      then swapped                                 the permit is lost
 *
 * Spacing: a permit is granted for when it may start, and counts as if it started at the latest instant. So two permits are
 * never too close, whatever a swap, a timer or a stalled process did. The cost is the time between: the start tolerance for
 * every permit (the spacing is widened by it), and the swap for permits that are granted immediately.
 *
 * Bucket: a permit counts when it is decided and never expires. To be as strict would cost `rate` tokens for each second of
 * that delay, more than a small bucket has. A permit that starts later starts in a bucket that has refilled since: the
 * overshoot in any span of time is at most the refill of one deadline.
 *
 * Window: as strict as a spacing. A permit counts in the step of the latest instant at which it may start.
 */

import type { Millis } from '../../core/clock.ts';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import type { Decision } from '../../core/decision.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import { spacing } from '../../policies/spacing.ts';
import { everyMsOf } from '../lookahead.ts';
import { onElapsedTime } from './elapsed-time.ts';

/** The time of a decision, and the longest delay until the caller has it. */
export interface DecisionTime {
  readonly now: Millis;
  readonly maxDelayMs: Millis;
}

/** A permit that may start from `dueAt` to `usableUntil`; later, `refusalIfLate` replaces it. */
export interface Grant {
  readonly verdict: 'grant';
  readonly remaining: number;
  readonly dueAt: Millis;
  readonly usableUntil: Millis;
  readonly refusalIfLate: Refusal;
}

type Refusal = Extract<Decision, { verdict: 'deny' }>;

export type TimedDecision = Grant | Refusal;

/** Of a batch, in order; only the last may be a refusal. */
export type TimedDecisions = readonly TimedDecision[];

export class DelayedRule {
  /** The rule as it is run: a spacing is widened by the start tolerance, a window has its own clock. */
  readonly policy: Policy;
  readonly #startToleranceMs: Millis;
  /** The widened interval of a spacing; 0 for other rules. */
  readonly #everyMs: Millis;

  constructor(policy: Policy, startToleranceMs: Millis) {
    const everyMs = everyMsOf(policy);
    const other = policy.kind === 'window' ? onElapsedTime(policy) : policy;
    this.policy = everyMs > 0 ? withTolerance(policy, startToleranceMs) : other;
    this.#everyMs = everyMsOf(this.policy);
    this.#startToleranceMs = startToleranceMs;
  }

  check(state: State, cost: number, moment: DecisionTime, mayReserve: boolean): TimedDecision {
    const { now, maxDelayMs } = moment;
    // Reservations are counted at the time the caller has the decision: permits that start before are none.
    const isReserving = mayReserve && this.policy.canReserve;
    const peeked = this.policy.check(state.slice(), 0, cost, isReserving ? now + maxDelayMs : now);
    if (peeked.verdict === 'deny') return peeked;
    if (peeked.verdict === 'wait' && !mayReserve) return refuse(Math.ceil(peeked.waitMs));
    const remaining = peeked.verdict === 'allow' ? peeked.remaining : 0;
    return cost > 0
      ? this.#grant(state, cost, moment, remaining)
      : grantWithoutExpiry(remaining, now);
  }

  /** First come first served. The next permit of a spacing is granted ahead if it is due within `lookaheadMs`. */
  checkBatch(
    state: State,
    costs: readonly number[],
    moment: DecisionTime,
    lookaheadMs: Millis,
  ): TimedDecisions {
    const decisions: TimedDecision[] = [];
    for (const cost of costs) {
      const next = this.check(state, cost, moment, false);
      const isSoon = next.verdict === 'deny' && next.retryAfterMs <= lookaheadMs;
      decisions.push(isSoon ? this.#grant(state, cost, moment, 0) : next);
      if (next.verdict === 'deny') break;
    }
    return decisions;
  }

  takeUpTo(state: State, most: number, moment: DecisionTime): TimedDecision {
    const cost = Math.min(most, this.policy.available(state, 0, moment.now));
    if (cost <= 0) return refuse(0);
    const decision = this.check(state, cost, moment, false);
    return decision.verdict === 'grant' ? { ...decision, remaining: cost } : decision;
  }

  /**
   * An unused permit of a spacing is returned if it was the last one. Its `dueAt` is some instant of the span in which it
   * could start; the permit after it is at least `every` later, so the span identifies it.
   */
  settle(state: State, settlement: Settlement, now: Millis): void {
    const lastAt = state[0] - this.#everyMs;
    const sinceMs = lastAt - settlement.dueAt;
    const isLast =
      sinceMs >= -this.#startToleranceMs && sinceMs < this.#everyMs - this.#startToleranceMs;
    const dueAt = isLast ? lastAt : settlement.dueAt;
    this.policy.settle(state, 0, { ...settlement, dueAt }, now);
  }

  #grant(state: State, cost: number, { now, maxDelayMs }: DecisionTime, remaining: number): Grant {
    if (this.#everyMs === 0) {
      this.policy.check(state, 0, cost, now);
      if (!this.policy.deferTo) return grantWithoutExpiry(remaining, now);
      const usableUntil = now + maxDelayMs + this.#startToleranceMs;
      this.policy.deferTo(state, 0, cost, usableUntil);
      const refusalIfLate = refuse(Math.ceil(this.#startToleranceMs));
      return { verdict: 'grant', remaining, dueAt: now, usableUntil, refusalIfLate };
    }
    const dueAt = Math.max(now, state[0]);
    const usableAt = Math.max(dueAt, now + maxDelayMs);
    this.policy.check(state, 0, cost, usableAt);
    const usableUntil = usableAt + this.#startToleranceMs;
    const refusalIfLate = refuse(Math.ceil(this.#everyMs));
    return { verdict: 'grant', remaining, dueAt, usableUntil, refusalIfLate };
  }
}

/** Widens a spacing by the start tolerance and by how much faster a reader's clock may run. */
function withTolerance({ specs = [] }: Policy, startToleranceMs: Millis): Policy {
  const [everyMs, reserve, expireMs] = specs[0].params;
  const expire = expireMs < Infinity ? { expire: expireMs } : {};
  const every = everyMs * (1 + CLOCK_DRIFT_RATE) + startToleranceMs;
  return spacing({ every, reserve, ...expire });
}

const refuse = (retryAfterMs: Millis): Refusal => ({ verdict: 'deny', retryAfterMs });

const grantWithoutExpiry = (remaining: number, now: Millis): Grant => ({
  verdict: 'grant',
  remaining,
  dueAt: now,
  usableUntil: Infinity,
  refusalIfLate: refuse(0),
});
