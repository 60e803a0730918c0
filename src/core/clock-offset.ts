/**
 * Bounds on how far a store's clock is ahead of the local one; each reply may narrow them.
 *
 *     local     sentAt ─────────────────▶ receivedAt    the reply was made between these two instants
 *     server             from … to                      and says that the server's time was within this range
 *
 *     offset    at least from - receivedAt, at most to - sentAt
 */

import type { Millis } from './clock.ts';

/** How much faster or slower than another the local clock may run. */
export const CLOCK_DRIFT_RATE = 0.0005;

/** The server's time, as a reply states it. */
export interface ServerTimeRange {
  readonly from: Millis;
  readonly to: Millis;
}

export class ClockOffset {
  /** As of the last reply. */
  #min: Millis = -Infinity;
  #max: Millis = Infinity;
  #observedAt: Millis = 0;

  /** Bounds that exclude each other mean that a clock was set: then only the last reply counts. */
  observe({ from, to }: ServerTimeRange, sentAt: Millis, receivedAt: Millis): void {
    const observed = { min: from - receivedAt, max: to - sentAt };
    const known = this.boundsAt(receivedAt);
    const min = Math.max(observed.min, known.min);
    const max = Math.min(observed.max, known.max);
    this.#observedAt = receivedAt;
    ({ min: this.#min, max: this.#max } = min <= max ? { min, max } : observed);
  }

  /** The lower bound at the last reply. */
  get lastMin(): Millis {
    return this.#min;
  }

  /** The bounds now, widened by the drift since the last reply. */
  boundsAt(now: Millis): { readonly min: Millis; readonly max: Millis } {
    const driftMs = (now - this.#observedAt) * CLOCK_DRIFT_RATE;
    return { min: this.#min - driftMs, max: this.#max + driftMs };
  }

  /** The local times from which on the server's clock may, and surely does, show an instant. */
  localTimesOf(serverTime: Millis): { readonly maybe: Millis; readonly surely: Millis } {
    const driftMs = this.#observedAt * CLOCK_DRIFT_RATE;
    return {
      maybe: (serverTime - this.#max + driftMs) / (1 + CLOCK_DRIFT_RATE),
      surely: (serverTime - this.#min - driftMs) / (1 - CLOCK_DRIFT_RATE),
    };
  }
}
