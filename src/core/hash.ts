/**
 * Hashes a key to 64 bits, so that tables hold hashes instead of strings.
 *
 * Two keys with the same hash share a limit, so clients must not be able to construct such keys. The hash is
 * HalfSipHash-1-3, a keyed hash (pseudorandom function) made for tables whose keys an attacker chooses. The seed
 * is secret and fills the whole state of 128 bits, where the original repeats 64. Among a million keys two collide in
 * one of about forty million tables, whatever the keys are.
 *
 *     four bytes ──▶ v3 ^= word ──▶ a round ──▶ v0 ^= word ──▶ … ──▶ three rounds ──▶ low ──▶ three rounds ──▶ high
 *
 * A key is hashed as bytes: a string of the library as UTF-8, a binary key of the daemon as one byte per
 * character. So processes and daemons hash a key alike. A lone surrogate counts as U+FFFD, as in `TextEncoder`.
 */

import { type Random, secretRandom } from './random.ts';

/** The 64 bits of a key, never all 0. */
export interface KeyHash {
  readonly low: number;
  readonly high: number;
}

export interface Hasher extends KeyHash {
  /** Hashes a key; the result is in `low` and `high` until the next call. */
  hash(key: string): void;
  /** Hashes a key in bytes, to the same value as its string. */
  hashBytes(bytes: Uint8Array, from: number, to: number): void;
  /** False if the key that `hashBytes` has hashed has less than two colons: it is no IPv6 address. True needs a look. */
  readonly hasColons: boolean;
  /** Keys whose hash is cached: the busy ones among those that were hashed as strings. */
  cachedKeys?(): Iterable<string>;
}

/** 128 bits as four integers; missing ones count as 0, for tests. */
export type HashSeed = readonly number[];

/** Two secret numbers of 52 bits each, unless `random` is a generator of the caller's. */
export const randomHashSeed = (random: Random): HashSeed => {
  const secret = secretRandom(random);
  return [...wordsOf(secret()), ...wordsOf(secret())];
};

/**
 * A hasher with a random seed. A secret seed is drawn with the first hash: Cloudflare Workers have no randomness before a
 * request. A generator of the caller's is used at once, so that a run that can be repeated draws in the same order.
 */
export const randomHasher = (random: Random): Hasher => {
  const drawSeed = (): HashSeed => randomHashSeed(random);
  return createHasher(secretRandom(random) === random ? drawSeed() : drawSeed);
};

/** A number in [0, 1) as two words. */
function wordsOf(fraction: number): [number, number] {
  const scaled = fraction * 2 ** 32;
  return [Math.floor(scaled) | 0, Math.floor((scaled % 1) * 2 ** 32) | 0];
}

/** The bytes of a string: UTF-8, or one per character (binary keys of the daemon). */
type KeyEncoding = 'utf8' | 'latin1';

/** A seed given as a function is drawn with the first hash. */
export const createHasher = (
  seed: HashSeed | (() => HashSeed),
  encoding: KeyEncoding = 'utf8',
): Hasher => new SeededHasher(seed, encoding);

/** Keys whose hash is cached. */
const MEMO_SIZE = 4096;

/** Longer keys are not cached: a bound on memory that clients control. */
const MAX_MEMO_CHARS = 256;

/** One cache miss in this many is cached: busy keys soon are. */
const MEMOIZE_EVERY = 32;

/** Bytes of one UTF-16 code unit at most. */
const MAX_UTF8_BYTES = 3;

/** The bytes of a key that is not ASCII and not long; reused by all hashers. */
const shortKeyBytes = new Uint8Array(MAX_MEMO_CHARS * MAX_UTF8_BYTES);

/** Colons of longer keys are not counted: the four byte-sized counts must not sum up to more than this. */
const MAX_COUNTED_BYTES = 255;

/** Rounds after the last word, before each half of the result. */
const FINAL_ROUNDS = 3;

// The result is in two fields: returning a pair would allocate on the hot path.
class SeededHasher implements Hasher {
  low = 0;
  high = 0;
  hasColons = false;
  #v0 = 0;
  #v1 = 0;
  #v2 = 0;
  #v3 = 0;
  /** Draws the seed; undefined once it is drawn. */
  #drawSeed: (() => HashSeed) | undefined;
  /** The highest character that is one byte. */
  readonly #maxChar: number;

  // Reading a string character by character is the most expensive part of a decision. V8 keeps a hash
  // of every string used as a Map key, so busy keys are found through a Map.
  readonly #memoSlots = new Map<string, number>();
  readonly #memoHashes = new Int32Array(MEMO_SIZE * 2);
  #misses = 0;

  constructor(seed: HashSeed | (() => HashSeed), encoding: KeyEncoding) {
    this.#maxChar = encoding === 'utf8' ? 0x7f : 0xff;
    if (typeof seed === 'function') this.#drawSeed = seed;
    else this.#setSeed(seed);
  }

  #setSeed([k0 = 0, k1 = 0, k2 = 0, k3 = 0]: HashSeed): void {
    this.#v0 = k0 | 0;
    this.#v1 = k1 ^ 0xee;
    this.#v2 = k2 ^ 0x6c796765;
    this.#v3 = k3 ^ 0x74656462;
    this.#drawSeed = undefined;
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

  cachedKeys(): Iterable<string> {
    return this.#memoSlots.keys();
  }

  #memoize(key: string): void {
    if (this.#memoSlots.size >= MEMO_SIZE) this.#memoSlots.clear(); // busy keys are soon back
    const slot = this.#memoSlots.size * 2;
    this.#memoSlots.set(internKey(key), slot);
    this.#memoHashes[slot] = this.low;
    this.#memoHashes[slot + 1] = this.high;
  }

  #compute(key: string): void {
    if (this.#drawSeed) this.#setSeed(this.#drawSeed());
    const length = key.length;
    const end = length & ~3;
    let v0 = this.#v0 | 0;
    let v1 = this.#v1 | 0;
    let v2 = this.#v2 | 0;
    let v3 = this.#v3 | 0;
    let chars = 0;
    let last = length << 24;
    for (let n = end, shift = 0; n < length; n++, shift += 8) {
      const c = key.charCodeAt(n);
      chars |= c;
      last |= c << shift;
    }
    for (let n = 0; n <= end; n += 4) {
      let word = last;
      if (n < end) {
        const c0 = key.charCodeAt(n);
        const c1 = key.charCodeAt(n + 1);
        const c2 = key.charCodeAt(n + 2);
        const c3 = key.charCodeAt(n + 3);
        chars |= c0 | c1 | c2 | c3;
        word = c0 | (c1 << 8) | (c2 << 16) | (c3 << 24);
      }
      v3 ^= word;
      v0 = (v0 + v1) | 0;
      v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0;
      v0 = (v0 << 16) | (v0 >>> 16);
      v2 = (v2 + v3) | 0;
      v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2;
      v0 = (v0 + v3) | 0;
      v3 = ((v3 << 7) | (v3 >>> 25)) ^ v0;
      v2 = (v2 + v1) | 0;
      v1 = ((v1 << 13) | (v1 >>> 19)) ^ v2;
      v2 = (v2 << 16) | (v2 >>> 16);
      v0 ^= word;
    }
    if (chars <= this.#maxChar) this.#finish(v0, v1, v2, v3);
    else {
      const isShort = length <= MAX_MEMO_CHARS;
      const bytes = isShort ? shortKeyBytes : new Uint8Array(length * MAX_UTF8_BYTES);
      this.hashBytes(bytes, 0, encodeUtf8(key, bytes));
    }
  }

  // Repeats the loop above: reading characters through a function would cost a third more.
  hashBytes(bytes: Uint8Array, from: number, to: number): void {
    if (this.#drawSeed) this.#setSeed(this.#drawSeed());
    const length = to - from;
    const end = from + (length & ~3);
    let last = length << 24;
    for (let n = end, shift = 0; n < to; n++, shift += 8) last |= bytes[n] << shift;
    let v0 = this.#v0 | 0;
    let v1 = this.#v1 | 0;
    let v2 = this.#v2 | 0;
    let v3 = this.#v3 | 0;
    let colons = 0;
    for (let n = from; n <= end; n += 4) {
      const word =
        n === end
          ? last
          : bytes[n] | (bytes[n + 1] << 8) | (bytes[n + 2] << 16) | (bytes[n + 3] << 24);
      colons += colonsIn(word);
      v3 ^= word;
      v0 = (v0 + v1) | 0;
      v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0;
      v0 = (v0 << 16) | (v0 >>> 16);
      v2 = (v2 + v3) | 0;
      v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2;
      v0 = (v0 + v3) | 0;
      v3 = ((v3 << 7) | (v3 >>> 25)) ^ v0;
      v2 = (v2 + v1) | 0;
      v1 = ((v1 << 13) | (v1 >>> 19)) ^ v2;
      v2 = (v2 << 16) | (v2 >>> 16);
      v0 ^= word;
    }
    this.hasColons = length > MAX_COUNTED_BYTES || Math.imul(colons, 0x01010101) >>> 24 > 1;
    this.#finish(v0, v1, v2, v3);
  }

  #finish(a: number, b: number, c: number, d: number): void {
    let v0 = a | 0; // declares the type: V8 would keep the numbers of a loop as objects
    let v1 = b | 0;
    let v2 = c ^ 0xee;
    let v3 = d | 0;
    for (let round = 0; round < FINAL_ROUNDS; round++) {
      v0 = (v0 + v1) | 0;
      v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0;
      v0 = (v0 << 16) | (v0 >>> 16);
      v2 = (v2 + v3) | 0;
      v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2;
      v0 = (v0 + v3) | 0;
      v3 = ((v3 << 7) | (v3 >>> 25)) ^ v0;
      v2 = (v2 + v1) | 0;
      v1 = ((v1 << 13) | (v1 >>> 19)) ^ v2;
      v2 = (v2 << 16) | (v2 >>> 16);
    }
    this.low = v1 ^ v3;
    v1 ^= 0xdd;
    for (let round = 0; round < FINAL_ROUNDS; round++) {
      v0 = (v0 + v1) | 0;
      v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0;
      v0 = (v0 << 16) | (v0 >>> 16);
      v2 = (v2 + v3) | 0;
      v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2;
      v0 = (v0 + v3) | 0;
      v3 = ((v3 << 7) | (v3 >>> 25)) ^ v0;
      v2 = (v2 + v1) | 0;
      v1 = ((v1 << 13) | (v1 >>> 19)) ^ v2;
      v2 = (v2 << 16) | (v2 >>> 16);
    }
    this.high = v1 ^ v3;
    if (this.low === 0 && this.high === 0) this.high = 1; // 0 marks an empty slot in tables
  }
}

/** 1 in each byte of a word that is a colon, or a semicolon behind one. Four bytes at once: a loop over a key costs more. */
const colonsIn = (word: number): number =>
  (((word ^ 0x3a3a3a3a) - 0x01010101) & ~(word ^ 0x3a3a3a3a) & 0x80808080) >>> 7;

/**
 * The key as a property name. A key may be a slice of a larger string and keep all of it alive; V8 copies
 * and interns property names, which also makes comparing them cheap.
 */
const internKey = (key: string): string => Object.keys({ [key]: 0 })[0];

/** Writes the key as UTF-8 and returns the number of bytes. For short keys far faster than `TextEncoder`. */
function encodeUtf8(key: string, bytes: Uint8Array): number {
  let to = 0;
  for (let n = 0; n < key.length; n++) {
    const point = key.codePointAt(n) as number;
    if (point < 0x80) {
      bytes[to++] = point;
      continue;
    }
    if (point < 0x800) {
      bytes[to++] = 0xc0 | (point >> 6);
    } else if (point < 0x10000) {
      const char = point >= 0xd800 && point < 0xe000 ? 0xfffd : point;
      bytes[to++] = 0xe0 | (char >> 12);
      bytes[to++] = 0x80 | ((char >> 6) & 0x3f);
      bytes[to++] = 0x80 | (char & 0x3f);
      continue;
    } else {
      n++; // a pair of surrogates
      bytes[to++] = 0xf0 | (point >> 18);
      bytes[to++] = 0x80 | ((point >> 12) & 0x3f);
      bytes[to++] = 0x80 | ((point >> 6) & 0x3f);
    }
    bytes[to++] = 0x80 | (point & 0x3f);
  }
  return to;
}
