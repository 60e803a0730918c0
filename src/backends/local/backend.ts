/**
 * Local: this process decides, alone and at once.
 *
 * The least a share can be: a clock, a table of keys and the rule.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { type Decision, deny } from '../../core/decision.ts';
import { createHasher, type Hasher, randomHashSeed } from '../../core/hash.ts';
import type { Random } from '../../core/random.ts';
import {
  type Feedback,
  type KeyState,
  type KeyStatus,
  keyStatusOf,
  type Policy,
  type Settlement,
  type State,
  takeUpTo,
} from '../../policies/policy.ts';
import type { Backend, CheckWithStatus, TableSnapshot } from '../backend.ts';
import { KeyTable } from './table.ts';

export interface LocalOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: number;
  /** Default: one of its own, different from any other's. */
  readonly hasher?: Hasher;
}

/** Looks at how a key stands, or changes it. */
type StateAccessor<T> = (state: State, i: number, now: Millis) => T;

/** A part of what is known. */
interface ScanPage {
  readonly values: readonly number[];
  readonly next: number;
}

/** What a stranger is told when every key in sight holds calls in flight and none can make room. */
const TABLE_FULL_RETRY_MS: Millis = 1000;

/** Places looked at for each key of a sample: a table may be all but empty. */
const SLOTS_PER_SAMPLE = 64;

export class LocalBackend implements Backend {
  readonly #policy: Policy;
  readonly #clock: Clock;
  readonly #table: KeyTable;
  /** Looked at, spoilt and used again: a fresh one for every look would cost more than the look. */
  readonly #scratch: State;

  constructor(policy: Policy, { clock, random, maxKeys, ...own }: LocalOptions) {
    this.#policy = policy;
    this.#clock = clock;
    this.#scratch = new Float64Array(policy.width);
    this.#table = new KeyTable(policy, own.hasher ?? createHasher(randomHashSeed(random)), maxKeys);
  }

  get keys(): number {
    return this.#table.size;
  }

  get evicted(): number {
    return this.#table.evicted;
  }

  get bytes(): number {
    return this.#table.bytes;
  }

  check(key: string, cost: number, partitionIndex?: number): Decision {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    if (i < 0) return deny(TABLE_FULL_RETRY_MS);
    return this.#policy.check(this.#table.storage, i, cost, now, partitionIndex);
  }

  checkHashed(low: number, high: number, cost: number): Decision {
    const now = this.#clock.now();
    const i = this.#table.findOrAddHashed(low, high, now);
    if (i < 0) return deny(TABLE_FULL_RETRY_MS);
    return this.#policy.check(this.#table.storage, i, cost, now);
  }

  /** The rules are read from a copy: a policy may use the state it is inspected with as scratch space. */
  checkWithStatus(low: number, high: number, cost: number): CheckWithStatus | undefined {
    const now = this.#clock.now();
    const i = this.#table.findOrAddHashed(low, high, now);
    if (i < 0) return undefined;
    const { storage } = this.#table;
    const decision = this.#policy.check(storage, i, cost, now);
    const copy = this.#scratch;
    for (let n = 0; n < copy.length; n++) copy[n] = storage[i + n];
    return { decision, rules: this.#policy.ruleStatuses(copy, 0, now) };
  }

  checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    const i = this.#table.findOrAdd(key, now);
    if (i < 0) return deny(TABLE_FULL_RETRY_MS);
    const { storage } = this.#table;
    const before = this.#policy.canReserve ? storage.slice(i, i + this.#policy.width) : undefined;
    const decision = this.#policy.check(storage, i, cost, now, partitionIndex);
    if (decision.verdict === 'wait' && before) storage.set(before, i); // what it took, it took for later
    return reservedToDeny(decision);
  }

  takeUpTo(key: string, most: number): number {
    return this.takeSurplus(key, most, 0);
  }

  takeSurplus(key: string, most: number, leave: number): number {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    return i < 0 ? 0 : takeUpTo(this.#policy, this.#table.storage, i, most, now, leave);
  }

  credit(key: string, units: number, upTo: number): void {
    const i = this.#table.find(key); // one that is not known is full
    if (i >= 0) this.#policy.credit?.(this.#table.storage, i, units, upTo, this.#clock.now());
  }

  settle(key: string, settlement: Settlement, now = this.#clock.now()): void {
    const i = this.#table.find(key);
    if (i >= 0) this.#policy.settle(this.#table.storage, i, settlement, now);
  }

  update(key: string, feedback: Feedback): boolean {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    return i >= 0 && this.#policy.update(this.#table.storage, i, feedback, now);
  }

  peek(key: string, cost: number, partitionIndex?: number): Decision {
    const now = this.#clock.now();
    return reservedToDeny(
      this.#policy.check(this.#scratchCopyOf(key, now), 0, cost, now, partitionIndex),
    );
  }

  inspect(key: string, now = this.#clock.now()): KeyStatus {
    return keyStatusOf(this.#policy, this.#scratchCopyOf(key, now), now);
  }

  /** Only what its state looks like. */
  keyState(key: string): KeyState {
    const now = this.#clock.now();
    return this.#policy.keyState(this.#scratchCopyOf(key, now), 0, now);
  }

  /**
   * Takes in news, so old, of a key that this share's hasher has hashed. They count as of then: whatever has
   * flowed back in since has. If the key was touched since, they count as of that.
   */
  updateHashed(low: number, high: number, feedback: Feedback, agoMs: Millis): boolean {
    const then = this.#clock.now() - agoMs;
    const i = this.#table.findOrAddHashed(low, high, then);
    return i >= 0 && this.#policy.update(this.#table.storage, i, feedback, then);
  }

  /** Settles for a key that this share's hasher has hashed. */
  settleHashed(low: number, high: number, settlement: Settlement): void {
    const i = this.#table.findHashed(low, high);
    if (i >= 0) this.#policy.settle(this.#table.storage, i, settlement, this.#clock.now());
  }

  /** Reads something of how such a key stands; 0 if it is not known. */
  readHashed(low: number, high: number, read: StateAccessor<number>): number {
    const i = this.#table.findHashed(low, high);
    return i < 0 ? 0 : read(this.#table.storage, i, this.#clock.now());
  }

  /** Changes how such a key stands, begun now if it is not known; nothing if there is no room for it. */
  changeHashed(low: number, high: number, change: StateAccessor<void>): void {
    const now = this.#clock.now();
    const i = this.#table.findOrAddHashed(low, high, now);
    if (i >= 0) change(this.#table.storage, i, now);
  }

  /** What is read of a few keys, any of them: of no more than so many, and only as far as they are easily found. */
  sample(most: number, read: StateAccessor<number>): number[] {
    const now = this.#clock.now();
    const { storage } = this.#table;
    const found: number[] = [];
    const note = (_low: number, _high: number, i: number): unknown =>
      found.push(read(storage, i, now));
    this.#table.scan(0, most, now, note, most * SLOTS_PER_SAMPLE);
    return found;
  }

  /** Hash and whatever is read of each key from a place on, at most so many; and where to go on, 0: nowhere. */
  scan(cursor: number, most: number, read: StateAccessor<readonly number[]>): ScanPage {
    const now = this.#clock.now();
    const numbers: number[] = [];
    const next = this.#table.scan(cursor, most, now, (low, high, i) =>
      numbers.push(low, high, ...read(this.#table.storage, i, now)),
    );
    return { values: numbers, next };
  }

  /** Counts everything as spent, of whatever key, as if it were to be as good as new only then. */
  markAllSpent(freshAt: Millis): void {
    this.#table.markAllSpent(freshAt, this.#clock.now());
  }

  snapshot(): TableSnapshot {
    return this.#table.snapshot(this.#clock.now());
  }

  restore(snapshot: TableSnapshot): void {
    this.#table.restore(snapshot, this.#clock.now());
  }

  /** The key's numbers to look at and to spoil; those of a new key if it has none. */
  #scratchCopyOf(key: string, now: Millis): State {
    const i = this.#table.find(key);
    const copy = this.#scratch;
    if (i >= 0) {
      const { storage } = this.#table;
      for (let n = 0; n < copy.length; n++) copy[n] = storage[i + n];
      return copy;
    }
    copy.fill(0);
    this.#table.initDetached(key, copy, now);
    return copy;
  }
}

/** Who cannot use a place later is refused until then. */
const reservedToDeny = (decision: Decision): Decision =>
  decision.verdict === 'wait' ? deny(Math.ceil(decision.waitMs)) : decision;
