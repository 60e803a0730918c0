/**
 * How often a node may report beside its interval: a bucket of its own, so that a hot fleet tells in fewer,
 * fuller reports instead of a storm.
 */

import type { Millis } from '../../clock.ts';

/** Reports that may go out at once after a quiet spell. */
const BURST = 10;

export class Budget {
  readonly #perSecond: number;
  #tokens = BURST;
  #at: Millis;

  constructor(perSecond: number, now: Millis) {
    this.#perSecond = perSecond;
    this.#at = now;
  }

  /** When a report may go out: now, or later. */
  dueAt(now: Millis): Millis {
    this.#refill(now);
    if (this.#tokens >= 1) return now;
    return this.#at + ((1 - this.#tokens) * 1000) / this.#perSecond;
  }

  /** One goes out, whether it may or not. */
  spend(now: Millis): void {
    this.#refill(now);
    this.#tokens -= 1;
  }

  #refill(now: Millis): void {
    const gained = (Math.max(0, now - this.#at) * this.#perSecond) / 1000;
    this.#tokens = Math.min(BURST, this.#tokens + gained);
    this.#at = Math.max(this.#at, now);
  }
}
