import type { Millis } from '../../core/clock.ts';
import type { State } from '../policy.ts';
import { beginTest } from './periodic-test.ts';
import { beginStart } from './start.ts';
import {
  ANCHOR,
  BASE_RTT,
  BY_RATE,
  CALLS,
  COUNTS,
  CREDIT,
  HOLD,
  isWindowOver,
  type KneeTerms,
  LIMIT,
  LIMIT_BEFORE_LOSS,
  LIMIT_RTT,
  LIMITS,
  LOWER_CALLS,
  LOWER_TIME,
  MODE,
  NEXT_TEST_AT,
  OUT_OF_BOUNDS,
  QUICKER,
  RATE,
  RATES,
  REACHED,
  RING_SIZE,
  TARGET,
  TESTS,
  UPPER_CALLS,
  UPPER_TIME,
  WINDOWS,
} from './state.ts';
import {
  forgetLevels,
  isDemanded,
  isMeasured,
  limitFor,
  nextMultiple,
  nextTest,
  openWindow,
  SMALL,
  setTarget,
  TEST_SLOT_MS,
  variation,
  WINDOW_CALLS,
  wholeOf,
  windowRate,
  windowRtt,
} from './window.ts';

/** Two windows this far below the rate are a sudden loss of capacity. */
const SUDDEN = 0.75;
/** So many windows this much quicker than the base RTT set it. */
const MUCH_QUICKER = 0.8;
const QUICKER_WINDOWS = 3;

/** The limit goes no further than this from where the last test left it; one that wants to asks for a test. */
const MAX_GROWTH = 2;
const MAX_SHRINK = 0.65;
const OUT_OF_BOUNDS_WINDOWS = 2;
/** No test is asked for if the next common one comes within this time. */
const SOON_MS = 4000;
/** The most it shrinks while RTTs are at most `SHORT_QUEUE` times the base RTT: that may be noise. */
const SLOW_SHRINK = 0.88;
const SHORT_QUEUE = 1.12;
/** The part of the way down that one window goes; up, it goes at once. */
const DOWN_PACE = 0.3;

/** Random arrivals meet the limit at times: the part of it that it grows by, while calls are as quick as without a queue. */
const GROWTH = 0.1;
/** A second call must bring this much more, measured on so many calls. */
const GAIN_OF_SECOND = 1.6;
const CALLS_OF_SECOND = 25;
/** Until then, two calls are tried in every third window. */
const CREDIT_OF_SECOND = 0.33;
/** Calls at the two whole limits, before they are compared. */
const MEMORY_CALLS = 4 * WINDOW_CALLS;
const MEMORY_CALLS_OF_ONE = 40;

export function stepHold(state: State, i: number, terms: KneeTerms, now: Millis): void {
  if (now >= state[i + NEXT_TEST_AT]) {
    beginTest(state, i, terms, now);
    if (state[i + MODE] !== HOLD) return;
  }
  if (!isWindowOver(state, i, now)) return;
  const hasMeasured = state[i + CALLS] > 0 && isMeasured(state, i, now);
  state[i + REACHED] = hasMeasured ? 1 : 0;
  if (hasMeasured) follow(state, i, terms, now);
  else {
    state[i + RING_SIZE] = 0; // without demand there is nothing to learn
    if (state[i + CALLS] > 0 && isDemanded(state, i)) grow(state, i, terms);
  }
  if (state[i + MODE] === HOLD) openWindow(state, i, now);
}

/** Random arrivals meet the limit at times, too rarely to measure: it grows while calls are as quick as without a queue. */
function grow(state: State, i: number, terms: KneeTerms): void {
  if (windowRtt(state, i) > SHORT_QUEUE * state[i + BASE_RTT]) return;
  const present = state[i + TARGET];
  setTarget(state, i, terms, present + Math.max(1, GROWTH * present), BY_RATE);
  state[i + ANCHOR] = state[i + TARGET];
}

/** Moves the limit towards the knee that the last windows show. */
function follow(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const lower = wholeOf(state[i + TARGET]);
  const rttMs = state[i + LIMIT] / windowRate(state, i, now);
  addWindow(state, i, now);
  const isSudden = learnRate(state, i);
  if (isSudden && state[i + TARGET] >= 2) {
    state[i + LIMIT_BEFORE_LOSS] = state[i + TARGET];
    beginTest(state, i, terms, now);
    return;
  }
  let knee = state[i + RATE] * state[i + BASE_RTT];
  if (state[i + TARGET] < SMALL) {
    addLevel(state, i, lower, now);
    knee = kneeOfSmall(state, i, lower, now);
    if (state[i + MODE] !== HOLD) return;
  }
  learnQuicker(state, i, Math.max(rttMs, windowRtt(state, i)));
  const wanted = limitFor(knee);
  askForTest(state, i, wanted, now);
  const target = bounded(state, i, wanted);
  const present = state[i + TARGET];
  const pace = target > present ? 1 : DOWN_PACE;
  setTarget(state, i, terms, present + pace * (target - present), BY_RATE);
  if (wholeOf(state[i + TARGET]) !== lower) forgetLevels(state, i);
}

function addWindow(state: State, i: number, now: Millis): void {
  if (state[i + RING_SIZE] === WINDOWS) dropWindows(state, i, 1);
  const size = state[i + RING_SIZE];
  state[i + RATES + size] = windowRate(state, i, now);
  state[i + COUNTS + size] = state[i + CALLS];
  state[i + LIMITS + size] = state[i + LIMIT];
  state[i + RING_SIZE] = size + 1;
}

function dropWindows(state: State, i: number, count: number): void {
  const size = state[i + RING_SIZE];
  state.copyWithin(i + RATES, i + RATES + count, i + RATES + size);
  state.copyWithin(i + COUNTS, i + COUNTS + count, i + COUNTS + size);
  state.copyWithin(i + LIMITS, i + LIMITS + count, i + LIMITS + size);
  state[i + RING_SIZE] = size - count;
}

const sorted = new Float64Array(WINDOWS);

/** The median rate of the windows, or the median rate for each call of their limit. */
function medianRate(state: State, i: number, isPerCall: boolean): number {
  const size = state[i + RING_SIZE];
  for (let n = 0; n < size; n++) {
    const rate = state[i + RATES + n] / (isPerCall ? state[i + LIMITS + n] : 1);
    let at = n;
    for (; at > 0 && sorted[at - 1] > rate; at--) sorted[at] = sorted[at - 1];
    sorted[at] = rate;
  }
  return sorted[size >> 1];
}

/** The median of the windows; down at once if two are far below it. True: a sudden loss. */
function learnRate(state: State, i: number): boolean {
  const size = state[i + RING_SIZE];
  const isLoss = size > 2 && isFarBelow(state, i, size - 1) && isFarBelow(state, i, size - 2);
  if (isLoss) dropWindows(state, i, size - 2);
  state[i + RATE] = isLoss
    ? (state[i + RATES] + state[i + RATES + 1]) / 2
    : medianRate(state, i, false);
  state[i + LIMIT_RTT] = 1 / medianRate(state, i, true);
  return isLoss;
}

/** Also for each call of its limit: a lower limit alone is no loss. */
function isFarBelow(state: State, i: number, n: number): boolean {
  const rate = state[i + RATES + n];
  if (rate >= SUDDEN * medianRate(state, i, false)) return false;
  return rate / state[i + LIMITS + n] < SUDDEN * medianRate(state, i, true);
}

/** Adds the window to the whole limit that it had. */
function addLevel(state: State, i: number, lower: number, now: Millis): void {
  const calls = state[i + CALLS];
  const rate = windowRate(state, i, now);
  const isUpper = state[i + LIMIT] > lower;
  state[i + (isUpper ? UPPER_CALLS : LOWER_CALLS)] += calls;
  state[i + (isUpper ? UPPER_TIME : LOWER_TIME)] += calls / rate;
  if (lower === 1) {
    // Two calls are tried rarely: the last tries count, not a number of calls.
    const [callsAt, timeAt] = isUpper ? [UPPER_CALLS, UPPER_TIME] : [LOWER_CALLS, LOWER_TIME];
    const part = Math.min(1, MEMORY_CALLS_OF_ONE / state[i + callsAt]);
    state[i + callsAt] *= part;
    state[i + timeAt] *= part;
  } else if (state[i + UPPER_CALLS] + state[i + LOWER_CALLS] > MEMORY_CALLS) forgetLevels(state, i);
}

const upperRate = (state: State, i: number): number =>
  state[i + UPPER_CALLS] === 0 ? 0 : state[i + UPPER_CALLS] / state[i + UPPER_TIME];

const lowerRate = (state: State, i: number): number =>
  state[i + LOWER_CALLS] === 0 ? 0 : state[i + LOWER_CALLS] / state[i + LOWER_TIME];

/** The knee by the mean rate of both whole limits. One call alone has no queue: its RTT is the base RTT. */
function kneeOfSmall(state: State, i: number, lower: number, now: Millis): number {
  const alone = lowerRate(state, i);
  if (lower === 1 && alone > 0) {
    state[i + BASE_RTT] = Math.min(state[i + BASE_RTT], 1 / alone);
    const gain = upperRate(state, i) / alone;
    const hasCalls = state[i + UPPER_CALLS] > CALLS_OF_SECOND * variation(state, i);
    if (!hasCalls) state[i + CREDIT] += CREDIT_OF_SECOND;
    else if (gain > GAIN_OF_SECOND) beginStart(state, i, now);
    return 1;
  }
  let calls = 0;
  let time = 0;
  for (let n = 0; n < state[i + RING_SIZE]; n++) {
    calls += state[i + COUNTS + n];
    time += state[i + COUNTS + n] / state[i + RATES + n];
  }
  return (calls / time) * state[i + BASE_RTT];
}

/** A server that has become quicker, without a test. */
function learnQuicker(state: State, i: number, rttMs: Millis): void {
  const isQuicker = rttMs < MUCH_QUICKER * state[i + BASE_RTT];
  state[i + QUICKER] = isQuicker ? state[i + QUICKER] + 1 : 0;
  if (state[i + QUICKER] < QUICKER_WINDOWS) return;
  state[i + BASE_RTT] = rttMs;
  dropWindows(state, i, state[i + RING_SIZE] - QUICKER_WINDOWS);
  state[i + RATE] = medianRate(state, i, false);
  state[i + LIMIT_RTT] = 1 / medianRate(state, i, true);
  state[i + QUICKER] = 0;
}

function askForTest(state: State, i: number, wanted: number, now: Millis): void {
  const anchor = state[i + ANCHOR];
  const isOutOfBounds = wanted < MAX_SHRINK * anchor || wanted > MAX_GROWTH * anchor;
  state[i + OUT_OF_BOUNDS] = isOutOfBounds ? state[i + OUT_OF_BOUNDS] + 1 : 0;
  if (state[i + OUT_OF_BOUNDS] < OUT_OF_BOUNDS_WINDOWS) return;
  if (nextTest(now) - now < SOON_MS) return; // a test alone would miss the common one
  state[i + NEXT_TEST_AT] = Math.min(state[i + NEXT_TEST_AT], nextMultiple(now, TEST_SLOT_MS));
}

/** The wanted limit, no further from where the last test left it than the bounds. */
function bounded(state: State, i: number, wanted: number): number {
  const anchor = state[i + ANCHOR];
  const isQueueShort = state[i + TARGET] / state[i + RATE] < SHORT_QUEUE * state[i + BASE_RTT];
  const mayBeNoise = state[i + TESTS] > 0 && isQueueShort;
  const least = (mayBeNoise ? SLOW_SHRINK : MAX_SHRINK) * anchor;
  return Math.max(least, Math.min(MAX_GROWTH * anchor, wanted));
}
