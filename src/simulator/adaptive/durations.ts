/**
 * A histogram of durations with a bucket per millisecond.
 *
 * Virtual time has millisecond resolution, so quantiles are exact. Memory depends on the longest duration only.
 */

import type { Millis } from '../../core/clock.ts';

export class DurationHistogram {
  /** Number of entries by duration in milliseconds. */
  readonly #counts: number[] = [];
  #count = 0;
  #sum = 0;

  add(durationMs: Millis): void {
    const ms = Math.round(durationMs);
    this.#counts[ms] = (this.#counts[ms] ?? 0) + 1;
    this.#count++;
    this.#sum += durationMs;
  }

  /** NaN if nothing was added. */
  figures(): { meanMs: Millis; p95Ms: Millis; p99Ms: Millis } {
    return {
      meanMs: this.#sum / this.#count,
      p95Ms: this.quantile(0.95),
      p99Ms: this.quantile(0.99),
    };
  }

  /** The shortest duration that this fraction of all durations does not exceed. */
  quantile(fraction: number): Millis {
    let remaining = Math.max(1, Math.ceil(fraction * this.#count));
    for (const [ms, count = 0] of this.#counts.entries()) {
      remaining -= count;
      if (remaining <= 0) return ms;
    }
    return Number.NaN;
  }
}
