/** Random test input: the same seed gives the same input. */

import { type Random, seededRandom } from '../../src/core/random.ts';

export class SeededGenerator {
  readonly #random: Random;

  constructor(seed: number) {
    this.#random = seededRandom(seed);
  }

  below(n: number): number {
    return Math.floor(this.#random() * n);
  }

  oneOf<T>(all: readonly T[]): T {
    return all[this.below(all.length)];
  }

  /** Up to `most` random items. */
  sampleOf<T>(all: readonly T[], most: number): T[] {
    return Array.from({ length: this.below(most + 1) }, () => this.oneOf(all));
  }

  /** A string of fewer than `most` bytes, one character each. */
  binaryString(most: number): string {
    return Array.from({ length: this.below(most) }, () =>
      String.fromCharCode(this.below(256)),
    ).join('');
  }
}
