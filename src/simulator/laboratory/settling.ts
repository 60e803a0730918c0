/**
 * Settling time after a server has changed.
 *
 * A second is on target if its goodput is at least 0.9 of the new best fixed limit's, less twice the random variation of
 * a count, and its calls in flight are at most 1.25 times those of that limit, or 3 more. A run has settled at the first
 * instant whose second is on target, with four fifths of the seconds on target both in the five seconds that begin
 * there and until the next change. Not all seconds: a rule may send less for a moment to measure.
 */

import type { Millis } from '../../core/clock.ts';
import { sum } from '../statistics.ts';
import { bestFixed } from './best-fixed.ts';
import { type Course, INTERVAL_MS } from './recorder.ts';
import { durationOf, type Sink } from './sink.ts';

const WINDOW = 1000 / INTERVAL_MS;
const SOON = 5 * WINDOW;
const MIN_GOODPUT = 0.9;
const MAX_IN_FLIGHT = 1.25;
const MAX_MORE = 3;
const MIN_SHARE = 0.8;

/** For each change of the sink; `Infinity` if the run had not settled at the next change or the end. */
export function settlingTimes(sink: Sink, course: Course): Millis[] {
  const { changes = [] } = sink;
  return changes.map(({ atMs, becomes }, n) => {
    const endsAt = changes[n + 1]?.atMs ?? durationOf(sink);
    const { goodput, inFlight } = bestFixed(becomes).figures;
    const maxInFlight = Math.max(MAX_IN_FLIGHT * inFlight, inFlight + MAX_MORE);
    const isOnTarget = (from: number): boolean => {
      const completed = sum([...course.completed.subarray(from, from + WINDOW)]);
      const inFlightThen = sum([...course.inFlight.subarray(from, from + WINDOW)]) / WINDOW;
      const minCompleted = MIN_GOODPUT * goodput;
      return completed >= minCompleted - 2 * Math.sqrt(minCompleted) && inFlightThen <= maxInFlight;
    };
    const first = atMs / INTERVAL_MS;
    const count = (endsAt - atMs) / INTERVAL_MS - WINDOW;
    const onTarget = Array.from({ length: count }, (_, k) => (isOnTarget(first + k) ? 1 : 0));
    const settled = onTarget.findIndex(
      (is, k) =>
        is === 1 &&
        shareOf(onTarget.slice(k, k + SOON)) >= MIN_SHARE &&
        shareOf(onTarget.slice(k)) >= MIN_SHARE,
    );
    return settled < 0 ? Infinity : settled * INTERVAL_MS;
  });
}

const shareOf = (flags: readonly number[]): number => sum(flags) / flags.length;
