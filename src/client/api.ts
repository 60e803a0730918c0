import type { Millis } from '../core/clock.ts';
import type { AttemptOutcome, Decision, Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import type { RejectedError, UnavailableError } from '../core/errors.ts';
import type { FlowOptions } from '../core/flow.ts';
import type { InspectedKey } from './key-status.ts';

/** Options of `check`. */
export interface CheckOptions {
  /** The name of one limit. Default: all limits that match the key. */
  readonly limit?: string | undefined;
  /** The plan of the key. Default: that of the daemon's plan file, if there is one. */
  readonly plan?: string | undefined;
  /** True to get a permit, to be settled: for limits that count calls in flight, or learn from them. */
  readonly withPermit?: boolean | undefined;
  /** A repeated check with the same id is charged once, for a minute: after a lost reply, or a retry. */
  readonly id?: string | undefined;
}

/** One check of `checkAll` and `acquireAll`. */
export interface CheckItem {
  readonly key: string;
  /** The name of one limit. Default: all limits that match the key. */
  readonly limit?: string;
  /** The plan of the key. */
  readonly plan?: string;
  /** Default 1. */
  readonly cost?: number;
}

/** Options of `acquireAll`. */
export interface AcquireAllOptions extends Pick<CheckOptions, 'withPermit'>, FlowOptions {
  /** The longest wait, up to the `bounds.wait` of the daemon. Default 10 s. */
  readonly wait?: Duration | undefined;
  /** Ends the wait when it aborts: the call leaves the queue, and the promise rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of `acquire`. */
export interface AcquireOptions extends AcquireAllOptions, CheckOptions {
  /** Default 1. */
  readonly cost?: number | undefined;
}

/** Never `wait`: the daemon reserves nothing. */
type ImmediateDecision = { readonly verdict: 'allow' } | Extract<Decision, { verdict: 'deny' }>;

/** The decision of the daemon, or of `onUnavailable` in its place. */
export type CheckResult = ImmediateDecision & {
  /** The remaining quota, also after a refusal. Left out where it is unknown, or no limit counts the key. */
  readonly remaining?: number;
  /** The limit that refused. */
  readonly limit?: string;
  /**
   * Why it refused, if not by an exhausted limit; `unavailable`: the backend of a limit is unavailable, or the daemon stops;
   * `queue-full`: too many calls wait. `locked`: a lock-out has locked the key. `overload`: the daemon was too busy to decide, and its fail mode did, also if allowed.
   */
  readonly reason?:
    | 'unavailable'
    | 'queue-full'
    | 'overload'
    | 'locked'
    | 'deny-list'
    | 'unmatched'
    | 'banned';
  /** The permit to settle, with `withPermit`. */
  readonly permit?: string;
  /** Set if `onUnavailable` decided: why. */
  readonly unavailable?: UnavailableError;
  /** Set if the call is denied because the daemon rejected the key, the cost or a burst, or the client is closed: why. */
  readonly rejected?: RejectedError;
};

/** The result of `takeUpTo`. */
export interface TakeResult {
  /** How many; 0 if none was left. */
  readonly taken: number;
  /** The permit for `giveBack`, with `withPermit`. */
  readonly permit?: string;
  /** Set if none was taken because the backend of a limit is unavailable. */
  readonly reason?: 'unavailable';
  /** Set if `onUnavailable` decided: why. Then `taken` is all or nothing. */
  readonly unavailable?: UnavailableError;
  /** Set if the daemon rejected the key, the amount or a burst, or the client is closed: why. Then `taken` is 0. */
  readonly rejected?: RejectedError;
}

/** How a call with a permit went. */
export interface CallReport {
  /** Default ok. */
  readonly outcome?: Outcome;
  /** The cost that the call really had. Default: the cost of the check. */
  readonly used?: number;
  readonly rttMs?: Millis;
  /** The Retry-After of the server that was called. */
  readonly retryAfterMs?: Millis;
  /** Lock-out: how the attempt ended, such as a login. */
  readonly attempt?: AttemptOutcome;
}

/** The state of the connection, and counters since the start. */
export interface ClientStats {
  /** Whether the connection is open. */
  readonly isConnected: boolean;
  /** Connections established so far. */
  readonly connections: number;
  /** Requests without a reply yet. */
  readonly pending: number;
  /** Calls of `acquire` and `acquireAll` without a decision yet. */
  readonly waiting: number;
  readonly allowed: number;
  readonly denied: number;
  /** How many of both `onUnavailable` decided. */
  readonly fallback: number;
  /** How many the daemon rejected: denied, or an error. */
  readonly rejected: number;
}

/** A client of a daemon; created by `connect`. An outage never rejects a promise; an unknown limit, a wrong password or a wrong port does. */
export interface Client {
  /** Checks and counts a call. Cost defaults to 1; 0 counts nothing. */
  check(key: string, cost?: number, options?: CheckOptions): Promise<CheckResult>;
  /** Checks several limits and keys as one call: all are charged, or none. */
  checkAll(
    checks: readonly CheckItem[],
    options?: Pick<CheckOptions, 'withPermit'>,
  ): Promise<CheckResult>;
  /** `check`, waiting in the daemon's queue until the call is allowed or its `wait` is over. An abort rejects. */
  acquire(key: string, options?: AcquireOptions): Promise<CheckResult>;
  /** `checkAll`, waiting as `acquire` does. Nothing is charged while it waits. */
  acquireAll(checks: readonly CheckItem[], options?: AcquireAllOptions): Promise<CheckResult>;
  /** `check` as a boolean: true if the call is allowed. */
  isAllowed(key: string, cost?: number): Promise<boolean>;
  /** Reports how a call went. False if the permit has expired, or the daemon is unavailable. */
  settle(permit: string, result?: CallReport): Promise<boolean>;
  /** Lock-out: reports how an attempt of a key ended. False if the daemon is unavailable, or no limit of the key has one. */
  report(
    key: string,
    attempt: AttemptOutcome,
    options?: Pick<CheckOptions, 'limit' | 'plan'>,
  ): Promise<boolean>;
  /** Takes as many as there are, up to `max`. For limits that do not count calls in flight. */
  takeUpTo(key: string, max: number, options?: Omit<CheckOptions, 'id'>): Promise<TakeResult>;
  /** Returns what was not used of `takeUpTo`. False if the permit has expired, or the daemon is unavailable. */
  giveBack(permit: string, unused: number): Promise<boolean>;
  /** The state of a key; undefined if the daemon is unavailable. */
  inspect(key: string, limit?: string): Promise<InspectedKey | undefined>;
  /** The state of the connection, and counters since the start. */
  stats(): ClientStats;
  /** Waits for pending replies, then disconnects. Later checks are denied. */
  close(): Promise<void>;
}
