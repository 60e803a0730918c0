/**
 * Saturation of a limit: units used over units available, in the last complete seconds, from 0 to 1.
 *
 * For autoscalers: at 1 the limit is the bottleneck, and more pods would only have smaller parts of it. A burst
 * that was saved up, a debt, or a part that has just shrunk can make more than the units of these seconds: that is 1.
 */

import type { Millis } from '../../core/clock.ts';

const SECOND_MS: Millis = 1000;

const WINDOW_SECONDS = 10;

export class SaturationMeter {
  readonly #readCapacity: () => number;
  /** Complete seconds, the latest last. */
  #samples: { used: number; readonly capacity: number }[] = [];
  #used = 0;
  #usedBefore = 0;
  /** Units available in a second, when last measured. */
  #capacity = 0;
  #isMeasured = false;
  #secondEndAt: Millis = Number.NaN;

  /** @param readCapacity units available in a second at present. */
  constructor(readCapacity: () => number) {
    this.#readCapacity = readCapacity;
  }

  /** Counts used units. */
  record(units: number, now: Millis): void {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    if (!this.#isMeasured) this.#measureCapacity();
    this.#used += units;
  }

  /** Subtracts units that were returned from the second of their take, at most what was used in it. */
  recordReturn(units: number, takenAt: Millis, now: Millis): void {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    const secondsAgo = Math.ceil((this.#secondEndAt - takenAt) / SECOND_MS) - 1;
    const sample = this.#samples.at(-secondsAgo);
    if (secondsAgo <= 0) this.#used = Math.max(0, this.#used - units);
    else if (sample) sample.used = Math.max(0, sample.used - units);
  }

  /** Units available in a second, at the first call of the last second that had one. */
  get capacity(): number {
    return this.#capacity;
  }

  /** Units used in all complete seconds. */
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

  /** False in a later second, or in an earlier one after a correction of the store's clock. */
  #isCurrentSecond(now: Millis): boolean {
    return now < this.#secondEndAt && now >= this.#secondEndAt - SECOND_MS;
  }

  #rollOver(now: Millis): void {
    const over = Math.floor((now - this.#secondEndAt) / SECOND_MS) + 1; // NaN at first: no second to close
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

  /** Runs with the first call of a second: before it, keys may have been removed as good as new. */
  #measureCapacity(): void {
    this.#isMeasured = true;
    this.#capacity = this.#readCapacity();
  }
}
