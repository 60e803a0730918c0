/**
 * How the limit is learnt: start, hold, test and join. Each is a step that runs when a call succeeds.
 *
 *     knee  = limit × (1 − queue / round trip)      Little's law: that part of the calls in flight does not wait
 *     limit = knee + headroom                       nearly the same for every client: clients of one server get equal parts
 */

import type { Millis } from '../../core/clock.ts';
import { C } from './constants.ts';
import type { Key } from './record.ts';
import { isUsed, openWindow, type Reading, readWindow, wholeOf } from './window.ts';

export const START = 0;
export const HOLD = 1;
export const DRAIN = 2;
const TEST = 3;

export const BY_START = 1;
export const BY_TEST = 2;
export const BY_RATE = 3;
export const BY_REFUSAL = 4;
export const BY_SILENCE = 5;

/** The part of the options that belongs to this member of a pool. */
export interface Part {
  readonly initial: number;
  readonly max: number;
  /** Delays tests by up to this part of the period. */
  jitter(): number;
}

const bounded = (limit: number, { max }: Part): number => Math.min(max, Math.max(1, limit));

/** Calls in flight at the change do not count: they were sent with the old limit. */
export function change(
  k: Key,
  part: Part,
  limit: number,
  mode: number,
  cause: number,
  now: Millis,
): void {
  k.limit = bounded(limit, part);
  k.mode = mode;
  k.cause = cause;
  k.skip = k.inFlight;
  openWindow(k, now);
}

export function hold(k: Key, part: Part, limit: number, cause: number, now: Millis): void {
  change(k, part, limit, HOLD, cause, now);
  k.anchor = k.limit;
  k.lowAverage = Number.NaN;
}

export const isInTest = (k: Key): boolean => k.mode >= DRAIN;

/** Ends a test without a result. */
export function abandonTest(k: Key, part: Part, cause: number, now: Millis): void {
  if (isInTest(k)) hold(k, part, k.back, cause, now);
}

/** Shorter windows would not see the tests of others, nor others this test. */
const hasLasted = (k: Key, rtts: number, now: Millis): boolean =>
  now - k.openedAt >= Math.max(rtts * k.mean, C.second / 4);

/** Below a knee of a few calls a whole call is too many. */
export const headroom = (knee: number): number => (C.room * knee) / (knee + 1) + C.part * knee;

function limitFor(limit: number, queue: Millis, mean: Millis): number {
  const knee = limit * Math.max(0.1, 1 - queue / mean);
  return knee + headroom(knee);
}

/** What the mean is certainly longer than without a queue. */
function queueOfMean(k: Key, { deviation }: Reading): Millis {
  const error = deviation * Math.sqrt(1 / k.meanCalls + 2 / C.memory);
  return Number.isNaN(k.base) ? 0 : k.meanAverage - k.base - C.sigma * error;
}

// Start

/** Doubles the limit until calls are slower. */
export function stepStart(k: Key, part: Part, now: Millis): void {
  if (k.calls < Math.max(C.few / 6, C.rounds * k.limit)) return;
  if (!isUsed(k)) {
    openWindow(k, now);
    return;
  }
  const reading = readWindow(k);
  const { low, error, mean, deviation, calls } = reading;
  if (Number.isNaN(k.floor)) k.floor = low;
  if (k.meanCalls === 0) k.meanAverage = mean;
  k.mean = mean;
  const known = Math.max(C.few / 6, k.meanCalls);
  const both = Math.sqrt(1 + calls / known); // what is known has an error too
  const byMean = mean - k.meanAverage - (C.sigma * deviation * both) / Math.sqrt(calls);
  const slowerBy = Math.max(low - k.floor - 3 * error * both, byMean);
  const isSlower = slowerBy > C.slower * mean;
  if (isSlower && calls < C.few) return; // by chance?
  if (isSlower || k.limit >= part.max) {
    const queue = Math.max(0, low - k.floor, mean - k.meanAverage);
    k.testedAt = now - periodOf(k) / 2;
    if (k.meanCalls >= C.few)
      k.base = k.meanAverage + (C.sigma * deviation) / Math.sqrt(k.meanCalls);
    k.meanAverage = k.meanCalls = 0;
    hold(k, part, Math.max(k.limit / 2, limitFor(k.limit, queue, mean)), BY_START, now); // half of it was not slower
    return;
  }
  k.meanCalls += calls;
  k.floor += Math.min(C.gain, calls / k.meanCalls) * (low - k.floor);
  k.meanAverage += ((mean - k.meanAverage) * calls) / k.meanCalls;
  change(k, part, 2 * k.limit, START, BY_START, now);
}

// Hold

/** Follows the knee, window by window. */
export function stepHold(k: Key, part: Part, now: Millis): void {
  if (k.calls < Math.max(C.few, k.limit) || !hasLasted(k, 1, now)) return;
  const reading = readWindow(k);
  const { low, error } = reading;
  if (low + 3 * error < k.floor || Number.isNaN(k.floor)) k.floor = low + error;
  if (isUsed(k)) follow(k, part, reading, now);
  else openWindow(k, now);
}

function follow(k: Key, part: Part, reading: Reading, now: Millis): void {
  const { low, mean, deviation, calls } = reading;
  k.mean = mean;
  if (isTestDue(k, reading, now)) {
    beginTest(k, part, Math.max(low, k.lowAverage), now);
    return;
  }
  k.lowAverage = Number.isNaN(k.lowAverage) ? low : k.lowAverage + C.gain * (low - k.lowAverage);
  k.meanCalls = Math.min(C.memory, k.meanCalls + calls);
  k.meanAverage += (mean - k.meanAverage) * Math.min(1, calls / k.meanCalls);
  const error = deviation / Math.sqrt(k.meanCalls);
  const isQuicker = k.meanCalls >= C.memory / 4 && k.meanAverage + C.sigma * error < k.base;
  if (isQuicker) k.base = k.meanAverage + error;
  const queue = Math.max(0, low - k.floor, queueOfMean(k, reading));
  const want = limitFor(k.limit, queue, mean);
  k.idle = queue < (headroom(k.limit) / k.limit) * 0.5 * mean ? k.idle + 1 : 0;
  const faster = 1 + C.grow * Math.max(0, k.idle - 1);
  const next = k.limit + C.gain * faster * (want - k.limit);
  k.limit = bounded(Math.max(C.step * k.anchor, next), part);
  k.cause = BY_RATE;
  openWindow(k, now);
}

const periodOf = (k: Key): Millis => Math.max(C.period, 10 * C.rtts * k.mean);

/** By time; or others test, and calls are quicker; or the limit would fall further than it may without a test. */
function isTestDue(k: Key, { low, error, mean }: Reading, now: Millis): boolean {
  if (Number.isNaN(k.lowAverage)) return false;
  const age = (now - k.testedAt) / periodOf(k);
  if (age < C.rest) return false;
  const isQuicker = k.lowAverage - low > C.join * (1 - 0.75 * age) * error + 0.01 * mean;
  const isFalling = limitFor(k.limit, low - k.floor, mean) < C.step * C.step * k.anchor;
  return age >= 1 || isQuicker || isFalling;
}

// Test

function beginTest(k: Key, part: Part, low: Millis, now: Millis): void {
  k.back = k.limit;
  k.testedAt = now;
  change(k, part, C.depth * k.limit, DRAIN, BY_TEST, now);
  k.lowAverage = low;
}

export function stepDrain(k: Key, part: Part, now: Millis): void {
  if (k.inFlight <= wholeOf(k)) change(k, part, k.limit, TEST, BY_TEST, now);
  else if (now - k.testedAt > (1 + C.rtts) * k.mean) abandonTest(k, part, BY_TEST, now); // long calls: not now
}

/** Half as many calls: are they quicker? */
export function stepTest(k: Key, part: Part, now: Millis): void {
  if (k.calls < C.few || !hasLasted(k, C.rtts, now)) return;
  if (!isUsed(k)) {
    abandonTest(k, part, BY_TEST, now);
    return;
  }
  const reading = readWindow(k);
  const queue = k.lowAverage - k.floor;
  const hasQueue = queue > (C.slower * reading.mean) / 2;
  const removed = (k.lowAverage - reading.low) / queue;
  learnFloor(k, reading, hasQueue ? Math.min(1, Math.max(0, removed)) : 1);
  const { anchor } = k;
  hold(k, part, hasQueue && k.unclean === 0 ? afterTest(k, reading) : k.back, BY_TEST, now);
  k.testedAt += part.jitter() * periodOf(k);
  if (k.unclean === 0) return;
  // The next test comes soon, and until then the limit falls no further.
  k.testedAt = now - (1 - C.rest) * periodOf(k);
  k.anchor = Math.max(anchor, k.anchor);
}

/** The queue was the client's own: not back to the limit that made it. */
function afterTest(k: Key, { low, mean }: Reading): number {
  const gained = Math.max(0, k.lowAverage - low);
  const part = limitFor(k.limit, Math.max(0, k.lowAverage - k.floor), mean + gained) / k.limit;
  return k.back * Math.min(1, Math.max(C.depth, part));
}

/**
 * A test that removes the queue shows the floor. One that does not has found the queue of others, or a slower server, or a
 * longer path: which of them, only further tests can tell.
 */
function learnFloor(k: Key, { low, mean }: Reading, removed: number): void {
  const isClean = removed > C.clean;
  k.unclean = isClean ? 0 : k.unclean + 1;
  const belief = Math.min(1, C.believe * 2 ** k.unclean) * (1 - removed);
  const moved = (isClean || low < k.floor ? C.gain : belief) * (low - k.floor);
  const part = k.unclean > 1 ? Math.max(C.gain, belief) : C.gain;
  k.floor += moved;
  k.base = Number.isNaN(k.base) ? mean : k.base + moved + part * (mean - k.base - moved);
}
