/**
 * Every error the library throws, and the only place one is worded.
 *
 * Being refused is not an error, so there are few. Callers match on `code`; the message is for
 * people and always says three things: which field, what was expected of it, what came instead.
 */

import type { Decision } from './decision.ts';

/** What to match on; messages are for people. */
export type ErrorCode = 'CONFIG' | 'DENIED' | 'UNAVAILABLE';

/** What all errors of this package have in common. */
export abstract class SluiceError extends Error {
  abstract readonly code: ErrorCode;
}

/** Something that was asked for makes no sense, and no traffic could make it make sense. */
export class ConfigError extends SluiceError {
  override readonly name = 'ConfigError';
  readonly code = 'CONFIG';

  /** Where the nonsense stands, such as `limit.bucket.rate` or `calls[3].take`. */
  readonly field: string;
  /** What else is wrong around it, where that could be told without guessing. */
  readonly additionalErrors: readonly ConfigError[];

  readonly #expected: string;
  readonly #got: unknown;

  constructor(
    field: string,
    expected: string,
    got: unknown,
    additionalErrors: readonly ConfigError[] = [],
  ) {
    super(formatMismatch(field, expected, got));
    this.field = field;
    this.additionalErrors = additionalErrors;
    this.#expected = expected;
    this.#got = got;
  }

  /** The same nonsense, seen from further out. */
  prefixedWith(path: string): ConfigError {
    const others = this.additionalErrors.map((own) => own.prefixedWith(path));
    return new ConfigError(`${path}.${this.field}`, this.#expected, this.#got, others);
  }

  /** The first of these, with the others in it. */
  static merge([first, ...rest]: readonly [ConfigError, ...ConfigError[]]): ConfigError {
    const others = [
      ...first.additionalErrors,
      ...rest.flatMap((own) => [own, ...own.additionalErrors]),
    ];
    return new ConfigError(first.field, first.#expected, first.#got, others);
  }
}

/** A call as an exception knows it: refused by which limit, and until when. */
export type Denial = Extract<Decision, { verdict: 'deny' }> & {
  readonly limit?: string;
  readonly reason?: string;
  /** Why, in words, where more is known than `retryAfterMs` says. */
  readonly detail?: string;
};

/** A wrapped call was refused. Carries the decision, so that callers can honour its wait. */
export class DeniedError extends SluiceError {
  override readonly name = 'DeniedError';
  readonly code = 'DENIED';
  readonly key: string;
  readonly decision: Denial;

  constructor(key: string, decision: Denial) {
    const what = decision.reason === 'unavailable' ? 'nobody could decide' : 'over the limit';
    super(
      `${what}${key === '' ? '' : ` for ${preview(key)}`}; ${decision.detail ?? retryHint(decision)}`,
    );
    this.key = key;
    this.decision = decision;
  }
}

/** Whoever decides could not be reached in time. Told to listeners; a call gets `onUnavailable`. */
export class UnavailableError extends SluiceError {
  override readonly name = 'UnavailableError';
  readonly code = 'UNAVAILABLE';

  constructor(who: string, why: unknown = 'it did not answer lately') {
    super(`${who} is out of reach: ${why instanceof Error ? why.message : why}`, { cause: why });
  }
}

function retryHint({ retryAfterMs, reason }: Denial): string {
  if (reason === 'queue-full') return 'too many wait already';
  if (reason === 'closed') return 'the limiter was closed';
  if (retryAfterMs === Infinity) return 'it can never fit';
  return retryAfterMs > 0 ? `try again in ${Math.ceil(retryAfterMs)} ms` : 'try again later';
}

/** What is wrong, in one line: where, what was expected there, what came instead. */
export const formatMismatch = (field: string, expected: string, got: unknown): string =>
  `expected ${field && `\`${field}\` to be `}${expected}, got ${preview(got)}`;

/** Long enough to recognise what came, short enough for one line of a log. */
const MAX_PREVIEW_CHARS = 60;

/** A value in one short line, whatever it is. */
export function preview(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'function') return 'a function';
  const plain = typeof value === 'number' || typeof value === 'bigint' || typeof value === 'symbol';
  const text = plain ? String(value) : (tryStringify(value) ?? safeString(value));
  return text.length > MAX_PREVIEW_CHARS ? `${text.slice(0, MAX_PREVIEW_CHARS)}…` : text;
}

/** What went wrong in somebody else's code, which may throw anything. */
export const errorMessageOf = (error: unknown): string =>
  error instanceof Error ? safeString(error.message) : preview(error);

function safeString(value: unknown): string {
  try {
    return String(value);
  } catch {
    return 'something that cannot be written down';
  }
}

function tryStringify(value: unknown): string | undefined {
  try {
    return JSON.stringify(value);
  } catch {
    return undefined; // a circle, or something that refuses to be written down
  }
}
