/**
 * How much of a limit is used: units that went through beside those that could have, over the last seconds that are over.
 *
 * An autoscaler wants to know. At 1 the limit is what holds things up, and more pods would only have smaller parts of it.
 */

import type { Millis } from '../../core/clock.ts';

const SECOND_MS: Millis = 1000;

/** Seconds that are looked back on. */
const WINDOW_SECONDS = 10;

export class SaturationMeter {
  readonly #readCapacity: () => number;
  /** Of seconds that are over, the last one last. */
  #samples: { readonly used: number; readonly capacity: number }[] = [];
  #used = 0;
  /** What could go through in a second, when it was last looked at. */
  #capacity = 0;
  #isMeasured = false;
  #secondEndAt: Millis = Number.NaN;

  /** @param capacityNow what can go through in a second, as things are. */
  constructor(readCapacity: () => number) {
    this.#readCapacity = readCapacity;
  }

  /** So much has gone through, or, below zero, has not been used after all. */
  record(units: number, now: Millis): void {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    if (!this.#isMeasured) this.#measureCapacity();
    this.#used += units;
  }

  /** From 0 to 1; above it by what was owed. */
  read(now: Millis): number {
    if (!this.#isCurrentSecond(now)) this.#rollOver(now);
    const total = (of: 'used' | 'capacity') => this.#samples.reduce((sum, own) => sum + own[of], 0);
    const capacity = total('capacity');
    return capacity > 0 ? Math.max(0, total('used')) / capacity : 0;
  }

  /** Whether the second is still the same; it may also have become an earlier one, as a store's clock gets known. */
  #isCurrentSecond(now: Millis): boolean {
    return now < this.#secondEndAt && now >= this.#secondEndAt - SECOND_MS;
  }

  #rollOver(now: Millis): void {
    const over = Math.floor((now - this.#secondEndAt) / SECOND_MS) + 1; // NaN at first: then none was there
    const capacity = this.#capacity;
    if (over > 0) this.#samples.push({ used: this.#used, capacity });
    for (let idle = 1; idle < Math.min(over, WINDOW_SECONDS + 1); idle++) {
      this.#samples.push({ used: 0, capacity });
    }
    this.#samples = this.#samples.slice(-WINDOW_SECONDS);
    this.#used = 0;
    this.#secondEndAt = (Math.floor(now / SECOND_MS) + 1) * SECOND_MS;
    this.#isMeasured = false;
  }

  /** With the first call of a second: before it, keys may be as good as new, and not be there to be looked at. */
  #measureCapacity(): void {
    this.#isMeasured = true;
    this.#capacity = this.#readCapacity();
  }
}
