import type { Clock, Millis } from '../core/clock.ts';
import type { Decision } from '../core/decision.ts';
import type { Hasher } from '../core/hash.ts';
import type { Random } from '../core/random.ts';
import type { Feedback, KeyStatus, Policy, RuleStatus, Settlement } from '../policies/policy.ts';
import type { TableSlices } from './table-slices.ts';

/** The state of all keys: the hash and numbers of each key in sequence, and the debt of evicted keys. */
export interface TableSnapshot {
  readonly entries: Float64Array;
  readonly debtUntil: Float64Array | undefined;
}

/** Memory that the tables of several limits share. */
export interface SharedMemory {
  /** False if a block would leave too little memory for others. */
  hasRoom(bytes: number): boolean;
  /** Accounts for allocated bytes; a negative number releases bytes. */
  add(bytes: number): void;
}

/** The most keys of a table, or the memory that bounds them. */
export type KeyBound = number | SharedMemory;

/** Services of a limiter for its backend. */
export interface BackendContext {
  readonly name: string;
  /** False if the name was not configured and is that of the policy. */
  readonly hasExplicitName?: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: KeyBound;
  /** The hasher of callers that pass hashed keys. */
  readonly hasher?: Hasher;
  /** Called when a key gained capacity elsewhere: its waiters may retry. */
  readonly onCapacity?: (key: string) => void;
}

/** Creates the backend of a limit that this process decides: `peers(...)`. */
export interface BackendFactory {
  readonly isRemote: false;
  create(policy: Policy, context: BackendContext): Backend;
}

/** A decision, and the status of each rule right after it. */
export interface CheckWithStatus {
  readonly decision: Decision;
  readonly rules: RuleStatus[];
}

/** This process's part of a limit that a pool divides, and its use. */
export interface PoolStats {
  /** Number of processes that divide the limit; 0: this process has no part of it. */
  readonly poolSize: number;
  /** Its part in units per second at its last call, over all keys in use. Like `poolUsed`, absent for concurrency. */
  readonly poolTokens?: number;
  /** Units used in all complete seconds, without those returned in the second of their take. */
  readonly poolUsed?: number;
  /** The used fraction of its part in the last ten complete seconds: 0 to 1. */
  readonly poolSaturation: number;
}

export interface Backend {
  /** May it happen now? `partitionIndex` refers to the policy's list of partitions. */
  check(key: string, cost: number, partitionIndex?: number): Decision;
  /** True if it needs the names of keys: `checkHashed` is not enough then. */
  readonly needsKeyNames?: boolean;
  /** `check` by a hash made with this backend's hasher. */
  checkHashed(low: number, high: number, cost: number): Decision;
  /**
   * `checkHashed`, and the status of each rule after it, read from the same slot. Undefined, without a charge, if the
   * backend has to decide by name.
   */
  checkWithStatus?(low: number, high: number, cost: number): CheckWithStatus | undefined;
  /** `check` without reservations: allows or denies. */
  checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision;
  /** The decision of `checkNow`, without counting. */
  peek(key: string, cost: number, partitionIndex?: number): Decision;
  /** The least time until calls of `units` in all are granted to the key; 0: unknown. */
  timeToGrantMs?(key: string, units: number): Millis;
  /** Takes up to `most` whole units (Infinity: all) and returns how many it took. */
  takeUpTo(key: string, most: number): number;
  /** Token buckets only, for groups: takes up to `most` whole tokens above the level `leave`. */
  takeSurplus?(key: string, most: number, leave: number): number;
  /** Token buckets only, for groups: adds tokens of another bucket, up to the level `upTo`. */
  credit?(key: string, tokens: number, upTo: number): void;
  /** `now`, here and below, saves reading the limiter's clock again. */
  settle(key: string, settlement: Settlement, now?: Millis): void;
  /** Applies feedback from elsewhere; false if the limit does not use it. */
  update(key: string, feedback: Feedback): boolean;
  /** The key's status; changes nothing. */
  inspect(key: string, now?: Millis): KeyStatus;

  /** Forgets the key's consumption. */
  forget(key: string): void;
  /** The state of one key, for another limit of this process. */
  keySnapshot(key: string): TableSnapshot;
  /** The state of all keys, for a successor with the same policy and hasher. */
  snapshot(): TableSnapshot;
  /** `snapshot` in slices, without a pause: calls may be decided between two slices. */
  slices(): TableSlices;
  /**
   * Restores a snapshot. `from`: the policy of the snapshot, of the same kind with other numbers; false, and nothing is
   * restored, for another kind. Without `keepsDebt`, consumption counts up to the burst.
   */
  restore(snapshot: TableSnapshot, from?: Policy, keepsDebt?: boolean): boolean;

  /** Completes in the background the work that a `copyFrom` of this backend would otherwise do at once. */
  prepareCopy?(): void;

  /**
   * Copies the keys of another backend, like `restore` of its snapshot. The last copy from a source that is no longer
   * used takes its memory, in time that does not depend on the number of keys. Undefined, and nothing is copied, if the
   * keys have to be copied by a snapshot.
   */
  copyFrom?(source: Backend, isLast?: boolean): boolean | undefined;

  /**
   * Prepares a change of the rule's numbers: spent tokens stay spent, calls stay in flight. Undefined for another kind
   * of rule, or if the backend cannot change it. Nothing changes before the returned function is called.
   */
  prepareChange?(policy: Policy): (() => void) | undefined;

  /** Called once when the limiter closes or is replaced: the backend leaves, saves and releases. */
  detach?(): void;

  /** Keys with a state. */
  readonly keys: number;
  /** Keys evicted while in use: above 0, `maxKeys` is too small. */
  readonly evicted: number;
  /** This process's part, if the limit is divided. */
  readonly poolStats?: PoolStats;
  /** Memory allocated for keys. */
  readonly bytes: number;
}
