/**
 * The keys of a log, numbered in the order in which they appear. A key is found by its hash, as limiters find it, and
 * its name is decoded once.
 *
 * An open-addressed table of numbers, at most half full. At the bound further keys get no number.
 */

import { createHasher, type Hasher } from '../../core/hash.ts';

/** A power of two. */
const MIN_SLOTS = 1024;

export class KeyTable {
  /** The key to find or add is the one that was hashed last. The seed is fixed: a report can be repeated. */
  readonly hasher: Hasher = createHasher([1, 2, 3, 4], 'latin1');
  /** Binary keys by number. */
  readonly names: string[] = [];
  lows = new Int32Array(MIN_SLOTS / 2);
  highs = new Int32Array(MIN_SLOTS / 2);
  /** Number of the key plus 1; 0 is an empty slot. */
  #slots = new Int32Array(MIN_SLOTS);
  readonly #maxKeys: number;

  constructor(maxKeys: number) {
    this.#maxKeys = maxKeys;
  }

  get size(): number {
    return this.names.length;
  }

  /** The number of the hashed key; -1 if it is new. */
  find(): number {
    const { low, high } = this.hasher;
    const slots = this.#slots;
    const mask = slots.length - 1;
    for (let n = low & mask; slots[n] !== 0; n = (n + 1) & mask) {
      const id = slots[n] - 1;
      if (this.lows[id] === low && this.highs[id] === high) return id;
    }
    return -1;
  }

  /** Adds the hashed key; -1 at the bound. */
  add(name: string): number {
    const id = this.names.length;
    if (id >= this.#maxKeys) return -1;
    if (id >= this.lows.length) this.#grow();
    this.names.push(name);
    this.lows[id] = this.hasher.low;
    this.highs[id] = this.hasher.high;
    this.#place(id);
    return id;
  }

  #place(id: number): void {
    const slots = this.#slots;
    const mask = slots.length - 1;
    let n = this.lows[id] & mask;
    while (slots[n] !== 0) n = (n + 1) & mask;
    slots[n] = id + 1;
  }

  #grow(): void {
    this.lows = enlarged(this.lows, new Int32Array(this.lows.length * 2));
    this.highs = enlarged(this.highs, new Int32Array(this.highs.length * 2));
    this.#slots = new Int32Array(this.lows.length * 2);
    for (let id = 0; id < this.names.length; id++) this.#place(id);
  }
}

function enlarged<T extends { set(from: T): void }>(from: T, to: T): T {
  to.set(from);
  return to;
}

/** A count for every key. */
export class KeyCounts {
  #counts = new Uint32Array(MIN_SLOTS);

  add(id: number): void {
    if (id >= this.#counts.length)
      this.#counts = enlarged(this.#counts, new Uint32Array(sizeFor(id, this.#counts.length)));
    this.#counts[id]++;
  }

  of(id: number): number {
    return this.#counts[id] ?? 0;
  }
}

/** How often something happened to every key, and when for the first and the last time. */
export class KeyEvents {
  total = 0;
  /** Keys to which it happened at all. */
  keys = 0;
  readonly #counts = new KeyCounts();
  #first = new Float64Array(MIN_SLOTS);
  #last = new Float64Array(MIN_SLOTS);

  add(id: number, at: number): void {
    if (id >= this.#first.length) {
      const size = sizeFor(id, this.#first.length);
      this.#first = enlarged(this.#first, new Float64Array(size));
      this.#last = enlarged(this.#last, new Float64Array(size));
    }
    if (this.#counts.of(id) === 0) {
      this.keys++;
      this.#first[id] = at;
    }
    this.#last[id] = at;
    this.#counts.add(id);
    this.total++;
  }

  of(id: number): number {
    return this.#counts.of(id);
  }

  firstAt(id: number): number {
    return this.#first[id];
  }

  lastAt(id: number): number {
    return this.#last[id];
  }
}

const sizeFor = (id: number, size: number): number => Math.max(size * 2, id + 1);

/** The numbers of the keys with the highest counts, highest first; the first seen of equals. */
export function topKeys(size: number, countOf: (id: number) => number, most: number): number[] {
  const ids: number[] = [];
  for (let id = 0; id < size; id++) if (countOf(id) > 0) ids.push(id);
  return ids.sort((a, b) => countOf(b) - countOf(a) || a - b).slice(0, most);
}
