/**
 * AIMD of Netflix's concurrency-limits, from its documentation: a loss-based limit without windows.
 *
 *     a drop, or a round trip above 5 s      limit × 0.9
 *     otherwise, if half of it was in use    limit + 1, for every call
 *
 * Queueing alone does not lower the limit. Documented defaults: from 20 to 200, initial 20.
 */

import type { Millis } from '../../core/clock.ts';
import type { LearntLimit } from './rule.ts';

const MIN = 20;
const MAX = 200;
const BACK_OFF = 0.9;
const TIMEOUT_MS: Millis = 5000;

export function aimdNetflix(): LearntLimit {
  let limit = MIN;
  return {
    get limit() {
      return limit;
    },
    add({ rttMs, inFlight, isDropped }) {
      if (isDropped || rttMs > TIMEOUT_MS) limit = Math.max(MIN, Math.floor(limit * BACK_OFF));
      else if (2 * inFlight >= limit) limit = Math.min(MAX, limit + 1);
    },
  };
}
