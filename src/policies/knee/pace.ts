/**
 * Refusals and timeouts in the knee rule.
 *
 * A limit on calls in flight alone cannot hold a quota: refusals are quick, and a slot that is refused is free again at
 * once. So refusals set a pace, just below the rate of successes. It rises again, slowly near the rate that was refused.
 */

import type { Millis } from '../../core/clock.ts';
import type { State } from '../policy.ts';
import { beginStart, finishStart } from './start.ts';
import {
  BASE_RTT,
  BY_REFUSAL,
  BY_SILENCE,
  CALLS,
  CAUSE,
  CUT_AT,
  EASED_AT,
  EASING,
  FAILURES,
  hasPace,
  type KneeTerms,
  MODE,
  NEXT_AT,
  NEXT_TEST_AT,
  NO_BEFORE,
  NO_NOW,
  NO_SOON,
  OK_AT,
  OK_BEFORE,
  OK_NOW,
  OK_SINCE_CUT,
  OK_SOON,
  OUTAGE,
  PACE,
  REFUSED_ROW,
  REFUSED_SHARE,
  RTT_MEAN,
  rollCounts,
  SLOT,
  SLOT_MS,
  START,
  START_RATE,
  TARGET,
  TOLERANCE,
  TROUBLE,
} from './state.ts';
import { hold, isKnown, nextTest, openWindow, setTarget } from './window.ts';

/** Refusals up to this part of the calls are tolerated, unless so many come in a row. */
export const TOLERATED = 0.02;
/** If a cut leaves this part of the share that was refused, more is tolerated, up to half of the calls. */
const UNCHANGED = 0.6;
const MAX_TOLERANCE = 0.5;
/** Weight of a reply in the share that is refused. */
const SHARE_WEIGHT = 0.005;
/** The first replies after a cut show its effect, if there are at least so many. */
const SOON_REPLIES = 40;
const MIN_REPLIES = 15;
const ROW = 4;
const ROW_OF_MANY = 6;
const MANY = 0.03;
const ROW_AFTER_CUT = 2;
/** What a refusal leaves of the rate of successes. */
const CUT = 0.95;
/** Without any success, each refusal divides the pace by this. */
const OUTAGE_CUT = 8;
/** A cut lets the calls in flight settle for so many mean RTTs. */
const DRAIN_RTTS = 0.75;
/** The lowest pace: a probe every two seconds. */
const MIN_PACE = 1 / 2000;
/** After an outage the pace begins at this part of the rate before it. */
const RESUME = 0.25;
/** The pace doubles every second up to this part of the rate that was refused. */
const QUICK_PART = 0.9;
/** Then it rises by this part a second, a part that doubles every four seconds. */
const EASE = 0.008;
const EASE_DOUBLES_S = 4;
/** Beyond this multiple of the rate that was refused, the pace is dropped. */
const DROPPED = 2;

/** Timeouts above this part of a window's calls cut the limit to `TIMEOUT_CUT` of it. */
const TIMEOUTS = 0.1;
const TIMEOUT_CUT = 0.7;

/** A key that may have been evicted during an outage: one probe, and the first success lifts the pace. */
export function probeFirst(state: State, i: number, now: Millis): void {
  state[i + PACE] = MIN_PACE;
  state[i + OUTAGE] = 1;
  state[i + EASED_AT] = now;
  state[i + NEXT_AT] = now + 1 / MIN_PACE;
}

/** Lets the pace rise with time. */
export function easePace(state: State, i: number, now: Millis): void {
  if (!hasPace(state, i)) return;
  const seconds = (now - state[i + EASED_AT]) / 1000;
  if (!(seconds > 0)) return;
  state[i + EASED_AT] = now;
  if (state[i + OUTAGE] === 1) return;
  const quick = QUICK_PART * state[i + TROUBLE];
  if (state[i + PACE] < quick) state[i + PACE] = Math.min(quick, state[i + PACE] * 2 ** seconds);
  else {
    state[i + EASING] = Math.min(1, state[i + EASING] * 2 ** (seconds / EASE_DOUBLES_S));
    state[i + PACE] *= 1 + state[i + EASING] * seconds;
  }
  const isAboveLimit = state[i + PACE] * state[i + BASE_RTT] > DROPPED * state[i + TARGET];
  if (state[i + PACE] > DROPPED * state[i + TROUBLE] && isAboveLimit) state[i + PACE] = Infinity;
}

/** Of the last second; the part of the one before is assumed to be even. */
const lately = (state: State, i: number, present: number, before: number, now: Millis): number =>
  state[i + present] + state[i + before] * (1 - (now / SLOT_MS - state[i + SLOT]));

export function recordSuccess(
  state: State,
  i: number,
  cost: number,
  sentAt: Millis,
  now: Millis,
): void {
  rollCounts(state, i, now);
  state[i + OK_NOW] += cost;
  state[i + REFUSED_SHARE] *= 1 - SHARE_WEIGHT;
  state[i + OK_AT] = now;
  if (sentAt < state[i + CUT_AT]) return;
  state[i + OK_SINCE_CUT] += cost;
  if (state[i + OK_SOON] + state[i + NO_SOON] < SOON_REPLIES) state[i + OK_SOON] += cost;
  state[i + REFUSED_ROW] = state[i + OUTAGE] === 1 ? 0 : Math.max(0, state[i + REFUSED_ROW] - 1);
  if (state[i + OUTAGE] === 0) return;
  state[i + OUTAGE] = 0;
  // Before the first measurement nothing is known about the rate: the start is careful enough.
  const isRateKnown = state[i + TROUBLE] > 0 && isKnown(state, i);
  const resumed = isRateKnown ? RESUME * state[i + TROUBLE] : Infinity;
  state[i + PACE] = Math.max(state[i + PACE], resumed);
  state[i + EASED_AT] = now;
  state[i + EASING] = EASE;
  state[i + NEXT_AT] = Math.min(state[i + NEXT_AT], now + 1 / state[i + PACE]);
}

export function recordRefusal(
  state: State,
  i: number,
  terms: KneeTerms,
  cost: number,
  sentAt: Millis,
  now: Millis,
): void {
  rollCounts(state, i, now);
  state[i + NO_NOW] += cost;
  state[i + REFUSED_SHARE] += SHARE_WEIGHT * (1 - state[i + REFUSED_SHARE]);
  if (sentAt < state[i + CUT_AT]) return; // the last cut was for these calls
  state[i + REFUSED_ROW] += 1;
  if (state[i + OK_SOON] + state[i + NO_SOON] < SOON_REPLIES) state[i + NO_SOON] += cost;
  const ok = lately(state, i, OK_NOW, OK_BEFORE, now);
  const refused = lately(state, i, NO_NOW, NO_BEFORE, now);
  const few = state[i + TOLERANCE] * (ok + refused);
  const isRow = state[i + REFUSED_ROW] >= (state[i + REFUSED_SHARE] > MANY ? ROW_OF_MANY : ROW);
  if (!isRow && refused < few + 2 * Math.sqrt(few) + 1) return;
  const isAlone = hasPace(state, i) && state[i + OUTAGE] === 0 && state[i + OK_SINCE_CUT] === 0;
  if (isAlone && state[i + REFUSED_ROW] < ROW_AFTER_CUT) return; // too few to tell an outage
  if (!isRow && isUseless(state, i)) {
    liftPace(state, i);
    return;
  }
  cutPace(state, i, ok, refused, isRow, now);
  if (state[i + MODE] === START) endStartRefused(state, i, terms, now);
}

/** As many were refused soon after the last cut as before it: refusals do not depend on the load. */
function isUseless(state: State, i: number): boolean {
  const replies = state[i + OK_SOON] + state[i + NO_SOON];
  if (!hasPace(state, i) || replies < MIN_REPLIES || state[i + OK_SOON] === 0) return false;
  return state[i + NO_SOON] / replies > UNCHANGED * state[i + REFUSED_SHARE];
}

/** Tolerates what a lower pace does not change. */
function liftPace(state: State, i: number): void {
  const share = state[i + NO_SOON] / (state[i + OK_SOON] + state[i + NO_SOON]);
  state[i + TOLERANCE] = Math.min(MAX_TOLERANCE, Math.max(state[i + TOLERANCE], 2 * share));
  state[i + PACE] = Infinity;
  state[i + OK_SOON] = 0;
  state[i + NO_SOON] = 0;
}

function cutPace(
  state: State,
  i: number,
  ok: number,
  refused: number,
  isRow: boolean,
  now: Millis,
): void {
  const pace = state[i + PACE];
  // A start may be younger than a second: its best level knows more.
  const rate = Math.max(ok / SLOT_MS, state[i + MODE] === START ? state[i + START_RATE] : 0);
  if (state[i + OUTAGE] === 0) state[i + TROUBLE] = Math.min(pace, rate + refused / SLOT_MS);
  const isOutage = state[i + OK_SINCE_CUT] === 0 && (isRow || pace < Infinity);
  const next = isOutage
    ? Math.min(pace, Math.max(rate, 1 / SLOT_MS)) / OUTAGE_CUT
    : CUT * Math.min(pace, rate);
  state[i + PACE] = Math.max(MIN_PACE, next);
  if (isOutage) state[i + OUTAGE] = 1;
  state[i + CUT_AT] = now;
  state[i + EASED_AT] = now;
  state[i + EASING] = EASE;
  state[i + OK_SINCE_CUT] = 0;
  state[i + OK_SOON] = 0;
  state[i + NO_SOON] = 0;
  state[i + REFUSED_ROW] = state[i + OUTAGE] === 1 ? ROW_OF_MANY : 0;
  // A queue that was full drains first: a call after that tells an overload from an outage.
  state[i + NEXT_AT] = now + Math.max(1 / state[i + PACE], DRAIN_RTTS * state[i + RTT_MEAN]);
  state[i + CAUSE] = BY_REFUSAL;
}

/** The levels so far measured the base RTT: holds what they show. */
function endStartRefused(state: State, i: number, terms: KneeTerms, now: Millis): void {
  if (!finishStart(state, i, state[i + TARGET], terms, now, BY_REFUSAL)) return;
  state[i + NEXT_TEST_AT] = nextTest(now);
  // The last second had lower levels: counts as one at the best of them.
  const perSlot = state[i + START_RATE] * SLOT_MS;
  state[i + OK_BEFORE] = Math.max(state[i + OK_BEFORE], perSlot);
  state[i + OK_NOW] = Math.max(state[i + OK_NOW], perSlot * (now / SLOT_MS - state[i + SLOT]));
}

export function recordTimeout(
  state: State,
  i: number,
  terms: KneeTerms,
  sentAt: Millis,
  now: Millis,
): void {
  if (sentAt < state[i + CUT_AT]) return;
  if (state[i + OK_AT] < sentAt) {
    // Silence: no reply since the call was sent.
    state[i + CUT_AT] = now;
    setTarget(state, i, terms, state[i + TARGET] / 2, BY_SILENCE);
    beginStart(state, i, now);
  } else if (state[i + FAILURES] > TIMEOUTS * state[i + CALLS] + 2) {
    state[i + CUT_AT] = now;
    const wasStart = state[i + MODE] === START;
    const half = state[i + TARGET] / 2;
    if (wasStart && finishStart(state, i, half, terms, now, BY_SILENCE)) {
      state[i + NEXT_TEST_AT] = nextTest(now);
      return;
    }
    if (wasStart) {
      setTarget(state, i, terms, TIMEOUT_CUT * state[i + TARGET], BY_SILENCE);
      openWindow(state, i, now);
    } else hold(state, i, terms, now, TIMEOUT_CUT * state[i + TARGET], BY_SILENCE);
  }
}
