import type { Clock, Millis } from '../../core/clock.ts';
import { type Decision, deny } from '../../core/decision.ts';
import { type Hasher, randomHasher } from '../../core/hash.ts';
import type { Random } from '../../core/random.ts';
import { runInBackground, type Steps } from '../../core/steps.ts';
import {
  converterBetween,
  type Feedback,
  type KeyConverter,
  type KeyState,
  type KeyStatus,
  keyStatusOf,
  lendUpTo,
  type Policy,
  type Settlement,
  type State,
  takeUpTo,
} from '../../policies/policy.ts';
import { keepsDebt } from '../../policies/rules.ts';
import type { Backend, CheckWithStatus, KeyBound, TableSnapshot } from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import { collectSlices, type TableSlices } from '../table-slices.ts';
import { KeyTable } from './table.ts';

export interface LocalOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: KeyBound;
  /** Default: a hasher with a random seed. */
  readonly hasher?: Hasher;
}

/** Reads or changes the state of a key. */
type StateAccessor<T> = (state: State, i: number, now: Millis) => T;

interface ScanPage {
  readonly values: readonly number[];
  /** Cursor of the next page; 0 after the last. */
  readonly next: number;
}

/** Retry time of a new key if no key can be evicted, because all candidates have calls in flight. */
const TABLE_FULL_RETRY_MS: Millis = 1000;

/** Slots visited per sampled key, because the table may be nearly empty. */
const SLOTS_PER_SAMPLE = 64;

/** Slots moved per step after a rule change, before other work may run: each may touch new pages of memory. */
const SLOTS_PER_STEP = 64;

export class LocalBackend implements Backend {
  #policy: Policy;
  readonly #clock: Clock;
  readonly #hasher: Hasher;
  readonly #table: KeyTable;
  /** Reused copy of one key's numbers: allocating one per read would cost more than the read. */
  #scratch: State;

  constructor(policy: Policy, { clock, random, maxKeys, hasher }: LocalOptions) {
    this.#policy = policy;
    this.#clock = clock;
    this.#scratch = new Float64Array(policy.width);
    this.#hasher = hasher ?? randomHasher(random);
    this.#table = new KeyTable(policy, this.#hasher, maxKeys);
  }

  /** Replaces the policy by one on the same state layout: `divide.ofPool`. */
  usePolicy(policy: Policy): void {
    this.#policy = policy;
    this.#table.lifecycle = policy;
  }

  prepareChange(policy: Policy): (() => void) | undefined {
    const convert = converterBetween(this.#policy, policy);
    if (!convert) return undefined;
    this.prepareCopy(); // otherwise the change would move all of them at once
    const block = this.#table.createBlock(policy);
    return () => {
      this.#table.change(policy, convert, this.#clock.now(), block);
      this.#policy = policy;
      this.#scratch = new Float64Array(policy.width);
      runInBackground(this.#moveKeys());
    };
  }

  /** Moves all keys to the new rule. */
  *#moveKeys(): Steps<void> {
    while (this.#table.moveSlots(SLOTS_PER_STEP, this.#clock.now())) yield;
  }

  prepareCopy(): void {
    if (this.#table.isMoving) runInBackground(this.#moveKeys());
  }

  copyFrom(source: Backend, isLast = false): boolean | undefined {
    const from = DelegatingBackend.innermost(source);
    if (!(from instanceof LocalBackend) || from.#hasher !== this.#hasher) return undefined;
    const convert = converterBetween(from.#policy, this.#policy);
    if (!convert) return false;
    if (!this.#table.copyFrom(from.#table, convert, this.#clock.now(), isLast)) return undefined;
    runInBackground(this.#moveKeys());
    return true;
  }

  detach(): void {
    this.#table.detach();
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
    const table = this.#table;
    let i = table.findHashed(low, high); // a separate first lookup: V8 inlines it
    if (i < 0) i = table.findOrAddHashed(low, high, now);
    return i < 0 ? deny(TABLE_FULL_RETRY_MS) : this.#policy.check(table.storage, i, cost, now);
  }

  /** Reads the rules from a copy, because a policy may use the state it inspects as scratch space. */
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
    const policy = this.#policy;
    const before = policy.traits.canReserve ? storage.slice(i, i + policy.width) : undefined;
    const decision = policy.check(storage, i, cost, now, partitionIndex);
    if (decision.verdict === 'wait' && before) storage.set(before, i); // cancels the reservation
    return reservedToDeny(decision);
  }

  takeUpTo(key: string, most: number): number {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    return i < 0 ? 0 : takeUpTo(this.#policy, this.#table.storage, i, most, now);
  }

  takeSurplus(key: string, most: number, leave: number): number {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    return i < 0 ? 0 : lendUpTo(this.#policy, this.#table.storage, i, most, now, leave);
  }

  credit(key: string, tokens: number, upTo: number): void {
    const i = this.#table.find(key); // an unknown key is full
    if (i >= 0)
      this.#policy.divide?.credit?.(this.#table.storage, i, tokens, upTo, this.#clock.now());
  }

  settle(key: string, settlement: Settlement, now = this.#clock.now()): void {
    const i = isOveruse(settlement) ? this.#table.findOrAdd(key, now) : this.#table.find(key);
    if (i >= 0) this.#policy.settle(this.#table.storage, i, settlement, now);
  }

  update(key: string, feedback: Feedback): boolean {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    return i >= 0 && this.#policy.update(this.#table.storage, i, feedback, now);
  }

  /** Changes the state of a key; does nothing if the table is full. */
  changeState(key: string, change: StateAccessor<void>): void {
    const now = this.#clock.now();
    const i = this.#table.findOrAdd(key, now);
    if (i >= 0) change(this.#table.storage, i, now);
  }

  peek(key: string, cost: number, partitionIndex?: number): Decision {
    const now = this.#clock.now();
    return reservedToDeny(
      this.#policy.check(this.#scratchCopyOf(key, now), 0, cost, now, partitionIndex),
    );
  }

  timeToGrantMs(key: string, units: number): Millis {
    const now = this.#clock.now();
    return this.#policy.queue?.timeToGrantMs(this.#scratchCopyOf(key, now), 0, units, now) ?? 0;
  }

  inspect(key: string, now = this.#clock.now()): KeyStatus {
    return keyStatusOf(this.#policy, this.#scratchCopyOf(key, now), now);
  }

  keyState(key: string): KeyState {
    const now = this.#clock.now();
    return this.#policy.keyState(this.#scratchCopyOf(key, now), 0, now);
  }

  /**
   * Applies feedback of a certain age to a key hashed by this backend's hasher. It counts from that time on, so later
   * refills are included. If the key was used since, it counts from that use on.
   */
  updateHashed(low: number, high: number, feedback: Feedback, agoMs: Millis): boolean {
    const then = this.#clock.now() - agoMs;
    const i = this.#table.findOrAddHashed(low, high, then);
    return i >= 0 && this.#policy.update(this.#table.storage, i, feedback, then);
  }

  /** Settles for a key hashed by this backend's hasher. */
  settleHashed(low: number, high: number, settlement: Settlement): void {
    const now = this.#clock.now();
    const i = isOveruse(settlement)
      ? this.#table.findOrAddHashed(low, high, now)
      : this.#table.findHashed(low, high);
    if (i >= 0) this.#policy.settle(this.#table.storage, i, settlement, now);
  }

  /** Reads a number from the state of a key hashed by this backend's hasher; 0 if the key is unknown. */
  readHashed(low: number, high: number, read: StateAccessor<number>): number {
    const i = this.#table.findHashed(low, high);
    return i < 0 ? 0 : read(this.#table.storage, i, this.#clock.now());
  }

  /** Changes the state of a hashed key as of `agoMs` ago, when an unknown key starts. No effect in a full table. */
  changeHashed(low: number, high: number, change: StateAccessor<void>, agoMs: Millis = 0): void {
    const then = this.#clock.now() - agoMs;
    const i = this.#table.findOrAddHashed(low, high, then);
    if (i >= 0) change(this.#table.storage, i, then);
  }

  /** Reads a number from up to `most` keys, found within a bounded number of slots. */
  sample(most: number, read: StateAccessor<number>): number[] {
    const now = this.#clock.now();
    const values: number[] = [];
    const visit = (_low: number, _high: number, i: number, storage: State): unknown =>
      values.push(read(storage, i, now));
    this.#table.scan(0, most, now, visit, most * SLOTS_PER_SAMPLE);
    return values;
  }

  /** Reads the hash and the numbers of up to `most` keys, from `cursor` on. */
  scan(cursor: number, most: number, read: StateAccessor<readonly number[]>): ScanPage {
    const now = this.#clock.now();
    const values: number[] = [];
    const next = this.#table.scan(cursor, most, now, (low, high, i, storage) =>
      values.push(low, high, ...read(storage, i, now)),
    );
    return { values, next };
  }

  /** Marks every key, known or not, as spent until `freshAt`. */
  markAllSpent(freshAt: Millis): void {
    this.#table.markAllSpent(freshAt, this.#clock.now());
  }

  forget(key: string): void {
    this.#table.forget(key, this.#clock.now());
  }

  keySnapshot(key: string): TableSnapshot {
    return { entries: this.#table.entryOf(key), debtUntil: undefined };
  }

  snapshot(): TableSnapshot {
    return collectSlices(this.slices());
  }

  slices(): TableSlices {
    return this.#table.slices(() => this.#clock.now());
  }

  restore(snapshot: TableSnapshot, from?: Policy, keepsDebt = true): boolean {
    const now = this.#clock.now();
    if (from === undefined) {
      this.#table.restore(snapshot, now);
      return true;
    }
    const policy = this.#policy;
    const converter = converterBetween(from, policy);
    if (!converter) return false;
    const convert: KeyConverter = (state, i, source, j, at) => {
      converter(state, i, source, j, at);
      if (!keepsDebt) clearDebt(policy, state, i, at);
    };
    const old = new KeyTable(from, this.#hasher, snapshot.entries.length + 1); // does not use shared memory
    old.restore(snapshot, now);
    old.change(policy, convert, now);
    this.#table.restore(collectSlices(old.slices(() => now)), now);
    return true;
  }

  /** A scratch copy of the key's numbers; the numbers of a new key if it is unknown. */
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

/** Spent units count up to the capacity of each rule that has a debt. */
function clearDebt(policy: Policy, state: State, i: number, now: Millis): void {
  for (const { policy: rule, offset } of policy.rules.filter(keepsDebt))
    rule.divide?.credit?.(state, i + offset, Infinity, 0, now);
}

/** An overuse counts even if its key was removed meanwhile. */
const isOveruse = ({ outcome, cost, used = cost }: Settlement): boolean =>
  used > cost && outcome !== 'ignored';

/** For a caller that cannot wait, a reservation is a denial until its due time. */
const reservedToDeny = (decision: Decision): Decision =>
  decision.verdict === 'wait' ? deny(Math.ceil(decision.waitMs)) : decision;
