/**
 * Hits that were allowed here and are not reported yet, by limit and key.
 *
 * Every allowed call is recorded, so this is an open-addressing hash table of numbers: no objects, no strings, one slot
 * per key. Every report empties it, and a full table forces a report.
 */

import type { Entries } from './messages.ts';

/** A power of two. At most half of the slots are used, which keeps probe sequences short. */
const TABLE_SLOTS = 8192;
const MAX_KEYS = TABLE_SLOTS / 2;

/** A slot: hash low and high, limit, padding as 32-bit words; then the hits as a 64-bit float. */
const WORDS_PER_SLOT = 6;
const FLOATS_PER_SLOT = WORDS_PER_SLOT / 2;
const HITS_OFFSET = 2;

export class PendingHits {
  readonly #words = new Int32Array(TABLE_SLOTS * WORDS_PER_SLOT);
  readonly #floats = new Float64Array(this.#words.buffer);
  /** Slots in use, in insertion order. */
  readonly #usedSlots = new Int32Array(MAX_KEYS);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get isFull(): boolean {
    return this.#size >= MAX_KEYS;
  }

  /** Adds hits and returns the key's total. The table must not be full. */
  add(limit: number, low: number, high: number, hits: number): number {
    const slot = this.#slotOf(limit | 0, low, high);
    const at = slot * FLOATS_PER_SLOT + HITS_OFFSET;
    const before = this.#floats[at];
    if (before === 0) this.#occupy(slot, limit, low, high);
    this.#floats[at] = before + hits;
    return before + hits;
  }

  /** Removes pending hits, at most as many as there are, and returns their number. */
  retract(limit: number, low: number, high: number, hits: number): number {
    const at = this.#slotOf(limit | 0, low, high) * FLOATS_PER_SLOT + HITS_OFFSET;
    const taken = Math.min(hits, this.#floats[at]);
    this.#floats[at] -= taken;
    return taken;
  }

  pendingFor(limit: number, low: number, high: number): number {
    return this.#floats[this.#slotOf(limit | 0, low, high) * FLOATS_PER_SLOT + HITS_OFFSET];
  }

  /** Removes and returns all hits, grouped by limit. */
  drain(): Entries {
    const byLimit = new Map<number, number[]>();
    let last = -1;
    let entries: number[] = [];
    for (let n = 0; n < this.#size; n++) {
      const at = this.#usedSlots[n] * WORDS_PER_SLOT;
      const limit = this.#words[at + 2] >>> 0;
      if (limit !== last) {
        entries = byLimit.get(limit) ?? [];
        byLimit.set(limit, entries);
        last = limit;
      }
      const hits = this.#floats[this.#usedSlots[n] * FLOATS_PER_SLOT + HITS_OFFSET];
      if (hits > 0) entries.push(limit, this.#words[at], this.#words[at + 1], hits);
      this.#words.fill(0, at, at + WORDS_PER_SLOT);
    }
    this.#size = 0;
    return byLimit.size === 1 ? entries : [...byLimit.values()].flat();
  }

  /** The slot of a key, or the free slot for it. A hash is never all zeros. */
  #slotOf(limit: number, low: number, high: number): number {
    const words = this.#words;
    let slot = (low ^ limit) & (TABLE_SLOTS - 1);
    for (; ; slot = (slot + 1) & (TABLE_SLOTS - 1)) {
      const at = slot * WORDS_PER_SLOT;
      if (words[at] === low && words[at + 1] === high && words[at + 2] === limit) return slot;
      if (words[at] === 0 && words[at + 1] === 0) return slot;
    }
  }

  /** Occupies a slot; a slot whose hits were all retracted is already occupied. */
  #occupy(slot: number, limit: number, low: number, high: number): void {
    const at = slot * WORDS_PER_SLOT;
    if (this.#words[at] !== 0 || this.#words[at + 1] !== 0) return;
    this.#words[at] = low;
    this.#words[at + 1] = high;
    this.#words[at + 2] = limit;
    this.#usedSlots[this.#size++] = slot;
  }
}
