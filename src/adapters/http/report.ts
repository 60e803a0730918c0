/**
 * What goes wrong at the door is told to whoever asked to hear of it, and thrown at nobody.
 *
 *     unchecked   the limiter failed: the request went through, or was refused, without being counted
 *     misread     an option made no sense of this request: it was counted in some plainer way
 *     too late    the limit refused a request whose response had begun: it was broken off
 */

import { ConfigError, preview } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';

export class ErrorReporter {
  readonly #limit: string;
  readonly #onError: ((error: unknown) => unknown) | undefined;

  constructor(limit: string, onError: ((error: unknown) => unknown) | undefined) {
    this.#limit = limit;
    this.#onError = onError;
  }

  checkFailed(error: unknown): void {
    this.#report('UNCHECKED', 'a request could not be checked against', error);
  }

  optionFailed(error: unknown): void {
    this.#report('MISREAD', 'an option makes no sense of a request to', error);
  }

  refusedTooLate(error: unknown): void {
    this.#report('TOO_LATE', 'a response had begun before it was refused by', error);
  }

  #report(code: 'UNCHECKED' | 'MISREAD' | 'TOO_LATE', what: string, error: unknown): void {
    if (this.#isHandled(error)) return;
    emitProcessWarning(
      code,
      `${what} limit "${this.#limit}": ${describeError(error)}`,
      this.#limit,
    );
  }

  #isHandled(error: unknown): boolean {
    if (!this.#onError) return false;
    try {
      ignoreRejection(this.#onError(error));
      return true;
    } catch {
      return false; // then it is told as if nobody listened
    }
  }
}

const describeError = (error: unknown): string =>
  error instanceof Error ? `${error.name}: ${error.message}` : preview(error);

/** A request is decided here and now: a promise is a mistake, and its failure nobody's to hear. */
export function requireSync<T>(name: string, value: T): T {
  if (!isThenable(value)) return value;
  ignoreRejection(value);
  throw new ConfigError(name, 'a function that answers at once', 'a promise');
}

const isThenable = (value: unknown): value is PromiseLike<unknown> =>
  typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';

/** Nobody waits for this; if it is a promise that fails, it fails quietly. */
function ignoreRejection(value: unknown): void {
  if (isThenable(value)) Promise.resolve(value).catch(() => {});
}
