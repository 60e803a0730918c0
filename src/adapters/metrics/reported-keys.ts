/**
 * The keys that get metric series of their own.
 *
 * A limit that learns has a limit for each key, but a limiter stores only hashes, so their names are kept here. Names
 * become series in a database. They are therefore few, and stable: a key keeps its slot as long as it is in use, and is
 * evicted only when it has been idle for long and a new key needs the slot.
 */

import type { Millis } from '../../core/clock.ts';

/** A key that is idle for longer may be evicted: dashboards no longer show it. */
const IDLE_AFTER_MS: Millis = 300_000;

/** Longer keys are never reported. */
const MAX_KEY_CHARS = 200;

/** Half of a surrogate pair: encoded as UTF-8, two different keys with one would become equal. */
export const LONE_SURROGATE = /\p{Surrogate}/u;

export class ReportedKeys {
  readonly #max: number;
  readonly #lastSeenAt = new Map<string, Millis>();
  /** No key can be evicted before this instant. */
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
    if (at < this.#nextEvictionAt) return false; // avoids a scan for each of millions of new keys
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
