/**
 * What a share is: who else spends from the same limit, and how they agree.
 *
 * Whatever stands behind it, this is all that stands above it ever asks for.
 */

import type { Clock, Millis } from '../core/clock.ts';
import type { Decision } from '../core/decision.ts';
import type { Hasher } from '../core/hash.ts';
import type { Random } from '../core/random.ts';
import type { Feedback, KeyStatus, Policy, RuleStatus, Settlement } from '../policies/policy.ts';

/** A table laid down: hash and numbers of each key, one behind the other, and what was forgotten. */
export interface TableSnapshot {
  readonly entries: Float64Array;
  readonly debtUntil: Float64Array | undefined;
}

/** What a limiter lends its share. */
export interface BackendContext {
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: number;
  /** The one that keys are hashed with before they come here, if they are. */
  readonly hasher?: Hasher;
  /** To be told when something came for a key from elsewhere: whoever waits for it may try again. */
  readonly onCapacity?: (key: string) => void;
}

/** How a share is made, once the rule is known, where this process decides: `peers(...)`. */
export interface BackendFactory {
  readonly isRemote: false;
  create(policy: Policy, context: BackendContext): Backend;
}

/** A decision, and the status of each rule right after it. */
export interface CheckWithStatus {
  readonly decision: Decision;
  readonly rules: RuleStatus[];
}

export interface Backend {
  /** May it happen? `part` is the place of a partition in the policy's list. */
  check(key: string, cost: number, partitionIndex?: number): Decision;
  /** True if it must hear the names of keys: `askHashed` will not do. */
  readonly needsKeyNames?: boolean;
  /** The same by the key's hash, for who has made it with this share's hasher. */
  checkHashed(low: number, high: number, cost: number): Decision;
  /**
   * `checkHashed`, and the status of each rule after it, read from the same slot. Undefined, and nothing
   * is taken, if the backend has to decide by name.
   */
  checkWithStatus?(low: number, high: number, cost: number): CheckWithStatus | undefined;
  /** The same for who cannot use a place later: allow or deny, and nothing is reserved. */
  checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision;
  /** What `askNow` would answer; nothing changes. */
  peek(key: string, cost: number, partitionIndex?: number): Decision;
  /** Takes up to `most` whole units, Infinity for all there are, and says how many it got. */
  takeUpTo(key: string, most: number): number;
  /** For groups, of a bucket: takes up to `most` whole units of what is above `leave`. */
  takeSurplus?(key: string, most: number, leave: number): number;
  /** And units of another bucket come into this one, no further than up to so many. */
  credit?(key: string, units: number, upTo: number): void;
  /** `now`, here and below, is for who has just looked at the limiter's clock. */
  settle(key: string, settlement: Settlement, now?: Millis): void;
  /** Takes in news from elsewhere; false if the limit has no use for it. */
  update(key: string, feedback: Feedback): boolean;
  /** How the key stands; looking changes nothing. */
  inspect(key: string, now?: Millis): KeyStatus;

  /** Lays down the state of all keys, for a successor with the same rule and hasher. */
  snapshot(): TableSnapshot;
  /** Goes on from where another has stopped. */
  restore(snapshot: TableSnapshot): void;

  /** Goes on alone, if it had company: from now on it neither tells others nor hears them. */
  detach?(): void;

  /** Keys that have a state right now. */
  readonly keys: number;
  /** Keys that had to make room while still in use: above 0, `maxKeys` is too small. */
  readonly evicted: number;
  /** How many share the limit, if it is divided; 0: this process has no part of it. */
  readonly poolSize?: number;
  /** Memory held for keys. */
  readonly bytes: number;
}
