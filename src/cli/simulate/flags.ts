/** Flags and outputs that several simulations share. */

import { parseDuration } from '../../core/duration.ts';
import { drawSvg, type Picture } from '../chart/svg.ts';
import {
  CommandError,
  parseFlagValue,
  type Terminal,
  writeTextFile,
} from '../framework/command.ts';

/** A simulation has options only. */
export function requireNoPositionals([word]: readonly string[]): void {
  if (word !== undefined)
    throw new CommandError(`expected options only, got "${word}"; see --help`);
}

/** A duration within bounds, in milliseconds. */
export function durationFlag(
  name: string,
  text: string | undefined,
  fallback: number,
  { min, max }: { min: number; max: number },
): number {
  if (text === undefined) return fallback;
  const ms = parseDuration(parseFlagValue(text));
  if (ms !== undefined && ms >= min && ms <= max) return ms;
  throw new CommandError(
    `expected \`--${name}\` to be a time from ${min} ms to ${max / 1000} s, such as 100ms or 2s, got "${text}"`,
  );
}

export const SEED_RANGE = { min: 0, max: 2 ** 31, integer: true };

/** A number of seconds in a regular expression. */
export const SECONDS_PATTERN = String.raw`(\d+(?:\.\d+)?)`;

export const secondsToMs = (seconds: string | undefined): number =>
  Math.round(Number(seconds) * 1000);

/** `--svg FILE`. The message goes to standard error, because standard output may be parsed. */
export function writeSvg(
  file: string | undefined,
  picture: () => Picture,
  terminal: Terminal,
): void {
  if (file === undefined) return;
  writeTextFile(file, drawSvg(picture()));
  terminal.error(`wrote ${file}`);
}
