/** Quantiles of positive numbers in a fixed number of classes, each 2 % wide: exact enough for a report. */

const WIDTH = Math.log(1.02);
/** Up to 1e12: milliseconds of 30 years. */
const CLASSES = Math.ceil(Math.log(1e12) / WIDTH);

export class Quantiles {
  count = 0;
  readonly #classes = new Uint32Array(CLASSES + 1);

  add(value: number): void {
    this.count++;
    const n = value <= 1 ? 0 : Math.ceil(Math.log(value) / WIDTH);
    this.#classes[Math.min(n, CLASSES)]++;
  }

  /** The upper end of the class of a quantile; undefined without values. */
  at(quantile: number): number | undefined {
    if (this.count === 0) return undefined;
    const rank = Math.max(1, Math.ceil(quantile * this.count));
    let seen = 0;
    for (let n = 0; n <= CLASSES; n++) {
      seen += this.#classes[n];
      if (seen >= rank) return Math.exp(n * WIDTH);
    }
    return undefined;
  }
}

export const quantileOf = (sorted: ArrayLike<number>, quantile: number): number =>
  sorted[Math.max(0, Math.ceil(quantile * sorted.length) - 1)] ?? 0;
