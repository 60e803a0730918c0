/**
 * A rule as the laboratory runs it, and two adapters: for the project's own policies, and for published rules that learn
 * a limit on calls in flight.
 */

import type { Millis } from '../../core/clock.ts';
import { type Outcome, WHEN_SETTLED } from '../../core/decision.ts';
import type { Random } from '../../core/random.ts';
import type { Policy } from '../../policies/policy.ts';

export interface Rule {
  /** Time until the next call may start: 0 starts it, `Infinity` waits until a call settles. */
  start(now: Millis, inFlight: number): Millis;
  /** A call ended. `inFlight` is the number of calls in flight when it started, itself included. */
  settle(outcome: Outcome, sentAt: Millis, inFlight: number, now: Millis): void;
  /** Calls allowed in flight, for charts. */
  limit(now: Millis): number;
}

/** Creates the rule of a client that starts now. */
export type CreateRule = (random: Random, now: Millis) => Rule;

/** Drives a policy as a limiter does: what is measured is what ships. */
export function policyRule(policy: Policy, startedAt: Millis): Rule {
  if (policy.traits.canReserve)
    throw new Error(`expected a rule without reservations, got ${policy.kind}`);
  const state = new Float64Array(policy.width);
  policy.init(state, 0, startedAt);
  return {
    start(now) {
      const decision = policy.check(state, 0, 1, now);
      if (decision.verdict !== 'deny') return 0;
      return decision.retryAfterMs === WHEN_SETTLED ? Infinity : decision.retryAfterMs;
    },
    settle(outcome, sentAt, _inFlight, now) {
      policy.settle(state, 0, { outcome, cost: 1, dueAt: sentAt, rttMs: now - sentAt }, now);
    },
    limit: (now) => policy.keyState(state, 0, now).limit ?? 0,
  };
}

/** One finished call, as a published rule sees it. */
export interface Sample {
  readonly now: Millis;
  readonly sentAt: Millis;
  readonly rttMs: Millis;
  /** Calls in flight when it started, itself included. */
  readonly inFlight: number;
  readonly outcome: Outcome;
  /** Refused, or without a reply in time. */
  readonly isDropped: boolean;
}

/** A limit on calls in flight that learns from samples. */
export interface LearntLimit {
  readonly limit: number;
  add(sample: Sample): void;
}

export const learntRule = (learnt: LearntLimit): Rule => ({
  start: (_now, inFlight) => (inFlight < Math.floor(learnt.limit) ? 0 : Infinity),
  settle(outcome, sentAt, inFlight, now) {
    const isDropped = outcome !== 'ok';
    learnt.add({ now, sentAt, rttMs: now - sentAt, inFlight, outcome, isDropped });
  },
  limit: () => Math.floor(learnt.limit),
});

/** A limit that does not learn: the comparison for all others. */
export const fixedRule = (limit: number): Rule => learntRule({ limit, add() {} });
