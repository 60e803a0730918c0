import type { Millis } from '../core/clock.ts';

/** Thousands of sums of fractions are off by less than this. */
const ROUNDING_ERROR = 1e-9;

/**
 * The most calls above burst + rate × span, over all spans: the largest deficit of one central bucket that allows every
 * call. Times in ascending order, rate per second; with `costs`, units instead of calls.
 */
export function overshootOf(
  times: readonly Millis[],
  rate: number,
  burst: number,
  costs?: readonly number[],
): number {
  let spent = 0;
  let last = Number.NEGATIVE_INFINITY;
  let overshoot = 0;
  for (let n = 0; n < times.length; n++) {
    const at = times[n];
    spent = Math.max(0, spent - ((at - last) * rate) / 1000) + (costs?.[n] ?? 1);
    last = at;
    overshoot = Math.max(overshoot, spent - burst);
  }
  return overshoot < ROUNDING_ERROR ? 0 : overshoot;
}

/** The most units above `limit` in any window of the length `windowMs`. Times in ascending order. */
export function windowOvershootOf(
  times: readonly Millis[],
  limit: number,
  windowMs: Millis,
  costs: readonly number[],
): number {
  let [within, first, overshoot] = [0, 0, 0];
  for (let n = 0; n < times.length; n++) {
    within += costs[n];
    for (; times[first] <= times[n] - windowMs; first++) within -= costs[first];
    overshoot = Math.max(overshoot, within - limit);
  }
  return overshoot;
}
