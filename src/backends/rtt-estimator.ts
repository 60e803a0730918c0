/**
 * Round-trip time to a server: smoothed mean and mean deviation, as TCP computes them (RFC 6298).
 *
 *     upper bound = mean + 4 × deviation
 */

import type { Millis } from '../core/clock.ts';

/** Weights of one sample. */
const MEAN_WEIGHT = 0.125;
const DEVIATION_WEIGHT = 0.25;
const DEVIATION_FACTOR = 4;

/** With a deadline: the largest fraction of it that one sample counts for. Elections cause outliers. */
const MAX_SAMPLE_FRACTION = 0.25;

/** With a deadline: the largest fraction of it for the upper bound, which is also the bound before the first sample. */
const MAX_BOUND_FRACTION = 0.5;

export class RttEstimator {
  readonly #deadlineMs: Millis;
  #meanMs: Millis | undefined;
  #deviationMs: Millis = 0;

  constructor(deadlineMs: Millis = Infinity) {
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
    const sampleMs = Math.min(ms, this.#deadlineMs * MAX_SAMPLE_FRACTION);
    if (this.#meanMs === undefined) {
      this.#meanMs = sampleMs;
      this.#deviationMs = sampleMs / 2;
      return;
    }
    const errorMs = Math.abs(sampleMs - this.#meanMs);
    this.#deviationMs += (errorMs - this.#deviationMs) * DEVIATION_WEIGHT;
    this.#meanMs += (sampleMs - this.#meanMs) * MEAN_WEIGHT;
  }
}
