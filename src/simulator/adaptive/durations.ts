/**
 * How long things took, counted by the whole millisecond: virtual time knows nothing finer, so a
 * million spans need no more room than the longest has milliseconds, and quantiles are exact.
 */

import type { Millis } from '../../core/clock.ts';

export class DurationHistogram {
  /** How often each length came. */
  readonly #counts: number[] = [];
  #count = 0;
  #sum = 0;

  add(span: Millis): void {
    const length = Math.round(span);
    this.#counts[length] = (this.#counts[length] ?? 0) + 1;
    this.#count++;
    this.#sum += span;
  }

  /** No figures of nothing: NaN if none was added. */
  figures(): { meanMs: Millis; p95Ms: Millis; p99Ms: Millis } {
    return {
      meanMs: this.#sum / this.#count,
      p95Ms: this.quantile(0.95),
      p99Ms: this.quantile(0.99),
    };
  }

  /** The shortest length that this part of all did not exceed. */
  quantile(part: number): Millis {
    let left = Math.max(1, Math.ceil(part * this.#count));
    for (const [length, count = 0] of this.#counts.entries()) {
      left -= count;
      if (left <= 0) return length;
    }
    return Number.NaN;
  }
}
