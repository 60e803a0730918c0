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
import { ConfigError, show } from './errors.ts';

/** The most of anything that is counted: beyond it, numbers no longer tell one from two. */
export const AMOUNT_MAX = 1e15;

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Names as people write them; anything else is quoted before it goes into a message. */
const SAFE_NAME = /^[\w.-]{1,60}$/;

/** Mistakes that are gathered, to be told at once. */
class Mistakes {
  readonly #found: ConfigError[] = [];

  add(mistake: ConfigError): void {
    this.#found.push(mistake);
  }

  /** What `read` says; undefined, and noted, if it makes no sense. */
  attempt<T>(read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      this.add(error);
      return undefined;
    }
  }

  /** @throws {ConfigError} if there are any: the first, with the others in it. */
  tell(): void {
    const [first, ...rest] = this.#found;
    if (first) throw ConfigError.of([first, ...rest]);
  }
}

/** Reads every one of a list, also after one that makes no sense. */
export function readEach<T, Read>(
  items: readonly T[],
  read: (item: T, n: number) => Read,
): readonly Read[] {
  const mistakes = new Mistakes();
  const all = items.map((item, n) => mistakes.attempt(() => read(item, n)));
  mistakes.tell();
  return all as Read[];
}

export class Fields {
  readonly path: string;
  readonly #values: Record<string, unknown>;
  readonly #known = new Set<string>();
  /** What was found so far, if it is patient. */
  #mistakes: Mistakes | undefined;

  constructor(path: string, value: unknown, expected = 'an object') {
    if (!isRecord(value)) throw new ConfigError(path, expected, value);
    this.path = path;
    this.#values = value;
  }

  /** One that tells all mistakes at once: see `done()`, which has to be called. */
  static patient(path: string, value: unknown, expected?: string): Fields {
    const fields = new Fields(path, value, expected);
    fields.#mistakes = new Mistakes();
    return fields;
  }

  at(name: string): string {
    const safe = SAFE_NAME.test(name) ? name : `[${show(name)}]`;
    return this.path === '' ? safe : `${this.path}.${safe}`;
  }

  /** The names that were written, in their order. */
  names(): string[] {
    return Object.keys(this.#values);
  }

  /** True if somebody has asked for it, whether it was written or not. */
  knows(name: string): boolean {
    return this.#known.has(name);
  }

  has(name: string): boolean {
    return this.raw(name) !== undefined;
  }

  raw(name: string): unknown {
    this.#known.add(name);
    return Object.hasOwn(this.#values, name) ? this.#values[name] : undefined;
  }

  /** What was written, or what holds if nothing was. `null` was written, and is nonsense. */
  #given(name: string, fallback: unknown): unknown {
    const value = this.raw(name);
    return value === undefined ? fallback : value;
  }

  /** Ends a reading: whatever was written and never asked for is a mistake. */
  done(): void {
    const known = [...this.#known].join(', ') || 'nothing';
    for (const stray of this.names().filter((name) => !this.#known.has(name))) {
      this.#note(new ConfigError(this.at(stray), `one of ${known}`, stray));
    }
    this.#mistakes?.tell();
  }

  /** Reads a part in words of its own; if that makes no sense, a patient reader goes on without it. */
  attempt<T>(read: () => T): T | undefined {
    return this.#mistakes ? this.#mistakes.attempt(read) : read();
  }

  /** There is no going on from here. */
  fail(name: string, expected: string): never {
    const mistake = new ConfigError(this.at(name), expected, this.raw(name));
    this.#mistakes?.add(mistake);
    this.#mistakes?.tell();
    throw mistake;
  }

  /** A mistake that a patient reader can leave behind. */
  complain(name: string, expected: string): void {
    this.#note(new ConfigError(this.at(name), expected, this.raw(name)));
  }

  #note(mistake: ConfigError): void {
    if (!this.#mistakes) throw mistake;
    this.#mistakes.add(mistake);
  }

  /** Complains of a field, and goes on with this in its place. */
  #instead<T>(name: string, expected: string, standIn: T): T {
    this.complain(name, expected);
    return standIn;
  }

  /** A number of at least `min` (or more than `above`) and at most `max`. */
  number(name: string, range: NumberRange, fallback?: number): number {
    if (Number.isNaN(fallback) && !this.has(name)) return Number.NaN; // it depends on a mistake
    const value = this.#given(name, fallback);
    return typeof value === 'number' && isWithin(value, range)
      ? value
      : this.#instead(name, describe(range), Number.NaN);
  }

  /** More than nothing, and no more than can be counted. */
  positive(name: string, fallback?: number): number {
    const value = this.number(name, { above: 0 }, fallback);
    return value > AMOUNT_MAX ? this.#instead(name, `at most ${AMOUNT_MAX}`, Number.NaN) : value;
  }

  whole(name: string, min: number, fallback?: number): number {
    return this.number(name, { min, whole: true }, fallback);
  }

  /** Something only code can hand in. */
  optional<T>(name: string, is: (value: unknown) => value is T, expected: string): T | undefined {
    const value = this.raw(name);
    if (value === undefined || is(value)) return value;
    return this.#instead(name, expected, undefined);
  }

  /** The same, and it has to be there. */
  required<T>(name: string, is: (value: unknown) => value is T, expected: string): T {
    const value = this.raw(name);
    return is(value) ? value : this.#instead(name, expected, undefined as T);
  }

  flag(name: string, fallback: boolean): boolean {
    const value = this.#given(name, fallback);
    return typeof value === 'boolean' ? value : this.#instead(name, 'true or false', fallback);
  }

  oneOf<T extends string>(name: string, choices: readonly T[], fallback?: T): T {
    const value = this.#given(name, fallback);
    const choice = choices.find((candidate) => candidate === value);
    return choice ?? this.#instead(name, `one of ${choices.join(', ')}`, fallback ?? choices[0]);
  }

  /** A span of more than nothing; `fallback` may be anything, endless included. */
  duration(name: string, fallback?: Millis): Millis {
    if (!this.has(name) && fallback !== undefined) return fallback;
    const value = parseDuration(this.raw(name));
    const expected = 'a duration longer than 0, such as "6s" or 6000 (ms)';
    const isSpan = value !== undefined && value > 0 && value < Infinity;
    return isSpan ? value : this.#instead(name, expected, Number.NaN);
  }

  rate(name: string): RateValue {
    const value = parseRate(this.raw(name));
    const expected = 'a rate above 0, such as "100/s", "1/6s" or 100 (a second)';
    return value !== undefined && isRatePositive(value)
      ? value
      : this.#instead(name, expected, { count: Number.NaN, periodMs: Number.NaN });
  }
}

/** The same check for a value that came as an argument. */
export function requireNumber(field: string, value: unknown, range: NumberRange): void {
  if (typeof value === 'number' && isWithin(value, range)) return;
  throw new ConfigError(field, describe(range), value);
}

export interface NumberRange {
  readonly min?: number;
  readonly above?: number;
  readonly max?: number;
  readonly whole?: boolean;
}

function isWithin(value: number, { min, above, max, whole }: NumberRange): boolean {
  if (!Number.isFinite(value) || (whole && !Number.isInteger(value))) return false;
  return !(value < (min ?? value)) && !(value <= (above ?? -Infinity)) && !(value > (max ?? value));
}

function describe({ min, above, max, whole }: NumberRange): string {
  const kind = whole ? 'a whole number' : 'a number';
  const bounds = [
    above !== undefined && `above ${above}`,
    min !== undefined && `of at least ${min}`,
    max !== undefined && `at most ${max}`,
  ].filter((part) => part !== false);
  return bounds.length ? `${kind} ${bounds.join(' and ')}` : kind;
}

/** A rate must be finite both ways: so many in a period, and so long for one. */
function isRatePositive({ count, periodMs }: RateValue): boolean {
  const perMs = count / periodMs;
  return perMs > 0 && perMs < Infinity && 1 / perMs < Infinity;
}

/** How long somebody waits who said `wait: ...`. */
export function waitMsIn(wait: unknown): Millis {
  if (wait === true || wait === Infinity) return Infinity;
  if (wait === false) return 0;
  const ms = parseDuration(wait);
  if (ms !== undefined && ms >= 0) return ms;
  throw new ConfigError('wait', 'true, false or a duration such as "2s" or 2000 (ms)', wait);
}
