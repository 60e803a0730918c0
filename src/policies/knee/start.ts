/** The start of the knee rule: the limit doubles while calls are no slower. The first slower level ends it. */

import type { Millis } from '../../core/clock.ts';
import type { State } from '../policy.ts';
import {
  BASE_RTT,
  BUSY_TIME,
  BY_START,
  CALLS,
  CAREFUL,
  type KneeTerms,
  LIMIT,
  LOWEST_BASE_RTT,
  MODE,
  NEXT_TEST_AT,
  OPENED_AT,
  RAISED,
  RATE,
  RING_SIZE,
  START,
  START_CALLS,
  START_ENDED,
  START_RATE,
  START_SUM,
  TARGET,
} from './state.ts';
import {
  busyRtt,
  hold,
  isDemanded,
  isKnown,
  isReached,
  limitFor,
  MIN_RTT_MS,
  nextMultiple,
  noise,
  openWindow,
  setTarget,
  TEST_SLOT_MS,
} from './window.ts';

/** Calls at each level, and at the small levels of a second attempt. */
const LEVEL_CALLS = 8;
const CAREFUL_CALLS = 30;
/** How much slower ends the start, on top of the noise of so few calls. */
const SLOWER = 1.2;
const DEVIATIONS = 1;
const CAREFUL_DEVIATIONS = 1.5;
/** Levels up to this much slower than the ones before still measure the base RTT. */
const SAME = 1.25;
/** A level that takes this many times as long as it should is slower. */
const LATE = 3;
/** A start that ends at so small a limit may have been misled by few calls: it begins again at a quarter of it. */
const YOUNG = 16;
const AGAIN = 0.25;
/** The level that was slower may belong to other clients: at most a little above the one before it. */
const BACK = 0.625;
/** The base RTT of before, after a silence, counts as so many calls. */
const KNOWN_CALLS = 50;
/** The first test comes so many RTTs later, at a whole second. */
const FIRST_TEST_RTTS = 5;

/** Begins anew at the present limit. A base RTT that is known already is the one to compare with. */
export function beginStart(state: State, i: number, now: Millis): void {
  state[i + MODE] = START;
  state[i + START_CALLS] = isKnown(state, i) ? KNOWN_CALLS : 0;
  state[i + START_SUM] = isKnown(state, i) ? KNOWN_CALLS * state[i + BASE_RTT] : 0;
  state[i + START_RATE] = 0;
  state[i + START_ENDED] = 0;
  state[i + RAISED] = 0;
  state[i + RING_SIZE] = 0;
  openWindow(state, i, now);
}

/** The mean RTT of the levels that were no slower; Infinity before the first. */
const startRtt = (state: State, i: number): Millis =>
  state[i + START_CALLS] === 0 ? Infinity : state[i + START_SUM] / state[i + START_CALLS];

export function stepStart(
  state: State,
  i: number,
  terms: KneeTerms,
  sentAt: Millis,
  now: Millis,
): void {
  if (state[i + RAISED] === 1) {
    // The calls of the last level must settle first; they would count for this one.
    if (sentAt < state[i + OPENED_AT]) return;
    state[i + RAISED] = 0;
    openWindow(state, i, now);
    return;
  }
  const span = now - state[i + OPENED_AT];
  const calls = state[i + CALLS];
  const known = state[i + START_CALLS];
  const limit = state[i + LIMIT];
  const isCareful = state[i + CAREFUL] === 1 && limit <= YOUNG / 2;
  const needed = Math.max(limit, isCareful ? CAREFUL_CALLS : LEVEL_CALLS);
  const expected = (startRtt(state, i) * needed) / limit;
  const isLate =
    known > 0 && calls < needed && span > LATE * expected * Math.exp(2 * noise(state, i, known));
  if (calls < needed && !isLate) return;
  if (calls === 0) {
    setTarget(state, i, terms, state[i + TARGET] / 2, BY_START);
    openWindow(state, i, now);
    return;
  }
  if (!isReached(state, i, now) && !isDemanded(state, i)) {
    openWindow(state, i, now);
    return;
  }
  if (known === 0 && limit > 1 && state[i + CAREFUL] === 0) {
    // There is nothing to compare a high first level with: measures a lower one first.
    state[i + CAREFUL] = 1;
    setTarget(state, i, terms, AGAIN * limit, BY_START);
    beginStart(state, i, now);
    return;
  }
  const rttMs = busyRtt(state, i);
  const deviation = Math.hypot(noise(state, i, calls), noise(state, i, known));
  const isSlower =
    rttMs >
    SLOWER *
      Math.exp((isCareful ? CAREFUL_DEVIATIONS : DEVIATIONS) * deviation) *
      startRtt(state, i);
  state[i + START_RATE] = Math.max(state[i + START_RATE], calls / Math.max(0.001, span));
  if (isLate || isSlower || state[i + TARGET] >= terms.max) endStart(state, i, terms, now);
  else raise(state, i, terms, calls, rttMs, now);
}

function raise(
  state: State,
  i: number,
  terms: KneeTerms,
  calls: number,
  rttMs: Millis,
  now: Millis,
): void {
  const known = state[i + START_CALLS];
  const deviation = Math.hypot(noise(state, i, calls), noise(state, i, known));
  const isSame = known === 0 || rttMs <= SAME * Math.exp(deviation) * startRtt(state, i);
  if (isSame && state[i + START_ENDED] === 0) {
    state[i + START_CALLS] += calls;
    state[i + START_SUM] += calls * rttMs;
  } else state[i + START_ENDED] = 1;
  setTarget(state, i, terms, 2 * state[i + LIMIT], BY_START);
  state[i + RAISED] = 1;
  openWindow(state, i, now);
}

function endStart(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const isMisled = state[i + START_CALLS] < CAREFUL_CALLS && state[i + LIMIT] <= YOUNG;
  if (isMisled && state[i + CAREFUL] === 0 && state[i + TARGET] < terms.max) {
    state[i + CAREFUL] = 1;
    setTarget(state, i, terms, AGAIN * state[i + LIMIT], BY_START);
    beginStart(state, i, now);
    return;
  }
  if (state[i + START_CALLS] === 0) addLevel(state, i);
  const isTop = state[i + TARGET] >= terms.max;
  finishStart(state, i, (isTop ? 1 : BACK) * state[i + LIMIT], terms, now, BY_START);
  state[i + NEXT_TEST_AT] = nextMultiple(now + FIRST_TEST_RTTS * state[i + BASE_RTT], TEST_SLOT_MS);
}

/** The maximum was reached at the first level. */
function addLevel(state: State, i: number): void {
  state[i + START_CALLS] = state[i + CALLS];
  state[i + START_SUM] = state[i + BUSY_TIME];
}

/** Holds the knee of what the start has measured, at most `most` calls. False if it has measured nothing. */
export function finishStart(
  state: State,
  i: number,
  most: number,
  terms: KneeTerms,
  now: Millis,
  cause: number,
): boolean {
  if (state[i + START_CALLS] === 0) return false;
  state[i + BASE_RTT] = Math.max(MIN_RTT_MS, startRtt(state, i));
  state[i + LOWEST_BASE_RTT] = state[i + BASE_RTT];
  state[i + RATE] = state[i + START_RATE];
  const knee = state[i + RATE] > 0 ? state[i + RATE] * state[i + BASE_RTT] : most;
  hold(state, i, terms, now, limitFor(Math.min(most, knee)), cause);
  return true;
}
