/**
 * Samples calls at random: one in `meanGap` on average. Each sample is weighted with the calls that it stands for.
 *
 *     calls    · · · ● · ● · · · · · ● · ·        a gap is drawn after every sample
 *              └─ 4 ─┘ 2 └──── 6 ────┘            geometric: each call has the same probability, 1 / mean gap
 *
 * A call costs a decrement. Gaps are random, because every n-th call of periodic traffic may be of the same key. The mean gap
 * follows the rate of calls, so that the samples per second are bounded: few calls are all counted. A sample weighs the mean
 * gap of its draw, so weights add up to the calls without bias, also while the mean gap changes.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';

/** Target rate of samples: 50,000 to 100,000 in the last 10 to 20 s, and 0.1 % of a core. */
export const SAMPLES_PER_SECOND = 5000;

const MAX_MEAN_GAP = 2 ** 20;

export class GapSampler {
  readonly #random: Random;
  #meanGap = 1;
  /** Calls until the next sample. */
  #gap = 1;
  /** Calls up to the next sample, since the last adaptation. */
  #drawn = 1;
  #samples = 0;

  constructor(random: Random) {
    this.#random = random;
  }

  /** Calls that a sample stands for now. */
  get meanGap(): number {
    return this.#meanGap;
  }

  /** To be called once for every call. If true, `take` is to follow. */
  isDue(): boolean {
    return --this.#gap <= 0;
  }

  /** The weight of the sample that is due. A sudden flood is thinned out at once: the gap doubles. */
  take(): number {
    const weight = this.#meanGap;
    if (++this.#samples % SAMPLES_PER_SECOND === 0) this.#setMeanGap(weight * 2);
    this.#gap = this.#meanGap === 1 ? 1 : this.#draw();
    this.#drawn += this.#gap;
    return weight;
  }

  /** Adapts the mean gap to the calls since the last time. A geometric gap has no memory, so it may be drawn anew. */
  adapt(elapsedMs: Millis): void {
    const calls = this.#drawn - this.#gap;
    this.#setMeanGap(calls / SAMPLES_PER_SECOND / (elapsedMs / 1000));
    this.#samples = 0;
    this.#gap = this.#draw();
    this.#drawn = this.#gap;
  }

  #setMeanGap(gap: number): void {
    this.#meanGap = Math.min(MAX_MEAN_GAP, Math.max(1, Math.round(gap)));
  }

  #draw(): number {
    if (this.#meanGap === 1) return 1;
    return 1 + Math.floor(Math.log(1 - this.#random()) / Math.log(1 - 1 / this.#meanGap));
  }
}
