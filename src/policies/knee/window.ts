import type { Millis } from '../../core/clock.ts';
import type { State } from '../policy.ts';
import {
  ANCHOR,
  BASE_RTT,
  BLOCKED,
  BUSY_TIME,
  CALLS,
  CAUSE,
  COST,
  CREDIT,
  DENIED,
  FAILURES,
  FULL_TIME,
  HOLD,
  KEPT,
  type KneeTerms,
  LIMIT,
  LIMIT_BEFORE_LOSS,
  LOWER_CALLS,
  LOWER_TIME,
  MODE,
  MOMENT_CALLS,
  NEEDED_CALLS,
  OPENED_AT,
  OUT_OF_BOUNDS,
  QUICKER,
  RTT_CALLS,
  RTT_MEAN,
  RTT_SQUARE,
  RTT_SUM,
  TARGET,
  UPPER_CALLS,
  UPPER_TIME,
} from './state.ts';

/** A window has so many calls, times the variation of RTTs. */
export const WINDOW_CALLS = 80;

/** Below this limit windows alternate between two whole limits. */
export const SMALL = 12;

/** The limit counts as reached if it was for this part of a window. */
const REACHED_PART = 0.7;
const DEMANDED_PART = 0.2;
const MAX_SCALE = 1 / REACHED_PART;
const MIN_SCALE = 0.3;
/** Calls refused by the limit, relative to successes, that show demand for more. */
const DENIED_PART = 0.02;

const MIN_VARIATION = 0.05;
const MAX_VARIATION = 4;

/** Clocks may show that a call took no time. */
export const MIN_RTT_MS = 0.001;

/** The largest cost is forgotten by this part in each window. */
const COST_DECAY = 0.9;

/** Tolerates rounding where a sum of fractions makes a whole call. */
const EPSILON = 1e-9;

/** Begins a window. A small limit alternates, so that on average it has its fraction. */
export function openWindow(state: State, i: number, now: Millis): void {
  state[i + OPENED_AT] = now;
  state.fill(0, i + CALLS, i + RTT_SUM + 1);
  state[i + KEPT] = Math.max(0, state[i + KEPT] - 1);
  state[i + BLOCKED] = 0;
  state[i + DENIED] = 0;
  state[i + COST] *= COST_DECAY;
  const lower = wholeOf(state[i + TARGET]);
  state[i + LIMIT] = lower;
  state[i + NEEDED_CALLS] = neededCalls(state, i);
  if (state[i + MODE] !== HOLD || state[i + TARGET] >= SMALL) return;
  state[i + CREDIT] += state[i + TARGET] - lower;
  if (state[i + CREDIT] < 1 - EPSILON) return;
  state[i + CREDIT] -= 1;
  state[i + LIMIT] = lower + 1;
}

/** At small limits one call more is a large step, which few calls show. */
function neededCalls(state: State, i: number): number {
  const limit = state[i + LIMIT];
  const few = 3 + (2.5 / Math.log(1 + 1 / limit)) ** 2;
  return Math.max(limit, Math.min(WINDOW_CALLS, few) * variation(state, i));
}

export const wholeOf = (limit: number): number => Math.floor(limit + EPSILON);

/** Some calls were refused by the limit, although it was not reached all the time: arrivals are random. */
export const isDemanded = (state: State, i: number): boolean =>
  state[i + DENIED] > DENIED_PART * state[i + CALLS];

export const isReached = (state: State, i: number, now: Millis): boolean =>
  state[i + FULL_TIME] >= REACHED_PART * (now - state[i + OPENED_AT]);

/** The limit was reached for most of the window, or for a part of it by calls that wanted more. */
export function isMeasured(state: State, i: number, now: Millis): boolean {
  const part = isDemanded(state, i) ? DEMANDED_PART : REACHED_PART;
  return state[i + FULL_TIME] >= part * (now - state[i + OPENED_AT]);
}

/**
 * Successes a millisecond. A window that ends within a batch of replies would count too many; by Little's law, the RTTs
 * of its calls then exceed the time that calls were in flight.
 */
export function windowRate(state: State, i: number, now: Millis): number {
  if (state[i + CALLS] === 0) return 0;
  const span = Math.max(MIN_RTT_MS, now - state[i + OPENED_AT]);
  const share =
    (1 + Math.min(1, state[i + BUSY_TIME] / Math.max(MIN_RTT_MS, state[i + RTT_SUM]))) / 2;
  // Fewer calls than the limit with random arrivals, more with slots on top: the rate at the limit itself.
  const scale = (state[i + LIMIT] * span) / Math.max(MIN_RTT_MS, state[i + BUSY_TIME]);
  return (state[i + CALLS] / span) * share * Math.max(MIN_SCALE, Math.min(MAX_SCALE, scale));
}

export const windowRtt = (state: State, i: number): Millis => state[i + RTT_SUM] / state[i + CALLS];

/** The mean RTT by Little's law: time of calls in flight for each success. */
export const busyRtt = (state: State, i: number): Millis =>
  Math.max(MIN_RTT_MS, state[i + BUSY_TIME] / state[i + CALLS]);

export function countFailure(state: State, i: number, cost: number): void {
  state[i + FAILURES] += cost;
}

/** Squared coefficient of variation of RTTs: 1 for exponential times, 0 for constant ones. */
export function variation(state: State, i: number): number {
  if (state[i + RTT_CALLS] < MOMENT_CALLS) return 1;
  const square = state[i + RTT_MEAN] ** 2;
  const value = (state[i + RTT_SQUARE] - square) / square;
  return Math.min(MAX_VARIATION, Math.max(MIN_VARIATION, value));
}

/** Relative standard error of a mean of so many calls. */
export const noise = (state: State, i: number, calls: number): number =>
  Math.sqrt(variation(state, i) / Math.max(1, calls));

/** Calls above the knee: room to see that a server takes more. Small, so that they hardly queue. */
export function headroom(knee: number): number {
  if (knee < 5) return 0.07 + (Math.max(0, knee - 1) * (0.42 - 0.07)) / 4;
  if (knee < 16) return 0.42 + ((knee - 5) * (1.5 - 0.42)) / 11;
  return Math.max(1.5, 0.38 * Math.sqrt(knee), 0.09 * knee - 0.6);
}

export const limitFor = (knee: number): number => knee + headroom(knee);

export function setTarget(
  state: State,
  i: number,
  terms: KneeTerms,
  target: number,
  cause: number,
): void {
  const before = state[i + TARGET];
  const least = Math.max(1, Math.ceil(state[i + COST]));
  state[i + TARGET] = Math.min(terms.max, Math.max(least, target));
  if (state[i + TARGET] !== before) state[i + CAUSE] = cause;
}

/** Begins to hold a limit that a start, a test or a refusal has found. */
export function hold(
  state: State,
  i: number,
  terms: KneeTerms,
  now: Millis,
  target: number,
  cause: number,
): void {
  setTarget(state, i, terms, target, cause);
  state[i + ANCHOR] = state[i + TARGET];
  state[i + MODE] = HOLD;
  state[i + OUT_OF_BOUNDS] = 0;
  state[i + LIMIT_BEFORE_LOSS] = 0;
  state[i + QUICKER] = 0;
  forgetLevels(state, i);
  openWindow(state, i, now);
}

/** The two whole limits around the target change: begins to measure them anew. */
export function forgetLevels(state: State, i: number): void {
  state[i + UPPER_CALLS] = 0;
  state[i + UPPER_TIME] = 0;
  state[i + LOWER_CALLS] = 0;
  state[i + LOWER_TIME] = 0;
}

/** The first test, and a test after a large change, begin at a whole second. */
export const TEST_SLOT_MS = 1000;

/** Tests begin every ten seconds, on every host at the same instant. */
const TEST_PERIOD_MS = 10_000;

export const nextTest = (now: Millis): Millis => nextMultiple(now, TEST_PERIOD_MS);

/** The next multiple of `periodMs` after now: the same instant on every host. */
export const nextMultiple = (now: Millis, periodMs: Millis): Millis =>
  Math.floor(now / periodMs + 1) * periodMs;

export const isKnown = (state: State, i: number): boolean => !Number.isNaN(state[i + BASE_RTT]);
