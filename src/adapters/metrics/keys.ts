/**
 * The few keys whose figures are shown one by one.
 *
 * Limits that learn have a limit for each key, and a limiter keeps only hashes of its keys: whoever
 * wants to show them by name has to remember the names. Names become series in somebody's database,
 * so they are few, and the same ones for as long as they are in use: who came first stays, and makes
 * room only when it has been silent for long and a stranger wants the place.
 */

import type { Millis } from '../../core/clock.ts';

/** So long after its last call a key is no longer looked up by dashboards, and may make room. */
const IDLE_AFTER_MS: Millis = 300_000;

/** A longer key is never shown: it is a document, not a name. */
const MAX_KEY_CHARS = 200;

/** Half a character: written as UTF-8, two different keys of this kind would become the same. */
export const LONE_SURROGATE = /\p{Surrogate}/u;

export class ReportedKeys {
  readonly #max: number;
  readonly #lastSeenAt = new Map<string, Millis>();
  /** Nobody will have been idle for long enough before this instant. */
  #nextEvictionAt: Millis = Number.NEGATIVE_INFINITY;

  constructor(max: number) {
    this.#max = max;
  }

  record(key: string, at: Millis): void {
    if (this.#lastSeenAt.has(key) || (this.#hasFreeSlot(at) && isValidLabel(key)))
      this.#lastSeenAt.set(key, at);
  }

  list(): string[] {
    return [...this.#lastSeenAt.keys()];
  }

  #hasFreeSlot(at: Millis): boolean {
    if (this.#lastSeenAt.size < this.#max) return true;
    if (at < this.#nextEvictionAt) return false; // strangers may come by the million: do not look each time
    this.#evictIdle(at);
    return this.#lastSeenAt.size < this.#max;
  }

  #evictIdle(now: Millis): void {
    let oldest = Number.POSITIVE_INFINITY;
    for (const [key, at] of this.#lastSeenAt) {
      if (at + IDLE_AFTER_MS <= now) this.#lastSeenAt.delete(key);
      else oldest = Math.min(oldest, at);
    }
    this.#nextEvictionAt = Math.min(oldest, now) + IDLE_AFTER_MS;
  }
}

const isValidLabel = (key: string): boolean =>
  key.length <= MAX_KEY_CHARS && !LONE_SURROGATE.test(key);
