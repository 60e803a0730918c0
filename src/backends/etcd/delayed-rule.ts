/**
 * A rule run for permits that begin a while after they were decided, nobody knows exactly when.
 *
 *        now              dueAt      slack         latest                    the next one
 *     ────┼─────────────────┼────── may begin ───────┼────────── every ────────▶┼
 *      decided,         not sooner              not later: whoever
 *      then swapped                             is late has lost it
 *
 * Of a spacing, a permit must fit when it may begin, and counts as if it began at the latest. So two of them are never too
 * close, whatever a swap, a timer or a process that was held up have made of them. What it costs is the time between: the
 * slack for each of them (a spacing is run as one that is so much wider), the swap for those handed out at once.
 *
 * Of a bucket, a permit counts when it is decided, and is never too late: it would cost `rate` tokens for each second of that
 * time to be as strict, and a small bucket has not got them. What begins later than it was decided, begins in a bucket that has
 * filled up since: in any stretch of time, by no more than flows in within a deadline.
 */

import type { Millis } from '../../core/clock.ts';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import type { Decision } from '../../core/decision.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import { spacing } from '../../policies/spacing.ts';

/** When something is decided, and how much later that may be known. */
export interface DecisionTime {
  readonly now: Millis;
  readonly maxDelayMs: Millis;
}

/** What somebody is told who may begin within a span of time: if that is over by then, `missed` instead. */
export interface Grant {
  readonly verdict: 'grant';
  readonly remaining: number;
  readonly dueAt: Millis;
  readonly usableUntil: Millis;
  readonly refusalIfLate: Refusal;
}

type Refusal = Extract<Decision, { verdict: 'deny' }>;

export type TimedDecision = Grant | Refusal;

/** How many of a line got in, each with what it was told; the last may be a refusal. */
export type TimedDecisions = readonly TimedDecision[];

export class DelayedRule {
  /** What is run: the rule itself, or one whose places are further apart. */
  readonly policy: Policy;
  readonly #startToleranceMs: Millis;
  /** The distance between two places, where that is the rule. */
  readonly #everyMs: Millis;

  constructor(policy: Policy, startToleranceMs: Millis) {
    const everyMs = everyMsOf(policy);
    this.policy = everyMs > 0 ? withTolerance(policy, startToleranceMs) : policy;
    this.#everyMs = everyMsOf(this.policy);
    this.#startToleranceMs = startToleranceMs;
  }

  check(state: State, cost: number, moment: DecisionTime, mayReserve: boolean): TimedDecision {
    const { now, maxDelayMs } = moment;
    // How many are reserved when this is known: those who begin until then are not.
    const isAhead = mayReserve && this.policy.canReserve;
    const seen = this.policy.check(state.slice(), 0, cost, isAhead ? now + maxDelayMs : now);
    if (seen.verdict === 'deny') return seen;
    if (seen.verdict === 'wait' && !mayReserve) return refuse(Math.ceil(seen.waitMs));
    const remaining = seen.verdict === 'allow' ? seen.remaining : 0;
    return cost > 0
      ? this.#grant(state, cost, moment, remaining)
      : grantWithoutExpiry(remaining, now);
  }

  /** First come first served. Where calls are kept apart, a place that opens that soon is handed out ahead. */
  checkBatch(
    state: State,
    costs: readonly number[],
    moment: DecisionTime,
    lookaheadMs: Millis,
  ): TimedDecisions {
    const told: TimedDecision[] = [];
    for (const cost of costs) {
      const next = this.check(state, cost, moment, false);
      const isSoon = next.verdict === 'deny' && next.retryAfterMs <= lookaheadMs;
      if (isSoon) told.push(this.#grant(state, cost, moment, 0));
      else told.push(next);
      if (next.verdict === 'deny') break;
    }
    return told;
  }

  takeUpTo(state: State, most: number, moment: DecisionTime): TimedDecision {
    const cost = Math.min(most, this.policy.available(state, 0, moment.now));
    if (cost <= 0) return refuse(0);
    const told = this.check(state, cost, moment, false);
    return told.verdict === 'grant' ? { ...told, remaining: cost } : told;
  }

  /**
   * A place nobody used comes back if it was the last one. It was given a span of time and used at some instant of it,
   * so it is found by that: whoever came after it has a place at least `every` later.
   */
  settle(state: State, settlement: Settlement, now: Millis): void {
    const lastAt = state[0] - this.#everyMs;
    const sinceMs = lastAt - settlement.dueAt;
    const isLast =
      sinceMs >= -this.#startToleranceMs && sinceMs < this.#everyMs - this.#startToleranceMs;
    const dueAt = isLast ? lastAt : settlement.dueAt;
    this.policy.settle(state, 0, { ...settlement, dueAt }, now);
  }

  hits(state: State, hits: number, now: Millis): void {
    this.policy.update(state, 0, { hits }, now);
  }

  #grant(state: State, cost: number, { now, maxDelayMs }: DecisionTime, remaining: number): Grant {
    if (this.#everyMs === 0) {
      this.policy.check(state, 0, cost, now);
      return grantWithoutExpiry(remaining, now);
    }
    const dueAt = Math.max(now, state[0]);
    const usableAt = Math.max(dueAt, now + maxDelayMs);
    this.policy.check(state, 0, cost, usableAt);
    const refusalIfLate = refuse(Math.ceil(this.#everyMs));
    return {
      verdict: 'grant',
      remaining,
      dueAt,
      usableUntil: usableAt + this.#startToleranceMs,
      refusalIfLate,
    };
  }
}

/** The `every` of a spacing; 0 of anything else. */
export const everyMsOf = ({ minIntervalMs = 0 }: Policy): Millis => minIntervalMs;

/** By the slack, and by as much as the clock of whoever looks at it may go faster. */
function withTolerance({ specs = [] }: Policy, startToleranceMs: Millis): Policy {
  const [everyMs, reserve, expireMs] = specs[0].params;
  const expire = expireMs < Infinity ? { expire: expireMs } : {};
  return spacing({
    every: everyMs * (1 + CLOCK_DRIFT_RATE) + startToleranceMs,
    reserve,
    ...expire,
  });
}

const refuse = (retryAfterMs: Millis): Refusal => ({ verdict: 'deny', retryAfterMs });

/** One that cannot be too late. */
const grantWithoutExpiry = (remaining: number, now: Millis): Grant => ({
  verdict: 'grant',
  remaining,
  dueAt: now,
  usableUntil: Infinity,
  refusalIfLate: refuse(0),
});
