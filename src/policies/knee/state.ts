import type { Millis } from '../../core/clock.ts';
import type { LimitCause, State } from '../policy.ts';

/** The rate is the median of so many windows: one pause does not change it. */
export const WINDOWS = 7;

export const START = 0;
export const HOLD = 1;
export const DRAIN = 2;
export const DOWN = 3;
export const UP = 4;

/** Why the limit last changed; 0: it has not. */
export const CAUSES: readonly LimitCause[] = [
  'start',
  'start',
  'test',
  'rate',
  'refusal',
  'silence',
];
export const BY_START = 1;
export const BY_TEST = 2;
export const BY_RATE = 3;
export const BY_REFUSAL = 4;
export const BY_SILENCE = 5;

export const TARGET = 0; // the limit, with a fraction
export const LIMIT = 1; // the whole limit of this window
export const CREDIT = 2; // fractions not yet used
export const MODE = 3;
export const IN_FLIGHT = 4;
export const KEPT = 5; // slots on top that priorities keep free
export const SEEN_AT = 6; // up to when the window has counted
export const CAUSE = 7; // of the last change of the limit
export const STUCK = 8; // calls in flight that have not settled for long: they do not count
export const SETTLED_AT = 9;
export const COST = 10; // the largest cost lately: the limit is no lower
// The window:
export const OPENED_AT = 11;
export const CALLS = 12; // successes
export const BUSY_TIME = 13; // calls in flight × time
export const FULL_TIME = 14; // time with the limit reached
export const FAILURES = 15;
export const RTT_SUM = 16;
export const NEEDED_CALLS = 17; // of a window, while the limit is held
export const BLOCKED = 18; // free slots that were too few for a call
export const DENIED = 19; // calls refused by the limit
// What is known:
export const BASE_RTT = 20; // NaN before the first measurement
export const LOWEST_BASE_RTT = 21; // of common tests; rises slowly
export const RATE = 22; // successes a millisecond at the limit
export const LIMIT_RTT = 23; // median RTT at the limit
export const ANCHOR = 24; // the limit after the last test
export const RTT_MEAN = 25; // moments of the RTT
export const RTT_SQUARE = 26;
export const RTT_CALLS = 27;
// Hold:
export const RATES = 28; // of the last windows
export const COUNTS = RATES + WINDOWS;
export const LIMITS = COUNTS + WINDOWS;
export const RING_SIZE = LIMITS + WINDOWS;
export const UPPER_CALLS = RING_SIZE + 1; // with one call more than the lower whole limit
export const UPPER_TIME = RING_SIZE + 2;
export const LOWER_CALLS = RING_SIZE + 3;
export const LOWER_TIME = RING_SIZE + 4;
export const OUT_OF_BOUNDS = RING_SIZE + 5; // windows in a row that want to go further than allowed
export const QUICKER = RING_SIZE + 6; // windows in a row that are quicker than the base RTT
export const REACHED = RING_SIZE + 7; // 1: the last window has measured the rate
// The test:
export const NEXT_TEST_AT = RING_SIZE + 8;
export const TOP = RING_SIZE + 9; // the limit before it
export const LEVEL = RING_SIZE + 10; // the level that is tested
export const END_AT = RING_SIZE + 11;
export const LAST_CHANGE = RING_SIZE + 12; // of the base RTT, logarithm
export const TESTS = RING_SIZE + 13;
export const IS_COMMON = RING_SIZE + 14; // 1: it began at the same instant as those of all clients
export const LIMIT_BEFORE_LOSS = RING_SIZE + 15; // before a sudden loss, until a test; 0: none
// The start, and higher levels of a test:
export const START_CALLS = RING_SIZE + 16; // calls of the levels that were no slower
export const START_SUM = RING_SIZE + 17; // of their RTTs
export const START_RATE = RING_SIZE + 18; // the highest rate of any level
export const START_ENDED = RING_SIZE + 19; // 1: a level was slower
export const CAREFUL = RING_SIZE + 20; // 1: it began again, with more calls
export const RAISED = RING_SIZE + 21; // 1: no call sent at this level has settled yet
// Refusals:
export const PACE = RING_SIZE + 22; // calls a millisecond; Infinity without
export const NEXT_AT = RING_SIZE + 23; // when the pace allows the next call
export const CUT_AT = RING_SIZE + 24;
export const EASING = RING_SIZE + 25;
export const EASED_AT = RING_SIZE + 26;
export const REFUSED_RATE = RING_SIZE + 27; // the rate that was refused
export const OK_AT = RING_SIZE + 28;
export const REFUSED_IN_A_ROW = RING_SIZE + 29;
export const OK_SINCE_CUT = RING_SIZE + 30;
export const OUTAGE = RING_SIZE + 31; // 1: no call succeeds
export const SLOT = RING_SIZE + 32; // the second that is counted
export const OK_NOW = RING_SIZE + 33;
export const OK_BEFORE = RING_SIZE + 34;
export const NO_NOW = RING_SIZE + 35;
export const NO_BEFORE = RING_SIZE + 36;
export const TOLERANCE = RING_SIZE + 37; // part of the calls that may be refused
export const REFUSED_SHARE = RING_SIZE + 38; // mean over some hundred replies
export const OK_SOON = RING_SIZE + 39; // replies to calls sent soon after the last cut
export const NO_SOON = RING_SIZE + 40;
export const WIDTH = RING_SIZE + 41;

/** The options of the rule; `max` is this member's part of it in a pool. */
export interface KneeTerms {
  readonly initial: number;
  readonly max: number;
}

// What every call counts. It is in this file because the indices are constants to the compiler only here.

/** Weight of a call in the moments of the RTT. */
const MOMENT_WEIGHT = 0.005;

/** So many calls tell the variation of RTTs; before, it counts as that of exponential times. */
export const MOMENT_CALLS = 30;

/** Without any settled call for so long, and so many mean RTTs, the calls in flight are stuck. */
const STUCK_MS = 1000;
const STUCK_RTTS = 20;

/** One call of a large cost delays the next at most so long, at the lowest pace. */
const MAX_DELAY_MS = 2000;

/** Counts of refusals and successes cover so long. */
export const SLOT_MS = 1000;

/** A window lasts at least so many base RTTs. */
const WINDOW_RTTS = 2;
/** It ends in any case after this long, or after so many base RTTs. */
const MAX_WINDOW_MS = 3000;
const MAX_WINDOW_RTTS = 3;

/** Counts the time since the last change of calls in flight. */
export function countTime(state: State, i: number, now: Millis): void {
  const span = now - state[i + SEEN_AT];
  if (!(span > 0)) return;
  const moving = state[i + IN_FLIGHT] - state[i + STUCK];
  state[i + BUSY_TIME] += moving * span;
  if (moving + state[i + BLOCKED] >= state[i + LIMIT]) state[i + FULL_TIME] += span;
  state[i + SEEN_AT] = now;
}

/** A call did not fit: the slots that are left are no lack of demand. */
export function noteBlocked(state: State, i: number, now: Millis): void {
  state[i + DENIED] += 1;
  const free = state[i + LIMIT] - state[i + IN_FLIGHT] + state[i + STUCK];
  if (free > state[i + BLOCKED]) state[i + BLOCKED] = free;
  // Nothing has settled for long: the calls in flight are stuck, and must not keep out all others.
  if (now - state[i + SETTLED_AT] >= stuckMs(state, i)) {
    countTime(state, i, now);
    state[i + STUCK] = state[i + IN_FLIGHT];
  }
}

/** A call that takes this long is stuck: it has no queue to wait in that the rule could shorten. */
export const stuckMs = (state: State, i: number): Millis =>
  Math.max(STUCK_MS, STUCK_RTTS * (state[i + RTT_MEAN] || 0));

/** Time until the calls in flight count as stuck, if none of them settles. */
export const untilStuck = (state: State, i: number, now: Millis): Millis =>
  Math.max(1, Math.ceil(state[i + SETTLED_AT] + stuckMs(state, i) - now));

/** A call starts. */
export function beginCall(state: State, i: number, cost: number, now: Millis): void {
  countTime(state, i, now);
  if (state[i + IN_FLIGHT] === state[i + STUCK]) state[i + SETTLED_AT] = now;
  if (cost > state[i + COST]) state[i + COST] = cost;
  state[i + IN_FLIGHT] += cost;
  takePace(state, i, cost, now);
}

/** A call ends, with any outcome. */
export function endCall(state: State, i: number, cost: number, rttMs: Millis, now: Millis): void {
  countTime(state, i, now);
  state[i + SETTLED_AT] = now;
  state[i + IN_FLIGHT] = Math.max(0, state[i + IN_FLIGHT] - cost);
  if (state[i + STUCK] === 0) return;
  const left = rttMs > stuckMs(state, i) ? state[i + STUCK] - cost : state[i + STUCK];
  state[i + STUCK] = Math.max(0, Math.min(left, state[i + IN_FLIGHT]));
}

export function countSuccess(state: State, i: number, cost: number, rttMs: Millis): void {
  state[i + CALLS] += cost;
  state[i + RTT_SUM] += cost * rttMs;
  state[i + RTT_CALLS] += 1;
  const weight = Math.max(MOMENT_WEIGHT, 1 / state[i + RTT_CALLS]);
  // One stream of minutes is no reason to wait for hours until calls count as stuck.
  const bounded = state[i + RTT_CALLS] < MOMENT_CALLS ? rttMs : Math.min(rttMs, stuckMs(state, i));
  state[i + RTT_MEAN] += weight * (bounded - state[i + RTT_MEAN]);
  state[i + RTT_SQUARE] += weight * (bounded * bounded - state[i + RTT_SQUARE]);
}

export const hasPace = (state: State, i: number): boolean => state[i + PACE] < Infinity;

/** The pace allows the next call one interval after this one. */
function takePace(state: State, i: number, cost: number, now: Millis): void {
  if (hasPace(state, i))
    state[i + NEXT_AT] =
      Math.max(now, state[i + NEXT_AT]) +
      Math.min(cost / state[i + PACE], Math.max(MAX_DELAY_MS, 1 / state[i + PACE]));
}

/** Counts of this second and the one before. */
export function rollCounts(state: State, i: number, now: Millis): void {
  const slot = Math.floor(now / SLOT_MS);
  if (slot === state[i + SLOT]) return;
  const isNext = slot === state[i + SLOT] + 1;
  state[i + OK_BEFORE] = isNext ? state[i + OK_NOW] : 0;
  state[i + NO_BEFORE] = isNext ? state[i + NO_NOW] : 0;
  state[i + OK_NOW] = 0;
  state[i + NO_NOW] = 0;
  state[i + SLOT] = slot;
}

export function isWindowOver(state: State, i: number, now: Millis): boolean {
  const span = now - state[i + OPENED_AT];
  const base = state[i + BASE_RTT];
  if (state[i + CALLS] >= state[i + NEEDED_CALLS] && span >= WINDOW_RTTS * base) return true;
  return span >= MAX_WINDOW_MS && span >= MAX_WINDOW_RTTS * base;
}
