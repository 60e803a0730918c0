/**
 * Refusals, lost calls, silence and missing demand.
 *
 * - Few refused or lost calls are tolerated. More refusals set a pace just below the rate of successes, and more lost
 *   calls cut the limit. If that does not help, the cause is elsewhere: twice as many are tolerated for a while.
 * - Silence: no reply for a second and several round trips. One probe at a time, each after the patience for the one before;
 *   never more calls in flight than when it was noticed. A call that is open is in flight, whatever is known about it.
 */

import type { Millis } from '../../core/clock.ts';
import { C } from './constants.ts';
import {
  abandonTest,
  BY_REFUSAL,
  BY_SILENCE,
  BY_START,
  change,
  hold,
  isInTest,
  type Part,
  START,
} from './learn.ts';
import type { Key } from './record.ts';
import { openWindow, wholeOf } from './window.ts';

const ADAPTED_TOLERANCE = 0.5;
const TOLERANCE_FADES_MS: Millis = 40_000;
/** A cut helped if it left at most this part of the complaints. */
const HELPED = 1 / 3;
/** A cut for lost calls cost nothing if this part of the successes is left: the calls above it were lost anyway. */
const KEPT = 0.9;

/** One call of a large cost delays the next at most so long, at the lowest pace. */
const MAX_DELAY_MS: Millis = 2000;

// Counts

/** Fades the counts of replies. */
export function countTime(k: Key, now: Millis): void {
  const span = now - k.countedAt;
  if (!(span > 0)) return;
  const left = Math.exp(-span / C.second);
  k.ok *= left;
  k.no *= left;
  if (k.tolerated > C.tolerated)
    k.tolerated = Math.max(C.tolerated, k.tolerated * Math.exp(-span / TOLERANCE_FADES_MS));
  k.countedAt = now;
}

// Pace

export const isPaced = (k: Key, now: Millis): boolean => k.pace < Infinity && now < k.nextAt;

/** Calls a millisecond. */
export const paceAt = (k: Key, now: Millis): number =>
  k.pace * Math.exp(0.5 * C.ease * ((now - k.cutAt) / 1000) ** 2);

export function takePace(k: Key, cost: number, now: Millis): void {
  if (k.pace === Infinity) return;
  const interval = 1 / paceAt(k, now);
  k.nextAt = Math.max(now, k.nextAt) + Math.min(cost * interval, Math.max(MAX_DELAY_MS, interval));
}

function setPace(k: Key, pace: number, share: number, now: Millis): void {
  k.pace = Math.max(1 / C.second, pace);
  k.cutAt = now;
  k.cutShare = share;
  k.nextAt = now + 1 / k.pace;
  k.cause = BY_REFUSAL;
}

const cutLimit = (k: Key, part: Part, now: Millis): void => {
  abandonTest(k, part, BY_REFUSAL, now);
  hold(k, part, C.step * Math.min(k.limit, k.inFlight + 1), BY_REFUSAL, now);
  k.cutAt = now;
  k.row = 0;
};

export function recordComplaint(
  k: Key,
  part: Part,
  isRefusal: boolean,
  sentAt: Millis,
  now: Millis,
) {
  k.no++;
  if (sentAt < k.cutAt) return;
  const all = k.ok + k.no;
  const few = k.tolerated * all;
  const isMany = k.no > few + 2 * Math.sqrt(few) + 2;
  const rate = Math.min(paceAt(k, now), k.ok / C.second);
  if (isRefusal) k.row++;
  if (k.mode === START) {
    if (isMany || k.row >= 3) cutLimit(k, part, now); // doubled once too often
    return;
  }
  if (isRefusal && k.row >= Math.max(3, wholeOf(k))) {
    if (k.row < Infinity) k.rateBefore = rate;
    k.row = Infinity; // no call succeeds
    setPace(k, rate / 4, 1, now);
    return;
  }
  if (all < C.few / 2 || !isMany || now - k.cutAt < C.second) return;
  if (!isRefusal && isInTest(k)) return; // sent before the test
  const share = k.no / all;
  const isNew = k.cutShare === 0 || (k.pace === Infinity && now - k.cutAt > C.period);
  const isBackAtOldRate = k.pace < Infinity && C.cut * paceAt(k, now) > k.pace;
  const okRate = k.ok / C.second / (1 - Math.exp((k.cutAt - now) / C.second));
  const wasFree = !isRefusal && share < k.cutShare && okRate > KEPT * k.rateBefore;
  const hasHelped = isNew || isBackAtOldRate || share < HELPED * k.cutShare || wasFree;
  if (!hasHelped && (!isRefusal || k.pace < Infinity)) {
    k.tolerated = Math.min(ADAPTED_TOLERANCE, 2 * share);
    endPace(k);
  } else if (isRefusal) setPace(k, C.cut * rate, share, now);
  else {
    k.rateBefore = okRate;
    cutLimit(k, part, now);
    k.cutShare = share;
    k.ok = k.no = 0;
  }
}

export function recordSuccess(k: Key, sentAt: Millis, now: Millis): void {
  k.ok++;
  if (sentAt < k.cutAt) return;
  const isBack = k.row === Infinity;
  k.row = 0;
  if (isBack) setPace(k, C.cut * k.rateBefore, 1, now);
  else if (k.pace < Infinity && paceAt(k, now) * k.mean > 2 * k.limit) endPace(k); // the limit alone holds the rate down
}

const endPace = (k: Key): void => {
  k.pace = Infinity;
  k.cutShare = 0;
};

// Silence

export const patience = (k: Key): Millis => Math.max(C.second, C.silent * k.mean);

export function noticeSilence(k: Key, part: Part, now: Millis): boolean {
  if (k.most === 0 && k.inFlight > k.lost && now - k.quietFrom > patience(k)) {
    k.most = k.inFlight;
    k.cause = BY_SILENCE;
    abandonTest(k, part, BY_SILENCE, now);
  }
  return k.most > 0;
}

/** A reply. What was sent before or in a silence says nothing about the server now. */
export function endSilence(k: Key, part: Part, now: Millis): void {
  if (noticeSilence(k, part, now)) {
    k.most = 0;
    if (k.lost === 0) k.lost = k.inFlight; // once: a server that answers now and then is not flooded
    if (k.mean > 0) {
      k.cutAt = now;
      k.skip = 0;
      openWindow(k, now);
    }
  }
  k.quietFrom = now;
}

/** All calls of a silence are one sign: the limit is halved once for each round of them. */
export function halve(k: Key, part: Part, sentAt: Millis, now: Millis): void {
  if (sentAt < k.cutAt && k.mode === START) return;
  k.cutAt = now;
  change(k, part, k.limit / 2, START, BY_SILENCE, now);
}

// Demand

/** Without demand for the limit for a period: no more than was in flight. A key that was forgotten begins with `initial`. */
export function demandedLimit(k: Key, part: Part, now: Millis): number {
  if (now - k.peakAt <= C.period) return k.limit;
  const peak = now - k.countedAt > C.period ? k.inFlight : k.peak; // quiet all the time
  return Math.min(k.limit, Math.max(1, peak, part.initial));
}

/** From there a start. */
export function checkDemand(k: Key, part: Part, now: Millis): void {
  if (now - k.peakAt <= C.period) return;
  const limit = demandedLimit(k, part, now);
  if (limit < k.limit) change(k, part, limit, START, BY_START, now);
  k.peak = k.inFlight;
  k.peakAt = now;
}
