/**
 * Reads what people wrote into values a rule can trust, and says exactly where it went wrong.
 *
 * A reader knows its path (`limit.bucket`), so every complaint names the whole field, what was
 * expected there and what came instead. `done()` catches what nobody asked for: a misspelt option
 * is an error, not a default.
 *
 * A patient reader goes on after a mistake, with something in its place that leads to no other complaint
 * (a number becomes NaN, which is beyond no bound), and `done()` tells all of them at once. Nothing may be made of what
 * it read before that.
 */

import type { Millis } from './clock.ts';
import { parseDuration, parseRate, type RateValue } from './duration.ts';
import { ConfigError, preview } from './errors.ts';

/** The most of anything that is counted: beyond it, numbers no longer tell one from two. */
export const MAX_AMOUNT = 1e15;

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Names as people write them; anything else is quoted before it goes into a message. */
const SAFE_NAME = /^[\w.-]{1,60}$/;

/** Mistakes that are gathered, to be told at once. */
class ErrorCollector {
  readonly #errors: ConfigError[] = [];

  add(mistake: ConfigError): void {
    this.#errors.push(mistake);
  }

  /** What `read` says; undefined, and noted, if it makes no sense. */
  tryRead<T>(read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      this.add(error);
      return undefined;
    }
  }

  /** @throws {ConfigError} if there are any: the first, with the others in it. */
  throwIfAny(): void {
    const [first, ...rest] = this.#errors;
    if (first) throw ConfigError.merge([first, ...rest]);
  }
}

/** Reads every one of a list, also after one that makes no sense. */
export function readEach<T, Read>(
  items: readonly T[],
  read: (item: T, n: number) => Read,
): readonly Read[] {
  const mistakes = new ErrorCollector();
  const all = items.map((item, n) => mistakes.tryRead(() => read(item, n)));
  mistakes.throwIfAny();
  return all as Read[];
}

export class OptionReader {
  readonly path: string;
  readonly #values: Record<string, unknown>;
  readonly #readNames = new Set<string>();
  /** What was found so far, if it is patient. */
  #collector: ErrorCollector | undefined;

  constructor(path: string, value: unknown, expected = 'an object') {
    if (!isRecord(value)) throw new ConfigError(path, expected, value);
    this.path = path;
    this.#values = value;
  }

  /** One that tells all mistakes at once: see `done()`, which has to be called. */
  static collecting(path: string, value: unknown, expected?: string): OptionReader {
    const reader = new OptionReader(path, value, expected);
    reader.#collector = new ErrorCollector();
    return reader;
  }

  pathOf(name: string): string {
    const safe = SAFE_NAME.test(name) ? name : `[${preview(name)}]`;
    return this.path === '' ? safe : `${this.path}.${safe}`;
  }

  /** The names that were written, in their order. */
  names(): string[] {
    return Object.keys(this.#values);
  }

  /** True if somebody has asked for it, whether it was written or not. */
  wasRead(name: string): boolean {
    return this.#readNames.has(name);
  }

  has(name: string): boolean {
    return this.get(name) !== undefined;
  }

  get(name: string): unknown {
    this.#readNames.add(name);
    return Object.hasOwn(this.#values, name) ? this.#values[name] : undefined;
  }

  /** What was written, or what holds if nothing was. `null` was written, and is nonsense. */
  #valueOr(name: string, fallback: unknown): unknown {
    const value = this.get(name);
    return value === undefined ? fallback : value;
  }

  /** Ends a reading: whatever was written and never asked for is a mistake. */
  finish(): void {
    const known = [...this.#readNames].join(', ') || 'nothing';
    for (const stray of this.names().filter((name) => !this.#readNames.has(name))) {
      this.#collectOrThrow(new ConfigError(this.pathOf(stray), `one of ${known}`, stray));
    }
    this.#collector?.throwIfAny();
  }

  /** Reads a part in words of its own; if that makes no sense, a patient reader goes on without it. */
  tryRead<T>(read: () => T): T | undefined {
    return this.#collector ? this.#collector.tryRead(read) : read();
  }

  /** There is no going on from here. */
  throwFor(name: string, expected: string): never {
    const mistake = new ConfigError(this.pathOf(name), expected, this.get(name));
    this.#collector?.add(mistake);
    this.#collector?.throwIfAny();
    throw mistake;
  }

  /** A mistake that a patient reader can leave behind. */
  report(name: string, expected: string): void {
    this.#collectOrThrow(new ConfigError(this.pathOf(name), expected, this.get(name)));
  }

  #collectOrThrow(mistake: ConfigError): void {
    if (!this.#collector) throw mistake;
    this.#collector.add(mistake);
  }

  /** Complains of a field, and goes on with this in its place. */
  #reportAndUse<T>(name: string, expected: string, standIn: T): T {
    this.report(name, expected);
    return standIn;
  }

  /** A number of at least `min` (or more than `above`) and at most `max`. */
  number(name: string, range: NumberRange, fallback?: number): number {
    if (Number.isNaN(fallback) && !this.has(name)) return Number.NaN; // it depends on a mistake
    const value = this.#valueOr(name, fallback);
    return typeof value === 'number' && isInRange(value, range)
      ? value
      : this.#reportAndUse(name, describeRange(range), Number.NaN);
  }

  /** More than nothing, and no more than can be counted. */
  positive(name: string, fallback?: number): number {
    const value = this.number(name, { above: 0 }, fallback);
    return value > MAX_AMOUNT
      ? this.#reportAndUse(name, `at most ${MAX_AMOUNT}`, Number.NaN)
      : value;
  }

  integer(name: string, min: number, fallback?: number): number {
    return this.number(name, { min, integer: true }, fallback);
  }

  /** Something only code can hand in. */
  optional<T>(name: string, is: (value: unknown) => value is T, expected: string): T | undefined {
    const value = this.get(name);
    if (value === undefined || is(value)) return value;
    return this.#reportAndUse(name, expected, undefined);
  }

  /** The same, and it has to be there. */
  required<T>(name: string, is: (value: unknown) => value is T, expected: string): T {
    const value = this.get(name);
    return is(value) ? value : this.#reportAndUse(name, expected, undefined as T);
  }

  boolean(name: string, fallback: boolean): boolean {
    const value = this.#valueOr(name, fallback);
    return typeof value === 'boolean' ? value : this.#reportAndUse(name, 'true or false', fallback);
  }

  oneOf<T extends string>(name: string, choices: readonly T[], fallback?: T): T {
    const value = this.#valueOr(name, fallback);
    const choice = choices.find((candidate) => candidate === value);
    return (
      choice ?? this.#reportAndUse(name, `one of ${choices.join(', ')}`, fallback ?? choices[0])
    );
  }

  /** A span of more than nothing; `fallback` may be anything, endless included. */
  duration(name: string, fallback?: Millis): Millis {
    if (!this.has(name) && fallback !== undefined) return fallback;
    const value = parseDuration(this.get(name));
    const expected = 'a duration longer than 0, such as "6s" or 6000 (ms)';
    const isSpan = value !== undefined && value > 0 && value < Infinity;
    return isSpan ? value : this.#reportAndUse(name, expected, Number.NaN);
  }

  rate(name: string): RateValue {
    const value = parseRate(this.get(name));
    const expected = 'a rate above 0, such as "100/s", "1/6s" or 100 (a second)';
    return value !== undefined && isPositiveRate(value)
      ? value
      : this.#reportAndUse(name, expected, { count: Number.NaN, periodMs: Number.NaN });
  }
}

/** The same check for a value that came as an argument. */
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

/** A rate must be finite both ways: so many in a period, and so long for one. */
function isPositiveRate({ count, periodMs }: RateValue): boolean {
  const perMs = count / periodMs;
  return perMs > 0 && perMs < Infinity && 1 / perMs < Infinity;
}

/** How long somebody waits who said `wait: ...`. */
export function parseWaitMs(wait: unknown): Millis {
  if (wait === true || wait === Infinity) return Infinity;
  if (wait === false) return 0;
  const ms = parseDuration(wait);
  if (ms !== undefined && ms >= 0) return ms;
  throw new ConfigError('wait', 'true, false or a duration such as "2s" or 2000 (ms)', wait);
}
