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
const IDLE_MS: Millis = 300_000;

/** A longer key is never shown: it is a document, not a name. */
const KEY_CHARS_MAX = 200;

/** Half a character: written as UTF-8, two different keys of this kind would become the same. */
export const HALF_CHARACTER = /\p{Surrogate}/u;

export class SeenKeys {
  readonly #max: number;
  readonly #seenAt = new Map<string, Millis>();
  /** Nobody will have been idle for long enough before this instant. */
  #idleFrom: Millis = Number.NEGATIVE_INFINITY;

  constructor(max: number) {
    this.#max = max;
  }

  saw(key: string, at: Millis): void {
    if (this.#seenAt.has(key) || (this.#hasRoom(at) && isName(key))) this.#seenAt.set(key, at);
  }

  names(): string[] {
    return [...this.#seenAt.keys()];
  }

  #hasRoom(at: Millis): boolean {
    if (this.#seenAt.size < this.#max) return true;
    if (at < this.#idleFrom) return false; // strangers may come by the million: do not look each time
    this.#dropIdle(at);
    return this.#seenAt.size < this.#max;
  }

  #dropIdle(now: Millis): void {
    let oldest = Number.POSITIVE_INFINITY;
    for (const [key, at] of this.#seenAt) {
      if (at + IDLE_MS <= now) this.#seenAt.delete(key);
      else oldest = Math.min(oldest, at);
    }
    this.#idleFrom = Math.min(oldest, now) + IDLE_MS;
  }
}

const isName = (key: string): boolean => key.length <= KEY_CHARS_MAX && !HALF_CHARACTER.test(key);
