/**
 * Turns a key into 64 bits, so that a table can hold keys without holding strings.
 *
 * Two keys with the same 64 bits would share a limit. Among a million keys that happens once in
 * some forty million tables, and whoever wanted to bring it about would have to know the seed, which
 * differs from process to process. Two lanes of 32 bits take two characters at a step; each step is a
 * multiplication by an odd number and a rotation, so no step loses what came before.
 */

import type { Random } from './random.ts';

/** A key as 64 bits, never all 0. */
export interface KeyHash {
  readonly low: number;
  readonly high: number;
}

export interface Hasher extends KeyHash {
  /** Hashes a key; the result is in `low` and `high` until the next call. */
  hash(key: string): void;
  /** The same for a key that is still bytes: as the text with one character for each byte. */
  hashBytes(bytes: Uint8Array, from: number, to: number): void;
}

/** What makes one hasher differ from another: 64 bits, as two whole numbers. */
export type HashSeed = readonly [low: number, high: number];

export const randomHashSeed = (random: Random): HashSeed => [
  Math.floor(random() * 2 ** 32) | 0,
  Math.floor(random() * 2 ** 32) | 0,
];

export const createHasher = (seed: HashSeed): Hasher => new SeededHasher(...seed);

/** How many keys keep their hash. */
const MEMO_SIZE = 4096;

/** Longer keys do not: a bound on what strangers make us hold. */
const MAX_MEMO_CHARS = 256;

/** Of so many keys without a remembered hash one gets its own: busy keys come in soon enough. */
const MEMOIZE_EVERY = 32;

// Two results and a hot path: fields of one object cost nothing, a pair would be an allocation.
class SeededHasher implements Hasher {
  low = 0;
  high = 0;
  readonly #seedLow: number;
  readonly #seedHigh: number;

  // Reading a string character by character is the dearest part of a decision, and the engine
  // already keeps a hash of every string it looks up: busy keys find theirs through a Map.
  readonly #memoSlots = new Map<string, number>();
  readonly #memoHashes = new Int32Array(MEMO_SIZE * 2);
  #misses = 0;

  constructor(seedLow: number, seedHigh: number) {
    this.#seedLow = seedLow;
    this.#seedHigh = seedHigh;
  }

  hash(key: string): void {
    const place = this.#memoSlots.get(key);
    if (place !== undefined) {
      this.low = this.#memoHashes[place];
      this.high = this.#memoHashes[place + 1];
      return;
    }
    this.#compute(key);
    if (++this.#misses % MEMOIZE_EVERY === 0 && key.length <= MAX_MEMO_CHARS) this.#memoize(key);
  }

  #memoize(key: string): void {
    if (this.#memoSlots.size >= MEMO_SIZE) this.#memoSlots.clear(); // the busy ones are soon back
    const place = this.#memoSlots.size * 2;
    this.#memoSlots.set(internKey(key), place);
    this.#memoHashes[place] = this.low;
    this.#memoHashes[place + 1] = this.high;
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
      low = (low + high) | 0; // so that nothing can cancel out in one lane alone
    }
    this.#finish(low, high, pairs < length ? key.charCodeAt(pairs) : -1);
  }

  // The loop above once more: a look at each character through a function would cost a third.
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
    if (this.low === 0 && this.high === 0) this.high = 1; // 0 is how a table says "empty"
  }
}

/**
 * The key as a property's name. A key may be a part of a larger text and would keep all of it alive;
 * names are texts of their own, and the engine compares them at a glance.
 */
const internKey = (key: string): string => Object.keys({ [key]: 0 })[0];

/** Spreads every bit over the whole word. */
function mix(word: number): number {
  let h = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return h ^ (h >>> 16);
}
