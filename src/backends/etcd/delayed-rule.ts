/**
 * A rule for permits that start an unknown time after their decision.
 *
 *        now              dueAt     start tolerance  usableUntil             next permit
 *     ────┼─────────────────┼────── may start ──────────┼──────── every ────────▶┼
 *      decided,         no sooner                   no later: then
 *      then swapped                                 the permit is lost
 *
 * Spacing: a permit is granted for the time at which it may start, and counts as if it started at the latest instant.
 * So two permits are never too close, whatever the delay of a swap, a timer or a process. The cost is the time between:
 * the start tolerance for every permit (it widens the spacing), and the swap for permits that are granted immediately.
 *
 * Bucket: a permit counts when it is decided and never expires. Strictness would cost `rate` tokens for each second of
 * that delay, more than a small bucket holds. A permit that starts later starts in a bucket that has refilled since:
 * the overshoot in any span of time is at most the refill of one deadline.
 *
 * Window: as strict as a spacing. A permit counts in the step of the latest instant at which it may start. This also
 * holds for an `all` with one of them: the next permit of its spacing is `every` after that instant.
 *
 * Quota, ramp, lock-out: like a bucket.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import { isJoint } from '../../policies/rules.ts';
import { everyMsOf } from '../lookahead.ts';
import { registerRule } from './register-rule.ts';

/** The time of a decision, and the longest delay until its caller receives it. */
export interface DecisionTime {
  readonly now: Millis;
  readonly maxDelayMs: Millis;
}

/** A permit that may start from `dueAt` to `usableUntil`; after that, `refusalIfLate` replaces it. */
export interface Grant {
  readonly verdict: 'grant';
  readonly remaining: number;
  readonly dueAt: Millis;
  readonly usableUntil: Millis;
  readonly refusalIfLate: Refusal;
}

type Refusal = Extract<Decision, { verdict: 'deny' }>;

export type TimedDecision = Grant | Refusal;

/** Decisions of a batch, in order; only the last may be a refusal. */
export type TimedDecisions = readonly TimedDecision[];

export class DelayedRule {
  /** The rule in the form that registers hold. */
  readonly policy: Policy;
  readonly #startToleranceMs: Millis;
  /** The widened interval of a spacing; 0 for other rules. */
  readonly #everyMs: Millis;
  /** True if a permit that starts late could be too close to others. */
  readonly #isStrict: boolean;

  constructor(policy: Policy, startToleranceMs: Millis) {
    this.policy = registerRule(policy, startToleranceMs);
    this.#everyMs = isJoint(policy) ? 0 : everyMsOf(this.policy);
    this.#isStrict = isStrict(policy);
    this.#startToleranceMs = startToleranceMs;
  }

  check(state: State, cost: number, moment: DecisionTime, mayReserve: boolean): TimedDecision {
    const { now, maxDelayMs } = moment;
    // Reservations count at the time the caller receives the decision: permits that start earlier need no reservation.
    const isReserving = mayReserve && this.policy.traits.canReserve;
    const peeked = this.policy.check(state.slice(), 0, cost, isReserving ? now + maxDelayMs : now);
    if (peeked.verdict === 'deny') return this.#noteRefusal(state, cost, now, peeked);
    if (peeked.verdict === 'wait' && !mayReserve) return refuse(Math.ceil(peeked.waitMs));
    const remaining = peeked.verdict === 'allow' ? peeked.remaining : 0;
    return cost > 0
      ? this.#grant(state, cost, moment, remaining)
      : grantWithoutExpiry(remaining, now);
  }

  /** The time for reading a state: a permit of a strict rule counts as reserved until it starts. */
  readingTime({ now, maxDelayMs }: DecisionTime): Millis {
    return this.#isStrict ? now + maxDelayMs : now;
  }

  /** Applies a refused call: it may start a new second of a ramp, and a lock-out may count it. */
  #noteRefusal(state: State, cost: number, now: Millis, refusal: Refusal): Refusal {
    if (cost === 0) return refusal;
    if (this.policy.chain?.recordRefusal) return this.policy.check(state, 0, cost, now) as Refusal;
    this.policy.chain?.advance?.(state, 0, now);
    return refusal;
  }

  /** `check` without reservations for a waiting call, which is not refused yet. */
  checkWaiting(state: State, cost: number, moment: DecisionTime): TimedDecision {
    if (!this.policy.chain?.recordRefusal) return this.check(state, cost, moment, false);
    const after = state.slice();
    const decision = this.check(after, cost, moment, false);
    if (decision.verdict === 'grant') state.set(after);
    return decision;
  }

  /** First come first served. The next permit of a spacing is granted ahead if due within `lookaheadMs`. */
  checkBatch(
    state: State,
    costs: readonly number[],
    moment: DecisionTime,
    lookaheadMs: Millis,
  ): TimedDecisions {
    const decisions: TimedDecision[] = [];
    for (const cost of costs) {
      const next = this.checkWaiting(state, cost, moment);
      const isSoon =
        this.#everyMs > 0 && next.verdict === 'deny' && next.retryAfterMs <= lookaheadMs;
      decisions.push(isSoon ? this.#grant(state, cost, moment, 0) : next);
      if (next.verdict === 'deny') break;
    }
    return decisions;
  }

  takeUpTo(state: State, most: number, moment: DecisionTime): TimedDecision {
    const cost = Math.min(most, this.policy.available(state, 0, moment.now));
    if (cost <= 0) {
      this.policy.chain?.advance?.(state, 0, moment.now);
      return refuse(0);
    }
    const decision = this.check(state, cost, moment, false);
    return decision.verdict === 'grant' ? { ...decision, remaining: cost } : decision;
  }

  /**
   * Returns an unused permit of a spacing if it was the last one. Its `dueAt` is some instant of the span in which it
   * could start. The next permit is at least `every` later, so the span identifies it.
   */
  settle(state: State, settlement: Settlement, now: Millis): void {
    const lastAt = state[0];
    const sinceMs = lastAt - settlement.dueAt;
    const isLast =
      sinceMs >= -this.#startToleranceMs && sinceMs < this.#everyMs - this.#startToleranceMs;
    const dueAt = isLast ? lastAt : settlement.dueAt;
    this.policy.settle(state, 0, { ...settlement, dueAt }, now);
  }

  #grant(state: State, cost: number, { now, maxDelayMs }: DecisionTime, remaining: number): Grant {
    if (this.#everyMs === 0) {
      this.policy.check(state, 0, cost, now);
      if (!this.#isStrict) return grantWithoutExpiry(remaining, now);
      const usableUntil = now + maxDelayMs + this.#startToleranceMs;
      this.policy.chain?.deferTo?.(state, 0, cost, usableUntil);
      const refusalIfLate = refuse(Math.ceil(this.#startToleranceMs));
      return { verdict: 'grant', remaining, dueAt: now, usableUntil, refusalIfLate };
    }
    const dueAt = Math.max(now, this.policy.freshAt(state, 0, false));
    const usableAt = Math.max(dueAt, now + maxDelayMs);
    this.policy.check(state, 0, cost, usableAt);
    const usableUntil = usableAt + this.#startToleranceMs;
    const refusalIfLate = refuse(Math.ceil(this.#everyMs));
    return { verdict: 'grant', remaining, dueAt, usableUntil, refusalIfLate };
  }
}

const isStrict = ({ rules }: Policy): boolean =>
  rules.some(({ policy: { chain } }) => chain?.deferTo !== undefined);

const refuse = (retryAfterMs: Millis): Refusal => ({ verdict: 'deny', retryAfterMs });

const grantWithoutExpiry = (remaining: number, now: Millis): Grant => ({
  verdict: 'grant',
  remaining,
  dueAt: now,
  usableUntil: Infinity,
  refusalIfLate: refuse(0),
});
