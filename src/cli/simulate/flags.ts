/** What simulations take on their command line in the same words. */

import { parseDuration } from '../../core/duration.ts';
import { parseUnitless, UsageError } from '../framework/command.ts';

/** A simulation is told everything by options. */
export function requireNoPositionals([word]: readonly string[]): void {
  if (word !== undefined) throw new UsageError(`expected options only, got "${word}"; see --help`);
}

/** A span of time within bounds, told in milliseconds. */
export function durationFlag(
  name: string,
  text: string | undefined,
  fallback: number,
  { min, max }: { min: number; max: number },
): number {
  if (text === undefined) return fallback;
  const ms = parseDuration(parseUnitless(text));
  if (ms !== undefined && ms >= min && ms <= max) return ms;
  throw new UsageError(
    `expected \`--${name}\` to be a time from ${min} ms to ${max / 1000} s, such as 100ms or 2s, got "${text}"`,
  );
}

/** A number of seconds, in a pattern. */
export const SECONDS_PATTERN = String.raw`(\d+(?:\.\d+)?)`;

export const secondsToMs = (seconds: string | undefined): number =>
  Math.round(Number(seconds) * 1000);
