/**
 * How long a swap takes, most of the time: the mean and four deviations, as TCP reckons it.
 *
 * What is decided here is decided before the swap and used after it, so it has to be known how much later that may be. Too
 * little, and permits come too late to be used; too much, and the next one has to wait for nothing.
 */

import type { Millis } from '../../core/clock.ts';

/** How much a single trip counts. */
const MEAN_WEIGHT = 0.125;
const DEVIATION_WEIGHT = 0.25;
const DEVIATION_FACTOR = 4;

/** What part of the deadline a trip counts as at most: one through an election says nothing of the next. */
const MAX_SAMPLE_FRACTION = 0.25;

/** What part of it a trip is taken to last at most, also before one was seen. */
const MAX_BOUND_FRACTION = 0.5;

export class RttEstimator {
  readonly #deadlineMs: Millis;
  #meanMs: Millis | undefined;
  #deviationMs: Millis = 0;

  constructor(deadlineMs: Millis) {
    this.#deadlineMs = deadlineMs;
  }

  get upperBoundMs(): Millis {
    const boundMs = (this.#meanMs ?? Infinity) + DEVIATION_FACTOR * this.#deviationMs;
    return Math.min(this.#deadlineMs * MAX_BOUND_FRACTION, boundMs);
  }

  get meanMs(): Millis {
    return this.#meanMs ?? 0;
  }

  observe(ms: Millis): void {
    const tripMs = Math.min(ms, this.#deadlineMs * MAX_SAMPLE_FRACTION);
    if (this.#meanMs === undefined) {
      this.#meanMs = tripMs;
      this.#deviationMs = tripMs / 2;
      return;
    }
    const offMs = Math.abs(tripMs - this.#meanMs);
    this.#deviationMs += (offMs - this.#deviationMs) * DEVIATION_WEIGHT;
    this.#meanMs += (tripMs - this.#meanMs) * MEAN_WEIGHT;
  }
}
