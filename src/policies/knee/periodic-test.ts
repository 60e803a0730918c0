/**
 * The test of the knee rule: for a moment fewer calls, then more of them.
 *
 *     limit  ──────┐          ┌───┐
 *            hold  │          │up │   hold
 *                  └──────────┘   └────────
 *                      down
 *
 * - down: less than the knee. Without a queue, the RTT is the base RTT.
 * - up: three tenths more than before. If calls are no slower, there was no queue at the limit, and the test goes on
 *   upwards. If they are slower, the server is at its knee.
 */

import type { Millis } from '../../core/clock.ts';
import type { State } from '../policy.ts';
import {
  ANCHOR,
  BASE_RTT,
  BY_TEST,
  CALLS,
  CREDIT,
  DOWN,
  DRAIN,
  END_AT,
  hasPace,
  IN_FLIGHT,
  IS_COMMON,
  KEPT,
  type KneeTerms,
  LAST_CHANGE,
  LEVEL,
  LIMIT_BEFORE_LOSS,
  LIMIT_RTT,
  LOWER_CALLS,
  LOWER_TIME,
  LOWEST_BASE_RTT,
  MODE,
  NEXT_TEST_AT,
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
  UP,
} from './state.ts';
import {
  busyRtt,
  headroom,
  hold,
  isMeasured,
  limitFor,
  nextMultiple,
  nextTest,
  noise,
  openWindow,
  SMALL,
  setTarget,
  TEST_SLOT_MS,
  variation,
  wholeOf,
  windowRtt,
} from './window.ts';

/** The lower level has this part of the calls that are served; the others are in a queue, but at most so many. */
const DEPTH = 0.85;
const MIN_SERVED = 0.45;
/** The lower level lasts so long, or up to twice as long until it has so many calls, times the variation of RTTs. */
const DOWN_MS = 1200;
const DOWN_RTTS = 6;
const DOWN_CALLS = 100;
const MIN_CALLS = 8;
/** A test for which calls do not settle ends after this long. */
const MAX_DRAIN_MS = 2000;
/** Windows that must have measured the rate before a test; one is enough to join in a common one. */
const MIN_WINDOWS = 3;
/** After a common test, none for so many base RTTs. */
const REST_RTTS = 8;

/** A higher level has this many times the calls of the one before, for at most so long and so many calls. */
const HEIGHT = 1.3;
/** From less than this level, it has more: few calls tell only large steps. */
const FEW = 8;
const HEIGHT_OF_FEW = 1.6;
const UP_MS = 1500;
const UP_RTTS = 6;
const UP_CALLS = 150;
/** It ends earlier, after this many calls, if the result is so many standard errors clear. */
const CLEAR_CALLS = 40;
const CLEAR_ERRORS = 1.5;
/** At this elasticity of the rate, the higher level counts as better. */
const MIN_GAIN = 0.5;
/** With a longer queue than this there is no need to try more calls. */
const SHORT_QUEUE = 1.12;
/** The windows before the test count as a level of so many calls. */
const KNOWN_CALLS = 300;
/** Without a queue, the RTT of all levels is the base RTT but for this part. */
const SAME = 0.97;

/** After a test, the limit is at least this part of the one before. */
const MAX_SHRINK = 0.65;
/** After a sudden loss, a server whose base RTT is this much longer is slower. */
const LOST_SPEED = 1.4;
/** A base RTT that falls by this factor is no random variation. */
const MUCH_QUICKER = 0.7;
/** Fewer calls that bring this much more show a quicker server. */
const FASTER = 1.3;

/** Fewer calls are never slower: a test counts at most for this multiple of the RTT before it. */
const MAX_RATIO = 1.1;
/** Weight of a test in the base RTT, unless the change is large, or repeats the last one. */
const WEIGHT = 0.5;
const LARGE_CHANGE = 0.25;
const REPEATED_CHANGE = 0.05;
const ALONE_RISE = 1.15;
const MUCH_SLOWER = Math.log(2);
/** The lowest base RTT rises by at most this factor in a test: queues that many clients have built up go down again. */
const LOWEST_GROWTH = 1.05;

/** Begins a test, if the rate at the limit is known. */
export function beginTest(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const isLoss = state[i + LIMIT_BEFORE_LOSS] > 0;
  const isCommon = !isLoss && state[i + NEXT_TEST_AT] === nextTest(state[i + NEXT_TEST_AT] - 1);
  state[i + IS_COMMON] = isCommon || state[i + TESTS] === 0 ? 1 : 0;
  state[i + NEXT_TEST_AT] = nextTest(now);
  if (state[i + REACHED] === 0) return;
  const minWindows = isLoss ? 0 : isCommon && state[i + TESTS] > 0 ? 1 : MIN_WINDOWS;
  if (state[i + RING_SIZE] < minWindows) {
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
  const baseRtt = Math.min(state[i + BASE_RTT], state[i + LOWEST_BASE_RTT]);
  const served = Math.min(1, Math.max(MIN_SERVED, baseRtt / state[i + LIMIT_RTT]));
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

/** Measures the RTT at the lower level. */
export function stepDown(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const calls = state[i + CALLS];
  if (now < state[i + END_AT] || calls < MIN_CALLS) return;
  const longest = 2 * state[i + END_AT] - state[i + OPENED_AT];
  if (calls < DOWN_CALLS * variation(state, i) && now < longest) return;
  if (!isMeasured(state, i, now)) {
    hold(state, i, terms, now, state[i + ANCHOR], BY_TEST); // too little demand to measure anything
    return;
  }
  const restMs = state[i + IS_COMMON] === 1 ? REST_RTTS * state[i + BASE_RTT] : 0;
  state[i + NEXT_TEST_AT] = nextTest(now + restMs);
  const rttMs = busyRtt(state, i);
  if (state[i + LIMIT_BEFORE_LOSS] > 0) endLoss(state, i, terms, rttMs, now);
  else if (isFaster(state, i)) {
    state[i + BASE_RTT] = Math.min(state[i + BASE_RTT], rttMs);
    state[i + RING_SIZE] = 0;
    hold(state, i, terms, now, state[i + TOP], BY_TEST);
  } else endDown(state, i, terms, rttMs, now);
}

/** Fewer calls bring more: the server has become quicker since the windows before the test. */
function isFaster(state: State, i: number): boolean {
  const calls = state[i + CALLS];
  const rttMs = Math.max(busyRtt(state, i), windowRtt(state, i));
  const most = FASTER * Math.exp(noise(state, i, calls)) * state[i + RATE];
  return state[i + LEVEL] / rttMs > most;
}

/** After a sudden loss, the server is slower, or it has fewer workers. */
function endLoss(state: State, i: number, terms: KneeTerms, rttMs: Millis, now: Millis): void {
  const level = state[i + LEVEL];
  const isSlower = rttMs > LOST_SPEED * state[i + BASE_RTT]; // although there is no queue
  state[i + RATE] = level / rttMs;
  if (isSlower) state[i + BASE_RTT] = rttMs;
  const target = isSlower ? state[i + LIMIT_BEFORE_LOSS] : limitFor(level / DEPTH);
  hold(state, i, terms, now, target, BY_TEST);
}

function endDown(state: State, i: number, terms: KneeTerms, rttMs: Millis, now: Millis): void {
  const top = state[i + TOP];
  const topRtt = state[i + LIMIT_RTT];
  const isCommon = state[i + IS_COMMON] === 1;
  const isQuicker = rttMs < MUCH_QUICKER * state[i + BASE_RTT];
  state[i + RATE] = Math.max(state[i + RATE], state[i + LEVEL] / rttMs);
  learnBase(state, i, Math.min(rttMs, MAX_RATIO * topRtt));
  if (isCommon) {
    const most = LOWEST_GROWTH * state[i + LOWEST_BASE_RTT];
    state[i + LOWEST_BASE_RTT] = Math.min(state[i + BASE_RTT], most);
  }
  const wanted = limitFor(state[i + RATE] * state[i + BASE_RTT]);
  const target = Math.max(MAX_SHRINK * top, Math.min(top + headroom(top), wanted));
  // The base RTT of a small limit comes from few calls: too low, and the limit would never grow.
  const slack = top < SMALL ? Math.exp(noise(state, i, state[i + CALLS])) : 1;
  const isQueueShort = topRtt <= SHORT_QUEUE * slack * state[i + BASE_RTT];
  // Alone, more calls would only take the places of other clients in a common queue.
  if (!isCommon || hasPace(state, i) || !(isQueueShort || isQuicker)) {
    hold(state, i, terms, now, target, BY_TEST);
    return;
  }
  state[i + ANCHOR] = target;
  if (isQuicker) {
    // A queue that was not known, or a server that has become quicker: goes up again from the lower level.
    state[i + START_CALLS] = state[i + CALLS];
    state[i + START_SUM] = state[i + CALLS] * rttMs;
    raise(state, i, terms, state[i + LEVEL], now);
  } else {
    state[i + START_CALLS] = Math.min(KNOWN_CALLS, state[i + RTT_CALLS]);
    state[i + START_SUM] = state[i + START_CALLS] * topRtt;
    raise(state, i, terms, top, now);
  }
}

/** Lets more calls than `from` through. */
function raise(state: State, i: number, terms: KneeTerms, from: number, now: Millis): void {
  const height = from < FEW ? HEIGHT_OF_FEW : HEIGHT;
  const level = Math.min(terms.max, Math.max(from + 1, Math.round(height * from)));
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
  const rttMs = busyRtt(state, i);
  const step = Math.log(level / state[i + TOP]);
  const gain = 1 - Math.log(rttMs / knownRtt) / step; // elasticity of the rate: 1 without a queue, 0 with one
  const error = Math.hypot(noise(state, i, calls), noise(state, i, known)) / step;
  const isClear =
    calls >= Math.max(level, CLEAR_CALLS * variation(state, i)) &&
    Math.abs(gain - MIN_GAIN) > CLEAR_ERRORS * error;
  if (!isClear && calls < UP_CALLS * variation(state, i) && now < state[i + END_AT]) return;
  if (gain < MIN_GAIN || !isMeasured(state, i, now)) {
    hold(state, i, terms, now, state[i + ANCHOR], BY_TEST);
    return;
  }
  state[i + START_CALLS] += calls;
  state[i + START_SUM] += calls * rttMs;
  const baseRtt = state[i + START_SUM] / state[i + START_CALLS];
  if (state[i + IS_COMMON] === 1)
    state[i + BASE_RTT] = Math.max(state[i + BASE_RTT], SAME * baseRtt);
  state[i + RATE] = level / baseRtt;
  state[i + RING_SIZE] = 0;
  state[i + ANCHOR] = level;
  raise(state, i, terms, level, now);
}

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
  if (change > 0 && change < MUCH_SLOWER && state[i + IS_COMMON] === 0) return;
  const isFull = isFirst || isRepeated || Math.abs(change) > LARGE_CHANGE;
  state[i + BASE_RTT] *= Math.exp((isFull ? 1 : WEIGHT) * change);
  state[i + LAST_CHANGE] = change;
  state[i + TESTS] += 1;
}
