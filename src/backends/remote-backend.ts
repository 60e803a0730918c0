/**
 * What a remote share is: somebody else decides, so every answer takes a while.
 *
 * The counterpart of `backend.ts`. Time is the decider's: answers carry the instant they were given on
 * its clock, and whoever settles hands that instant back. Nobody's own clock counts.
 */

import type { Clock, Millis } from '../core/clock.ts';
import type { Decision, OnUnavailable } from '../core/decision.ts';
import type { Random } from '../core/random.ts';
import type { Policy, Settlement } from '../policies/policy.ts';

/** An answer, and when it was given on the decider's clock. */
export interface RemoteDecision {
  readonly decision: Decision;
  readonly decidedAt: Millis;
  /** What begins later than this, on the limiter's clock, has lost its place; absent: it has not. */
  readonly usableUntil?: Millis;
  /** By what name its place is held, where the decider counts who is in flight. */
  readonly leaseId?: string;
  /** True if the decider was out of reach and this is what `onUnavailable` says instead. */
  readonly fromFallback?: boolean;
}

/** How many of a line got in, and what the first who did not was told. */
export interface BatchDecision {
  readonly granted: number;
  /** The last one granted may go ahead only in so long: its place was the next to open. */
  readonly lastDueInMs?: Millis;
  /** How long before it opens the decider hands out a place: worth asking from then on. */
  readonly lookaheadMs?: Millis;
  readonly refusal: Decision | undefined;
  readonly decidedAt: Millis;
  /** `latest` of each who got in. */
  readonly usableUntils?: readonly Millis[];
  /** By what names the places of those who got in are held, where that matters. */
  readonly leaseIds?: readonly string[];
  readonly fromFallback?: boolean;
}

/** The decision about a batch of which only the first call was checked. */
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

export interface RemoteBackend {
  /** The rule that is run there, where it is not quite the one that was asked for, or only a part of it. */
  readonly policy?: Policy;
  /** The answer without asking anybody, where permits were taken ahead; undefined: ask. */
  checkPrefetched?(key: string, cost: number): Decision | undefined;
  /** May it happen? May answer `wait`, with a place reserved. */
  check(key: string, cost: number): Promise<RemoteDecision>;
  /** Allow or deny, and nothing is reserved. */
  checkNow(key: string, cost: number): Promise<RemoteDecision>;
  /** The costs of those who stand in line, first come first served: nobody passes who is refused. */
  checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision>;
  /** Takes up to `most` whole units, and says how many it got. */
  takeUpTo(key: string, most: number): Promise<number>;
  /** For groups, of a bucket: takes up to `most` whole units of what is above `leave`; none while the decider is out of reach. */
  takeSurplus?(key: string, most: number, leave: number): Promise<number>;
  /** And units of another bucket come into this one, no further than up to so many; what comes too late is lost. */
  credit?(key: string, units: number, upTo: number): Promise<void>;
  settle(key: string, settlement: Settlement): Promise<void>;
  /** What others served. */
  addHits(key: string, count: number): Promise<void>;
  /** The key's numbers and the time on the decider's clock; undefined if it is out of reach. */
  readState(
    key: string,
  ): Promise<{ readonly state: Float64Array; readonly at: Millis } | undefined>;
  /** Waits in one line with everybody else, where the decider keeps one. */
  readonly waitForPermit?:
    | ((key: string, cost: number, limits: FairWaitLimits) => Promise<FairWaitResult>)
    | undefined;
  /** How many wait there, of this process. */
  readonly waiterCount?: number;
  /** False while the decider is out of reach. */
  readonly isAvailable: boolean;
  /** Who answers then. */
  readonly onUnavailable: OnUnavailable;
  /** Lets those go who wait in a line of its own, gives back what it holds and stops. The connection stays open. */
  close(): Promise<void>;
}

/** How much longer than told a line sleeps at most: a part of it, and no more than so long. */
export const maxJitterMs = (ms: Millis): Millis => Math.min(25, ms * 0.05);

/** How long somebody wants to wait in a line that the decider keeps. */
export interface FairWaitLimits {
  readonly maxWaitMs: Millis;
  readonly signal?: AbortSignal | undefined;
}

export type FairWaitResult =
  | {
      readonly verdict: 'allow';
      readonly dueAt: Millis;
      readonly fromFallback: boolean;
      /** By what name its place is held, where the decider counts who is in flight. */
      readonly leaseId?: string;
    }
  | {
      readonly verdict: 'deny';
      readonly retryAfterMs: Millis;
      readonly reason: 'never' | 'too-long' | 'queue-full' | 'closed';
    };

/** What whoever waits is told when the limiter is closed. */
export const CLOSED_REFUSAL = { verdict: 'deny', retryAfterMs: 0, reason: 'closed' } as const;

/** How a share is made, once the rule is known, where somebody else decides: `redis(client)`. */
export interface RemoteBackendFactory {
  readonly isRemote: true;
  create(policy: Policy, context: RemoteBackendContext): RemoteBackend;
}

/** What a limiter lends its share. */
export interface RemoteBackendContext {
  readonly name: string;
  /** False if nobody gave it its name, which is then that of its rule. */
  readonly hasExplicitName: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: number;
  readonly maxWaiters: number;
  /** Whether a process does not end while somebody waits. */
  readonly keepAlive: boolean;
  /** To be told when something came for a key from elsewhere: whoever waits for it may try again. */
  readonly onCapacity: (key: string) => void;
  /** Hears that the decider is out of reach, or back. */
  readonly onAvailability: (isAvailable: boolean, why: unknown) => void;
}
