/**
 * How much of a limit is used: units that went through beside those that could have, over the last seconds that are over.
 *
 * An autoscaler wants to know. At 1 the limit is what holds things up, and more pods would only have smaller parts of it.
 */

import type { Millis } from '../../core/clock.ts';

const SECOND_MS: Millis = 1000;

/** Seconds that are looked back on. */
const SECONDS = 10;

export class Meter {
  readonly #capacityNow: () => number;
  /** Of seconds that are over, the last one last. */
  #past: { readonly used: number; readonly capacity: number }[] = [];
  #used = 0;
  /** What could go through in a second, when it was last looked at. */
  #capacity = 0;
  #isMeasured = false;
  #endAt: Millis = Number.NaN;

  /** @param capacityNow what can go through in a second, as things are. */
  constructor(capacityNow: () => number) {
    this.#capacityNow = capacityNow;
  }

  /** So much has gone through, or, below zero, has not been used after all. */
  count(units: number, now: Millis): void {
    if (!this.#isIn(now)) this.#turn(now);
    if (!this.#isMeasured) this.#measure();
    this.#used += units;
  }

  /** From 0 to 1; above it by what was owed. */
  read(now: Millis): number {
    if (!this.#isIn(now)) this.#turn(now);
    const total = (of: 'used' | 'capacity') => this.#past.reduce((sum, own) => sum + own[of], 0);
    const capacity = total('capacity');
    return capacity > 0 ? Math.max(0, total('used')) / capacity : 0;
  }

  /** Whether the second is still the same; it may also have become an earlier one, as a store's clock gets known. */
  #isIn(now: Millis): boolean {
    return now < this.#endAt && now >= this.#endAt - SECOND_MS;
  }

  #turn(now: Millis): void {
    const over = Math.floor((now - this.#endAt) / SECOND_MS) + 1; // NaN at first: then none was there
    const capacity = this.#capacity;
    if (over > 0) this.#past.push({ used: this.#used, capacity });
    for (let idle = 1; idle < Math.min(over, SECONDS + 1); idle++) {
      this.#past.push({ used: 0, capacity });
    }
    this.#past = this.#past.slice(-SECONDS);
    this.#used = 0;
    this.#endAt = (Math.floor(now / SECOND_MS) + 1) * SECOND_MS;
    this.#isMeasured = false;
  }

  /** With the first call of a second: before it, keys may be as good as new, and not be there to be looked at. */
  #measure(): void {
    this.#isMeasured = true;
    this.#capacity = this.#capacityNow();
  }
}
