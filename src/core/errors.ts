/**
 * The four errors that the library throws; a refusal is a value. Callers match on `code`. A message names the option, what
 * was expected, what came instead and, where a known name is close, which one was probably meant.
 */

import type { Decision } from './decision.ts';
import { suggestName } from './suggestion.ts';

/** The `code` that callers match on; messages may change. */
export type ErrorCode = 'CONFIG' | 'DENIED' | 'UNAVAILABLE' | 'REJECTED';

/** The base class of all errors of this package. */
export abstract class SluiceError extends Error {
  abstract readonly code: ErrorCode;
}

/** An option or an argument is invalid, whatever the traffic. */
export class ConfigError extends SluiceError {
  override readonly name = 'ConfigError';
  readonly code = 'CONFIG';

  /** The path of the invalid option, such as `limit.bucket.rate` or `calls[3].take`. */
  readonly field: string;
  /** Further errors that were found in the same object, without those that only follow from another. */
  readonly additionalErrors: readonly ConfigError[];

  readonly #expected: string;
  readonly #got: unknown;
  readonly #hint: string | undefined;

  constructor(
    field: string,
    expected: string,
    got: unknown,
    additionalErrors: readonly ConfigError[] = [],
    hint?: string,
  ) {
    super(formatMismatch(field, expected, got, hint));
    this.field = field;
    this.additionalErrors = additionalErrors;
    this.#expected = expected;
    this.#got = got;
    this.#hint = hint;
  }

  /** A name that is not one of those known there; suggests the closest. */
  static unknownName(field: string, name: string, known: readonly string[]): ConfigError {
    const expected = known.length > 0 ? `one of ${known.join(', ')}` : 'left out: no options exist';
    return new ConfigError(field, expected, name, [], suggestName(name, known));
  }

  /** Returns the error with its path put under an outer one, which replaces the root `replaced`. */
  prefixedWith(path: string, replaced?: string): ConfigError {
    const others = this.additionalErrors.map((error) => error.prefixedWith(path, replaced));
    const [root, ...rest] = this.field.split('.');
    return this.#with([path, ...(root === replaced ? [] : [root]), ...rest].join('.'), others);
  }

  /** The first of these errors, which carries the others. */
  static merge([first, ...rest]: readonly [ConfigError, ...ConfigError[]]): ConfigError {
    const others = rest.flatMap((error) => [error, ...error.additionalErrors]);
    return first.#with(first.field, [...first.additionalErrors, ...others]);
  }

  #with(field: string, additionalErrors: readonly ConfigError[]): ConfigError {
    return new ConfigError(field, this.#expected, this.#got, additionalErrors, this.#hint);
  }
}

/** A refusal as an exception carries it: by which limit, why, and until when. */
export type Denial = Extract<Decision, { verdict: 'deny' }> & {
  readonly limit?: string;
  readonly reason?: string;
  /** Why, in words, where more is known than `retryAfterMs` says. */
  readonly detail?: string;
};

/** Another process uses the address or the file: a later attempt may succeed, so this is no mistake in the configuration. */
export class InUseError extends ConfigError {}

/** A throttled call was refused. Carries the decision, so that callers can honour `retryAfterMs`. */
export class DeniedError extends SluiceError {
  override readonly name = 'DeniedError';
  readonly code = 'DENIED';
  readonly key: string;
  readonly decision: Denial;

  constructor(key: string, decision: Denial) {
    const what = decision.reason === 'unavailable' ? 'backend unavailable' : 'over the limit';
    const forKey = key === '' ? '' : ` for ${preview(key)}`;
    super(`${what}${forKey}; ${decision.detail ?? retryHint(decision)}`);
    this.key = key;
    this.decision = decision;
  }
}

/** A backend or a daemon did not reply in time. Passed to listeners; calls are decided by `onUnavailable`. */
export class UnavailableError extends SluiceError {
  override readonly name = 'UnavailableError';
  readonly code = 'UNAVAILABLE';

  constructor(
    component: string,
    cause: unknown = 'recent requests failed',
    problem = 'is unavailable',
  ) {
    const reason = cause instanceof Error ? cause.message : cause;
    super(`${component} ${problem}: ${reason}`, { cause });
  }
}

interface RejectionDetails {
  readonly retryAfterMs?: number | undefined;
  readonly isMistake?: boolean;
  readonly problem?: string;
}

/** A daemon rejected a request as invalid, or the server is no daemon. Not an outage: the call is denied. */
export class RejectedError extends SluiceError {
  override readonly name = 'RejectedError';
  readonly code = 'REJECTED';

  /** When another attempt may succeed; `Infinity`: never. */
  readonly retryAfterMs: number;
  /** True if a name, the password or the address is wrong, whatever the key: the call rejects with this error. */
  readonly isMistake: boolean;

  constructor(
    component: string,
    reply: string,
    {
      retryAfterMs = Infinity,
      isMistake = false,
      problem = 'rejected the request',
    }: RejectionDetails = {},
  ) {
    super(`${component} ${problem}: ${reply}`);
    this.retryAfterMs = retryAfterMs;
    this.isMistake = isMistake;
  }
}

function retryHint({ retryAfterMs, reason }: Denial): string {
  if (reason === 'queue-full') return 'the queue is full';
  if (reason === 'closed') return 'the limiter is closed';
  if (retryAfterMs === Infinity) return 'the cost can never fit';
  return retryAfterMs > 0 ? `try again in ${Math.ceil(retryAfterMs)} ms` : 'try again later';
}

/** One line: where, what was expected, what came instead, and a hint if there is one. */
export function formatMismatch(
  field: string,
  expected: string,
  got: unknown,
  hint?: string,
): string {
  const what = field && `\`${field}\` to be `;
  return `expected ${what}${expected}, got ${preview(got)}${hint ? `; ${hint}` : ''}`;
}

/** Long enough to recognise the value, short enough for one log line. */
const MAX_PREVIEW_CHARS = 60;

/** Any value in one short line. */
export function preview(value: unknown): string {
  if (typeof value === 'function') return 'a function';
  const isPlain = ['undefined', 'number', 'bigint', 'symbol'].includes(typeof value);
  const text = isPlain ? String(value) : (tryStringify(value) ?? safeString(value));
  return text.length > MAX_PREVIEW_CHARS ? `${text.slice(0, MAX_PREVIEW_CHARS)}…` : text;
}

/** The message of anything that foreign code may throw. */
export const errorMessageOf = (error: unknown): string =>
  error instanceof Error ? safeString(error.message) : preview(error);

function safeString(value: unknown): string {
  try {
    return String(value);
  } catch {
    return 'an unprintable value';
  }
}

function tryStringify(value: unknown): string | undefined {
  try {
    return JSON.stringify(value);
  } catch {
    return undefined; // a cycle, or a toJSON that throws
  }
}
