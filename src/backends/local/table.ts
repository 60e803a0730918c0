/**
 * Hash table of the keys of one limit and their state: millions of keys in one block of memory.
 *
 * Open addressing, without strings or objects. An entry is the key's 64-bit hash followed by the policy's
 * numbers, so that a decision usually touches a single cache line (`slots.ts`).
 *
 * There are no timers. A clock hand removes fresh keys (keys that decide like new ones); it advances with every new
 * key.
 *
 * A table that grows or shrinks moves its keys in small steps (incremental rehash): a key at its next use, and a few
 * others with every new key. Until then they stay in the old block. Moving a million keys at once would delay a call by
 * at least 100 ms.
 *
 * A rule change converts keys as of the instant of the change: a key at its next use, others in the background. A rule
 * of equal width converts them in place: another block would have to be allocated and released, and releasing some
 * hundred megabytes blocks every thread that maps memory meanwhile (decision 0036). A rule of another width moves its
 * keys to another block and converts them on the way.
 *
 * `maxKeys` holds under any flood of new keys (eviction). If no key can be removed without loss, the candidate that is
 * fresh soonest is evicted and leaves a debt (`eviction-debts.ts`). Eviction can make the limit stricter for new keys,
 * never looser.
 */

import type { Millis } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';
import type { KeyBound, SharedMemory, TableSnapshot } from '../backend.ts';
import type { TableSlices } from '../table-slices.ts';
import { EvictionDebts, type KeyLifecycle } from './eviction-debts.ts';
import { KeyConversion } from './key-conversion.ts';
import { Slots } from './slots.ts';

export const DEFAULT_MAX_KEYS = 1_048_576;

/** With more keys, a table of the widest limit would no longer fit into one block of memory. */
export const MAX_KEYS_CEILING = 100_000_000;

/** Memory of several tables. Each may use as much as it leaves free: a flood of keys in one leaves room for others. */
export class TableMemory implements SharedMemory {
  readonly #maxBytes: number;
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  hasRoom(bytes: number): boolean {
    return this.#bytes + bytes <= this.#maxBytes;
  }

  add(bytes: number): void {
    this.#bytes += bytes;
  }
}

const MIN_CAPACITY = 64;

/** Above this load, long probe sequences slow down look-ups. */
const MAX_LOAD = 0.8;

/**
 * Steps of the clock hand per new key. In one lap a table of n slots gets n / 8 new keys, half of them behind the hand
 * at the end: few enough to notice that the table can shrink.
 */
const SWEEP_STEPS = 8;

/** How long a removable key stays: removing a key and adding it again costs more than its checks. */
const KEEP_MS: Millis = 1000;

/** Slots of the old block that are moved at once when the table grows, and then with each new key. */
const FIRST_MOVE_SLOTS = 1024;
const MOVE_SLOTS = 16;

/** Slots of one slice of a snapshot: less than a millisecond. */
const SNAPSHOT_SLOTS = 1024;

/** Keys that are compared before one in use is evicted. */
const EVICTION_CANDIDATES = 32;

/** Receives a key's hash, and the index and array of its state. */
type KeyVisitor = (low: number, high: number, i: number, storage: Float64Array) => void;

export class KeyTable {
  /** The state of all keys; `find` and `findOrAdd` return the index of one key's. */
  storage!: Float64Array;
  /** Keys evicted while in use. */
  evicted = 0;

  lifecycle: KeyLifecycle;

  readonly #hasher: Hasher;
  readonly #maxKeys: number;
  #memory: SharedMemory | undefined;
  /** Bytes that are accounted for in `#memory`. */
  #takenBytes = 0;
  #stride: number;
  #slots!: Slots;
  /** The previous block while keys are moved. All its slots before `#moved` are empty. */
  #old: Slots | undefined;
  #moved = 0;
  /** Set while keys of another rule may exist; while `#old` is set, these are its keys. */
  #conversion: KeyConversion | undefined;
  #maxLoad = 0;
  /** Number of keys in both blocks. */
  #count = 0;
  #clockHand = 0;
  readonly #debts = new EvictionDebts();

  constructor(lifecycle: KeyLifecycle, hasher: Hasher, bound: KeyBound) {
    this.lifecycle = lifecycle;
    this.#hasher = hasher;
    const isShared = typeof bound !== 'number';
    this.#maxKeys = isShared ? DEFAULT_MAX_KEYS : bound;
    this.#memory = isShared ? bound : undefined;
    this.#stride = 1 + lifecycle.width;
    this.#allocate(MIN_CAPACITY);
  }

  get size(): number {
    return this.#count;
  }

  get bytes(): number {
    const blocks = this.storage.byteLength + (this.#old?.storage.byteLength ?? 0);
    return blocks + this.#debts.bytes;
  }

  /** Called when the table is no longer used, or used elsewhere: its memory no longer counts. */
  detach(): void {
    this.#memory?.add(-this.#takenBytes);
    this.#memory = undefined;
  }

  #account(): void {
    const { bytes } = this;
    this.#memory?.add(bytes - this.#takenBytes);
    this.#takenBytes = bytes;
  }

  /** Whether there is memory for another block with this many keys. */
  #hasRoomFor(keys: number): boolean {
    return this.#memory?.hasRoom(tableBytes(keys, this.lifecycle)) ?? true;
  }

  /** The index of the key's state; -1 if it has none. */
  find(key: string): number {
    this.#hasher.hash(key);
    return this.findHashed(this.#hasher.low, this.#hasher.high);
  }

  findHashed(low: number, high: number): number {
    const slot = this.#slots.slotOf(low, high);
    if (slot >= 0) return this.#indexOf(slot);
    return this.#old ? this.#moveHashed(this.#old, low, high) : -1;
  }

  /** The index of the key's state, which starts now if it has none; -1 if no key can be evicted for it. */
  findOrAdd(key: string, now: Millis): number {
    this.#hasher.hash(key);
    return this.findOrAddHashed(this.#hasher.low, this.#hasher.high, now);
  }

  findOrAddHashed(low: number, high: number, now: Millis): number {
    const slot = this.#slots.slotOf(low, high);
    return slot >= 0 ? this.#indexOf(slot) : this.#add(low, high, now);
  }

  /** Creates a block for a later `change` that needs one: its allocation may start a garbage collection. */
  createBlock({ width }: KeyLifecycle): Slots | undefined {
    if (width === this.lifecycle.width) return undefined;
    return new Slots(capacityFor(this.#count), 1 + width);
  }

  /** True while keys are moved from one block to another, or converted in place. */
  get isMoving(): boolean {
    return this.#old !== undefined || this.#conversion !== undefined;
  }

  /**
   * Changes the rule. Keys are converted when they are looked up, or by `moveSlots`. A `block` created earlier is used
   * if the keys fit.
   */
  change(lifecycle: KeyLifecycle, convert: KeyConverter, now: Millis, block?: Slots): void {
    this.moveSlots(Infinity, now);
    this.#debts.convertFrom(this.#debts, this.lifecycle, lifecycle, convert, now);
    this.lifecycle = lifecycle;
    this.#stride = 1 + lifecycle.width;
    this.#conversion = new KeyConversion(this.#slots, lifecycle.width, convert, now);
    if (this.#conversion.isInPlace) return;
    const isLargeEnough = block && block.mask + 1 >= capacityFor(this.#count);
    this.#replaceBlock(isLargeEnough ? block : undefined);
  }

  /**
   * Starts with the keys of another table, as `change` would continue with them. False if this table has keys. A source
   * that is no longer used (`isLast`) loses its keys, and no memory is copied.
   */
  copyFrom(source: KeyTable, convert: KeyConverter, now: Millis, isLast: boolean): boolean {
    if (this.#count > 0 || this.#old || !this.#debts.isEmpty || source.#count > this.#maxKeys)
      return false;
    source.moveSlots(Infinity, now);
    const { lifecycle } = this;
    this.#debts.convertFrom(source.#debts, source.lifecycle, lifecycle, convert, now);
    if (source.#count === 0) return true;
    this.#count = source.#count;
    const block = isLast ? source.#release() : source.#slots.clone();
    this.#conversion = new KeyConversion(block, lifecycle.width, convert, now);
    this.#use(block);
    if (!this.#conversion.isInPlace) this.#replaceBlock();
    return true;
  }

  /** Returns the memory of all keys; the table keeps none of them. */
  #release(): Slots {
    const block = this.#slots;
    this.#count = 0;
    this.#allocate(MIN_CAPACITY);
    return block;
  }

  /** Moves the keys of `count` slots of the previous block, or converts `count` slots in place; false when done. */
  moveSlots(count: number, now: Millis): boolean {
    if (this.#old) this.#move(count, now);
    else if (!this.#conversion?.convertNext(count)) this.#conversion = undefined;
    return this.isMoving;
  }

  /** Marks all keys, including new ones, as spent until `freshAt`. */
  markAllSpent(freshAt: Millis, now: Millis): void {
    if (this.#conversion) this.moveSlots(Infinity, now);
    this.#debts.addToAll(freshAt);
    for (const slots of this.#blocks()) {
      for (let slot = 0; slot <= slots.mask; slot++) {
        if (slots.isEmpty(slot)) continue;
        const i = slot * this.#stride + 1;
        if (this.lifecycle.freshAt(slots.storage, i, false) < freshAt) {
          this.lifecycle.init(slots.storage, i, now, freshAt);
        }
      }
    }
  }

  /** Initializes a state outside the table, as `findOrAdd` would inside. */
  initDetached(key: string, state: Float64Array, now: Millis): void {
    this.#hasher.hash(key);
    this.lifecycle.init(state, 0, now, this.#debts.untilFor(this.#hasher.high, now));
  }

  /** Removes a key. If evicted keys have left a debt in its hash bucket, the key restarts without that debt. */
  forget(key: string, now: Millis): void {
    const { low, high } = this.#hashOf(key);
    if (this.findHashed(low, high) >= 0) this.#remove(this.#slots, this.#slots.slotOf(low, high));
    if (this.#debts.untilFor(high, now) <= now) return;
    const i = this.#add(low, high, now);
    if (i >= 0) this.lifecycle.init(this.storage, i, now);
  }

  #hashOf(key: string): { readonly low: number; readonly high: number } {
    this.#hasher.hash(key);
    const { low, high } = this.#hasher;
    return { low, high };
  }

  /** The key's hash and numbers as in a snapshot; empty if it has none. */
  entryOf(key: string): Float64Array {
    const i = this.find(key);
    return i < 0 ? new Float64Array() : this.storage.slice(i - 1, i - 1 + this.#stride);
  }

  /**
   * The state for a successor with this hasher, in slices with the entries of some keys each. Calls may be decided
   * between two slices. A key is in one slice, in its state at that time. A key that exists throughout is never missed.
   */
  *slices(readTime: () => Millis): TableSlices {
    const bits = this.#slots.mask;
    for (let from = 0; from <= bits; from += SNAPSHOT_SLOTS) {
      const slice = this.#slice(bits, from, Math.min(from + SNAPSHOT_SLOTS, bits + 1), readTime());
      if (slice.length > 0) yield slice;
    }
    return this.#debts.copy();
  }

  #slice(bits: number, from: number, to: number, now: Millis): Float64Array {
    const blocks = this.#blocks();
    const found = blocks.map((slots) => {
      const inUse: number[] = [];
      slots.visitRange(bits, from, to, (slot) => {
        if (this.#isInUse(slots, slot, now)) inUse.push(slot);
      });
      return inUse;
    });
    const stride = this.#stride;
    const storage = new Float64Array(found.flat().length * stride);
    const target = { storage, hashes: new Int32Array(storage.buffer) };
    let at = 0;
    for (const [n, slots] of blocks.entries()) {
      for (const slot of found[n]) {
        this.#copyEntry(slots, slot, target, at);
        at += stride;
      }
    }
    return storage;
  }

  /** Adds the keys of a snapshot, except existing ones and those that do not fit. */
  restore({ entries, debtUntil }: TableSnapshot, now: Millis): void {
    this.#debts.restore(debtUntil);
    const hashes = new Int32Array(entries.buffer, entries.byteOffset, entries.length * 2);
    if (this.#count === 0) {
      this.#old = undefined;
      this.#conversion = undefined;
      const keys = Math.min(this.#maxKeys, entries.length / this.#stride);
      this.#allocate(this.#hasRoomFor(keys) ? capacityFor(keys) : MIN_CAPACITY);
    }
    for (let from = 0; from + this.#stride <= entries.length; from += this.#stride) {
      const low = hashes[from * 2];
      const high = hashes[from * 2 + 1];
      if ((low === 0 && high === 0) || this.findHashed(low, high) >= 0) continue;
      // No clock hand here: it would shrink a table that is not full yet, and entries come in the order of their slots,
      // which a smaller table would have to probe one by one.
      const hasSpace = this.#count < Math.min(this.#maxKeys, this.#maxLoad) && !this.#old;
      const to = hasSpace ? this.#insert(low, high, now) : this.#add(low, high, now);
      if (to >= 0) this.storage.set(entries.subarray(from + 1, from + this.#stride), to);
    }
  }

  /**
   * Visits up to `most` keys in use, from slot `cursor` on, within at most `maxSlots` slots. Returns the next cursor; 0
   * after the last slot. The slots of the old block come last.
   */
  scan(cursor: number, most: number, now: Millis, visit: KeyVisitor, maxSlots = Infinity): number {
    const capacity = this.#slots.mask + 1;
    const end = capacity + (this.#old ? this.#old.mask + 1 : 0);
    const stopAt = Math.min(end, cursor + maxSlots);
    let n = cursor;
    for (let visited = 0; n < stopAt && visited < most; n++) {
      const slots = n < capacity ? this.#slots : (this.#old as Slots);
      const slot = n < capacity ? n : n - capacity;
      if (!this.#isInUse(slots, slot, now)) continue;
      const [low, high] = [slots.low(slot), slots.high(slot)];
      const conversion = this.#conversionOf(slots, slot);
      if (conversion) visit(low, high, 0, conversion.read(slot));
      else visit(low, high, slot * this.#stride + 1, slots.storage);
      visited++;
    }
    return n >= end ? 0 : n;
  }

  #blocks(): readonly Slots[] {
    return this.#old ? [this.#slots, this.#old] : [this.#slots];
  }

  /** Adds the state of a key that is not in the current block: moved from the old one, or new. */
  #add(low: number, high: number, now: Millis): number {
    const moved = this.#old ? this.#moveHashed(this.#old, low, high) : -1;
    if (moved >= 0) return moved;
    this.#move(MOVE_SLOTS, now);
    this.#sweep(SWEEP_STEPS, now - KEEP_MS);
    const isFull = this.#count >= this.#maxLoad && !this.#hasRoomFor(this.#count);
    if ((isFull || this.#count >= this.#maxKeys) && !this.#evict(now)) return -1;
    if (this.#count >= this.#maxLoad) this.#resize(now);
    return this.#insert(low, high, now);
  }

  /** Starts the state of a key for which there is space. */
  #insert(low: number, high: number, now: Millis): number {
    const slot = ~this.#slots.slotOf(low, high);
    this.#slots.setHash(slot, low, high);
    this.#conversion?.added(this.#slots, slot);
    this.#count++;
    const at = slot * this.#stride + 1;
    this.lifecycle.init(this.storage, at, now, this.#debts.untilFor(high, now));
    return at;
  }

  /** True if the slot holds a key that differs from a new one. */
  #isInUse(slots: Slots, slot: number, now: Millis): boolean {
    if (slots.isEmpty(slot)) return false;
    const conversion = this.#conversionOf(slots, slot);
    if (conversion) return this.lifecycle.freshAt(conversion.read(slot), 0, false) > now;
    return this.lifecycle.freshAt(slots.storage, slot * this.#stride + 1, false) > now;
  }

  /** The conversion of a slot whose key has another rule. */
  #conversionOf(slots: Slots, slot: number): KeyConversion | undefined {
    return this.#conversion?.isPending(slots, slot) ? this.#conversion : undefined;
  }

  /** The index of an occupied slot of the current block; converts its key to the current rule if necessary. */
  #indexOf(slot: number): number {
    this.#conversion?.convert(this.#slots, slot);
    return slot * this.#stride + 1;
  }

  /** Moves the clock hand over a few slots and removes keys that were removable `then`. */
  #sweep(steps: number, then: Millis): void {
    const slots = this.#slots;
    for (let n = 0; n < steps; n++) {
      if (!slots.isEmpty(this.#clockHand) && !this.#isInUse(slots, this.#clockHand, then)) {
        this.#remove(slots, this.#clockHand); // another entry may have moved into this slot: visit it again
      } else {
        this.#clockHand = (this.#clockHand + 1) & slots.mask;
        if (this.#clockHand === 0 && this.#shrink(then)) return;
      }
    }
  }

  /** Evicts one key, from the old block if possible. False if no candidate can be evicted. */
  #evict(now: Millis): boolean {
    if (this.#old && this.#evictFrom(this.#old, this.#moved, now)) return true;
    return this.#evictFrom(this.#slots, this.#clockHand, now);
  }

  #evictFrom(slots: Slots, firstSlot: number, now: Millis): boolean {
    let best = -1;
    let bestAt: Millis = Infinity;
    let slot = firstSlot;
    const end = firstSlot + slots.mask;
    for (let n = firstSlot, seen = 0; n <= end && seen < EVICTION_CANDIDATES && bestAt > now; n++) {
      slot = n & slots.mask;
      if (slots.isEmpty(slot)) continue;
      seen++;
      const conversion = this.#conversionOf(slots, slot);
      const evictAt = conversion
        ? this.lifecycle.freshAt(conversion.read(slot), 0, true)
        : this.lifecycle.freshAt(slots.storage, slot * this.#stride + 1, true);
      if (evictAt < bestAt) {
        bestAt = evictAt;
        best = slot;
      }
    }
    if (slots === this.#slots) this.#clockHand = (slot + 1) & slots.mask;
    if (best < 0) return false;
    if (bestAt > now) {
      this.#debts.add(slots.high(best), bestAt);
      this.#account();
      this.evicted++;
    }
    this.#remove(slots, best);
    return true;
  }

  #remove(slots: Slots, slot: number): void {
    this.#empty(slots, slot);
    this.#count--;
  }

  #empty(slots: Slots, slot: number): void {
    this.#conversion?.removing(slots, slot);
    slots.remove(slot);
  }

  #shrink(now: Millis): boolean {
    const capacity = this.#slots.mask + 1;
    if (this.#old || capacity === MIN_CAPACITY || this.#count * 8 >= capacity) return false;
    this.#resize(now);
    return true;
  }

  /** Continues in a block of the right size; the keys of the previous block follow in steps. */
  #resize(now: Millis): void {
    this.#move(Infinity, now); // usually a no-op: moving a block takes less time than filling the next one
    this.#replaceBlock();
    this.#move(FIRST_MOVE_SLOTS, now);
  }

  #replaceBlock(block?: Slots): void {
    this.#old = this.#slots;
    this.#moved = 0;
    this.#use(block ?? new Slots(capacityFor(this.#count), this.#stride));
  }

  /** Moves the keys of the next slots and removes fresh ones. */
  #move(slotCount: number, now: Millis): void {
    const old = this.#old;
    if (!old) return;
    const end = Math.min(old.mask + 1, this.#moved + slotCount);
    while (this.#moved < end) {
      if (old.isEmpty(this.#moved)) this.#moved++;
      else if (this.#isInUse(old, this.#moved, now)) this.#moveSlot(old, this.#moved);
      else this.#remove(old, this.#moved); // another entry may have moved into this slot
    }
    if (this.#moved <= old.mask) return;
    this.#old = undefined;
    this.#conversion = undefined;
    this.#account();
  }

  /** Moves one key; -1 if it is not in the old block. */
  #moveHashed(old: Slots, low: number, high: number): number {
    const slot = old.slotOf(low, high);
    return slot < 0 ? -1 : this.#moveSlot(old, slot);
  }

  #moveSlot(old: Slots, slot: number): number {
    const at = ~this.#slots.slotOf(old.low(slot), old.high(slot)) * this.#stride;
    this.#copyEntry(old, slot, this.#slots, at);
    this.#empty(old, slot);
    return at + 1;
  }

  /** Copies an entry of one of the blocks, converted to the current rule. */
  #copyEntry(
    slots: Slots,
    slot: number,
    target: Pick<Slots, 'storage' | 'hashes'>,
    at: number,
  ): void {
    const conversion = this.#conversionOf(slots, slot);
    if (!conversion) {
      slots.copyEntry(slot, target, at);
      return;
    }
    target.hashes[at * 2] = slots.low(slot);
    target.hashes[at * 2 + 1] = slots.high(slot);
    target.storage.set(conversion.read(slot), at + 1);
  }

  #allocate(capacity: number): void {
    this.#use(new Slots(capacity, this.#stride));
  }

  #use(block: Slots): void {
    this.#slots = block;
    this.storage = block.storage;
    this.#maxLoad = Math.floor((block.mask + 1) * MAX_LOAD);
    this.#clockHand = 0;
    this.#account();
  }
}

/** Memory of a table with this many keys of a policy. */
export const tableBytes = (keys: number, { width }: Pick<Policy, 'width'>): number =>
  capacityFor(keys) * (1 + width) * 8;

/** The capacity of a table with this many keys; it can grow by at least a third. */
function capacityFor(keys: number): number {
  let capacity = MIN_CAPACITY;
  while (capacity * MAX_LOAD * 0.75 <= keys) capacity *= 2;
  return capacity;
}
