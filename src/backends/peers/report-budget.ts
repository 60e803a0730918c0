/**
 * How much a node may report beside its interval: a bucket of its own, so that a hot fleet tells in fewer,
 * fuller reports instead of a storm. It is counted in datagrams: where one report takes many, as many keys
 * are busy, the interval is what is left.
 */

import type { Millis } from '../../core/clock.ts';

/** Datagrams that may go out at once after a quiet spell, and how far what must go out can overdraw it. */
const BURST = 10;

export class ReportBudget {
  readonly #perSecond: number;
  #tokens = BURST;
  #refilledAt: Millis;

  constructor(perSecond: number, now: Millis) {
    this.#perSecond = perSecond;
    this.#refilledAt = now;
  }

  /** When a report may go out: now, or later. */
  dueAt(now: Millis): Millis {
    this.#refill(now);
    if (this.#tokens >= 1) return now;
    return this.#refilledAt + ((1 - this.#tokens) * 1000) / this.#perSecond;
  }

  /** So many datagrams go out, whether they may or not. */
  spend(datagrams: number, now: Millis): void {
    this.#refill(now);
    this.#tokens = Math.max(-BURST, this.#tokens - datagrams);
  }

  #refill(now: Millis): void {
    const gained = (Math.max(0, now - this.#refilledAt) * this.#perSecond) / 1000;
    this.#tokens = Math.min(BURST, this.#tokens + gained);
    this.#refilledAt = Math.max(this.#refilledAt, now);
  }
}
