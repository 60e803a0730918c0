/**
 * Hits that were served here and not told to anybody yet, by limit and key.
 *
 * A note is made for every call that is let through, so this is a table of numbers like the one with the
 * buckets: no objects, no strings. It is emptied by every report, and has to be as soon as it is full.
 */

import type { Entries } from './wire.ts';

/** A power of two, of which half is used: so a free one is always near. */
const PLACES = 8192;
const KEYS_MAX = PLACES / 2;

export class Hits {
  /** Hash, low and high; which limit. */
  readonly #keys = new Int32Array(PLACES * 3);
  readonly #counts = new Float64Array(PLACES);
  /** Places in use, in the order they came. */
  readonly #used = new Int32Array(KEYS_MAX);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get isFull(): boolean {
    return this.#size >= KEYS_MAX;
  }

  /** Adds to a key's hits; how many they are by now. */
  add(limit: number, low: number, high: number, hits: number): number {
    const place = this.#place(limit, low, high);
    this.#counts[place] += hits;
    return this.#counts[place];
  }

  /** Takes back what was not told yet, as far as there is something; how much that was. */
  takeBack(limit: number, low: number, high: number, hits: number): number {
    const place = this.#find(limit, low, high);
    const taken = Math.min(hits, this.#counts[place]);
    this.#counts[place] -= taken;
    return taken;
  }

  /** How many a key has. */
  of(limit: number, low: number, high: number): number {
    return this.#counts[this.#find(limit, low, high)];
  }

  /** Everything, and nothing is left. Entries of one limit stand together. */
  drain(): Entries {
    const byLimit = new Map<number, number[]>();
    for (let n = 0; n < this.#size; n++) {
      const place = this.#used[n];
      const [low, high, own] = this.#keys.subarray(place * 3, place * 3 + 3);
      const limit = own >>> 0;
      const hits = this.#counts[place];
      if (hits > 0) {
        const entries = byLimit.get(limit);
        if (entries) entries.push(limit, low, high, hits);
        else byLimit.set(limit, [limit, low, high, hits]);
      }
      this.#keys.fill(0, place * 3, place * 3 + 3);
      this.#counts[place] = 0;
    }
    this.#size = 0;
    return [...byLimit.values()].flat();
  }

  /** The place of a key, or the free one where it belongs. A hash is never all zeros. */
  #find(limit: number, low: number, high: number): number {
    const keys = this.#keys;
    const own = limit | 0; // as it is kept
    let place = (low ^ own) & (PLACES - 1);
    for (; ; place = (place + 1) & (PLACES - 1)) {
      const at = place * 3;
      const isFree = keys[at] === 0 && keys[at + 1] === 0;
      if (isFree || (keys[at] === low && keys[at + 1] === high && keys[at + 2] === own)) {
        return place;
      }
    }
  }

  #place(limit: number, low: number, high: number): number {
    const place = this.#find(limit, low, high);
    const at = place * 3;
    if (this.#keys[at] === 0 && this.#keys[at + 1] === 0) {
      this.#keys[at] = low;
      this.#keys[at + 1] = high;
      this.#keys[at + 2] = limit;
      this.#used[this.#size++] = place;
    }
    return place;
  }
}
