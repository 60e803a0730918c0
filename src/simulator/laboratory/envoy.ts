/**
 * The gradient controller of Envoy's adaptive concurrency filter, from its documentation.
 *
 *     gradient = 1.25 × minRTT / median round trip of the last 100 ms, from 0.5 to 2
 *     limit    ← gradient × limit + √(gradient × limit), from 3 to 1000
 *
 * minRTT is measured at the start, every 60 s (plus up to 15 %), and after five windows at the lowest limit: only three
 * calls are allowed in flight until 50 of them have ended, and minRTT is the median of those. Calls sent before do
 * not count. A refusal is a sample as any other reply; a timeout is none. Values are the documented defaults, or those
 * of the documented example where a value is required.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { LearntLimit } from './rule.ts';

const MIN = 3;
const MAX = 1000;
const WINDOW_MS: Millis = 100;
const MIN_RTT_EVERY_MS: Millis = 60_000;
const MIN_RTT_JITTER = 0.15;
const MIN_RTT_CALLS = 50;
const BUFFER = 0.25;
const MAX_WINDOWS_AT_MIN = 5;

export function envoyGradient(random: Random): LearntLimit {
  let limit = MIN;
  let minRttMs = 0;
  let samples: Millis[] = [];
  let isMeasuring = true; // minRTT
  let since: Millis = 0;
  let nextMeasurementAt: Millis = 0;
  let windowEndsAt: Millis = 0;
  let windowsAtMin = 0;

  const measureMinRtt = (now: Millis): void => {
    [isMeasuring, since, windowsAtMin, samples] = [true, now, 0, []];
  };
  const endMeasurement = (now: Millis): void => {
    minRttMs = medianOf(samples);
    [isMeasuring, samples] = [false, []];
    windowEndsAt = now + WINDOW_MS;
    nextMeasurementAt = now + MIN_RTT_EVERY_MS * (1 + MIN_RTT_JITTER * random());
  };
  const endWindow = (now: Millis): void => {
    const ratio = ((1 + BUFFER) * minRttMs) / medianOf(samples);
    const scaled = limit * Math.max(0.5, Math.min(2, ratio));
    limit = Math.max(MIN, Math.min(MAX, Math.floor(scaled + Math.sqrt(scaled))));
    samples = [];
    windowEndsAt = now + WINDOW_MS;
    windowsAtMin = limit === MIN ? windowsAtMin + 1 : 0;
    if (windowsAtMin >= MAX_WINDOWS_AT_MIN) measureMinRtt(now);
  };

  return {
    get limit() {
      return isMeasuring ? MIN : limit;
    },
    add({ now, sentAt, rttMs, outcome }) {
      if (outcome === 'timeout' || sentAt < since) return;
      samples.push(rttMs);
      if (isMeasuring) {
        if (samples.length >= MIN_RTT_CALLS) endMeasurement(now);
      } else if (now >= nextMeasurementAt) measureMinRtt(now);
      else if (now >= windowEndsAt) endWindow(now);
    },
  };
}

const medianOf = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
