/**
 * Vegas: a delay-based limit after TCP Vegas (Brakmo and Peterson, 1994), in the form of Netflix's concurrency-limits.
 *
 *     queue = limit × (1 − shortest round trip / round trip of the window)
 *
 *     queue ≤ log10(limit)       limit + 6 log10(limit)
 *     queue < 3 log10(limit)     limit + log10(limit)
 *     queue > 6 log10(limit)     limit − log10(limit); also after a drop
 *
 * All logarithms are whole numbers of at least 1. After some windows (15 to 30 times the limit) the shortest round trip
 * is measured anew, without lowering the limit. Documented defaults: initial 20, at most 1000, windows of 1 s.
 */

import type { Random } from '../../core/random.ts';
import { windowed } from './netflix-window.ts';
import type { LearntLimit } from './rule.ts';

const INITIAL = 20;
const MAX = 1000;
const PROBE_WINDOWS = 30;

const log10 = (limit: number): number => Math.max(1, Math.floor(Math.log10(limit)));

export function vegas(random: Random): LearntLimit {
  let limit = INITIAL;
  let shortestMs = Infinity;
  let windows = 0;
  const drawProbe = (): number => PROBE_WINDOWS * (0.5 + 0.5 * random());
  let probe = drawProbe();

  const step = (meanMs: number, maxInFlight: number, hasDrop: boolean): number => {
    const unit = log10(limit);
    if (hasDrop) return -unit;
    if (2 * maxInFlight < limit) return 0; // the limit was not needed
    const queue = Math.ceil(limit * (1 - shortestMs / meanMs));
    if (queue <= unit) return 6 * unit;
    if (queue < 3 * unit) return unit;
    return queue > 6 * unit ? -unit : 0;
  };

  return windowed({
    get limit() {
      return limit;
    },
    learn({ meanMs, maxInFlight, hasDrop }) {
      windows++;
      const isProbe = windows >= probe * limit;
      if (isProbe) [windows, probe] = [0, drawProbe()];
      if (isProbe || meanMs < shortestMs) shortestMs = meanMs;
      else limit = Math.max(1, Math.min(MAX, limit + step(meanMs, maxInFlight, hasDrop)));
    },
  });
}
