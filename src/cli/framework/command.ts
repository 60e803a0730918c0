/**
 * The interface of a command: arguments in, text out, an exit code. It has no access to process and terminal, so tests run
 * it as a user would.
 *
 * Exit codes: 0 success · 1 the check failed · 2 usage error · 69 an address or file is in use (EX_UNAVAILABLE of sysexits.h).
 */

import { existsSync, readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { type ParseArgsConfig, parseArgs } from 'node:util';
import { type NumberRange, OptionReader } from '../../core/options.ts';
import type { Screen } from './screen.ts';

export const EXIT_OK = 0;
export const EXIT_CHECK_FAILED = 1;
export const EXIT_CANNOT_RUN = 2;
/** Another attempt may succeed: a service manager restarts the daemon. */
export const EXIT_IN_USE = 69;

export interface Terminal {
  print(line: string): void;
  error(line: string): void;
  /** Prints a log line to standard error if that is possible without waiting. */
  log(line: string): void;
  /** Shows progress in place of the last text. Left out if standard error is no terminal. */
  readonly progress?: ((words: string) => void) | undefined;
  readonly columns: number;
  /** Takes over the terminal. Left out if standard input or output is no terminal. */
  readonly openScreen?: (() => Screen) | undefined;
  readonly version: string;
  /** Ends the holding of SIGHUP, for a command that handles it. True if one was held. */
  readonly releaseHangup?: () => boolean;
}

export interface Command {
  /** The output of `--help`: usage, options, an example to paste. */
  readonly help: string;
  run(args: readonly string[], terminal: Terminal): number | Promise<number>;
}

/** Commands under a common word, such as `simulate`. */
export interface CommandGroup {
  readonly commands: readonly CommandEntry[];
  /** Runs where a file or a flag stands in place of a command. */
  readonly fileCommand?: CommandEntry;
}

/** A command in a list. Its code is loaded when it runs: the list needs only a name and a summary. */
export interface CommandEntry {
  /** The word on the command line: `trace`, or `tchannel` after `simulate`. */
  readonly name: string;
  /** One line for the list of commands. */
  readonly summary: string;
  load(): Command | CommandGroup | Promise<Command | CommandGroup>;
}

/** A mistake of the user: printed as one line, exit code 2. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
}

/** A daemon understood the request, and cannot carry it out. */
export class RefusedError extends CommandError {}

/** No reply of a daemon in time. What was requested may happen nevertheless. */
export class TimeoutError extends CommandError {}

/** The kinds of flags. */
export const TEXT = { type: 'string' } as const;
export const LIST = { type: 'string', multiple: true } as const;
export const SWITCH = { type: 'boolean' } as const;

type FlagSpecs = NonNullable<ParseArgsConfig['options']>;
type ParsedArgs<T extends FlagSpecs> = ReturnType<
  typeof parseArgs<{ options: T; allowPositionals: true; strict: true }>
>;

/** Reads flags and positional arguments. @throws {CommandError} */
export function readArgs<T extends FlagSpecs>(args: readonly string[], options: T): ParsedArgs<T> {
  try {
    return parseArgs({ args: [...args], options, allowPositionals: true, strict: true });
  } catch (error) {
    // Node's first sentence is clear; the rest explains '--', which no command takes.
    const [first] = (error as Error).message.split(/\.?\s*\n|\. /);
    throw new CommandError(`${first}; see --help`);
  }
}

/** Reads the flags of a command without positional arguments. @throws {CommandError} */
export function readFlags<T extends FlagSpecs>(
  args: readonly string[],
  options: T,
): ParsedArgs<T>['values'] {
  const { values, positionals } = readArgs(args, options);
  const [word] = positionals;
  if (word === undefined) return values;
  throw new CommandError(`expected options only, got "${word}"; see --help`);
}

/** The one positional argument of a command. @throws {CommandError} */
export function onlyPositional(positionals: readonly string[], what: string): string {
  if (positionals.length === 1) return positionals[0];
  throw new CommandError(`expected one ${what}; see --help`);
}

/** `1 limit`, `2 limits`. */
export const countOf = (count: number, what: string): string =>
  `${count} ${what}${count === 1 ? '' : 's'}`;

/** Flags of which one has a text. */
export type FlagValues<Name extends string> = { readonly [name in Name]?: string | undefined };

export function numberFlag<Name extends string>(
  flags: FlagValues<Name>,
  name: Name,
  fallback: number,
): number {
  const text = flags[name];
  if (text === undefined) return fallback;
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (Number.isFinite(value)) return value;
  throw new CommandError(`expected \`--${name}\` to be a number, got "${text}"`);
}

/**
 * A duration or rate of the command line for an option reader. A number without a unit is a string only here; in code
 * and in files such a string is ambiguous and an error.
 */
export const parseFlagValue = (text: string): string | number =>
  /^(?:\d+(?:\.\d+)?|\.\d+)$/.test(text) ? Number(text) : text;

/** A number flag within a range; errors name the flag. */
export function rangeFlag<Name extends string>(
  flags: FlagValues<Name>,
  name: Name,
  fallback: number,
  range: NumberRange,
): number {
  const flag = `--${name}`;
  return new OptionReader('', { [flag]: numberFlag(flags, name, fallback) }).number(flag, range);
}

export const integerUpTo = (max: number): NumberRange => ({ min: 1, max, integer: true });

/** The text of a file. @throws {CommandError} if it cannot be read. */
export function readTextFile(file: string | 0, name = String(file)): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new CommandError(`cannot read ${name}: ${(error as Error).message}`);
  }
}

export function readJsonFile(file: string): unknown {
  const name = file === '-' ? 'standard input' : file;
  const text = readTextFile(file === '-' ? 0 : file, name);
  try {
    return JSON.parse(text.replace(/^\uFEFF/, '')); // byte order mark
  } catch (error) {
    throw new CommandError(`${name} is not JSON: ${collapseWhitespace((error as Error).message)}`);
  }
}

/** The message may quote the file; it has to be one line. */
const collapseWhitespace = (text: string): string => text.replace(/\s+/g, ' ');

/** Notices a directory that is missing before a long run, not after it. */
export function requireDirectory(file: string | undefined): void {
  if (file === undefined || existsSync(dirname(file))) return;
  throw new CommandError(`expected a file in a directory that exists, got "${file}"`);
}

export function writeTextFile(file: string, text: string): void {
  try {
    writeFileSync(file, text);
  } catch (error) {
    throw new CommandError(`cannot write ${file}: ${(error as Error).message}`);
  }
}

export const absolutePathOf = (path: string): string => resolve(path);

/** Absolute, without links; a path that does not exist here keeps its links. */
export function realPathOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return resolve(path);
  }
}
