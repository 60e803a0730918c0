import type { Millis } from '../core/clock.ts';

/** A number times this is 0.6 to 1.2 times the distance to its neighbour: the sum is rounded to the neighbour. */
const TO_NEIGHBOUR = 0.6 * Number.EPSILON;

/**
 * The first representable instant at least `span` after `at`.
 *
 * Far from zero a sum of milliseconds is rounded. Rounded down it would be too early, or would not move
 * at all: at 10^15 ms neighbouring numbers are an eighth of a millisecond apart.
 */
export function addRoundingUp(at: Millis, span: Millis): Millis {
  const sum = at + span;
  return sum - at >= span ? sum : sum + Math.abs(sum) * TO_NEIGHBOUR;
}

/** The last representable instant at least `span` before `at`, for the same reason. */
export function subtractRoundingDown(at: Millis, span: Millis): Millis {
  const difference = at - span;
  return at - difference >= span ? difference : difference - Math.abs(difference) * TO_NEIGHBOUR;
}

/** Whole milliseconds from `now` until `at`: the sum of both is not before `at`, however it is rounded. */
export function wholeMsUntil(at: Millis, now: Millis): Millis {
  const ms = Math.ceil(at - now);
  return now + ms < at ? ms + 1 : ms;
}
