/**
 * The policy interface: what every limiting algorithm implements.
 *
 * A policy is a pure state machine without clock, randomness or I/O; time is an argument. Its state is
 * a few numbers per key, side by side in a Float64Array that the caller owns:
 *
 *     state:  … | key 41: spent, at | key 42: spent, at | key 43: spent, at | …
 *                                   ▲ i                  `width` numbers per key
 *
 * So a million keys are one array instead of a million objects, a snapshot is a copy, and rolling back
 * (`all`) restores a few numbers. The algorithm is still written once, for one key.
 *
 * Time that goes backwards is treated as standing still: no policy grants anything twice for one instant.
 */

import type { Millis } from '../core/clock.ts';
import {
  type AttemptOutcome,
  type Decision,
  NEVER,
  type Outcome,
  WHEN_SETTLED,
} from '../core/decision.ts';
import type { TimeZone } from './time-zone.ts';

/** The numbers of many keys. A policy reads and writes `width` of them, from index `i` on. */
export type State = Float64Array;

/** How an allowed call went, reported when it is over. */
export interface Settlement {
  readonly outcome: Outcome;
  /** The cost of the check. */
  readonly cost: number;
  /** What was really used, where that is known only now. Default: `cost`. */
  readonly used?: number | undefined;
  /** When the permit became valid: the instant of the check, plus its `waitMs` if it had one. */
  readonly dueAt: Millis;
  /** Round-trip time of the call. */
  readonly rttMs?: Millis | undefined;
  /** Index of the partition or level that the check counted against. */
  readonly partition?: number | undefined;
  /** The lease to release, where a remote backend counts calls in flight. */
  readonly leaseId?: string | undefined;
  /** The id of the call, where a remote backend remembers it. */
  readonly callId?: string | undefined;
  /** True if a fallback granted the call while a remote backend was unavailable: that knows its lease at most. */
  readonly fromFallback?: boolean | undefined;
}

/** Which part of a limit one member of a pool of processes may spend. */
export interface PoolPosition {
  /** Members that divide the limit. */
  readonly size: number;
  /** This member's rank (0 first), which gives it turns at the remainder of an even division; -1 without one. */
  readonly rank: number;
  /** Since when the pool has this size. */
  readonly since: Millis;
}

/** The position of a process that has the whole limit. */
export const UNDIVIDED: PoolPosition = Object.freeze({ size: 1, rank: -1, since: -Infinity });

/** What happened elsewhere. */
export type Feedback =
  /** Hits on this key that other nodes served. */
  | { readonly hits: number }
  /** How many members divide the limit, and this member's rank (0 first), if known. */
  | { readonly poolSize: number; readonly rank?: number }
  /** The ramp level reached at `reachedAt`, before a restart. */
  | { readonly resume: number; readonly reachedAt: Millis }
  /** The server reports so many calls left, and how long that holds. */
  | { readonly remaining: number; readonly resetMs?: Millis }
  /** The server requested a pause (Retry-After). */
  | { readonly retryAfterMs: Millis }
  /** Lock-out: how attempts of the key ended, or that a call was refused. */
  | { readonly report: AttemptOutcome | 'refusal'; readonly count?: number };

/** A decision of the server of a lock-out, for a process that follows it: `lockout-copy.ts`. */
export type LockoutRuling =
  /** The key is locked for so long; 0: it is not locked. */
  | { readonly lockedMs: Millis }
  /** Attempts left, after those of this process. */
  | { readonly attemptsLeft: number };

/** Why a learnt limit changed: of the rule delay, then of the rule aimd and of busy. */
export type LimitCause =
  /** It doubles while calls are no slower, or is set at the end of that. */
  | 'start'
  /** A test begins or ends. */
  | 'test'
  /** The limit follows the length of the queue. */
  | 'rate'
  /** Calls were refused (busy). */
  | 'refusal'
  /** No call is answered. */
  | 'silence'
  /** Calls succeed, and are no slower. */
  | 'success'
  /** Calls took longer than usual. */
  | 'latency'
  /** A call was answered busy or timed out. */
  | 'back-pressure';

/** A key's state in the terms of its limit; fields that do not apply are left out. */
export interface KeyState {
  /** What would be granted at this instant; below zero while in debt. */
  remaining: number;
  /** ramp: tokens of this second, over all members. */
  level?: number;
  /** In a pool of processes: how many members divide the limit; 0: this member has no part at the moment. */
  poolSize?: number;
  /** concurrency, adaptive: calls allowed in flight. busy: calls allowed a second. */
  limit?: number;
  /** concurrency, adaptive: calls in flight. */
  inFlight?: number;
  /** quota: when the period ends, in milliseconds since 1970. */
  resetsAt?: Millis;
  /** spacing: reservations that are not yet due. */
  reserved?: number;
  /** concurrency, adaptive: the mean round-trip time. */
  rttMs?: Millis;
  /** adaptive, rule delay: the round-trip time without a queue. */
  baseRttMs?: Millis;
  /** adaptive, rule delay: the rate at the limit: calls in flight per round trip. */
  ratePerSecond?: number;
  /** adaptive, rule delay: calls in flight beyond which the service only queues: the limit without its headroom. */
  knee?: number;
  /** adaptive, rule delay: calls allowed above the knee. */
  headroom?: number;
  /** adaptive, rule delay: calls a second that refusals have left. */
  pacePerSecond?: number;
  /** adaptive: why the limit last changed. */
  cause?: LimitCause;
  /** With partitions: calls in flight by partition. */
  partitions?: Readonly<Record<string, number>>;
  /** With priorities: calls in flight by level. */
  priorities?: Readonly<Record<string, number>>;
  /** lockout: failures or refusals that count, attempts in flight included. */
  failures?: number;
  /** lockout: locks that are not forgotten, the present one included; at most the steps of `lock`. */
  locks?: number;
  /** lockout: time until a locked key opens; left out if it is open. */
  lockedMs?: Millis;
  /** adaptive: set if a call was answered busy or timed out since the last adjustment. */
  backPressure?: true;
}

/** The status of one rule, as a client may see it: its quota, what remains, and when it resets. */
export interface RuleStatus {
  readonly kind: string;
  /** Calls per window; without a window, calls at once. */
  readonly quota: number;
  readonly windowMs?: Millis;
  /** What would be granted at this instant, never below zero. */
  readonly remaining: number;
  /** Time until one call fits: 0 now, NEVER never; left out if a call in flight must settle first. */
  readonly opensInMs?: Millis;
  /** Time until nothing spent counts any longer; left out where that does not depend on time. */
  readonly freshInMs?: Millis;
  /** Set if the rule protects the capacity of a service, not a client's quota: refusals are 503, not 429. */
  readonly isCapacity?: true;
}

/** A key's state and the status of each of its rules. Built for one reader, which may add to it. */
export interface KeyStatus {
  readonly state: KeyState;
  readonly rules: RuleStatus[];
}

/** Writes one key of a rule with other numbers, `source` from `j` on, as a key of this rule. `at`: when the rule changed. */
export type KeyConverter = (state: State, i: number, source: State, j: number, at: Millis) => void;

/** A rule as numbers, for a backend that runs it in another language: `backends/redis/lua-rules.ts`. */
export interface RuleSpec {
  readonly kind: 'bucket' | 'spacing' | 'ramp' | 'window' | 'concurrency' | 'quota' | 'lockout';
  readonly params: readonly number[];
  /** quota: the time zone of its calendar. */
  readonly zone?: TimeZone;
}

/** How one event changed a key of a lock-out. */
export interface LockoutChange {
  readonly count: number;
  readonly pending: number;
  /** The event began a lock. */
  readonly lock?: { readonly level: number; readonly ms: Millis };
  /** The event ended a lock: the locks that are not forgotten. */
  readonly levelLeft?: number;
}

/** Facts about a rule that do not depend on a key. */
export interface Traits {
  /** Time a few microseconds old would break the rule's promise. */
  readonly needsExactTime: boolean;
  /** Every call must be settled; otherwise only calls that used another amount than their cost. */
  readonly needsOutcome: boolean;
  /** `retryAfterMs` is an upper bound: the limit opens earlier when a call in flight settles. */
  readonly mayOpenEarlier: boolean;
  /** It may decide `wait`: proceed later, on a reservation. */
  readonly canReserve: boolean;
  /** A permit not used this long after it was due has expired. */
  readonly expireMs: Millis;
  /** It counts attempts, whose end is reported by `Feedback.report`. */
  readonly takesReports: boolean;
  /** Refusals protect the capacity of a service (503), not a client's quota (429). */
  readonly protectsServer: boolean;
  /** The fixed number of calls allowed in flight. */
  readonly concurrencyLimit?: number | undefined;
  /** Time from everything spent to as good as new; absent if that does not depend on time. */
  readonly refillMs?: Millis | undefined;
  /** Where its state has instants. */
  readonly instants: readonly number[];
}

/** The traits of a rule that only counts; another one names what differs. */
export const COUNTS_ONLY: Traits = Object.freeze({
  needsExactTime: false,
  needsOutcome: false,
  mayOpenEarlier: false,
  canReserve: false,
  expireMs: Infinity,
  takesReports: false,
  protectsServer: false,
  instants: [],
});

/** A rule of a limit. */
export interface PlacedRule {
  readonly policy: Policy;
  /** Where its numbers begin. */
  readonly offset: number;
  /** Absent: no other process can run it, because it learns from its own calls. */
  readonly spec?: RuleSpec | undefined;
}

/** How a rule follows what other rules, clocks and servers decide: for `all`, and for backends that grant ahead. */
export interface Chaining {
  /** Moves the state to the second of `now`, where even a refused call begins a second. */
  advance?(state: State, i: number, now: Millis): void;
  /** The cost it has just granted takes effect only at `dueAt`, because another limit says so. */
  deferTo?(state: State, i: number, cost: number, dueAt: Millis): void;
  /** Counts a call that another rule refused; returns how long the key is locked. */
  recordRefusal?(state: State, i: number, now: Millis): Millis;
  /**
   * The clock was set back by `byMs` and says `now`: moves the key's instants along, so that nothing was refilled meanwhile.
   * Absent: `traits.instants` says all. Callers use `setBackKey`.
   */
  setBack?(state: State, i: number, byMs: Millis, now: Millis): void;
}

/**
 * Numbers of a rule that replicas exchange, each 0 or above.
 *
 *     page of a replica ──▶ `figures` ──▶ state transfer ──▶ `raise` there: never grants
 *     hit on a replica ────────────────▶ report ───────────▶ `update` there
 */
export interface Sharing {
  /** Numbers of a key in a state transfer. */
  readonly figureCount: number;
  /** Whether hits add up linearly, so that predicted hits can be taken back. */
  readonly isAdditive: boolean;
  /** The level at which nothing is left; Infinity where levels do not add up. */
  readonly capacity: number;
  /** A level above the capacity is a debt, which lasts until it is refilled: the most debt that use beyond the cost causes. */
  readonly maxDebt?: number;
  /** Units spent. */
  level(state: State, i: number, now: Millis): number;
  figures(state: State, i: number, now: Millis): number[];
  /** Raises the key to at least the figures of a replica, plus hits that the replica has yet to count. */
  raise(state: State, i: number, figures: readonly number[], hits: number, now: Millis): void;
  /** Takes back units that were counted a moment ago; absent where a settlement does. */
  lower?(state: State, i: number, units: number, now: Millis): void;
  /** lockout: it counts no hits, but how attempts end. */
  readonly events?: LockoutEvents;
}

/** Events of a lock-out, which replicas exchange besides its figures: `lockout-sharing.ts`. */
export interface LockoutEvents {
  /** Undefined if nothing has changed since a copy of the state was made. */
  changeSince(before: State, state: State, i: number, now: Millis): LockoutChange | undefined;
  /** Adds what events on a peer changed; either may be below 0. If that ended a lock: the locks that are not forgotten. */
  add(state: State, i: number, count: number, pending: number, now: Millis): number | undefined;
  /** Whether more was taken back than was counted. Unless attempts may be late, counts attempts in flight, and nothing below 0. */
  settleShort(state: State, i: number, mayBeLate: boolean): boolean;
  /** Locks the key for at least `ms`. 0: ends the lock, unless the count here would begin it again. */
  setLock(state: State, i: number, level: number, ms: Millis, now: Millis): void;
}

/** Classes of calls, the most important first; a check refers to one by its index. */
export interface CallClasses {
  readonly kind: 'partition' | 'priority';
  readonly names: readonly string[];
}

/** Parts of a limit: of a pool's member, or of a group of processes. */
export interface Dividing {
  /** A rule on the same state, for one member's part of the limit from `now` on. */
  ofPool?(position: PoolPosition, now: Millis): Policy;
  /** The rule with a fraction of its numbers, for a group whose loans arrive within `deadlineMs`. */
  ofGroup?(fraction: number, deadlineMs: Millis): GroupPart;
  /** Lent units count as if they were taken this much later: the borrower may use them until then. */
  readonly lendMs?: Millis | undefined;
  /** Adds units that were taken off another group, up to a level of `upTo` left. */
  credit?(state: State, i: number, units: number, upTo: number, now: Millis): void;
  /** Units a second that a key can have here; absent where calls in flight are counted. */
  ratePerSecond?(state: State, i: number, now: Millis): number;
  /** The maximum age of a ramp level that may be resumed; absent unless configured. */
  readonly resumeForMs?: Millis;
}

/** A group's part of a rule. */
export interface GroupPart {
  readonly policy: Policy;
  /** Units at once, and of the whole limit. */
  readonly units: number;
  readonly wholeUnits: number;
  /** The option that says them. */
  readonly option: string;
  /** Units that are refilled in a millisecond. 0: nothing is lent. */
  readonly perMs: number;
}

/** How fast a queue of waiting calls moves. */
export interface QueueMath {
  /** The minimum interval between two permits. */
  readonly minIntervalMs?: Millis;
  /** From the grant to the first waiter until `units` behind it are granted, at the least; 0 if only the state tells. */
  drainMs(units: number): Millis;
  /** The least time until calls of `units` in all are granted. `state` is a scratch copy. */
  timeToGrantMs(state: State, i: number, units: number, now: Millis): Millis;
}

export interface Policy {
  /** The limit's name in a configuration: bucket, spacing, … */
  readonly kind: string;

  /** Numbers of state per key. */
  readonly width: number;

  readonly traits: Traits;

  /** A rule lists itself; `all` lists its rules, however deep they are nested. */
  readonly rules: readonly PlacedRule[];

  /**
   * Begins a key. With `freshAt` the key begins with so much spent that it is as good as new only then:
   * the way to take on a key whose state may have been evicted too early.
   */
  init(state: State, i: number, now: Millis, freshAt?: Millis): void;

  /** May `cost` happen now? All or nothing; a cost of 0 changes nothing. The index is of a partition or a level. */
  check(state: State, i: number, cost: number, now: Millis, partitionIndex?: number): Decision;

  /** The most whole units that `check` would allow right now. */
  available(state: State, i: number, now: Millis): number;

  settle(state: State, i: number, settlement: Settlement, now: Millis): void;

  /** Applies feedback; false if this rule has no use for that kind. */
  update(state: State, i: number, feedback: Feedback | LockoutRuling, now: Millis): boolean;

  /**
   * From this instant on, a new key would decide exactly as this one, or (`isLenient`) allow no more than this one.
   * Infinity: never; -Infinity: at once.
   */
  freshAt(state: State, i: number, isLenient: boolean): Millis;

  keyState(state: State, i: number, now: Millis): KeyState;

  /** The status of each of its rules. `state` is a scratch copy and may be changed. */
  ruleStatuses(state: State, i: number, now: Millis): RuleStatus[];

  /**
   * Takes over the keys of a rule of the same kind with other numbers: what was spent stays spent. Undefined if the
   * state has another structure. Callers use `converterBetween`.
   */
  convertFrom?(from: Policy): KeyConverter | undefined;

  // Facets: abilities besides deciding, which some backends need.
  readonly chain?: Chaining;
  readonly share?: Sharing;
  readonly divide?: Dividing;
  readonly classes?: CallClasses;
  /** Absent: calls in flight open the limit. */
  readonly queue?: QueueMath;
}

/** How keys of the rule `from` become keys of `to`; undefined if their kind, parts or classes of calls differ. */
export function converterBetween(from: Policy, to: Policy): KeyConverter | undefined {
  const classesOf = ({ classes }: Policy) => JSON.stringify(classes);
  if (from.kind !== to.kind || classesOf(from) !== classesOf(to)) return undefined;
  return to.convertFrom?.(from);
}

/** Moves the instants of a key along with a clock that was set back by `byMs` and says `now`. */
export function setBackKey(
  policy: Policy,
  state: State,
  i: number,
  byMs: Millis,
  now: Millis,
): void {
  if (policy.chain?.setBack) policy.chain.setBack(state, i, byMs, now);
  else for (const index of policy.traits.instants) state[i + index] -= byMs;
}

/** Time until one call fits, found by a check on a scratch copy of the state. */
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

/** A key's state and rules, from a scratch copy of its numbers. */
export const keyStatusOf = (policy: Policy, state: State, now: Millis): KeyStatus => ({
  state: policy.keyState(state, 0, now), // first: it leaves the numbers as they are
  rules: policy.ruleStatuses(state, 0, now),
});

/**
 * Takes up to `most` units (a whole number, or Infinity), leaves at least `leave`, and returns how many it
 * took. The form of `check` for batch readers, which prefer some units to none.
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

/** The most grants that `simulatedQueue` follows; what comes later is longer than it says. */
const MAX_SIMULATED_GRANTS = 64;

/** A queue at a rule that grants several units at once: it takes what there is each time the rule opens. */
export const simulatedQueue = (policyOf: () => Policy): QueueMath => ({
  drainMs: () => 0,
  timeToGrantMs(state, i, units, now) {
    const policy = policyOf();
    let left = Math.floor(units); // fractions are free, which makes it no longer
    let at = now;
    for (let n = 0; n < MAX_SIMULATED_GRANTS && left > 0; n++) {
      left -= takeUpTo(policy, state, i, left, at);
      if (left <= 0) break;
      const decision = policy.check(state, i, 1, at);
      if (decision.verdict !== 'deny') left--;
      else if (decision.retryAfterMs === NEVER) break;
      else at += Math.max(1, decision.retryAfterMs);
    }
    return at - now;
  },
});

/** `takeUpTo` for another group, which may use the units for `lendMs`. */
export function lendUpTo(
  policy: Policy,
  state: State,
  i: number,
  most: number,
  now: Millis,
  leave: number,
): number {
  const lent = takeUpTo(policy, state, i, most, now, leave);
  const { lendMs } = policy.divide ?? {};
  if (lent > 0 && lendMs) policy.chain?.deferTo?.(state, i, lent, now + lendMs);
  return lent;
}
