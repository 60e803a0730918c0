/**
 * Durations and rates, as people write them.
 *
 *     '6s'  '1.5s'  '250ms'  '2m'  '1h'  '1d'      a plain number is milliseconds
 *     '100/s'  '500/m'  '1/6s'  '5/100ms'          a plain number is so many a second
 *
 * What cannot be read is `undefined`: whoever asked knows the field's name and words the error.
 */

import type { Millis } from './clock.ts';

const UNIT_MS: Readonly<Record<string, Millis>> = {
  us: 0.001,
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};

const DURATION_PATTERN = /^(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s|m|h|d)$/;
const RATE_PATTERN = /^(\d+(?:\.\d+)?|\.\d+)\s*\/\s*(\d+(?:\.\d+)?|\.\d+)?\s*(us|ms|s|m|h|d)$/;

/** A span of time: `'250ms'`, `'6s'`, `'1.5m'`, `'1h'`, `'1d'`, or a number of milliseconds. */
export type Duration = number | string;

/** Calls in a span of time: `'100/s'`, `'500/m'`, `'1/6s'`, or a number of calls a second. */
export type Rate = number | string;

/** `count` calls in every `periodMs`: kept apart, because '500/m' says more than 8.33 a second. */
export interface RateValue {
  readonly count: number;
  readonly periodMs: Millis;
}

export function parseDuration(value: unknown): Millis | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? value : undefined;
  if (typeof value !== 'string') return undefined;
  const [, amount, unit] = DURATION_PATTERN.exec(value.trim()) ?? [];
  return amount === undefined || unit === undefined ? undefined : Number(amount) * UNIT_MS[unit];
}

export function parseRate(value: unknown): RateValue | undefined {
  if (typeof value === 'number') {
    return Number.isFinite(value) ? { count: value, periodMs: 1000 } : undefined;
  }
  if (typeof value !== 'string') return undefined;
  const [, count, amount = '1', unit] = RATE_PATTERN.exec(value.trim()) ?? [];
  if (count === undefined || unit === undefined) return undefined;
  return { count: Number(count), periodMs: Number(amount) * UNIT_MS[unit] };
}
