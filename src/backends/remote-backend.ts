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
export interface Answer {
  readonly decision: Decision;
  readonly at: Millis;
  /** What begins later than this, on the limiter's clock, has lost its place; absent: it has not. */
  readonly latest?: Millis;
  /** By what name its place is held, where the decider counts who is in flight. */
  readonly holder?: string;
  /** True if the decider was out of reach and this is what `onUnavailable` says instead. */
  readonly isMakeshift?: boolean;
}

/** How many of a line got in, and what the first who did not was told. */
export interface LineAnswer {
  readonly granted: number;
  /** The last one granted may go ahead only in so long: its place was the next to open. */
  readonly dueInMs?: Millis;
  /** How long before it opens the decider hands out a place: worth asking from then on. */
  readonly aheadMs?: Millis;
  readonly refused: Decision | undefined;
  readonly at: Millis;
  /** `latest` of each who got in. */
  readonly latests?: readonly Millis[];
  /** By what names the places of those who got in are held, where that matters. */
  readonly holders?: readonly string[];
  readonly isMakeshift?: boolean;
}

/** What a line is told of which only the first has asked. */
export function lineOfOne({ decision, holder, ...told }: Answer): LineAnswer {
  const isIn = decision.verdict !== 'deny';
  const holders = holder === undefined ? {} : { holders: [holder] };
  return { granted: isIn ? 1 : 0, refused: isIn ? undefined : decision, ...holders, ...told };
}

export interface RemoteShare {
  /** The rule that is run there, where it is not quite the one that was asked for, or only a part of it. */
  readonly policy?: Policy;
  /** The answer without asking anybody, where permits were taken ahead; undefined: ask. */
  askHere?(key: string, cost: number): Decision | undefined;
  /** May it happen? May answer `wait`, with a place reserved. */
  ask(key: string, cost: number): Promise<Answer>;
  /** Allow or deny, and nothing is reserved. */
  askNow(key: string, cost: number): Promise<Answer>;
  /** The costs of those who stand in line, first come first served: nobody passes who is refused. */
  askLine(key: string, costs: readonly number[]): Promise<LineAnswer>;
  /** Takes up to `most` whole units, and says how many it got. */
  take(key: string, most: number): Promise<number>;
  /** For groups, of a bucket: takes up to `most` whole units of what is above `leave`; none while the decider is out of reach. */
  spare?(key: string, most: number, leave: number): Promise<number>;
  /** And units of another bucket come into this one, no further than up to so many; what comes too late is lost. */
  gain?(key: string, units: number, upTo: number): Promise<void>;
  settle(key: string, settlement: Settlement): Promise<void>;
  /** What others served. */
  hits(key: string, count: number): Promise<void>;
  /** The key's numbers and the time on the decider's clock; undefined if it is out of reach. */
  look(key: string): Promise<{ readonly state: Float64Array; readonly at: Millis } | undefined>;
  /** Waits in one line with everybody else, where the decider keeps one. */
  readonly enter?:
    | ((key: string, cost: number, patience: FairPatience) => Promise<FairEntry>)
    | undefined;
  /** How many wait there, of this process. */
  readonly waiting?: number;
  /** False while the decider is out of reach. */
  readonly isReachable: boolean;
  /** Who answers then. */
  readonly onUnavailable: OnUnavailable;
  /** Lets those go who wait in a line of its own, gives back what it holds and stops. The connection stays open. */
  close(): Promise<void>;
}

/** How much longer than told a line sleeps at most: a part of it, and no more than so long. */
export const jitterMsMax = (ms: Millis): Millis => Math.min(25, ms * 0.05);

/** How long somebody wants to wait in a line that the decider keeps. */
export interface FairPatience {
  readonly waitMsMax: Millis;
  readonly signal?: AbortSignal | undefined;
}

export type FairEntry =
  | {
      readonly verdict: 'allow';
      readonly dueAt: Millis;
      readonly isMakeshift: boolean;
      /** By what name its place is held, where the decider counts who is in flight. */
      readonly holder?: string;
    }
  | {
      readonly verdict: 'deny';
      readonly retryAfterMs: Millis;
      readonly reason: 'never' | 'too-long' | 'queue-full' | 'closed';
    };

/** What whoever waits is told when the limiter is closed. */
export const CLOSED = { verdict: 'deny', retryAfterMs: 0, reason: 'closed' } as const;

/** How a share is made, once the rule is known, where somebody else decides: `redis(client)`. */
export interface RemoteShareMaker {
  readonly isRemote: true;
  make(policy: Policy, setting: RemoteSetting): RemoteShare;
}

/** What a limiter lends its share. */
export interface RemoteSetting {
  readonly name: string;
  /** False if nobody gave it its name, which is then that of its rule. */
  readonly isNamed: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly keysMax: number;
  readonly waitersMax: number;
  /** Whether a process does not end while somebody waits. */
  readonly keepAlive: boolean;
  /** To be told when something came for a key from elsewhere: whoever waits for it may try again. */
  readonly onRoom: (key: string) => void;
  /** Hears that the decider is out of reach, or back. */
  readonly onReach: (isReachable: boolean, why: unknown) => void;
}
