/**
 * Reads options into values that the rest of the code can trust. Every error names the whole path of the option, what was
 * expected and what came. `finish()` reports options that were never read: a misspelt option is an error.
 *
 * A collecting reader continues after an error, with a value in its place that causes no further error (a number becomes
 * NaN, which is outside no range). `finish()` then throws all errors at once. Values must not be used before that.
 */

import type { Millis } from './clock.ts';
import {
  parseDuration,
  parseRate,
  type RateValue,
  suggestDuration,
  suggestRate,
} from './duration.ts';
import { ConfigError, preview } from './errors.ts';
import type { Steps } from './steps.ts';
import { suggestName } from './suggestion.ts';

/** The largest count: beyond it, a double no longer resolves fractions of one. */
export const MAX_AMOUNT = 1e15;

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The names of the members that are not undefined. */
export const presentNames = (value: object): string[] =>
  Object.keys(value).filter((name) => (value as Record<string, unknown>)[name] !== undefined);

export const isFunction = <F extends (...args: never[]) => unknown>(value: unknown): value is F =>
  typeof value === 'function';

/** Names that go into a message as they are; others are quoted first. */
const SAFE_NAME = /^[\w.-]{1,60}$/;

const quoteName = (name: string): string => (SAFE_NAME.test(name) ? `\`${name}\`` : preview(name));

/** Errors that are thrown together. */
class ErrorCollector {
  readonly #errors: ConfigError[] = [];

  add(error: ConfigError): void {
    this.#errors.push(error);
  }

  /** The result of `read`; undefined if it throws a ConfigError, which is kept. */
  tryRead<T>(read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      this.add(error);
      return undefined;
    }
  }

  *tryReadInSteps<T>(read: Steps<T>): Steps<T | undefined> {
    try {
      return yield* read;
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      this.add(error);
      return undefined;
    }
  }

  /** @throws {ConfigError} the first error, which carries the others. */
  throwIfAny(): void {
    const [first, ...rest] = this.#errors;
    if (first) throw ConfigError.merge([first, ...rest]);
  }
}

/** Reads every item of a list and throws the errors of all of them together. */
export function readEach<T, Read>(
  items: readonly T[],
  read: (item: T, n: number) => Read,
): readonly Read[] {
  const errors = new ErrorCollector();
  const all = items.map((item, n) => errors.tryRead(() => read(item, n)));
  errors.throwIfAny();
  return all as Read[];
}

export function* readEachInSteps<T, Read>(
  items: readonly T[],
  read: (item: T, n: number) => Steps<Read>,
): Steps<readonly Read[]> {
  const errors = new ErrorCollector();
  const all: (Read | undefined)[] = [];
  for (const [n, item] of items.entries()) {
    all.push(yield* errors.tryReadInSteps(read(item, n)));
    yield;
  }
  errors.throwIfAny();
  return all as Read[];
}

/** A bare number is a value, but not as text: a URL and a command have only text. */
const expectedDuration = (given: unknown): string =>
  `a duration longer than 0, such as "6s" or ${typeof given === 'string' ? '"250ms"' : '6000 (ms)'}`;
const expectedRate = (given: unknown): string =>
  `a rate above 0, such as "100/s", "1/6s" or ${typeof given === 'string' ? '"500/min"' : '100 (per second)'}`;
const INVALID_RATE: RateValue = { count: Number.NaN, periodMs: Number.NaN };

export class OptionReader {
  readonly path: string;
  readonly #values: Record<string, unknown>;
  readonly #readNames = new Set<string>();
  /** Set for a collecting reader. */
  #collector: ErrorCollector | undefined;

  constructor(path: string, value: unknown, expected = 'an object') {
    if (!isRecord(value)) throw new ConfigError(path, expected, value);
    this.path = path;
    this.#values = value;
  }

  /** A reader that throws all errors at once, from `finish()`, which must be called. */
  static collecting(path: string, value: unknown, expected?: string): OptionReader {
    const reader = new OptionReader(path, value, expected);
    reader.#collector = new ErrorCollector();
    return reader;
  }

  pathOf(name: string): string {
    const safe = SAFE_NAME.test(name) ? name : `[${preview(name)}]`;
    return this.path === '' || safe !== name ? this.path + safe : `${this.path}.${safe}`;
  }

  /** The names of the options that are present, in their order. An option that is undefined is absent. */
  names(): string[] {
    return presentNames(this.#values);
  }

  /** The names of the options that were read, whether present or not. */
  knownNames(): string[] {
    return [...this.#readNames];
  }

  has(name: string): boolean {
    return this.get(name) !== undefined;
  }

  get(name: string): unknown {
    this.#readNames.add(name);
    return Object.hasOwn(this.#values, name) ? this.#values[name] : undefined;
  }

  /** The value, or the default if it is undefined. `null` is a value, and an invalid one. */
  valueOr(name: string, fallback: unknown): unknown {
    const value = this.get(name);
    return value === undefined ? fallback : value;
  }

  /** Reports every option that is present and was never read; `alsoKnown` are read elsewhere. */
  finish(alsoKnown: readonly string[] = []): void {
    const known = [...this.#readNames, ...alsoKnown];
    for (const name of this.names()) {
      if (this.#readNames.has(name)) continue;
      this.#collectOrThrow(ConfigError.unknownName(this.pathOf(name), name, known));
    }
    this.#collector?.throwIfAny();
  }

  /** Calls `read`; a collecting reader keeps its ConfigError and returns undefined. */
  tryRead<T>(read: () => T): T | undefined {
    return this.#collector ? this.#collector.tryRead(read) : read();
  }

  tryReadInSteps<T>(read: Steps<T>): Steps<T | undefined> {
    return this.#collector ? this.#collector.tryReadInSteps(read) : read;
  }

  /** Throws, together with the errors collected so far. */
  throwFor(name: string, expected: string): never {
    const error = new ConfigError(this.pathOf(name), expected, this.get(name));
    this.#collector?.add(error);
    this.#collector?.throwIfAny();
    throw error;
  }

  /** Reports an invalid option; a collecting reader continues. */
  report(name: string, expected: string, hint = this.#misspeltAs(name)): void {
    this.#collectOrThrow(new ConfigError(this.pathOf(name), expected, this.get(name), [], hint));
  }

  /** For an option that is missing: the unread one that was probably meant to be it. */
  #misspeltAs(name: string): string | undefined {
    if (this.has(name)) return undefined;
    const unread = this.names().filter((other) => !this.#readNames.has(other));
    return suggestName(name, unread, (close) => `\`${name}\` by ${quoteName(close)}`);
  }

  #collectOrThrow(error: ConfigError): void {
    if (!this.#collector) throw error;
    this.#collector.add(error);
  }

  /** Reports an invalid option and continues with a substitute. */
  #reportAndUse<T>(name: string, expected: string, substitute: T, hint?: string): T {
    this.report(name, expected, hint);
    return substitute;
  }

  /** A number of at least `min` (or more than `above`) and at most `max`. */
  number(name: string, range: NumberRange, fallback?: number): number {
    if (Number.isNaN(fallback) && !this.has(name)) return Number.NaN; // the default derives from an invalid option
    const value = this.valueOr(name, fallback);
    return typeof value === 'number' && isInRange(value, range)
      ? value
      : this.#reportAndUse(name, describeRange(range), Number.NaN);
  }

  /** A number above 0 and at most `MAX_AMOUNT`. */
  positive(name: string, fallback?: number): number {
    return this.#amount(name, this.number(name, { above: 0 }, fallback));
  }

  /** A whole number of at least `min` and at most `MAX_AMOUNT`. */
  integer(name: string, min: number, fallback?: number): number {
    return this.#amount(name, this.number(name, { min, integer: true }, fallback));
  }

  #amount(name: string, value: number): number {
    return value > MAX_AMOUNT
      ? this.#reportAndUse(name, `at most ${MAX_AMOUNT}`, Number.NaN)
      : value;
  }

  /** A value that passes `is`, or undefined. */
  optional<T>(name: string, is: (value: unknown) => value is T, expected: string): T | undefined {
    const value = this.get(name);
    if (value === undefined || is(value)) return value;
    return this.#reportAndUse(name, expected, undefined);
  }

  /** A value that passes `is`, and is present. */
  required<T>(name: string, is: (value: unknown) => value is T, expected: string): T {
    const value = this.get(name);
    return is(value) ? value : this.#reportAndUse(name, expected, undefined as T);
  }

  /** Options that are functions, all optional. */
  functions<Functions>(names: readonly (keyof Functions & string)[], expected: string): Functions {
    const read = names.map((name) => [name, this.optional(name, isFunction, expected)]);
    return Object.fromEntries(read) as Functions;
  }

  boolean(name: string, fallback: boolean): boolean {
    const value = this.valueOr(name, fallback);
    return typeof value === 'boolean' ? value : this.#reportAndUse(name, 'true or false', fallback);
  }

  oneOf<T extends string>(name: string, choices: readonly T[], fallback?: T): T {
    const value = this.valueOr(name, fallback);
    const choice = choices.find((candidate) => candidate === value);
    if (choice !== undefined) return choice;
    const hint = suggestName(value, choices, (close) => `"${close}"`);
    return this.#reportAndUse(name, `one of ${choices.join(', ')}`, fallback ?? choices[0], hint);
  }

  /** A finite duration above 0; `fallback` may be anything, Infinity included. */
  duration(name: string, fallback?: Millis): Millis {
    if (!this.has(name) && fallback !== undefined) return fallback;
    const given = this.get(name);
    const value = parseDuration(given);
    if (value !== undefined && value > 0 && value < Infinity) return value;
    return this.#reportAndUse(name, expectedDuration(given), Number.NaN, suggestDuration(given));
  }

  /** A duration above 0, or Infinity. */
  durationOrInfinity(name: string, fallback: Millis): Millis {
    return this.get(name) === Infinity ? Infinity : this.duration(name, fallback);
  }

  rate(name: string): RateValue {
    const given = this.get(name);
    const value = parseRate(given);
    if (value !== undefined && isPositiveRate(value)) return value;
    return this.#reportAndUse(name, expectedRate(given), INVALID_RATE, suggestRate(given));
  }
}

/** The check of `OptionReader.number` for an argument. */
export function requireNumber(field: string, value: unknown, range: NumberRange): void {
  if (typeof value === 'number' && isInRange(value, range)) return;
  throw new ConfigError(field, describeRange(range), value);
}

export interface NumberRange {
  readonly min?: number;
  readonly above?: number;
  readonly max?: number;
  readonly integer?: boolean;
}

function isInRange(value: number, { min, above, max, integer }: NumberRange): boolean {
  if (!Number.isFinite(value) || (integer && !Number.isInteger(value))) return false;
  return !(value < (min ?? value)) && !(value <= (above ?? -Infinity)) && !(value > (max ?? value));
}

function describeRange({ min, above, max, integer }: NumberRange): string {
  const kind = integer ? 'a whole number' : 'a number';
  const bounds = [
    above !== undefined && `above ${above}`,
    min !== undefined && `of at least ${min}`,
    max !== undefined && `at most ${max}`,
  ].filter((part) => part !== false);
  return bounds.length ? `${kind} ${bounds.join(' and ')}` : kind;
}

/** Both the calls per millisecond and the milliseconds per call must be finite. */
function isPositiveRate({ count, periodMs }: RateValue): boolean {
  const perMs = count / periodMs;
  return perMs > 0 && perMs < Infinity && 1 / perMs < Infinity;
}

/** The longest wait that an option `wait` allows: true is for ever, false is none. */
export function parseWaitMs(wait: unknown): Millis {
  if (wait === true || wait === Infinity) return Infinity;
  if (wait === false) return 0;
  const ms = parseDuration(wait);
  if (ms !== undefined && ms >= 0) return ms;
  const expected = 'true, false or a duration such as "2s" or 2000 (ms)';
  throw new ConfigError('wait', expected, wait, [], suggestDuration(wait));
}
