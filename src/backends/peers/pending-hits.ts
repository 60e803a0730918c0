/**
 * Hits that were served here and not told to anybody yet, by limit and key.
 *
 * A note is made for every call that is let through, so this is a table of numbers like the one with the
 * buckets: no objects, no strings, and what belongs to a key in one place. It is emptied by every report,
 * and has to be as soon as it is full.
 */

import type { Entries } from './messages.ts';

/** A power of two, of which half is used: so a free one is always near. */
const PLACES = 8192;
const KEYS_MAX = PLACES / 2;

/** A place: the hash, low and high, which limit, nothing; and how many. As 32-bit words, as 64-bit floats. */
const WORDS = 6;
const FLOATS = WORDS / 2;
const COUNT = 2;

export class Hits {
  readonly #words = new Int32Array(PLACES * WORDS);
  readonly #floats = new Float64Array(this.#words.buffer);
  /** Places in use, in the order they came. */
  readonly #used = new Int32Array(KEYS_MAX);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get isFull(): boolean {
    return this.#size >= KEYS_MAX;
  }

  /** Adds to a key's hits; how many they are by now. There has to be room. */
  add(limit: number, low: number, high: number, hits: number): number {
    const place = this.#find(limit | 0, low, high);
    const at = place * FLOATS + COUNT;
    const before = this.#floats[at];
    if (before === 0) this.#take(place, limit, low, high);
    this.#floats[at] = before + hits;
    return before + hits;
  }

  /** Takes back what was not told yet, as far as there is something; how much that was. */
  takeBack(limit: number, low: number, high: number, hits: number): number {
    const at = this.#find(limit | 0, low, high) * FLOATS + COUNT;
    const taken = Math.min(hits, this.#floats[at]);
    this.#floats[at] -= taken;
    return taken;
  }

  /** How many a key has. */
  of(limit: number, low: number, high: number): number {
    return this.#floats[this.#find(limit | 0, low, high) * FLOATS + COUNT];
  }

  /** Everything, and nothing is left. Entries of one limit stand together. */
  drain(): Entries {
    const byLimit = new Map<number, number[]>();
    let last = -1;
    let entries: number[] = [];
    for (let n = 0; n < this.#size; n++) {
      const at = this.#used[n] * WORDS;
      const limit = this.#words[at + 2] >>> 0;
      if (limit !== last) {
        entries = byLimit.get(limit) ?? [];
        byLimit.set(limit, entries);
        last = limit;
      }
      const hits = this.#floats[this.#used[n] * FLOATS + COUNT];
      if (hits > 0) entries.push(limit, this.#words[at], this.#words[at + 1], hits);
      this.#words.fill(0, at, at + WORDS);
    }
    this.#size = 0;
    return byLimit.size === 1 ? entries : [...byLimit.values()].flat();
  }

  /** The place of a key, or the free one where it belongs. A hash is never all zeros. */
  #find(limit: number, low: number, high: number): number {
    const words = this.#words;
    let place = (low ^ limit) & (PLACES - 1);
    for (; ; place = (place + 1) & (PLACES - 1)) {
      const at = place * WORDS;
      if (words[at] === low && words[at + 1] === high && words[at + 2] === limit) return place;
      if (words[at] === 0 && words[at + 1] === 0) return place;
    }
  }

  /** One that has none yet, or none any more, because all were taken back. */
  #take(place: number, limit: number, low: number, high: number): void {
    const at = place * WORDS;
    if (this.#words[at] !== 0 || this.#words[at + 1] !== 0) return;
    this.#words[at] = low;
    this.#words[at + 1] = high;
    this.#words[at + 2] = limit;
    this.#used[this.#size++] = place;
  }
}
