/**
 * How far a store's clock is ahead of ours: between two bounds, which each answer may narrow.
 *
 *     ours      sentAt ─────────────────▶ heardAt      an answer was made somewhere between these,
 *     theirs             from … to                     and says that it was then at least `from`, at most `to`
 *
 *     ahead     at least from - heardAt, at most to - sentAt
 */

import type { Millis } from './clock.ts';

/** How much faster or slower than another our clock may go. */
export const CLOCK_DRIFT_RATE = 0.0005;

/** What an answer says of the store's clock. */
export interface ServerTimeRange {
  readonly from: Millis;
  readonly to: Millis;
}

export class ClockOffset {
  /** As of the last answer. */
  #min: Millis = -Infinity;
  #max: Millis = Infinity;
  #observedAt: Millis = 0;

  /** Bounds that exclude each other mean that a clock was set: the last answer alone counts. */
  observe({ from, to }: ServerTimeRange, sentAt: Millis, heardAt: Millis): void {
    const told = { min: from - heardAt, max: to - sentAt };
    const known = this.boundsAt(heardAt);
    const min = Math.max(told.min, known.min);
    const max = Math.min(told.max, known.max);
    this.#observedAt = heardAt;
    ({ min: this.#min, max: this.#max } = min <= max ? { min, max } : told);
  }

  /** How far they were surely ahead at the last answer. */
  get lastMin(): Millis {
    return this.#min;
  }

  /** What is left of it by now: clocks drift apart. */
  boundsAt(now: Millis): { readonly min: Millis; readonly max: Millis } {
    const driftMs = (now - this.#observedAt) * CLOCK_DRIFT_RATE;
    return { min: this.#min - driftMs, max: this.#max + driftMs };
  }

  /** When their clock shows an instant, on ours: from when on it may, and from when on it surely does. */
  localTimesOf(theirs: Millis): { readonly maybe: Millis; readonly surely: Millis } {
    const sinceMs = this.#observedAt * CLOCK_DRIFT_RATE;
    return {
      maybe: (theirs - this.#max + sinceMs) / (1 + CLOCK_DRIFT_RATE),
      surely: (theirs - this.#min - sinceMs) / (1 - CLOCK_DRIFT_RATE),
    };
  }
}
