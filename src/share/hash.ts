/**
 * Turns a key into 64 bits, so that a table can hold keys without holding strings.
 *
 * Two keys with the same 64 bits would share a limit. Among a million keys that happens once in
 * some forty million tables; nobody can bring it about on purpose, because the seed differs from
 * process to process. Two lanes of 32 bits take two characters at a step; each step is a
 * multiplication by an odd number and a rotation, so no step loses what came before.
 */

import type { Random } from '../random.ts';

export interface Hasher {
  /** Hashes a key; the result is in `low` and `high` until the next call. Never both 0. */
  hash(key: string): void;
  readonly low: number;
  readonly high: number;
}

export function hasher(random: Random): Hasher {
  return new SeededHasher(Math.floor(random() * 2 ** 32) | 0, Math.floor(random() * 2 ** 32) | 0);
}

/** Hashes remembered. A power of two, and small enough to stay in the processor's cache. */
const MEMO_SIZE = 1024;

// Two results and a hot path: fields of one object cost nothing, a pair would be an allocation.
class SeededHasher implements Hasher {
  low = 0;
  high = 0;
  readonly #seedLow: number;
  readonly #seedHigh: number;
  #lastKey: string | undefined;

  // Reading a string character by character is the dearest part of a decision, and busy keys come
  // again and again: the last key seen in each of these places keeps its hash.
  readonly #memoKeys: (string | undefined)[] = new Array(MEMO_SIZE).fill(undefined);
  readonly #memoHashes = new Int32Array(MEMO_SIZE * 2);

  constructor(seedLow: number, seedHigh: number) {
    this.#seedLow = seedLow;
    this.#seedHigh = seedHigh;
  }

  hash(key: string): void {
    if (key === this.#lastKey) return; // settle after ask, the next ask of a busy key
    this.#lastKey = key;
    const place = memoPlace(key);
    if (this.#memoKeys[place] === key) {
      this.low = this.#memoHashes[place * 2];
      this.high = this.#memoHashes[place * 2 + 1];
      return;
    }
    this.#compute(key);
    if (key.length > MEMO_CHARS_MAX) return;
    this.#memoKeys[place] = key;
    this.#memoHashes[place * 2] = this.low;
    this.#memoHashes[place * 2 + 1] = this.high;
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
    }
    if (pairs < length) {
      const last = key.charCodeAt(pairs);
      low = Math.imul(low ^ last, 0x9e3779b1);
      high = Math.imul(high ^ last, 0x85ebca6b);
    }
    this.low = mix(low ^ Math.imul(high, 0xc2b2ae35));
    this.high = mix(high ^ Math.imul(this.low, 0x27d4eb2f));
    if (this.low === 0 && this.high === 0) this.high = 1; // 0 is how a table says "empty"
  }
}

/** Keys longer than this are not kept for their hash: a bound on what strangers make us hold. */
const MEMO_CHARS_MAX = 256;

/** A cheap place for a key: its length and three of its characters. */
function memoPlace(key: string): number {
  const { length } = key;
  const end = key.charCodeAt(length - 1);
  const middle = key.charCodeAt(length >> 1);
  const early = key.charCodeAt(length >> 2);
  return (end ^ (middle << 2) ^ (early << 5) ^ (length << 4)) & (MEMO_SIZE - 1);
}

/** Spreads every bit over the whole word. */
function mix(word: number): number {
  let h = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return h ^ (h >>> 16);
}
