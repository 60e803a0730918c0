import type { Millis } from '../../core/clock.ts';

/** The most marked keys. Beyond it, the oldest marks are dropped. */
const MAX_MARKED_KEYS = 10_000;

export class MarkedKeys {
  /** Time of each mark, in the order of time. */
  readonly #markedAt = new Map<string, Millis>();
  readonly #keptMs: Millis;

  constructor(keptMs: Millis) {
    this.#keptMs = keptMs;
  }

  add(low: number, high: number, now: Millis): void {
    const id = idOf(low, high);
    this.#markedAt.delete(id);
    this.#markedAt.set(id, now);
    for (const [oldest, at] of this.#markedAt) {
      if (now - at <= this.#keptMs && this.#markedAt.size <= MAX_MARKED_KEYS) return;
      this.#markedAt.delete(oldest);
    }
  }

  has(low: number, high: number, now: Millis): boolean {
    const at = this.#markedAt.get(idOf(low, high));
    return at !== undefined && now - at <= this.#keptMs;
  }

  remove(low: number, high: number): void {
    this.#markedAt.delete(idOf(low, high));
  }
}

const idOf = (low: number, high: number): string => `${low} ${high}`;
