/**
 * A window: calls that settled since the limit last changed, and what they say about the server.
 *
 * A queue shows first in the quickest calls: they wait in it like all others, and vary several times less than the mean.
 * Where all calls share the work, and where only some of them wait, it shows in the mean alone.
 */

import type { Millis } from '../../core/clock.ts';
import { C } from './constants.ts';
import { type Key, SAMPLE, SAMPLE_AT } from './record.ts';

const SAMPLED_CALLS = 64;

/** No timer measures finer. */
const MIN_RTT_MS: Millis = 0.001;

/** Standard error of the mean of the quickest calls, as a part of that of all: exact for exponential times. */
const QUICK_ERROR = 0.35;
/** Equal times are no proof that the next ones are equal. */
const MIN_DEVIATION = 0.25;

/** Spreads the windows of a limit with a fraction over the whole limits around it. */
const GOLDEN_RATIO = 0.618;

export interface Reading {
  /** Mean of the quickest calls, and its standard error. */
  low: Millis;
  error: Millis;
  mean: Millis;
  deviation: Millis;
  calls: number;
}

/** 2.3 is 2 in seven of ten windows, and 3 in three. */
export const wholeIn = (limit: number, openedAt: Millis): number =>
  Math.floor(limit + ((openedAt * GOLDEN_RATIO) % 1));

export const wholeOf = (k: Key): number => wholeIn(k.limit, k.openedAt);

export function openWindow(k: Key, now: Millis): void {
  k.openedAt = now;
  k.calls = k.sum = k.squares = k.denied = 0;
  k.group = k.lowSum = k.lowCalls = 0;
  k.kept = Math.max(0, k.kept - 1);
}

/** Without demand for the whole limit a window says nothing about it. */
export const isUsed = (k: Key): boolean => 2 * k.denied >= k.calls;

export function addCall(k: Key, rttMs: Millis): void {
  const bounded = k.mean > 0 ? Math.min(rttMs, C.clip * k.mean) : rttMs;
  const x = Math.max(MIN_RTT_MS, bounded);
  k.calls++;
  k.sum += x;
  k.squares += x * x;
  const first = k.at + SAMPLE_AT;
  let n = Math.min(k.group, SAMPLE - 1);
  if (k.group < SAMPLE || x < k.state[first + n]) {
    for (; n > 0 && k.state[first + n - 1] > x; n--) k.state[first + n] = k.state[first + n - 1];
    k.state[first + n] = x;
  }
  if (++k.group === SAMPLED_CALLS) endSample(k);
}

const quickestOf = (k: Key): number => Math.max(1, Math.round(C.quick * k.group));

function sumOf(k: Key, count: number): Millis {
  let sum = 0;
  for (let n = 0; n < count; n++) sum += k.state[k.at + SAMPLE_AT + n];
  return sum;
}

function endSample(k: Key): void {
  const count = quickestOf(k);
  k.lowSum += sumOf(k, count);
  k.lowCalls += count;
  k.group = 0;
}

const MIN_SAMPLE = 8;

export function readWindow(k: Key): Reading {
  const count = k.group >= MIN_SAMPLE || k.lowCalls === 0 ? quickestOf(k) : 0;
  const low = (k.lowSum + sumOf(k, count)) / (k.lowCalls + count);
  const calls = k.calls;
  const mean = k.sum / calls;
  const variance = Math.max(0, k.squares / calls - mean * mean);
  const deviation = Math.max(MIN_DEVIATION * mean, Math.sqrt(variance));
  const error = (QUICK_ERROR * deviation) / Math.sqrt(calls);
  return { low, error, mean, deviation, calls };
}
