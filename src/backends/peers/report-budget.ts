/**
 * Token bucket (GCRA) for early reports (before the interval ends): under load, a node sends fewer, fuller reports. The
 * unit is a datagram: if many keys are busy, one report takes many of them, and only the periodic reports remain.
 */

import type { Millis } from '../../core/clock.ts';

/** Burst of datagrams after an idle time; also how far unavoidable reports can overdraw the budget. */
const BURST = 10;

export class ReportBudget {
  readonly #intervalMs: Millis;
  /** The theoretical arrival time (GCRA): the budget is spent up to this time. */
  #spentUntil: Millis = -Infinity;

  constructor(perSecond: number) {
    this.#intervalMs = 1000 / perSecond;
  }

  /** Earliest time of the next early report. */
  dueAt(now: Millis): Millis {
    return Math.max(now, this.#spentUntil - (BURST - 1) * this.#intervalMs);
  }

  /** Charges datagrams, even beyond the budget. */
  spend(datagrams: number, now: Millis): void {
    const until = Math.max(this.#spentUntil, now) + datagrams * this.#intervalMs;
    this.#spentUntil = Math.min(until, now + 2 * BURST * this.#intervalMs);
  }
}
