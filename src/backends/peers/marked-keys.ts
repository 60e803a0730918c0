/** Keys that were marked in the last minutes, by their hash: a bounded set that forgets the oldest. */

import type { Millis } from '../../core/clock.ts';

/** Longer than a report can be late: it is sent again for a minute. */
const KEPT_MS: Millis = 120_000;

/** Of more keys, the oldest marks are dropped. */
const MAX_MARKED_KEYS = 10_000;

export class MarkedKeys {
  /** In the order of their times. */
  readonly #markedAt = new Map<string, Millis>();

  add(low: number, high: number, now: Millis): void {
    const id = idOf(low, high);
    this.#markedAt.delete(id);
    this.#markedAt.set(id, now);
    for (const [oldest, at] of this.#markedAt) {
      if (now - at <= KEPT_MS && this.#markedAt.size <= MAX_MARKED_KEYS) return;
      this.#markedAt.delete(oldest);
    }
  }

  has(low: number, high: number, now: Millis): boolean {
    const at = this.#markedAt.get(idOf(low, high));
    return at !== undefined && now - at <= KEPT_MS;
  }

  /** True if the key was marked. */
  remove(low: number, high: number): boolean {
    return this.#markedAt.delete(idOf(low, high));
  }
}

const idOf = (low: number, high: number): string => `${low} ${high}`;
