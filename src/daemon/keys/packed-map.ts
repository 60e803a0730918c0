/**
 * A map from binary keys to numbers in a few typed arrays. A hundred thousand keys are no objects for the garbage
 * collector, and a thread passes them on without a copy.
 *
 *     slots    [ 0 | 2 | 0 | 1 | … ]     by the key's hash, linear probing; an entry's number + 1
 *     bytes    a l i c e b o b …         the keys one after the other; entry n ends at ends[n]
 *     values   [ 7 | 9 | … ]
 */

import { createHasher, type Hasher, type HashSeed, randomHashSeed } from '../../core/hash.ts';
import { systemRandom } from '../../core/random.ts';

export interface PackedMapData {
  /** Keys of a list may come from a third party, which must not be able to choose colliding ones. */
  readonly seed: HashSeed;
  readonly size: number;
  /** A power of two of them, at most half of them used. */
  readonly slots: Int32Array;
  readonly ends: Uint32Array;
  readonly bytes: Uint8Array;
  readonly values: Uint32Array;
}

const INITIAL_SLOTS = 8;

/** The seed of all maps that this thread fills. */
const OWN_SEED = randomHashSeed(systemRandom);
let lastHasher: { readonly seed: HashSeed; readonly hasher: Hasher } | undefined;

/** Maps of one configuration share a hasher. */
function hasherOf(seed: HashSeed): Hasher {
  if (!lastHasher?.seed.every((word, n) => word === seed[n]))
    lastHasher = { seed, hasher: createHasher(seed, 'latin1') };
  return lastHasher.hasher;
}

export class PackedMap {
  readonly #seed: HashSeed;
  readonly #hasher: Hasher;
  #size: number;
  #slots: Int32Array;
  #ends: Uint32Array;
  #bytes: Uint8Array;
  #values: Uint32Array;

  constructor(data: PackedMapData = emptyData()) {
    this.#seed = data.seed;
    this.#hasher = hasherOf(data.seed);
    this.#size = data.size;
    this.#slots = data.slots;
    this.#ends = data.ends;
    this.#bytes = data.bytes;
    this.#values = data.values;
  }

  /** For another thread; the map must not change any more. */
  get data(): PackedMapData {
    return {
      seed: this.#seed,
      size: this.#size,
      slots: this.#slots,
      ends: this.#ends,
      bytes: this.#bytes,
      values: this.#values,
    };
  }

  get size(): number {
    return this.#size;
  }

  /** Adds an entry. A key that is there already keeps its value; the entry has its number nevertheless. */
  add(key: string, value: number): void {
    const from = this.#start(this.#size);
    this.#reserve(from + key.length);
    for (let n = 0; n < key.length; n++) this.#bytes[from + n] = key.charCodeAt(n);
    this.#ends[this.#size] = from + key.length;
    this.#values[this.#size] = value;
    this.#size++;
    this.#insert(this.#size - 1);
  }

  /** The value of a key; -1: it is not there. */
  get(key: string): number {
    if (this.#size === 0) return -1;
    this.#hasher.hash(key);
    const mask = this.#slots.length - 1;
    for (let at = this.#hasher.low & mask; this.#slots[at] !== 0; at = (at + 1) & mask) {
      const entry = this.#slots[at] - 1;
      if (this.#hasKey(entry, key)) return this.#values[entry];
    }
    return -1;
  }

  /** The key of an entry, counted from 0 in the order in which they were added. */
  keyAt(entry: number): string {
    const { buffer, byteOffset } = this.#bytes;
    const from = this.#start(entry);
    return Buffer.from(buffer, byteOffset + from, this.#ends[entry] - from).toString('latin1');
  }

  #start(entry: number): number {
    return entry === 0 ? 0 : this.#ends[entry - 1];
  }

  #hasKey(entry: number, key: string): boolean {
    const from = this.#start(entry);
    if (this.#ends[entry] - from !== key.length) return false;
    for (let n = 0; n < key.length; n++)
      if (this.#bytes[from + n] !== key.charCodeAt(n)) return false;
    return true;
  }

  #insert(entry: number): void {
    const from = this.#start(entry);
    const length = this.#ends[entry] - from;
    this.#hasher.hashBytes(this.#bytes, from, from + length);
    const mask = this.#slots.length - 1;
    let at = this.#hasher.low & mask;
    for (; this.#slots[at] !== 0; at = (at + 1) & mask)
      if (this.#isSameKey(this.#slots[at] - 1, from, length)) return;
    this.#slots[at] = entry + 1;
  }

  #isSameKey(entry: number, from: number, length: number): boolean {
    const start = this.#start(entry);
    if (this.#ends[entry] - start !== length) return false;
    for (let n = 0; n < length; n++)
      if (this.#bytes[start + n] !== this.#bytes[from + n]) return false;
    return true;
  }

  /** Makes space for one more entry and all bytes. */
  #reserve(bytes: number): void {
    if (bytes > this.#bytes.length) this.#bytes = enlarged(this.#bytes, bytes);
    if (this.#size < this.#ends.length) return;
    this.#ends = enlarged(this.#ends, this.#size + 1);
    this.#values = enlarged(this.#values, this.#size + 1);
    this.#slots = new Int32Array(this.#slots.length * 2);
    for (let entry = 0; entry < this.#size; entry++) this.#insert(entry);
  }
}

const emptyData = (): PackedMapData => ({
  seed: OWN_SEED,
  size: 0,
  slots: new Int32Array(INITIAL_SLOTS),
  ends: new Uint32Array(INITIAL_SLOTS / 2),
  bytes: new Uint8Array(INITIAL_SLOTS * 8),
  values: new Uint32Array(INITIAL_SLOTS / 2),
});

/** A copy of at least twice the length. */
function enlarged<A extends Uint8Array | Uint32Array>(array: A, atLeast: number): A {
  const length = Math.max(array.length * 2, atLeast);
  const larger = new (array.constructor as new (length: number) => A)(length);
  larger.set(array);
  return larger;
}
