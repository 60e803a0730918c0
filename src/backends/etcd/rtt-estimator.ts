/**
 * How long a swap takes, most of the time: the mean and four deviations, as TCP reckons it.
 *
 * What is decided here is decided before the swap and used after it, so it has to be known how much later that may be. Too
 * little, and permits come too late to be used; too much, and the next one has to wait for nothing.
 */

import type { Millis } from '../../core/clock.ts';

/** How much a single trip counts. */
const NEWEST = 0.125;
const NEWEST_DEVIATION = 0.25;
const DEVIATIONS = 4;

/** What part of the deadline a trip counts as at most: one through an election says nothing of the next. */
const PART_MAX = 0.25;

/** What part of it a trip is taken to last at most, also before one was seen. */
const MOST_PART_MAX = 0.5;

export class Trips {
  readonly #deadlineMs: Millis;
  #meanMs: Millis | undefined;
  #deviationMs: Millis = 0;

  constructor(deadlineMs: Millis) {
    this.#deadlineMs = deadlineMs;
  }

  get mostMs(): Millis {
    const mostMs = (this.#meanMs ?? Infinity) + DEVIATIONS * this.#deviationMs;
    return Math.min(this.#deadlineMs * MOST_PART_MAX, mostMs);
  }

  get meanMs(): Millis {
    return this.#meanMs ?? 0;
  }

  seen(ms: Millis): void {
    const tripMs = Math.min(ms, this.#deadlineMs * PART_MAX);
    if (this.#meanMs === undefined) {
      this.#meanMs = tripMs;
      this.#deviationMs = tripMs / 2;
      return;
    }
    const offMs = Math.abs(tripMs - this.#meanMs);
    this.#deviationMs += (offMs - this.#deviationMs) * NEWEST_DEVIATION;
    this.#meanMs += (tripMs - this.#meanMs) * NEWEST;
  }
}
