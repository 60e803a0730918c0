/**
 * Gradient2 of Netflix's concurrency-limits, from its documentation: the round trip of the window is compared with its
 * own long-term average, not with a minimum.
 *
 *     gradient = 1.5 × long average / round trip of the window, from 0.5 to 1
 *     limit    ← 0.8 × limit + 0.2 × (gradient × limit + 4)
 *
 * The long average is exponential over 600 windows, the plain mean of the first 10. It falls by a tenth per window while
 * it is more than twice the window's round trip. Drops are not used. Documented defaults: from 20 to 200, initial 20,
 * windows of 1 s.
 */

import { windowed } from './netflix-window.ts';
import type { LearntLimit } from './rule.ts';

const MIN = 20;
const MAX = 200;
const TOLERANCE = 1.5;
const QUEUE = 4;
const SMOOTHING = 0.2;
const LONG_WINDOWS = 600;
const WARM_UP_WINDOWS = 10;

export function gradient2(): LearntLimit {
  let limit = MIN;
  let longMs = 0;
  let windows = 0;
  return windowed({
    get limit() {
      return limit;
    },
    learn({ meanMs, maxInFlight }) {
      windows++;
      const weight = windows <= WARM_UP_WINDOWS ? 1 / windows : 2 / (LONG_WINDOWS + 1);
      longMs += weight * (meanMs - longMs);
      const averageMs = longMs;
      if (averageMs > 2 * meanMs) longMs *= 0.9;
      if (maxInFlight < limit / 2) return; // the limit was not needed
      const gradient = Math.max(0.5, Math.min(1, (TOLERANCE * averageMs) / meanMs));
      const target = gradient * limit + QUEUE;
      limit = Math.max(MIN, Math.min(MAX, limit + SMOOTHING * (target - limit)));
    },
  });
}
