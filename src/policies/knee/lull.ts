/**
 * The test of the knee rule: a lull. Three tenths fewer calls for a moment; are they quicker?
 *
 * If they are not, there was no queue. If they are quicker in proportion to the calls left out, all of these had been in
 * a queue, and the next stage goes lower still.
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
  DRAIN,
  END_AT,
  IN_FLIGHT,
  KEPT,
  type KneeTerms,
  LAST_CHANGE,
  LAST_LEVEL,
  LAST_RTT,
  LEVEL,
  LOSS_FROM,
  LOWER_CALLS,
  LOWER_TIME,
  MEAN_RTT,
  MODE,
  NEXT_TEST_AT,
  ON_GRID,
  OPENED_AT,
  RATE,
  REACHED,
  RING_SIZE,
  STAGE,
  STUCK,
  TARGET,
  TEST,
  TESTS,
  TOP,
  TOP_RATE,
} from './state.ts';
import {
  headroom,
  hold,
  isReached,
  limitFor,
  nextMultiple,
  nextTest,
  openWindow,
  setTarget,
  TEST_SLOT_MS,
  variation,
  wholeOf,
  windowRtt,
} from './window.ts';

/** A test lets this part of the calls through, for so long. */
const DEPTH = 0.7;
const TEST_MS = 1200;
const TEST_RTTS = 6;
const MIN_CALLS = 8;
/** A test for which calls do not settle ends after this long. */
const MAX_DRAIN_MS = 2000;
/** After a test, none for so many base RTTs. */
const REST_RTTS = 8;
/** It goes on for up to twice as long, until it has so many calls, times the variation of RTTs. */
const ENOUGH_CALLS = 100;

/** Windows that must have measured the rate before a test. */
const MIN_WINDOWS = 3;
const MIN_WINDOWS_AFTER_LOSS = 2;
const MAX_STAGES = 4;
/** Above this one there was no queue before the test, and the RTT then was the base RTT but for this part. */
const NO_QUEUE = 0.9;
const SAME = 0.97;
/** After a sudden loss, a server whose base RTT is this much longer is slower. */
const LOST_SPEED = 1.4;
/** Below this elasticity, calls are quicker in proportion: the tested level queues, too. */
const SATURATED = 0.4;

/** Below this one, the server itself is quicker. */
const FASTER = -0.7;

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
  const isCommon = state[i + NEXT_TEST_AT] === nextTest(state[i + NEXT_TEST_AT] - 1);
  state[i + ON_GRID] = isCommon || state[i + TESTS] === 0 ? 1 : 0;
  state[i + NEXT_TEST_AT] = nextTest(now);
  if (state[i + REACHED] === 0) return;
  if (state[i + RING_SIZE] < (state[i + LOSS_FROM] > 0 ? MIN_WINDOWS_AFTER_LOSS : MIN_WINDOWS)) {
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
  state[i + TOP_RATE] = state[i + RATE];
  state[i + LAST_LEVEL] = top;
  state[i + LAST_RTT] = state[i + MEAN_RTT];
  state[i + STAGE] = 0;
  lower(state, i, terms, top, now);
}

function lower(state: State, i: number, terms: KneeTerms, from: number, now: Millis): void {
  const level = Math.max(1, Math.min(Math.round(DEPTH * from), from - 1));
  state[i + LEVEL] = level;
  state[i + STAGE] += 1;
  state[i + MODE] = DRAIN;
  setTarget(state, i, terms, level, BY_TEST);
  openWindow(state, i, now);
}

/** Waits until no more calls than tested are in flight. */
export function stepDrain(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const moving = state[i + IN_FLIGHT] - state[i + STUCK];
  if (moving > state[i + LEVEL] + state[i + KEPT]) {
    const maxMs = Math.max(MAX_DRAIN_MS, TEST_RTTS * state[i + BASE_RTT]);
    if (now - state[i + OPENED_AT] > maxMs) hold(state, i, terms, now, state[i + ANCHOR], BY_TEST);
    return;
  }
  state[i + MODE] = TEST;
  state[i + END_AT] = now + Math.max(TEST_MS, TEST_RTTS * state[i + BASE_RTT]);
  openWindow(state, i, now);
}

export function stepTest(state: State, i: number, terms: KneeTerms, now: Millis): void {
  const calls = state[i + CALLS];
  if (now < state[i + END_AT] || calls < MIN_CALLS) return;
  const longest = 2 * state[i + END_AT] - state[i + OPENED_AT];
  if (calls < ENOUGH_CALLS * variation(state, i) && now < longest) return;
  if (!isReached(state, i, now)) {
    hold(state, i, terms, now, state[i + ANCHOR], BY_TEST); // too little demand to measure anything
    return;
  }
  const level = state[i + LEVEL];
  const rate = (calls * level) / state[i + BUSY_TIME]; // at the level: slots on top may be in use, too
  const isDeeper = state[i + STAGE] < MAX_STAGES && level > 1;
  if (elasticity(state, i) < FASTER) {
    // Far quicker than fewer calls explain: the server has become faster meanwhile.
    state[i + BASE_RTT] = Math.min(state[i + BASE_RTT], windowRtt(state, i));
    state[i + NEXT_TEST_AT] = nextTest(now);
    hold(state, i, terms, now, state[i + TOP], BY_TEST);
  } else if (isDeeper && elasticity(state, i) < SATURATED) {
    state[i + TOP_RATE] = Math.max(state[i + TOP_RATE], rate);
    state[i + LAST_LEVEL] = level;
    state[i + LAST_RTT] = windowRtt(state, i);
    lower(state, i, terms, level, now);
  } else endTest(state, i, terms, level, rate, now);
}

/** Of the rate to calls in flight: 1 if calls are no quicker than at the last level, 0 if they are in proportion. */
function elasticity(state: State, i: number): number {
  const quicker = Math.log(state[i + LAST_RTT] / windowRtt(state, i));
  return 1 - quicker / Math.log(state[i + LAST_LEVEL] / state[i + LEVEL]);
}

function endTest(
  state: State,
  i: number,
  terms: KneeTerms,
  level: number,
  rate: number,
  now: Millis,
): void {
  const top = state[i + TOP];
  const rttMs = level / rate;
  let target = top + headroom(top);
  if (state[i + LOSS_FROM] > 0 && rttMs > LOST_SPEED * state[i + BASE_RTT]) {
    // Calls without a queue are slower than before the loss: the server lost speed, not capacity.
    state[i + BASE_RTT] = rttMs;
    state[i + RATE] = rate;
    target = Math.max(target, state[i + LOSS_FROM]);
  } else {
    state[i + RATE] = Math.max(state[i + TOP_RATE], rate);
    learnBase(state, i, Math.min(rttMs, (MAX_RATIO * top) / state[i + RATE]));
    // Without a queue the windows before the test measured the base RTT as well, on far more calls.
    if (state[i + ON_GRID] === 1 && state[i + STAGE] === 1 && elasticity(state, i) > NO_QUEUE)
      state[i + BASE_RTT] = Math.max(state[i + BASE_RTT], (SAME * top) / state[i + TOP_RATE]);
    target = Math.min(target, limitFor(state[i + RATE] * state[i + BASE_RTT]));
  }
  state[i + LOSS_FROM] = 0;
  const restMs = REST_RTTS * state[i + BASE_RTT];
  state[i + NEXT_TEST_AT] = nextTest(now + restMs);
  hold(state, i, terms, now, target, BY_TEST);
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
  if (change > 0 && change < MUCH_SLOWER && state[i + ON_GRID] === 0) return;
  const isFull = isFirst || isRepeated || Math.abs(change) > LARGE_CHANGE;
  state[i + BASE_RTT] *= Math.exp((isFull ? 1 : WEIGHT) * change);
  state[i + LAST_CHANGE] = change;
  state[i + TESTS] += 1;
}
