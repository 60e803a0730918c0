/**
 * The most frequent keys of a stream, in bounded memory: Space-Saving, with removals in batches.
 *
 *     key    count  error        untracked keys: at most `floor` each
 *     alice   4213      0
 *     bob      117     12        counted 105 times, and at most 12 times before it was tracked
 *
 * A key that is new begins with the count `floor`, and with that error. When the table is full, about half of its keys
 * are removed, those with the smallest counts; the largest of these is the next `floor`. So a count is never too small,
 * and too large by its error at most. Below `CAPACITY` keys every count is exact.
 *
 * Keys are hashes. A table of open addressing in typed arrays holds them, because counting is on the path of every
 * denial. A count may be a fraction or stand for several events: that of a sampled call does.
 */

/** Keys that are tracked. */
const CAPACITY = 512;

/** A power of two. Half of the slots stay empty, so that a search ends soon. */
const SLOTS = 2 * CAPACITY;
const MASK = SLOTS - 1;

/** Counts whose median tells the rare keys from the others. Slots are in the order of hashes, so these are random keys. */
const SAMPLE_SIZE = 63;

/** The keys that a removal keeps. Shared: a removal ends before the next begins. */
const kept: unknown[] = [];
const keptLows = new Int32Array(CAPACITY);
const keptHighs = new Int32Array(CAPACITY);
const keptCounts = new Float64Array(CAPACITY);
const keptErrors = new Float64Array(CAPACITY);

export interface CountedKey<T> {
  readonly value: T;
  readonly count: number;
  /** The true count differs from `count` by at most this. */
  readonly error: number;
}

const firstOf = <T>(own: T): T => own;

export class SpaceSaving<T> {
  /** The sum of all counts, of keys that are tracked or not. */
  total = 0;
  readonly #lows = new Int32Array(SLOTS);
  readonly #highs = new Int32Array(SLOTS);
  /** 0: the slot is empty. */
  readonly #counts = new Float64Array(SLOTS);
  readonly #errors = new Float64Array(SLOTS);
  readonly #values: (T | undefined)[] = new Array(SLOTS).fill(undefined);
  #size = 0;
  #floor = 0;
  /** Upper bound on the count of a key in merged tables that did not track it. */
  #missed = 0;

  /** Counts a key. Returns its slot, which is valid until the next call. */
  add(low: number, high: number, count = 1): number {
    this.total += count;
    let slot = this.#find(low, high);
    if (this.#counts[slot] > 0) {
      this.#counts[slot] += count;
      return slot;
    }
    if (this.#size === CAPACITY) {
      this.#removeRareKeys();
      slot = this.#find(low, high);
    }
    this.#size++;
    this.#lows[slot] = low;
    this.#highs[slot] = high;
    this.#counts[slot] = this.#floor + count;
    this.#errors[slot] = this.#floor;
    return slot;
  }

  /** How often the key was certainly counted. */
  hitsAt(slot: number): number {
    return this.#counts[slot] - this.#errors[slot];
  }

  valueAt(slot: number): T | undefined {
    return this.#values[slot];
  }

  setValueAt(slot: number, value: T): void {
    this.#values[slot] = value;
  }

  /** The keys with most hits, most first; those without a value are left out. */
  top(max: number): CountedKey<T>[] {
    const found: CountedKey<T>[] = [];
    for (let slot = 0; slot < SLOTS; slot++) {
      const key = this.#read(slot);
      if (key) found.push(key);
    }
    return found.sort((a, b) => b.count - a.count).slice(0, max);
  }

  /** The highest count of a key that is not tracked. */
  get maxUntracked(): number {
    return this.#floor + this.#missed;
  }

  get(low: number, high: number): CountedKey<T> | undefined {
    return this.#read(this.#find(low, high));
  }

  /** Adds the counts of another table. `combine` makes one value of two of the same key. */
  merge(other: SpaceSaving<T>, combine: (own: T, other: T) => T = firstOf): void {
    const total = this.total + other.total;
    for (let slot = 0; slot < SLOTS; slot++) {
      if (other.#counts[slot] === 0) continue;
      const own = this.add(other.#lows[slot], other.#highs[slot], other.#counts[slot]);
      this.#errors[own] += other.#errors[slot];
      const [value, added] = [this.#values[own], other.#values[slot]];
      this.#values[own] = value && added ? combine(value, added) : (value ?? added);
    }
    this.total = total;
    this.#missed += other.#floor + other.#missed;
  }

  #read(slot: number): CountedKey<T> | undefined {
    const value = this.#values[slot];
    if (value === undefined) return undefined;
    const error = Math.max(this.#errors[slot], this.#missed);
    return { value, count: this.#counts[slot], error };
  }

  /** The slot of a key, or the empty one where it belongs. */
  #find(low: number, high: number): number {
    let slot = low & MASK;
    while (this.#counts[slot] > 0 && !(this.#lows[slot] === low && this.#highs[slot] === high)) {
      slot = (slot + 1) & MASK;
    }
    return slot;
  }

  #removeRareKeys(): void {
    this.#floor = this.#sampleMedian();
    kept.length = 0;
    for (let slot = 0; slot < SLOTS; slot++) {
      if (this.#counts[slot] > this.#floor) this.#keep(slot);
      this.#counts[slot] = 0;
      this.#values[slot] = undefined;
    }
    this.#size = kept.length;
    for (let n = 0; n < kept.length; n++) {
      const slot = this.#find(keptLows[n], keptHighs[n]);
      this.#lows[slot] = keptLows[n];
      this.#highs[slot] = keptHighs[n];
      this.#counts[slot] = keptCounts[n];
      this.#errors[slot] = keptErrors[n];
      this.#values[slot] = kept[n] as T | undefined;
    }
    kept.length = 0;
  }

  #keep(slot: number): void {
    const n = kept.length;
    keptLows[n] = this.#lows[slot];
    keptHighs[n] = this.#highs[slot];
    keptCounts[n] = this.#counts[slot];
    keptErrors[n] = this.#errors[slot];
    kept.push(this.#values[slot]);
  }

  #sampleMedian(): number {
    const sample: number[] = [];
    for (let slot = 0; sample.length < SAMPLE_SIZE; slot++) {
      if (this.#counts[slot] > 0) sample.push(this.#counts[slot]);
    }
    return sample.sort((a, b) => a - b)[SAMPLE_SIZE >> 1];
  }
}
