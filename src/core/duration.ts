/**
 *     '6s'  '1.5s'  '250ms'  '30sec'  '1min'  '2hours'  '1d'      a plain number is milliseconds
 *     '100/s'  '500/min'  '10/hour'  '1/6s'  '5/100ms'            a plain number is calls per second
 *
 * A value that cannot be parsed is `undefined`. A string needs a unit: `'6'` could be seconds as well as milliseconds.
 */

import type { Millis } from './clock.ts';

/** The spellings of each unit, and its length. */
const UNITS: readonly (readonly [spellings: string, ms: Millis])[] = [
  ['us|usec|usecs|microsecond|microseconds', 0.001],
  ['ms|msec|msecs|millisecond|milliseconds', 1],
  ['s|sec|secs|second|seconds', 1000],
  ['m|min|mins|minute|minutes', 60_000],
  ['h|hr|hrs|hour|hours', 3_600_000],
  ['d|day|days', 86_400_000],
];

const UNIT_MS: ReadonlyMap<string, Millis> = new Map(
  UNITS.flatMap(([spellings, ms]) => spellings.split('|').map((unit) => [unit, ms] as const)),
);

const NUMBER = '\\d+(?:\\.\\d+)?|\\.\\d+';
const NUMBER_PATTERN = new RegExp(`^(?:${NUMBER})$`);
const DURATION_PATTERN = new RegExp(`^(${NUMBER})\\s*([a-z]+)$`);
const RATE_PATTERN = new RegExp(`^(${NUMBER})\\s*/\\s*(${NUMBER})?\\s*([a-z]+)$`);

/** The accepted spellings of a unit of time. */
type TimeUnit =
  | 'us'
  | `${'usec' | 'microsecond'}${Plural}`
  | 'ms'
  | `${'msec' | 'millisecond'}${Plural}`
  | 's'
  | `${'sec' | 'second'}${Plural}`
  | 'm'
  | `${'min' | 'minute'}${Plural}`
  | 'h'
  | `${'hr' | 'hour'}${Plural}`
  | 'd'
  | `day${Plural}`;
type Plural = '' | 's';
type Space = '' | ' ';

/**
 * A span of time: `'250ms'`, `'6s'`, `'1.5min'`, `'1h'`, `'1d'`, or a number of milliseconds. A string that is read at run
 * time is passed `as Duration`; it is validated when the limit is made.
 */
export type Duration = number | `${number}${Space}${TimeUnit}`;

/**
 * Calls in a span of time: `'100/s'`, `'500/min'`, `'1/6s'`, or a number of calls per second. A string that is read at run
 * time is passed `as Rate`; it is validated when the limit is made.
 */
export type Rate =
  | number
  | `${number}${Space}/${Space}${TimeUnit}`
  | `${number}${Space}/${Space}${number}${Space}${TimeUnit}`;

/** `count` calls in every `periodMs`. The two are kept apart: '500/m' also says that 500 may come at once. */
export interface RateValue {
  readonly count: number;
  readonly periodMs: Millis;
}

export function parseDuration(value: unknown): Millis | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? value : undefined;
  if (typeof value !== 'string') return undefined;
  const [, amount, unit = ''] = DURATION_PATTERN.exec(value.trim()) ?? [];
  const unitMs = UNIT_MS.get(unit);
  return unitMs === undefined ? undefined : Number(amount) * unitMs;
}

export function parseRate(value: unknown): RateValue | undefined {
  if (Number.isFinite(value)) return { count: value as number, periodMs: 1000 };
  if (typeof value !== 'string') return undefined;
  const [, count, amount = '1', unit = ''] = RATE_PATTERN.exec(value.trim()) ?? [];
  const unitMs = UNIT_MS.get(unit);
  if (unitMs === undefined) return undefined;
  return { count: Number(count), periodMs: Number(amount) * unitMs };
}

/** For a value that `parseDuration` refused: the spelling that was probably meant, as a hint. */
export function suggestDuration(value: unknown): string | undefined {
  if (typeof value !== 'string' || parseDuration(value) !== undefined) return undefined;
  const text = value.trim().toLowerCase();
  if (NUMBER_PATTERN.test(text)) return `did you mean "${text}s" or "${text}ms"?`;
  return parseDuration(text) === undefined ? undefined : `did you mean "${text}"?`;
}

/** For a value that `parseRate` refused: the spelling that was probably meant, as a hint. */
export function suggestRate(value: unknown): string | undefined {
  if (typeof value !== 'string' || parseRate(value) !== undefined) return undefined;
  const text = value.trim().toLowerCase();
  const spelled = NUMBER_PATTERN.test(text)
    ? `${text}/s`
    : text
        .replace(/\s*\bper\s+/, '/')
        .replace(/\s*[rqt]ps$/, '/s')
        .replace(/\s*[rqt]pm$/, '/min');
  return parseRate(spelled) === undefined ? undefined : `did you mean "${spelled}"?`;
}
