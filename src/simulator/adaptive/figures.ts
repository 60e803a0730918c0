/**
 * Statistics weighted by time: a sample holds for the time since the previous one. The first sample only starts the
 * clock.
 */

import type { Millis } from '../../core/clock.ts';

export interface Figures {
  readonly min: number;
  readonly max: number;
  readonly mode: number;
  readonly mean: number;
}

/** Time spent at each value, for whole numbers. */
export class LevelFigures {
  // Whole milliseconds: sums of fractional seconds would differ for equal durations.
  readonly #durationsMs = new Map<number, Millis>();
  #last: Millis | undefined;

  add(level: number, now: Millis): void {
    if (this.#last !== undefined) {
      this.#durationsMs.set(level, (this.#durationsMs.get(level) ?? 0) + now - this.#last);
    }
    this.#last = now;
  }

  figures(): Figures {
    const levels = [...this.#durationsMs].filter(([, ms]) => ms > 0);
    const values = levels.map(([level]) => level);
    const heaviest = levels.reduce(longerLasting, [Number.NaN, 0]);
    const total = levels.reduce((sum, [, ms]) => sum + ms, 0);
    const weighted = levels.reduce((sum, [level, ms]) => sum + level * ms, 0);
    return {
      min: Math.min(...values),
      max: Math.max(...values),
      mode: heaviest[0],
      mean: weighted / total,
    };
  }
}

/** Returns the level that lasted longer; the higher one if both lasted equally long. */
function longerLasting(
  a: readonly [number, number],
  b: readonly [number, number],
): [number, number] {
  return b[1] > a[1] || (b[1] === a[1] && b[0] > a[0]) ? [...b] : [...a];
}

/** For real numbers: minimum and maximum of all samples but the first, and the mean over time. */
export class ValueFigures {
  #min = Infinity;
  #max = -Infinity;
  #sum = 0;
  #seconds = 0;
  #last: Millis | undefined;

  add(value: number, now: Millis): void {
    if (this.#last !== undefined) {
      const seconds = (now - this.#last) / 1000;
      this.#sum += value * seconds;
      this.#seconds += seconds;
      this.#min = Math.min(this.#min, value);
      this.#max = Math.max(this.#max, value);
    }
    this.#last = now;
  }

  figures(): Figures {
    const mean = this.#sum / this.#seconds;
    return { min: this.#min, max: this.#max, mode: Number.NaN, mean };
  }
}
