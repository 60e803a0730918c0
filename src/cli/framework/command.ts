/**
 * What a command is: words in, text out, an exit code. It meets no process and no terminal, so a
 * test can run it as a user would.
 *
 * Exit codes: 0 done · 1 it ran, and what it checked does not hold · 2 it could not run as asked.
 */

import { readFileSync, writeFileSync } from 'node:fs';
import { type ParseArgsConfig, parseArgs } from 'node:util';
import { type NumberRange, OptionReader } from '../../core/options.ts';

export const EXIT_OK = 0;
export const EXIT_CHECK_FAILED = 1;
export const EXIT_USAGE = 2;

export interface Terminal {
  /** Prints one line to standard output. */
  print(line: string): void;
  /** Prints one line to standard error. */
  error(line: string): void;
  /** Prints one line of a log to standard error if that can be done at once; whoever runs on does not wait for it. */
  log(line: string): void;
  /** A passing word about long work, which the next one replaces. Left out if nobody watches. */
  readonly progress?: ((words: string) => void) | undefined;
  /** How many characters fit on a line. */
  readonly columns: number;
  /** Of this package. */
  readonly version: string;
}

export interface Command {
  /** What one types: `trace`, or `tchannel` after `simulate`. */
  readonly name: string;
  /** One line for the list of commands. */
  readonly summary: string;
  /** What `--help` prints: usage, options, an example to paste. */
  readonly help: string;
  run(args: readonly string[], terminal: Terminal): number | Promise<number>;
}

/** Several commands under one word. */
export interface CommandGroup {
  readonly name: string;
  readonly summary: string;
  readonly commands: readonly (Command | CommandGroup)[];
}

/** Something the user should fix: printed as one line, exit code 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

type FlagSpecs = NonNullable<ParseArgsConfig['options']>;
type ParsedArgs<T extends FlagSpecs> = ReturnType<
  typeof parseArgs<{ options: T; allowPositionals: true; strict: true }>
>;

/** Reads flags and positional words; what it cannot read is the user's to fix. */
export function readArgs<T extends FlagSpecs>(args: readonly string[], options: T): ParsedArgs<T> {
  try {
    return parseArgs({ args: [...args], options, allowPositionals: true, strict: true });
  } catch (error) {
    // Node words these well in its first sentence; what follows is about '--', which nobody needs.
    const [first] = (error as Error).message.split(/\.?\s*\n|\. /);
    throw new UsageError(`${first}; see --help`);
  }
}

/** A flag that must be a number. */
export function numberFlag(name: string, text: string | undefined, fallback: number): number {
  if (text === undefined) return fallback;
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (Number.isFinite(value)) return value;
  throw new UsageError(`expected \`--${name}\` to be a number, got "${text}"`);
}

/**
 * A time or a rate as it was typed, for whoever reads these: a number without a unit comes as text here, and only
 * here. In code and in files a text without a unit is a mistake, as nobody knows what its writer had in mind.
 */
export const parseUnitless = (text: string): string | number =>
  /^(?:\d+(?:\.\d+)?|\.\d+)$/.test(text) ? Number(text) : text;

/** A number within bounds, checked under the name it was typed with. */
export function rangeFlag(
  name: string,
  text: string | undefined,
  fallback: number,
  range: NumberRange,
): number {
  const flag = `--${name}`;
  return new OptionReader('', { [flag]: numberFlag(name, text, fallback) }).number(flag, range);
}

export const integerUpTo = (max: number): NumberRange => ({ min: 1, max, integer: true });

/** A file as text; one that cannot be read is the user's to fix. */
export function readTextFile(file: string | 0, name = String(file)): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new UsageError(`cannot read ${name}: ${(error as Error).message}`);
  }
}

export function readJsonFile(file: string): unknown {
  const name = file === '-' ? 'standard input' : file;
  const text = readTextFile(file === '-' ? 0 : file, name);
  try {
    return JSON.parse(text.replace(/^\uFEFF/, '')); // some editors begin a file with a mark
  } catch (error) {
    throw new UsageError(`${name} is not JSON: ${collapseWhitespace((error as Error).message)}`);
  }
}

/** What comes from a file may hold anything; a message is one line. */
const collapseWhitespace = (text: string): string => text.replace(/\s+/g, ' ');

export function writeTextFile(file: string, text: string): void {
  try {
    writeFileSync(file, text);
  } catch (error) {
    throw new UsageError(`cannot write ${file}: ${(error as Error).message}`);
  }
}
