/**
 * The test of the knee rule: for a moment fewer calls, then more of them.
 *
 *     limit  ──────┐          ┌───┐
 *            hold  │          │up │   hold
 *                  └──────────┘   └────────
 *                      down
 *
 * - down: a quarter less than the knee. Without a queue, the RTT is the base RTT.
 * - up: three tenths more than before. If calls are no slower, there was no queue at the limit, and the test goes on
 *   upwards. If they are slower, the server is at its knee.
 */

import type { Millis } from '../../core/clock.ts';
import type { State } from '../policy.ts';
import {
  ANCHOR,
  BASE_RTT,
  BUSY_TIME,
  BY_TEST,
  CALLS,
  CREDIT,
  DOWN,
  DRAIN,
  END_AT,
  hasPace,
  IN_FLIGHT,
  KEPT,
  type KneeTerms,
  LAST_CHANGE,
  LEVEL,
  LOSS_FROM,
  LOW_RTT,
  LOWER_CALLS,
  LOWER_TIME,
  MEAN_RTT,
  MODE,
  NEXT_TEST_AT,
  ON_GRID,
  OPENED_AT,
  RAISED,
  RATE,
  REACHED,
  RING_SIZE,
  RTT_CALLS,
  START_CALLS,
  START_SUM,
  STUCK,
  TARGET,
  TESTS,
  TOP,
  TOP_RTT,
  UP,
} from './state.ts';
import {
  headroom,
  hold,
  isMeasured,
  limitFor,
  nextMultiple,
  nextTest,
  noise,
  openWindow,
  setTarget,
  TEST_SLOT_MS,
  variation,
  wholeOf,
  windowRtt,
} from './window.ts';

/** The part of the knee that the lower level has, and for how long. */
const DEPTH = 0.85;
/** The least part of the calls that counts as served, the rest is in a queue. */
const MIN_SERVED = 0.45;
const LOW_GROWTH = 1.05;
const DOWN_MS = 1200;
const DOWN_RTTS = 6;
const MIN_CALLS = 8;
/** A test for which calls do not settle ends after this long. */
const MAX_DRAIN_MS = 2000;
/** The lower level goes on for up to twice as long, until it has so many calls, times the variation of RTTs. */
const DOWN_CALLS = 100;

/** Each higher level has this many times the calls of the one before. */
const HEIGHT = 1.3;
const UP_MS = 1500;
const UP_RTTS = 6;
const UP_CALLS = 150;
/** It ends earlier, after this many calls, if the result is so many standard errors clear. */
const CLEAR_CALLS = 40;
const CLEAR_ERRORS = 1.5;
/** With a longer queue than this there is no need to try more calls. */
const SHORT_QUEUE = 1.12;
const MAX_SLOWER = 1.12;
const SLOWER_ERRORS = 0.5;
/** Calls of windows before the test that count as a level. */
const KNOWN_CALLS = 300;

const MAX_SHRINK = 0.65;
/** After a test, none for so many base RTTs. */
const REST_RTTS = 8;
/** Windows that must have measured the rate before a test. */
const MIN_WINDOWS = 3;
/** After a sudden loss, a server whose base RTT is this much longer is slower. */
const LOST_SPEED = 1.4;
const FASTER = 1.3;

/** Fewer calls are never slower: a test counts at most for this multiple of the RTT before it. */
const MAX_RATIO = 1.1;
/** Weight of a test in the base RTT, unless the change is large, or repeats the last one. */
const WEIGHT = 0.5;
const LARGE_CHANGE = 0.25;
const REPEATED_CHANGE = 0.05;
const ALONE_RISE = 1.15;
const MUCH_SLOWER = Math.log(2);

/** Begins a test, if the rate at the limit is known. */
export function beginTest(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const isLoss = state[i + LOSS_FROM] > 0;
  const isCommon = !isLoss && state[i + NEXT_TEST_AT] === nextTest(state[i + NEXT_TEST_AT] - 1);
  state[i + ON_GRID] = isCommon || state[i + TESTS] === 0 ? 1 : 0;
  state[i + NEXT_TEST_AT] = nextTest(now);
  if (state[i + REACHED] === 0) return;
  if (!isLoss && state[i + RING_SIZE] < MIN_WINDOWS) {
    state[i + NEXT_TEST_AT] = nextMultiple(now, TEST_SLOT_MS);
    return;
  }
  state[i + ANCHOR] = state[i + TARGET];
  const top = wholeOf(state[i + TARGET]);
  if (top <= 1) {
    // One call alone has no queue of its own: its RTT is the base RTT. Tries two calls in a window.
    if (state[i + LOWER_CALLS] > 0)
      learnAlone(state, i, state[i + LOWER_TIME] / state[i + LOWER_CALLS]);
    state[i + CREDIT] = Math.max(1, state[i + CREDIT]);
    return;
  }
  state[i + TOP] = top;
  state[i + TOP_RTT] = state[i + MEAN_RTT];
  const served = Math.min(
    1,
    Math.max(MIN_SERVED, Math.min(state[i + BASE_RTT], state[i + LOW_RTT]) / state[i + MEAN_RTT]),
  );
  const level = Math.max(1, Math.min(Math.round(DEPTH * served * top), top - 1));
  state[i + LEVEL] = level;
  state[i + MODE] = DRAIN;
  setTarget(state, i, terms, level, BY_TEST);
  openWindow(state, i, now);
}

/** Waits until no more calls than tested are in flight. */
export function stepDrain(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const moving = state[i + IN_FLIGHT] - state[i + STUCK];
  if (moving > state[i + LEVEL] + state[i + KEPT]) {
    const maxMs = Math.max(MAX_DRAIN_MS, DOWN_RTTS * state[i + BASE_RTT]);
    if (now - state[i + OPENED_AT] > maxMs) hold(state, i, terms, now, state[i + ANCHOR], BY_TEST);
    return;
  }
  state[i + MODE] = DOWN;
  state[i + END_AT] = now + Math.max(DOWN_MS, DOWN_RTTS * state[i + BASE_RTT]);
  openWindow(state, i, now);
}

export function stepDown(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const calls = state[i + CALLS];
  if (now < state[i + END_AT] || calls < MIN_CALLS) return;
  const longest = 2 * state[i + END_AT] - state[i + OPENED_AT];
  if (calls < DOWN_CALLS * variation(state, i) && now < longest) return;
  if (!isMeasured(state, i, now)) {
    hold(state, i, terms, now, state[i + ANCHOR], BY_TEST); // too little demand to measure anything
    return;
  }
  state[i + NEXT_TEST_AT] = nextTest(now + REST_RTTS * state[i + BASE_RTT]);
  const level = state[i + LEVEL];
  const rttMs = state[i + BUSY_TIME] / calls;
  if (state[i + LOSS_FROM] > 0) endLoss(state, i, terms, rttMs, now);
  else if (
    level / Math.max(rttMs, windowRtt(state, i)) >
    FASTER * Math.exp(noise(state, i, calls)) * state[i + RATE]
  ) {
    // Fewer calls bring more: the server has become quicker.
    state[i + BASE_RTT] = Math.min(state[i + BASE_RTT], rttMs);
    state[i + RING_SIZE] = 0;
    hold(state, i, terms, now, state[i + TOP], BY_TEST);
  } else {
    const top = state[i + TOP];
    const topRtt = state[i + TOP_RTT];
    state[i + RATE] = Math.max(state[i + RATE], level / rttMs);
    learnBase(state, i, Math.min(rttMs, MAX_RATIO * topRtt));
    if (state[i + ON_GRID] === 1)
      state[i + LOW_RTT] = Math.min(state[i + BASE_RTT], LOW_GROWTH * state[i + LOW_RTT]);
    const target = Math.max(
      MAX_SHRINK * top,
      Math.min(top + headroom(top), limitFor(state[i + RATE] * state[i + BASE_RTT])),
    );
    if (state[i + ON_GRID] === 0 || hasPace(state, i) || topRtt > SHORT_QUEUE * state[i + BASE_RTT])
      hold(state, i, terms, now, target, BY_TEST);
    else {
      const known = Math.min(KNOWN_CALLS, state[i + RTT_CALLS]);
      beginUp(state, i, terms, top, known, known * topRtt, target, now);
    }
  }
}

/** After a sudden loss, the server is slower, or it has fewer workers, or both. */
function endLoss(state: State, i: number, terms: KneeTerms, rttMs: Millis, now: Millis): void {
  const before = state[i + LOSS_FROM];
  const level = state[i + LEVEL];
  state[i + RATE] = level / rttMs;
  if (rttMs > LOST_SPEED * state[i + BASE_RTT]) {
    // Calls without a queue are slower than before the loss: the server lost speed, not capacity.
    state[i + BASE_RTT] = rttMs;
    hold(state, i, terms, now, before, BY_TEST);
  } else {
    hold(state, i, terms, now, limitFor(level / DEPTH), BY_TEST);
  }
}

/**
 * Tries more calls than `from`. Calls there took `sum` in all, without a queue if the next level is no slower.
 * If it is, the limit becomes `target`.
 */
function beginUp(
  state: State,
  i: number,
  terms: KneeTerms,
  from: number,
  calls: number,
  sum: Millis,
  target: number,
  now: Millis,
): void {
  state[i + START_CALLS] = calls;
  state[i + START_SUM] = sum;
  state[i + TOP_RTT] = sum / calls;
  state[i + ANCHOR] = target;
  raise(state, i, terms, from, now);
}

function raise(state: State, i: number, terms: KneeTerms, from: number, now: Millis): void {
  const level = Math.min(terms.max, Math.max(from + 1, Math.round(HEIGHT * from)));
  if (level <= from) {
    hold(state, i, terms, now, state[i + ANCHOR], BY_TEST);
    return;
  }
  state[i + TOP] = from;
  state[i + LEVEL] = level;
  state[i + MODE] = UP;
  state[i + RAISED] = 1;
  state[i + END_AT] = now + Math.max(UP_MS, UP_RTTS * state[i + BASE_RTT]);
  setTarget(state, i, terms, level, BY_TEST);
  openWindow(state, i, now);
}

export function stepUp(
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
  const calls = state[i + CALLS];
  if (calls < MIN_CALLS) return;
  const level = state[i + LEVEL];
  const known = state[i + START_CALLS];
  const knownRtt = state[i + START_SUM] / known;
  const rttMs = state[i + BUSY_TIME] / calls;
  const step = Math.log(level / state[i + TOP]);
  const gain = 1 - Math.log(rttMs / knownRtt) / step; // of the rate, relative to calls: 0 at the knee, 1 without a queue
  const error = Math.hypot(noise(state, i, calls), noise(state, i, known)) / step;
  const isClear =
    calls >= Math.max(level, CLEAR_CALLS * variation(state, i)) &&
    Math.abs(gain - 0.5) > CLEAR_ERRORS * error;
  if (!isClear && calls < UP_CALLS * variation(state, i) && now < state[i + END_AT]) return;
  const isSlower = rttMs > MAX_SLOWER * Math.exp(SLOWER_ERRORS * error * step) * state[i + TOP_RTT];
  if (gain < 0.5 || isSlower || !isMeasured(state, i, now)) {
    hold(state, i, terms, now, state[i + ANCHOR], BY_TEST);
    return;
  }
  state[i + START_CALLS] += calls;
  state[i + START_SUM] += calls * rttMs;
  const baseRtt = state[i + START_SUM] / state[i + START_CALLS];
  if (state[i + ON_GRID] === 1) state[i + BASE_RTT] = Math.max(state[i + BASE_RTT], SAME * baseRtt);
  state[i + RATE] = level / baseRtt;
  state[i + RING_SIZE] = 0;
  state[i + ANCHOR] = level;
  raise(state, i, terms, level, now);
}
const SAME = 0.97;

/** The queue of other clients is in it, too: it rises slowly. */
function learnAlone(state: State, i: number, rttMs: Millis): void {
  state[i + BASE_RTT] = Math.min(rttMs, ALONE_RISE * state[i + BASE_RTT]);
}

/** Averages tests that agree, because one has few calls. A large change, or one that goes on, counts in full. */
function learnBase(state: State, i: number, rttMs: Millis): void {
  const change = Math.log(rttMs / state[i + BASE_RTT]);
  const last = state[i + LAST_CHANGE];
  const isRepeated = change * last > 0 && Math.abs(last) > REPEATED_CHANGE;
  const isFirst = state[i + TESTS] === 0;
  // Alone, a test cannot tell a slower server from other clients, which kept their calls.
  if (change > 0 && change < MUCH_SLOWER && state[i + ON_GRID] === 0) return;
  const isFull = isFirst || isRepeated || Math.abs(change) > LARGE_CHANGE;
  state[i + BASE_RTT] *= Math.exp((isFull ? 1 : WEIGHT) * change);
  state[i + LAST_CHANGE] = change;
  state[i + TESTS] += 1;
}
