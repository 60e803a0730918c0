import { parseDuration } from '../../core/duration.ts';
import { drawSvg, type Picture } from '../chart/svg.ts';
import {
  CommandError,
  type FlagValues,
  parseFlagValue,
  type Terminal,
  writeTextFile,
} from '../framework/command.ts';

/** A duration within bounds, in milliseconds. */
export function durationFlag<Name extends string>(
  flags: FlagValues<Name>,
  name: Name,
  fallback: number,
  { min, max }: { min: number; max: number },
): number {
  const text = flags[name];
  if (text === undefined) return fallback;
  const ms = parseDuration(parseFlagValue(text));
  if (ms !== undefined && ms >= min && ms <= max) return ms;
  throw expectedFlag(name, `a time from ${min} ms to ${max / 1000} s, such as 100ms or 2s`, text);
}

const expectedFlag = (name: string, expected: string, text: string): CommandError =>
  new CommandError(`expected \`--${name}\` to be ${expected}, got "${text}"`);

/** A flag of several parts: how it is written, and what the parts mean. */
export interface FlagForm<T> {
  readonly name: string;
  /** A regular expression for the whole text, with a group for each part. */
  readonly pattern: string;
  readonly expected: string;
  /** False if the parts do not fit together. */
  read(...parts: string[]): T | false;
}

/** Reads a flag of several parts; undefined if it was not given. */
export function readForm<T>(text: string, form: FlagForm<T>): T;
export function readForm<T>(text: string | undefined, form: FlagForm<T>): T | undefined;
export function readForm<T>(
  text: string | undefined,
  { name, pattern, expected, read }: FlagForm<T>,
): T | undefined {
  if (text === undefined) return undefined;
  const [match, ...parts] = new RegExp(`^${pattern}$`).exec(text) ?? [];
  const value = match !== undefined && read(...parts);
  if (value === false) throw expectedFlag(name, expected, text);
  return value;
}

/** A decimal number, such as seconds, in the pattern of a form. */
export const NUMBER = String.raw`(\d+(?:\.\d+)?)`;

export const secondsToMs = (seconds: string): number => Math.round(Number(seconds) * 1000);

export const SEED_RANGE = { min: 0, max: 2 ** 31, integer: true };

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
