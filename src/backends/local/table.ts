/**
 * The keys of one limit and their state: millions of them in one piece of memory.
 *
 * An open-addressed table without strings or objects. An entry is the key's 64-bit hash and, right
 * behind it, the policy's numbers, so that a decision usually touches a single cache line:
 *
 *     cells:  │ hash │ spent │ at │ hash │ spent │ at │  ·   ·   ·  │ hash │ spent │ at │ …
 *             └───── one entry ───┘                    empty: hash 0
 *
 * Nothing here runs on a timer. Keys that are as good as new are forgotten by a hand that moves on
 * a little with every fresh key, and before the table would grow.
 *
 * `maxKeys` holds under any flood of fresh keys. When no key may be forgotten for free, the one
 * among a few that is nearest to being as good as new makes room, and the instant at which it would
 * have been is remembered for its slice of all hashes: a stranger from that slice may be that very
 * key, so before then it starts no better off. Forgetting can make the limit stricter for strangers,
 * never looser for anybody.
 */

import type { Millis } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import type { Policy } from '../../policies/policy.ts';
import type { TableSnapshot } from '../backend.ts';

export const DEFAULT_MAX_KEYS = 1_048_576;

/** Above this, a table of the widest limit would no longer fit one piece of memory. */
export const MAX_KEYS_CEILING = 100_000_000;

const MIN_CAPACITY = 64;

/** Beyond this load, runs of full slots make a look-up slow. */
const MAX_LOAD = 0.8;

/**
 * Steps of the hand with every fresh key. In one lap a table of n slots takes in n / 8 keys, of
 * which half stand behind the hand when it is through: few enough to notice that it could shrink.
 */
const SWEEP_STEPS = 8;

/** Keys compared before one that is still in use makes room. */
const EVICTION_CANDIDATES = 32;

/**
 * Slices of all hashes, a power of two. Strangers of one slice share what was forgotten of it, so
 * under a flood a slice as a whole gets what one key is allowed: the more slices, the less a flood
 * is felt. Half a megabyte, and only once a key in use had to make room.
 */
const HASH_BUCKETS = 65_536;

/** What a table has to know of a rule. */
type KeyLifecycle = Pick<Policy, 'width' | 'init' | 'removableAt' | 'evictableAt'>;

/** A key's hash, and where its state begins. */
type KeyVisitor = (low: number, high: number, i: number) => void;

export class KeyTable {
  /** The state of all keys; an index from `find` or `place` says where one key's begins. */
  storage!: Float64Array;
  /** How many keys gave up their place while still in use. */
  evicted = 0;

  readonly #policy: KeyLifecycle;
  readonly #hasher: Hasher;
  readonly #maxKeys: number;
  readonly #stride: number;
  #hashes!: Int32Array;
  #mask = 0;
  #maxLoad = 0;
  #count = 0;
  #clockHand = 0;
  /** By slice: when the last key that had to make room would have been as good as new. */
  #debtUntil: Float64Array | undefined;

  constructor(policy: KeyLifecycle, hasher: Hasher, maxKeys: number) {
    this.#policy = policy;
    this.#hasher = hasher;
    this.#maxKeys = maxKeys;
    this.#stride = 1 + policy.width;
    this.#allocate(MIN_CAPACITY);
  }

  get size(): number {
    return this.#count;
  }

  /** Bytes held, full or not. */
  get bytes(): number {
    return this.storage.byteLength + (this.#debtUntil?.byteLength ?? 0);
  }

  /** Where the key's state begins, or -1 if it has none. */
  find(key: string): number {
    this.#hasher.hash(key);
    return this.findHashed(this.#hasher.low, this.#hasher.high);
  }

  /** The same for a key that this table's hasher has hashed already. */
  findHashed(low: number, high: number): number {
    const slot = this.#slotOf(low, high);
    return this.#isEmpty(slot) ? -1 : slot * this.#stride + 1;
  }

  /** Where the key's state begins, begun now if it has none; -1 if no key can make room for it. */
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

  /** All keys, those that are yet to come too, are as good as new only then. */
  markAllSpent(freshAt: Millis, now: Millis): void {
    this.#debtUntil ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    for (let slice = 0; slice < HASH_BUCKETS; slice++) {
      this.#debtUntil[slice] = Math.max(this.#debtUntil[slice], freshAt);
    }
    for (let slot = 0; slot <= this.#mask; slot++) {
      if (this.#isEmpty(slot)) continue;
      const i = slot * this.#stride + 1;
      if (this.#policy.removableAt(this.storage, i) < freshAt) {
        this.#policy.init(this.storage, i, now, freshAt);
      }
    }
  }

  /** Begins a state outside the table, as `place` would begin it inside. */
  initDetached(key: string, state: Float64Array, now: Millis): void {
    this.#hasher.hash(key);
    this.#policy.init(state, 0, now, this.#debtUntilFor(this.#hasher.high, now));
  }

  /** Everything that a successor with the same hasher needs to go on from here. */
  snapshot(now: Millis): TableSnapshot {
    const stride = this.#stride;
    let live = 0;
    for (let slot = 0; slot <= this.#mask; slot++) if (this.#isInUse(slot, now)) live++;
    const entries = new Float64Array(live * stride);
    let to = 0;
    for (let slot = 0; slot <= this.#mask; slot++) {
      if (!this.#isInUse(slot, now)) continue;
      entries.set(this.storage.subarray(slot * stride, (slot + 1) * stride), to);
      to += stride;
    }
    return { entries, debtUntil: this.#debtUntil?.slice() };
  }

  /** Takes over what another table knew. Keys it has already, and those that find no room, stay out. */
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
   * Shows keys that are not as good as new, from a place on, at most so many, and looks for them in at most so
   * many places; where to go on, 0: nowhere.
   */
  scan(cursor: number, most: number, now: Millis, show: KeyVisitor, maxLooks = Infinity): number {
    let slot = cursor;
    const end = Math.min(this.#mask, cursor + maxLooks - 1);
    for (let shown = 0; slot <= end && shown < most; slot++) {
      if (!this.#isInUse(slot, now)) continue;
      const at = slot * this.#stride;
      show(this.#hashes[at * 2], this.#hashes[at * 2 + 1], at + 1);
      shown++;
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
    this.#policy.init(this.storage, at, now, this.#debtUntilFor(high, now));
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

  /** Whether somebody is there who could not be begun anew. */
  #isInUse(slot: number, now: Millis): boolean {
    const at = slot * this.#stride + 1;
    return !this.#isEmpty(slot) && this.#policy.removableAt(this.storage, at) > now;
  }

  /** Moves the hand over a few slots and forgets what is as good as new. */
  #sweep(steps: number, now: Millis): void {
    for (let n = 0; n < steps; n++) {
      const at = this.#clockHand * this.#stride + 1;
      if (!this.#isEmpty(this.#clockHand) && this.#policy.removableAt(this.storage, at) <= now) {
        this.#remove(this.#clockHand); // another entry may have moved in: look at this slot again
      } else {
        this.#clockHand = (this.#clockHand + 1) & this.#mask;
        if (this.#clockHand === 0) this.#shrink(now);
      }
    }
  }

  /** Makes room for one key. False if every key in sight is bound to its place. */
  #evict(now: Millis): boolean {
    let best = -1;
    let bestAt: Millis = Infinity;
    for (let seen = 0; seen < EVICTION_CANDIDATES && bestAt > now; this.#clockHand++) {
      this.#clockHand &= this.#mask;
      if (this.#isEmpty(this.#clockHand)) continue;
      seen++;
      const evictAt = this.#policy.evictableAt(this.storage, this.#clockHand * this.#stride + 1);
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

  /** A key in use makes room: whoever may be it starts no better off. */
  #recordDebt(slot: number, evictAt: Millis): void {
    this.#debtUntil ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    const slice = this.#hashes[slot * this.#stride * 2 + 1] & (HASH_BUCKETS - 1);
    this.#debtUntil[slice] = Math.max(this.#debtUntil[slice], evictAt);
    this.evicted++;
  }

  /** Empties a slot and closes the gap, so that no look-up ends too early. */
  #remove(slot: number): void {
    const { storage } = this;
    const stride = this.#stride;
    let gap = slot;
    for (let next = (gap + 1) & this.#mask; !this.#isEmpty(next); next = (next + 1) & this.#mask) {
      const home = this.#hashes[next * stride * 2] & this.#mask;
      // An entry may move back to the gap unless its own place lies behind the gap.
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

  /** Moves everything that is not as good as new into a table of the right size. */
  #rebuild(now: Millis): void {
    const cells = this.storage;
    const hashes = this.#hashes;
    const stride = this.#stride;
    const isLive = (at: number): boolean =>
      (hashes[at * 2] !== 0 || hashes[at * 2 + 1] !== 0) &&
      this.#policy.removableAt(cells, at + 1) > now;

    let live = 0;
    for (let at = 0; at < cells.length; at += stride) if (isLive(at)) live++;
    let capacity = MIN_CAPACITY;
    while (capacity * MAX_LOAD * 0.75 <= live) capacity *= 2;
    this.#allocate(capacity);
    for (let at = 0; at < cells.length; at += stride) {
      if (!isLive(at)) continue;
      const to = this.#slotOf(hashes[at * 2], hashes[at * 2 + 1]) * stride;
      for (let n = 0; n < stride; n++) this.storage[to + n] = cells[at + n];
    }
    this.#count = live;
  }

  #allocate(capacity: number): void {
    this.storage = new Float64Array(capacity * this.#stride);
    this.#hashes = new Int32Array(this.storage.buffer);
    this.#mask = capacity - 1;
    this.#maxLoad = Math.floor(capacity * MAX_LOAD);
    this.#clockHand = 0;
  }
}
