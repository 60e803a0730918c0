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
export const DRIFT = 0.0005;

/** What an answer says of the store's clock. */
export interface TimeTold {
  readonly from: Millis;
  readonly to: Millis;
}

export class Ahead {
  /** As of the last answer. */
  #min: Millis = -Infinity;
  #max: Millis = Infinity;
  #learnedAt: Millis = 0;

  /** Bounds that exclude each other mean that a clock was set: the last answer alone counts. */
  learn({ from, to }: TimeTold, sentAt: Millis, heardAt: Millis): void {
    const told = { min: from - heardAt, max: to - sentAt };
    const known = this.at(heardAt);
    const min = Math.max(told.min, known.min);
    const max = Math.min(told.max, known.max);
    this.#learnedAt = heardAt;
    ({ min: this.#min, max: this.#max } = min <= max ? { min, max } : told);
  }

  /** How far they were surely ahead at the last answer. */
  get least(): Millis {
    return this.#min;
  }

  /** What is left of it by now: clocks drift apart. */
  at(now: Millis): { readonly min: Millis; readonly max: Millis } {
    const driftMs = (now - this.#learnedAt) * DRIFT;
    return { min: this.#min - driftMs, max: this.#max + driftMs };
  }

  /** When their clock shows an instant, on ours: from when on it may, and from when on it surely does. */
  reaches(theirs: Millis): { readonly maybe: Millis; readonly surely: Millis } {
    const sinceMs = this.#learnedAt * DRIFT;
    return {
      maybe: (theirs - this.#max + sinceMs) / (1 + DRIFT),
      surely: (theirs - this.#min - sinceMs) / (1 - DRIFT),
    };
  }
}
