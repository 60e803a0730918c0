/**
 * The sampling window of Netflix's concurrency-limits, from its documentation: a rule learns once a second, from the mean
 * round trip of all calls that ended in that second, the most calls in flight, and whether one was dropped. A window of
 * fewer than ten calls is left out.
 */

import type { Millis } from '../../core/clock.ts';
import type { LearntLimit, Sample } from './rule.ts';

const WINDOW_MS: Millis = 1000;
const MIN_SAMPLES = 10;

/** What a rule learns from. */
export interface Window {
  readonly meanMs: Millis;
  readonly maxInFlight: number;
  readonly hasDrop: boolean;
}

/** A limit that learns from windows. */
export interface WindowedLimit {
  readonly limit: number;
  learn(window: Window): void;
}

export function windowed(rule: WindowedLimit): LearntLimit {
  let [sumMs, samples, maxInFlight, hasDrop] = [0, 0, 0, false];
  let endsAt = 0;
  return {
    get limit() {
      return rule.limit;
    },
    add({ now, rttMs, inFlight, isDropped }: Sample) {
      sumMs += rttMs;
      samples++;
      maxInFlight = Math.max(maxInFlight, inFlight);
      hasDrop ||= isDropped;
      if (now <= endsAt) return;
      if (samples >= MIN_SAMPLES) rule.learn({ meanMs: sumMs / samples, maxInFlight, hasDrop });
      [sumMs, samples, maxInFlight, hasDrop] = [0, 0, 0, false];
      endsAt = now + WINDOW_MS;
    },
  };
}
