/** Overshoot: calls above the limit. */

import type { Millis } from '../core/clock.ts';

/**
 * The most calls above burst + rate × span, over all spans: how far below zero one central bucket would have gone.
 * Times in ascending order, rate per second.
 */
export function overshootOf(times: readonly Millis[], rate: number, burst: number): number {
  let spent = 0;
  let last = Number.NEGATIVE_INFINITY;
  let overshoot = 0;
  for (const at of times) {
    spent = Math.max(0, spent - ((at - last) * rate) / 1000) + 1;
    last = at;
    overshoot = Math.max(overshoot, spent - burst);
  }
  return overshoot;
}
