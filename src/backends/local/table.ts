/**
 * Hash table of the keys of one limit and their state: millions of keys in one block of memory.
 *
 * Open addressing, without strings or objects. An entry is the key's 64-bit hash followed by the policy's
 * numbers, so that a decision usually touches a single cache line:
 *
 *     storage:  │ hash │ spent │ at │ hash │ spent │ at │  ·   ·   ·  │ hash │ spent │ at │ …
 *               └───── one entry ───┘                    empty: hash 0
 *
 * There are no timers. Keys that are as good as new are removed by a clock hand, which moves a little with
 * every new key, and before the table grows.
 *
 * `maxKeys` holds under any flood of new keys (eviction). When no key can be removed for free, the one
 * among a few candidates that is nearest to being as good as new is evicted. The instant at which it
 * would have been is kept for its hash bucket: a new key of that bucket may be the evicted one, so until
 * then it starts no better off. Eviction can make the limit stricter for new keys, never looser.
 */

import type { Millis } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';
import type { TableSnapshot } from '../backend.ts';
import { Predecessor } from './predecessor.ts';

export const DEFAULT_MAX_KEYS = 1_048_576;

/** Above this, a table of the widest limit would no longer fit one block of memory. */
export const MAX_KEYS_CEILING = 100_000_000;

const MIN_CAPACITY = 64;

/** Beyond this load, long probe sequences make a look-up slow. */
const MAX_LOAD = 0.8;

/**
 * Steps of the clock hand per new key. In one lap a table of n slots takes in n / 8 keys, half of them
 * behind the hand when it is done: few enough to notice that the table can shrink.
 */
const SWEEP_STEPS = 8;

/** Keys compared before one in use is evicted. */
const EVICTION_CANDIDATES = 32;

/**
 * Hash buckets that remember evictions, a power of two. New keys of one bucket share its debt, so under a
 * flood a bucket as a whole gets what one key is allowed: the more buckets, the smaller the effect of a
 * flood. Half a megabyte, allocated at the first eviction of a key in use.
 */
const HASH_BUCKETS = 65_536;

/** What the table needs of a policy. */
type KeyLifecycle = Pick<Policy, 'width' | 'init' | 'removableAt' | 'evictableAt'>;

/** Receives a key's hash and the index of its state. */
export type KeyVisitor = (low: number, high: number, i: number) => void;

export class KeyTable {
  /** The state of all keys; `find` and `findOrAdd` return the index of one key's. */
  storage!: Float64Array;
  /** Keys evicted while in use. */
  evicted = 0;

  lifecycle: KeyLifecycle;

  readonly #hasher: Hasher;
  readonly #maxKeys: number;
  readonly #stride: number;
  #hashes!: Int32Array;
  #mask = 0;
  #maxLoad = 0;
  #count = 0;
  #clockHand = 0;
  /** By hash bucket: when the last key evicted from it would have been as good as new. */
  #debtUntil: Float64Array | undefined;
  /** Keys of the rule before, while they move here. */
  #predecessor: Predecessor | undefined;

  constructor(lifecycle: KeyLifecycle, hasher: Hasher, maxKeys: number) {
    this.lifecycle = lifecycle;
    this.#hasher = hasher;
    this.#maxKeys = maxKeys;
    this.#stride = 1 + lifecycle.width;
    this.#allocate(MIN_CAPACITY);
  }

  get size(): number {
    return this.#count + (this.#predecessor?.size ?? 0);
  }

  /** Bytes allocated. */
  get bytes(): number {
    return this.storage.byteLength + (this.#debtUntil?.byteLength ?? 0);
  }

  /** The index of the key's state, or -1 if it has none. */
  find(key: string): number {
    this.#hasher.hash(key);
    return this.findHashed(this.#hasher.low, this.#hasher.high);
  }

  /** The same for a key that this table's hasher has hashed already. */
  findHashed(low: number, high: number): number {
    const slot = this.#slotOf(low, high);
    if (!this.#isEmpty(slot)) return slot * this.#stride + 1;
    const predecessor = this.#predecessor;
    return predecessor?.has(low, high) ? this.#add(low, high, predecessor.changedAt) : -1;
  }

  /** The index of the key's state, begun now if it has none; -1 if no key can be evicted for it. */
  findOrAdd(key: string, now: Millis): number {
    const hasher = this.#hasher;
    hasher.hash(key);
    return this.findOrAddHashed(hasher.low, hasher.high, now);
  }

  /** The same for a key that this table's hasher has hashed already. */
  findOrAddHashed(low: number, high: number, now: Millis): number {
    const slot = this.#slotOf(low, high);
    if (!this.#isEmpty(slot)) return slot * this.#stride + 1;
    return this.#add(low, high, now);
  }

  /**
   * Takes over the keys of a table whose rule has changed at `now`. A key moves when it is looked up, the others by
   * `moveSlots`. The caller no longer uses the old table.
   */
  takeOver(old: KeyTable, convert: KeyConverter, now: Millis): void {
    old.moveSlots(Infinity, now);
    if (this.#count === 0) this.#allocate(capacityFor(old.#count));
    this.#predecessor = new Predecessor(old, convert, now);
    if (old.#debtUntil) this.#debtUntil = this.#convertDebts(old, old.#debtUntil, convert, now);
    this.evicted = old.evicted;
  }

  /** Moves the keys in so many slots of the table before; false when none is left. */
  moveSlots(count: number, now: Millis): boolean {
    const isLeft = this.#predecessor?.visitSlots(count, (low, high) => {
      if (this.#isEmpty(this.#slotOf(low, high))) this.#add(low, high, now);
    });
    if (!isLeft) this.#predecessor = undefined;
    return this.#predecessor !== undefined;
  }

  #convertDebts(
    old: KeyTable,
    debts: Float64Array,
    convert: KeyConverter,
    now: Millis,
  ): Float64Array {
    const before = new Float64Array(old.lifecycle.width);
    const after = new Float64Array(this.lifecycle.width);
    return debts.map((until) => {
      if (until <= now) return until;
      old.lifecycle.init(before, 0, now, until);
      convert(after, 0, before, 0, now);
      return this.lifecycle.evictableAt(after, 0);
    });
  }

  /** Counts all keys, including new ones, as spent until `freshAt`. */
  markAllSpent(freshAt: Millis, now: Millis): void {
    this.moveSlots(Infinity, now);
    this.#debtUntil ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    for (let n = 0; n < HASH_BUCKETS; n++) {
      this.#debtUntil[n] = Math.max(this.#debtUntil[n], freshAt);
    }
    for (let slot = 0; slot <= this.#mask; slot++) {
      if (this.#isEmpty(slot)) continue;
      const i = slot * this.#stride + 1;
      if (this.lifecycle.removableAt(this.storage, i) < freshAt) {
        this.lifecycle.init(this.storage, i, now, freshAt);
      }
    }
  }

  /** Begins a state outside the table, as `findOrAdd` would inside. */
  initDetached(key: string, state: Float64Array, now: Millis): void {
    this.#hasher.hash(key);
    this.lifecycle.init(state, 0, now, this.#debtUntilFor(this.#hasher.high, now));
  }

  /** Everything that a successor with the same hasher needs to continue. */
  snapshot(now: Millis): TableSnapshot {
    this.moveSlots(Infinity, now);
    const stride = this.#stride;
    let inUse = 0;
    for (let slot = 0; slot <= this.#mask; slot++) if (this.#isInUse(slot, now)) inUse++;
    const entries = new Float64Array(inUse * stride);
    let to = 0;
    for (let slot = 0; slot <= this.#mask; slot++) {
      if (!this.#isInUse(slot, now)) continue;
      entries.set(this.storage.subarray(slot * stride, (slot + 1) * stride), to);
      to += stride;
    }
    return { entries, debtUntil: this.#debtUntil?.slice() };
  }

  /** Adds the keys of a snapshot, except those it has already and those that do not fit. */
  restore({ entries, debtUntil }: TableSnapshot, now: Millis): void {
    if (debtUntil?.length === HASH_BUCKETS) this.#debtUntil = debtUntil.slice();
    const hashes = new Int32Array(entries.buffer, entries.byteOffset, entries.length * 2);
    for (let from = 0; from + this.#stride <= entries.length; from += this.#stride) {
      const low = hashes[from * 2];
      const high = hashes[from * 2 + 1];
      if ((low === 0 && high === 0) || !this.#isEmpty(this.#slotOf(low, high))) continue;
      const to = this.#add(low, high, now);
      if (to >= 0) this.storage.set(entries.subarray(from + 1, from + this.#stride), to);
    }
  }

  /**
   * Visits up to `most` keys in use, from slot `cursor` on, within at most `maxSlots` slots. Returns the
   * next cursor; 0 after the last slot.
   */
  scan(cursor: number, most: number, now: Millis, visit: KeyVisitor, maxSlots = Infinity): number {
    let slot = cursor;
    const end = Math.min(this.#mask, cursor + maxSlots - 1);
    for (let visited = 0; slot <= end && visited < most; slot++) {
      if (!this.#isInUse(slot, now)) continue;
      const at = slot * this.#stride;
      visit(this.#hashes[at * 2], this.#hashes[at * 2 + 1], at + 1);
      visited++;
    }
    return slot > this.#mask ? 0 : slot;
  }

  #debtUntilFor(high: number, now: Millis): Millis {
    return this.#debtUntil ? Math.max(now, this.#debtUntil[high & (HASH_BUCKETS - 1)]) : now;
  }

  #add(low: number, high: number, now: Millis): number {
    this.#sweep(SWEEP_STEPS, now);
    if (this.#count >= this.#maxKeys && !this.#evict(now)) return -1;
    if (this.#count >= this.#maxLoad) this.#rebuild(now);

    const slot = this.#slotOf(low, high);
    this.#hashes[slot * this.#stride * 2] = low;
    this.#hashes[slot * this.#stride * 2 + 1] = high;
    this.#count++;
    const at = slot * this.#stride + 1;
    this.lifecycle.init(this.storage, at, now, this.#debtUntilFor(high, now));
    this.#predecessor?.move(low, high, this.storage, at);
    return at;
  }

  /** The slot that holds the hash, or the empty one where it belongs. */
  #slotOf(low: number, high: number): number {
    const hashes = this.#hashes;
    const mask = this.#mask;
    const stride = this.#stride * 2;
    for (let slot = low & mask; ; slot = (slot + 1) & mask) {
      const at = slot * stride;
      const l = hashes[at];
      const h = hashes[at + 1];
      if ((l === low && h === high) || (l === 0 && h === 0)) return slot;
    }
  }

  #isEmpty(slot: number): boolean {
    const at = slot * this.#stride * 2;
    return this.#hashes[at] === 0 && this.#hashes[at + 1] === 0;
  }

  /** True if the slot holds a key that differs from a new one. */
  #isInUse(slot: number, now: Millis): boolean {
    const at = slot * this.#stride + 1;
    return !this.#isEmpty(slot) && this.lifecycle.removableAt(this.storage, at) > now;
  }

  /** Moves the clock hand over a few slots and removes keys that are as good as new. */
  #sweep(steps: number, now: Millis): void {
    for (let n = 0; n < steps; n++) {
      const at = this.#clockHand * this.#stride + 1;
      if (!this.#isEmpty(this.#clockHand) && this.lifecycle.removableAt(this.storage, at) <= now) {
        this.#remove(this.#clockHand); // another entry may have moved into this slot: visit it again
      } else {
        this.#clockHand = (this.#clockHand + 1) & this.#mask;
        if (this.#clockHand === 0) this.#shrink(now);
      }
    }
  }

  /** Evicts one key. False if none of the candidates can be evicted. */
  #evict(now: Millis): boolean {
    let best = -1;
    let bestAt: Millis = Infinity;
    for (let seen = 0; seen < EVICTION_CANDIDATES && bestAt > now; this.#clockHand++) {
      this.#clockHand &= this.#mask;
      if (this.#isEmpty(this.#clockHand)) continue;
      seen++;
      const evictAt = this.lifecycle.evictableAt(this.storage, this.#clockHand * this.#stride + 1);
      if (evictAt < bestAt) {
        bestAt = evictAt;
        best = this.#clockHand;
      }
    }
    this.#clockHand &= this.#mask;
    if (best < 0) return false;
    if (bestAt > now) this.#recordDebt(best, bestAt);
    this.#remove(best);
    return true;
  }

  /** A key in use is evicted: a new key that may be the same starts no better off. */
  #recordDebt(slot: number, evictAt: Millis): void {
    this.#debtUntil ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    const bucket = this.#hashes[slot * this.#stride * 2 + 1] & (HASH_BUCKETS - 1);
    this.#debtUntil[bucket] = Math.max(this.#debtUntil[bucket], evictAt);
    this.evicted++;
  }

  /** Empties a slot and closes the gap, so that no probe sequence ends too early. */
  #remove(slot: number): void {
    const { storage } = this;
    const stride = this.#stride;
    let gap = slot;
    for (let next = (gap + 1) & this.#mask; !this.#isEmpty(next); next = (next + 1) & this.#mask) {
      const home = this.#hashes[next * stride * 2] & this.#mask;
      // An entry may move back into the gap unless its home slot lies behind the gap.
      if (((next - home) & this.#mask) < ((next - gap) & this.#mask)) continue;
      storage.copyWithin(gap * stride, next * stride, (next + 1) * stride);
      gap = next;
    }
    storage.fill(0, gap * stride, (gap + 1) * stride);
    this.#count--;
  }

  #shrink(now: Millis): void {
    if (this.#mask + 1 > MIN_CAPACITY && this.#count * 8 < this.#mask + 1) this.#rebuild(now);
  }

  /** Moves every key in use into a table of the right size. */
  #rebuild(now: Millis): void {
    const { storage } = this;
    const hashes = this.#hashes;
    const stride = this.#stride;
    const isInUse = (at: number): boolean =>
      (hashes[at * 2] !== 0 || hashes[at * 2 + 1] !== 0) &&
      this.lifecycle.removableAt(storage, at + 1) > now;

    let inUse = 0;
    for (let at = 0; at < storage.length; at += stride) if (isInUse(at)) inUse++;
    this.#allocate(capacityFor(inUse));
    for (let at = 0; at < storage.length; at += stride) {
      if (!isInUse(at)) continue;
      const to = this.#slotOf(hashes[at * 2], hashes[at * 2 + 1]) * stride;
      for (let n = 0; n < stride; n++) this.storage[to + n] = storage[at + n];
    }
    this.#count = inUse;
  }

  #allocate(capacity: number): void {
    this.storage = new Float64Array(capacity * this.#stride);
    this.#hashes = new Int32Array(this.storage.buffer);
    this.#mask = capacity - 1;
    this.#maxLoad = Math.floor(capacity * MAX_LOAD);
    this.#clockHand = 0;
  }
}

/** The capacity of a table for so many keys, with some to come. */
function capacityFor(keys: number): number {
  let capacity = MIN_CAPACITY;
  while (capacity * MAX_LOAD * 0.75 <= keys) capacity *= 2;
  return capacity;
}
