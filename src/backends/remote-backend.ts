/**
 * The remote counterpart of `backend.ts`: a server decides, so every decision is a promise.
 *
 * Only the server's clock counts: a decision carries its instant on that clock, and settling passes that instant back.
 */

import type { Clock, Millis } from '../core/clock.ts';
import { type AttemptOutcome, type Decision, NEVER, type OnUnavailable } from '../core/decision.ts';
import type { Flow } from '../core/flow.ts';
import type { Random } from '../core/random.ts';
import type { Policy, Settlement } from '../policies/policy.ts';
import type { KeyBound } from './backend.ts';

/** A decision, and its instant on the server's clock. */
export interface RemoteDecision {
  readonly decision: Decision;
  readonly decidedAt: Millis;
  /** Latest start of the call on the limiter's clock: a later call has lost its permit. Absent: no deadline. */
  readonly usableUntil?: Millis;
  /** The lease of the call, where the server counts calls in flight. */
  readonly leaseId?: string | undefined;
  /** The id by which the server remembers the call. */
  readonly callId?: string | undefined;
  /** Identifies a reservation for `confirm` and `cancel`. */
  readonly reservationId?: string;
  /** True if the server was unavailable and `onUnavailable` decided. */
  readonly fromFallback?: boolean;
}

/** One part of a joint check: the backend of a limit, the key there and the cost. */
export interface JointPartRequest {
  readonly backend: RemoteBackend;
  readonly key: string;
  readonly cost: number;
}

/** The decision about several parts: all were charged, or none. */
export type JointDecision =
  | { readonly isGranted: true; readonly decisions: readonly RemoteDecision[] }
  /** Undefined for a part that would allow. */
  | { readonly isGranted: false; readonly decisions: readonly (RemoteDecision | undefined)[] };

/** How many waiters of a batch were granted, and the decision for the first that was not. */
export interface BatchDecision {
  readonly granted: number;
  /** Time until each of the last granted waiters may start: their slots were the next to open. */
  readonly dueInMs?: readonly Millis[];
  /** Time before its opening from which on the server grants a slot. */
  readonly lookaheadMs?: Millis;
  readonly refusal: Decision | undefined;
  /** The key's remaining capacity after the last granted waiter, where known. */
  readonly remaining?: number | undefined;
  readonly decidedAt: Millis;
  /** `usableUntil` of each granted waiter. */
  readonly usableUntils?: readonly Millis[];
  /** Leases of the granted waiters, where the server counts calls in flight. */
  readonly leaseIds?: readonly string[];
  readonly fromFallback?: boolean;
}

/** Converts a decision of a batch of which only the first call was checked. */
export function toBatchDecision(first: RemoteDecision): BatchDecision {
  const { decision, leaseId, usableUntil, ...rest } = first;
  if (decision.verdict === 'deny') return { granted: 0, refusal: decision, ...rest };
  return {
    granted: 1,
    refusal: undefined,
    ...(leaseId !== undefined && { leaseIds: [leaseId] }),
    ...(usableUntil !== undefined && { usableUntils: [usableUntil] }),
    ...rest,
  };
}

/** The lease of a call in flight. */
export interface RemoteLease {
  /** Grows with every grant of its key; undefined if the server has not granted it. */
  readonly fencingToken: number | undefined;
  /** Called when the lease ended while the call was running. */
  onLost: (() => void) | undefined;
}

export interface RemoteBackend {
  /** The policy that the server runs, where it differs from the configured one or is a part of it. */
  readonly policy?: Policy;
  /** A decision from prefetched tokens; undefined: the server must decide. */
  checkPrefetched?(key: string, cost: number): Decision | undefined;
  /** May it happen? May decide `wait`, with a reservation. */
  check(key: string, cost: number): Promise<RemoteDecision>;
  /**
   * `check` without reservations: allows or denies. `isWaiting`: a refused call continues to wait, so no lock-out
   * counts the refusal. This also holds for `reserve` and `chargeTogether`.
   */
  checkNow(key: string, cost: number, isWaiting?: boolean): Promise<RemoteDecision>;
  /**
   * `check`, or `checkNow` without reservations, charged once for all calls of a key with this id: the server remembers
   * it for `forMs`. Absent: not supported.
   */
  checkOnce?(
    key: string,
    cost: number,
    call: { readonly id: string; readonly forMs: Millis; readonly mayReserve: boolean },
  ): Promise<RemoteDecision>;
  /** Checks the costs of queued waiters, first come first served: after a refused waiter, none is granted. */
  checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision>;
  /** Takes up to `most` whole units and returns how many it took. */
  takeUpTo(key: string, most: number): Promise<number>;
  /** Token buckets only, for groups: takes up to `most` whole tokens above the level `leave`; 0 while unavailable. */
  takeSurplus?(key: string, most: number, leave: number): Promise<number>;
  /** Token buckets only, for groups: adds tokens of another bucket, up to the level `upTo`; lost while unavailable. */
  credit?(key: string, tokens: number, upTo: number): Promise<void>;
  settle(key: string, settlement: Settlement): Promise<void>;
  /**
   * `checkNow` of a call that is not certain yet. Without `confirm`, its units are released after a bounded time.
   * Absent: a charge stays until it is settled as ignored.
   */
  reserve?(key: string, cost: number, isWaiting?: boolean): Promise<RemoteDecision>;
  /** Makes a reservation final; false if it has expired. Rejects while unavailable. */
  confirm?(key: string, reservationId: string): Promise<boolean>;
  /** Undoes a reservation, confirmed or not. */
  cancel?(key: string, reservationId: string): Promise<void>;
  /** Undoes a grant of the fallback, except a lease. */
  cancelFallback?(key: string, cost: number): void;
  /** Charges several limits of one server in one call, all or none; undefined if it would take several calls. */
  chargeTogether?(
    parts: readonly JointPartRequest[],
    isWaiting?: boolean,
  ): Promise<JointDecision> | undefined;
  /** A decision from prefetched tokens, after a refill if necessary; undefined: the server must decide. */
  takePrefetched?(key: string, cost: number): Promise<Decision | undefined>;
  /** Returns units that `takePrefetched` took. */
  returnPrefetched?(key: string, cost: number): Promise<void>;
  /** Converts an instant of the limiter's clock to the server's, where they differ; NaN before the first reply. */
  toServerTime?(key: string, at: Millis): Millis;
  /** An unsettled lease, where the server counts calls in flight. */
  leaseOf?(leaseId: string): RemoteLease | undefined;
  /** Forgets the key's consumption. Rejects while unavailable. Absent: not supported. */
  forget?(key: string): Promise<void>;
  /** Lock-out: reports how attempts ended, or that a waiting call was refused. Absent: not supported. */
  report?(key: string, report: AttemptOutcome | 'refusal', count: number): Promise<void>;
  /** Counts hits served elsewhere. */
  addHits(key: string, count: number): Promise<void>;
  /** Reads the key's numbers and the time on the server's clock; undefined while unavailable. */
  readState(
    key: string,
  ): Promise<{ readonly state: Float64Array; readonly at: Millis } | undefined>;
  /**
   * Prepares a change of the rule's numbers: keys in the server are converted, then this process decides by the new
   * rule. Undefined for another kind of rule. Nothing changes before the returned function is called.
   */
  prepareChange?(policy: Policy): (() => Promise<void>) | undefined;
  /** Waits in the fleet queue, where the server keeps one. */
  readonly waitForPermit?:
    | ((key: string, cost: number, limits: FairWaitLimits) => Promise<FairWaitResult>)
    | undefined;
  /** Waiters of this process in the fleet queue. */
  readonly waiterCount?: number;
  readonly isAvailable: boolean;
  /** The decision while the server is unavailable. */
  readonly onUnavailable: OnUnavailable;
  /** Refuses waiters in its own queue, returns what it holds and stops. The connection stays open. */
  close(): Promise<void>;
}

/** Upper bound of the jitter that a queue adds to a retry time. */
export const maxJitterMs = (ms: Millis): Millis => Math.min(25, ms * 0.05);

/** Limits of a wait in the fleet queue. */
export interface FairWaitLimits {
  readonly maxWaitMs: Millis;
  readonly signal?: AbortSignal | undefined;
  /** The flow in a queue of order `fair`. */
  readonly flow?: Flow | undefined;
}

export type FairWaitResult =
  | {
      readonly verdict: 'allow';
      readonly dueAt: Millis;
      readonly fromFallback: boolean;
      /** The key's remaining capacity, where known. */
      readonly remaining?: number | undefined;
      /** The lease of the call, where the server counts calls in flight. */
      readonly leaseId?: string | undefined;
      /** The id by which the server remembers the call. */
      readonly callId?: string | undefined;
    }
  | {
      readonly verdict: 'deny';
      readonly retryAfterMs: Millis;
      readonly reason: 'never' | 'too-long' | 'queue-full' | 'closed';
      /** The rule that the call waited for, in a limit with several rules. */
      readonly rule?: string | undefined;
      /** True if `onUnavailable` made the last decision, because the server was unavailable. */
      readonly fromFallback?: boolean;
    };

/** The decision of a closed limiter, which never opens again. */
export const CLOSED_REFUSAL = { verdict: 'deny', retryAfterMs: NEVER, reason: 'closed' } as const;

/** Creates the backend of a limit that a server decides: `redis(client)`. */
export interface RemoteBackendFactory {
  readonly isRemote: true;
  create(policy: Policy, context: RemoteBackendContext): RemoteBackend;
}

/** Services of a limiter for its remote backend. */
export interface RemoteBackendContext {
  readonly name: string;
  /** False if the name was not configured and is that of the policy. */
  readonly hasExplicitName: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: KeyBound;
  readonly maxWaiters: number;
  /** The order of the limiter's queue; `fair` also applies to a fleet queue. */
  readonly order?: string;
  /** True if waiters keep the process alive. */
  readonly keepAlive: boolean;
  /** Called when a key gained capacity elsewhere: its waiters may retry. */
  readonly onCapacity: (key: string) => void;
  /** Called when the server becomes unavailable, or available again. */
  readonly onAvailability: (isAvailable: boolean, why: unknown) => void;
  /** True if a listener of the limiter is notified of an outage. */
  readonly hasListeners?: () => boolean;
}
