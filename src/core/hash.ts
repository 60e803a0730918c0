/**
 * Hashes a key to 64 bits, so that tables hold hashes instead of strings.
 *
 * Two keys with the same hash would share a limit. Among a million keys that happens in one of about forty
 * million tables, and to provoke it one would have to know the seed, which differs per process. Two lanes of
 * 32 bits take two characters a step: a multiplication by an odd number and a rotation, so no step loses
 * information.
 */

import type { Random } from './random.ts';

/** The 64 bits of a key, never all 0. */
export interface KeyHash {
  readonly low: number;
  readonly high: number;
}

export interface Hasher extends KeyHash {
  /** Hashes a key; the result is in `low` and `high` until the next call. */
  hash(key: string): void;
  /** Hashes a key in bytes, to the same value as the string with one character per byte. */
  hashBytes(bytes: Uint8Array, from: number, to: number): void;
}

/** 64 bits as two integers. */
export type HashSeed = readonly [low: number, high: number];

export const randomHashSeed = (random: Random): HashSeed => [
  Math.floor(random() * 2 ** 32) | 0,
  Math.floor(random() * 2 ** 32) | 0,
];

export const createHasher = (seed: HashSeed): Hasher => new SeededHasher(...seed);

/** Keys whose hash is cached. */
const MEMO_SIZE = 4096;

/** Longer keys are not cached: a bound on memory that clients control. */
const MAX_MEMO_CHARS = 256;

/** One of so many cache misses is cached: busy keys soon are. */
const MEMOIZE_EVERY = 32;

// The result is in two fields: returning a pair would allocate on the hot path.
class SeededHasher implements Hasher {
  low = 0;
  high = 0;
  readonly #seedLow: number;
  readonly #seedHigh: number;

  // Reading a string character by character is the most expensive part of a decision. V8 keeps a hash
  // of every string used as a Map key, so busy keys are found through a Map.
  readonly #memoSlots = new Map<string, number>();
  readonly #memoHashes = new Int32Array(MEMO_SIZE * 2);
  #misses = 0;

  constructor(seedLow: number, seedHigh: number) {
    this.#seedLow = seedLow;
    this.#seedHigh = seedHigh;
  }

  hash(key: string): void {
    const slot = this.#memoSlots.get(key);
    if (slot !== undefined) {
      this.low = this.#memoHashes[slot];
      this.high = this.#memoHashes[slot + 1];
      return;
    }
    this.#compute(key);
    if (++this.#misses % MEMOIZE_EVERY === 0 && key.length <= MAX_MEMO_CHARS) this.#memoize(key);
  }

  #memoize(key: string): void {
    if (this.#memoSlots.size >= MEMO_SIZE) this.#memoSlots.clear(); // busy keys are soon back
    const slot = this.#memoSlots.size * 2;
    this.#memoSlots.set(internKey(key), slot);
    this.#memoHashes[slot] = this.low;
    this.#memoHashes[slot + 1] = this.high;
  }

  #compute(key: string): void {
    const length = key.length;
    let low = this.#seedLow ^ length;
    let high = this.#seedHigh;
    const pairs = length & ~1;
    for (let n = 0; n < pairs; n += 2) {
      const two = key.charCodeAt(n) | (key.charCodeAt(n + 1) << 16);
      low = Math.imul(low ^ two, 0x9e3779b1);
      low = (low << 15) | (low >>> 17);
      high = Math.imul(high ^ two, 0x85ebca6b);
      high = (high << 13) | (high >>> 19);
      low = (low + high) | 0; // so that differences cannot cancel out within one lane
    }
    this.#finish(low, high, pairs < length ? key.charCodeAt(pairs) : -1);
  }

  // Repeats the loop above: reading characters through a function would cost a third more.
  hashBytes(bytes: Uint8Array, from: number, to: number): void {
    const length = to - from;
    let low = this.#seedLow ^ length;
    let high = this.#seedHigh;
    const pairsEnd = from + (length & ~1);
    for (let n = from; n < pairsEnd; n += 2) {
      const two = bytes[n] | (bytes[n + 1] << 16);
      low = Math.imul(low ^ two, 0x9e3779b1);
      low = (low << 15) | (low >>> 17);
      high = Math.imul(high ^ two, 0x85ebca6b);
      high = (high << 13) | (high >>> 19);
      low = (low + high) | 0;
    }
    this.#finish(low, high, pairsEnd < to ? bytes[pairsEnd] : -1);
  }

  #finish(lowLane: number, highLane: number, last: number): void {
    let low = lowLane;
    let high = highLane;
    if (last >= 0) {
      low = Math.imul(low ^ last, 0x9e3779b1);
      high = Math.imul(high ^ last, 0x85ebca6b);
    }
    this.low = mix(low ^ Math.imul(high, 0xc2b2ae35));
    this.high = mix(high ^ Math.imul(this.low, 0x27d4eb2f));
    if (this.low === 0 && this.high === 0) this.high = 1; // 0 marks an empty slot in tables
  }
}

/**
 * The key as a property name. A key may be a slice of a larger string and keep all of it alive; V8 copies
 * and interns property names, which also makes comparing them cheap.
 */
const internKey = (key: string): string => Object.keys({ [key]: 0 })[0];

/** Mixes every bit into the whole word. */
function mix(word: number): number {
  let h = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return h ^ (h >>> 16);
}
