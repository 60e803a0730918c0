/**
 * What a rule is.
 *
 * A policy is a state machine without clock, chance or I/O: time comes in as an argument. Its state
 * is a few numbers, and the numbers of one key stand side by side in a Float64Array that somebody
 * else owns:
 *
 *     state:  … | key 41: spent, at | key 42: spent, at | key 43: spent, at | …
 *                                   ▲ i                  `width` numbers a key
 *
 * That is the whole trick. A million keys are one array, not a million objects; a snapshot is a
 * copy; trying something and taking it back (`all`) is saving and restoring a few numbers; and the
 * rule is still written once, for one key, in plain arithmetic.
 *
 * Time that comes in smaller than before is treated as standing still: no policy hands out anything
 * for the same moment twice.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, type Outcome, WHEN_SETTLED } from '../core/decision.ts';

/** The numbers of many keys. A policy reads and writes `width` of them, from index `i` on. */
export type State = Float64Array;

/** How a call that was allowed went, told when it is over. */
export interface Settlement {
  readonly outcome: Outcome;
  /** What was asked for. */
  readonly cost: number;
  /** What was really used, where that is known only now; `cost` if left out. */
  readonly used?: number | undefined;
  /** When the permit was good: the instant of the ask, plus its `waitMs` if it had one. */
  readonly dueAt: Millis;
  /** How long the work took. */
  readonly rttMs?: Millis | undefined;
  /** Which partition it counted against, as it was asked for. */
  readonly partition?: number | undefined;
  /** Whose lease ends, where somebody else counts who is in flight. */
  readonly leaseId?: string | undefined;
}

/** The part of a limit that one of several processes may spend. */
export interface PoolPosition {
  /** How many share the limit. */
  readonly size: number;
  /** Which of them this is (0 first), if it also has its turn at what an even division leaves; else -1. */
  readonly rank: number;
}

/** What comes in from elsewhere. */
export type Feedback =
  /** Hits on this key that other nodes served. */
  | { readonly hits: number }
  /** How many share the limit, and which of them this is (0 first), if it knows. */
  | { readonly poolSize: number; readonly rank?: number }
  /** The pool that had been reached at `reachedAt`, before a restart. */
  | { readonly resume: number; readonly reachedAt: Millis }
  /** The other side says that so much is left, and until when that holds. */
  | { readonly remaining: number; readonly resetMs?: Millis }
  /** The other side wants nothing more for so long. */
  | { readonly retryAfterMs: Millis };

/** What a key's state looks like from outside, in words; whichever of them apply. */
export interface KeyState {
  /** What would be granted at this instant; below zero while in debt. */
  remaining: number;
  /** ramp: tokens in the pool this second, over all members. */
  pool?: number;
  /** In a pool of processes: how many share the limit; 0: this one has no part of it at the moment. */
  poolSize?: number;
  /** adaptive: calls allowed in flight. busy: calls allowed a second. */
  limit?: number;
  /** adaptive: calls in flight. */
  inFlight?: number;
  /** spacing: places reserved ahead and not yet due. */
  reserved?: number;
  /** adaptive: the round-trip time it holds to be normal. */
  rttMs?: Millis;
  /** adaptive with partitions: calls in flight by partition. */
  partitions?: Readonly<Record<string, number>>;
}

/** One rule as a caller may be told of it: how much there is, how much is left, until when. */
export interface RuleStatus {
  readonly kind: string;
  /** Calls in a window; without a window, calls at once. */
  readonly quota: number;
  readonly windowMs?: Millis;
  /** What would be granted at this instant, never below zero. */
  readonly remaining: number;
  /** How long until one call fits: 0 now, NEVER never; left out if a call in flight must settle. */
  readonly opensInMs?: Millis;
  /** How long until nothing that was spent counts any more; left out where that has no time. */
  readonly freshInMs?: Millis;
}

/** A key as it stands: in the words of its limit, and each rule of it. Made to be looked at once: whoever looks may add to it. */
export interface KeyStatus {
  readonly state: KeyState;
  readonly rules: RuleStatus[];
}

/** A rule as numbers, for whoever runs it in another language: `backends/redis/lua-rules.ts`. */
export interface RuleSpec {
  readonly kind: string;
  readonly params: readonly number[];
}

export interface Policy {
  /** The limit's name in a configuration: bucket, spacing, … */
  readonly kind: string;

  /** How many numbers of state a key needs. */
  readonly width: number;

  /** True if time a few microseconds old would break the rule's promise. */
  readonly needsExactTime: boolean;

  /** True if it must hear how every call went; others only of what was not used as asked for. */
  readonly needsOutcome: boolean;

  /** True if it may answer `wait`: go ahead later, a place is reserved. */
  readonly canReserve: boolean;

  /** Names of the parts it keeps apart; an ask says which by its place in this list. */
  readonly partitions?: readonly string[];

  /** What it is made of, if it can be run elsewhere: one that learns from its own calls cannot. */
  readonly specs?: readonly RuleSpec[];

  /** A permit not used this long after it was due is wasted, and must be asked for again. */
  readonly expireMs: Millis;

  /**
   * Begins a key. With `freshAt` it begins as one that has spent so much that it will be as good as
   * new only then: how a key is taken on whose past may have been forgotten too early.
   */
  init(state: State, i: number, now: Millis, freshAt?: Millis): void;

  /** May `cost` happen now? All or nothing; a cost of 0 looks without touching. */
  check(state: State, i: number, cost: number, now: Millis, partitionIndex?: number): Decision;

  /** What it has just given is used only at `dueAt`, because another limit says so. */
  deferTo?(state: State, i: number, cost: number, dueAt: Millis): void;

  /** The most whole units an `ask` would allow right now. */
  available(state: State, i: number, now: Millis): number;

  settle(state: State, i: number, settlement: Settlement, now: Millis): void;

  /** Takes in news; false if this rule has no use for news of that kind. */
  update(state: State, i: number, feedback: Feedback, now: Millis): boolean;
  /** Units that were taken off another bucket come into this one, no further than up to so many. Only of a bucket. */
  credit?(state: State, i: number, units: number, upTo: number, now: Millis): void;

  /** From now on only this part of the limit is spent here, whatever the key; absent if it cannot be divided. */
  divide?(position: PoolPosition, now: Millis): void;

  /** Units a second that a key can have here, its part; absent where calls in flight are counted, not calls a second. */
  ratePerSecond?(state: State, i: number, now: Millis): number;

  /** True if what it hands out is counted by the second: a new one must not begin twice. */
  readonly isPerSecond?: boolean;

  /** How old a `pool` reached elsewhere may be to go on from; absent unless somebody said so. */
  readonly resumeForMs?: Millis;

  /** What a key that has spent everything takes to be as good as new; absent if that is no time at all. */
  readonly refillMs?: Millis;

  /** From this instant on, a key begun anew would decide exactly as this one. */
  removableAt(state: State, i: number): Millis;

  /** From this instant on, a key begun anew would allow no more than this one. */
  evictableAt(state: State, i: number): Millis;

  keyState(state: State, i: number, now: Millis): KeyState;

  /** How each of its rules stands; `state` is a copy, which it may spoil. */
  ruleStatuses(state: State, i: number, now: Millis): RuleStatus[];
}

/** How long until one call fits, found by asking a state that may be spoilt. */
export function timeToOpen(
  policy: Pick<Policy, 'check'>,
  state: State,
  i: number,
  now: Millis,
): Pick<RuleStatus, 'opensInMs'> {
  const decision = policy.check(state, i, 1, now);
  if (decision.verdict === 'allow') return { opensInMs: 0 };
  const opensInMs = decision.verdict === 'wait' ? decision.waitMs : decision.retryAfterMs;
  return opensInMs === WHEN_SETTLED ? {} : { opensInMs };
}

/** How a key stands, from a state that is spoilt by looking. */
export const keyStatusOf = (policy: Policy, state: State, now: Millis): KeyStatus => ({
  state: policy.keyState(state, 0, now), // changes nothing, so it comes first
  rules: policy.ruleStatuses(state, 0, now),
});

/**
 * Takes up to `most` (a whole number, or Infinity for all there is) and says how many it got.
 * The form of `ask` for batch readers, who would rather have some than none.
 */
export function takeUpTo(
  policy: Policy,
  state: State,
  i: number,
  most: number,
  now: Millis,
  leave = 0,
): number {
  const granted = Math.min(most, Math.floor(policy.available(state, i, now) - leave));
  if (granted <= 0) return 0;
  return policy.check(state, i, granted, now).verdict === 'allow' ? granted : 0;
}
