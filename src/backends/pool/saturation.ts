/**
 * Saturation of a limit: units used over units available, in the last complete seconds, from 0 to 1.
 *
 * For autoscalers: at 1 the limit is the bottleneck, and more pods would only get smaller parts of it. A saved burst, a
 * debt, or a part that has just shrunk can allow more than the units of these seconds: the value is then 1.
 */

import type { Millis } from '../../core/clock.ts';

const SECOND_MS: Millis = 1000;

const WINDOW_SECONDS = 10;

export class SaturationMeter {
  readonly #readCapacity: () => number;
  /** Complete seconds, the latest one last. */
  #samples: { used: number; readonly capacity: number }[] = [];
  #used = 0;
  #usedBefore = 0;
  /** Units available per second at the last measurement. */
  #capacity = 0;
  #isMeasured = false;
  #secondEndAt: Millis = Number.NaN;

  /** @param readCapacity returns the units currently available per second. */
  constructor(readCapacity: () => number) {
    this.#readCapacity = readCapacity;
  }

  record(units: number, now: Millis): void {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    if (!this.#isMeasured) this.#measureCapacity();
    this.#used += units;
  }

  /** Subtracts units that were returned from the second in which they were taken, at most the use of that second. */
  recordReturn(units: number, takenAt: Millis, now: Millis): void {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    const secondsAgo = Math.ceil((this.#secondEndAt - takenAt) / SECOND_MS) - 1;
    const sample = this.#samples.at(-secondsAgo);
    if (secondsAgo <= 0) this.#used = Math.max(0, this.#used - units);
    else if (sample) sample.used = Math.max(0, sample.used - units);
  }

  /** Units available per second, at the first call of the last second with calls. */
  get capacity(): number {
    return this.#capacity;
  }

  get used(): number {
    return this.#usedBefore;
  }

  read(now: Millis): number {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    const total = (of: 'used' | 'capacity') =>
      this.#samples.reduce((sum, sample) => sum + sample[of], 0);
    const capacity = total('capacity');
    return capacity > 0 ? Math.min(1, total('used') / capacity) : 0;
  }

  /** False in a later second, and in an earlier one after a correction of the store's clock. */
  #isCurrentSecond(now: Millis): boolean {
    return now < this.#secondEndAt && now >= this.#secondEndAt - SECOND_MS;
  }

  #rollOver(now: Millis): void {
    const over = Math.floor((now - this.#secondEndAt) / SECOND_MS) + 1; // NaN before the first second
    const capacity = this.#capacity;
    if (over > 0) this.#samples.push({ used: this.#used, capacity });
    this.#usedBefore += this.#used;
    for (let idle = 1; idle < Math.min(over, WINDOW_SECONDS + 1); idle++) {
      this.#samples.push({ used: 0, capacity });
    }
    this.#samples = this.#samples.slice(-WINDOW_SECONDS);
    this.#used = 0;
    this.#secondEndAt = (Math.floor(now / SECOND_MS) + 1) * SECOND_MS;
    this.#isMeasured = false;
  }

  /** Measures at the first call of a second: earlier, keys may have been removed because they were fresh. */
  #measureCapacity(): void {
    this.#isMeasured = true;
    this.#capacity = this.#readCapacity();
  }
}
