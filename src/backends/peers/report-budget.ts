/**
 * Token bucket for early reports (before the interval ends): under load, a node sends fewer, fuller reports. Counted
 * in datagrams: if many keys are busy, one report takes many of them, and only the periodic reports remain.
 */

import type { Millis } from '../../core/clock.ts';

/** Datagrams sent at once after an idle time; also how far unavoidable reports can overdraw the budget. */
const BURST = 10;

export class ReportBudget {
  readonly #perSecond: number;
  #tokens = BURST;
  #refilledAt: Millis;

  constructor(perSecond: number, now: Millis) {
    this.#perSecond = perSecond;
    this.#refilledAt = now;
  }

  /** Earliest time of the next early report. */
  dueAt(now: Millis): Millis {
    this.#refill(now);
    if (this.#tokens >= 1) return now;
    return this.#refilledAt + ((1 - this.#tokens) * 1000) / this.#perSecond;
  }

  /** Charges datagrams, whether the budget allows them or not. */
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
