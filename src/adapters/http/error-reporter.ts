/**
 * Reports errors of limiters and options to `onError`, or as one process warning per limit. Nothing is thrown.
 *
 *     UNCHECKED        the limiter failed: a request was decided by `onUnavailable` and not counted, a permit was not
 *                      settled, or the headers of a response were left out
 *     INVALID_RESULT   a function option failed for this request: its default was used
 *     TOO_LATE         a request was refused whose response had begun: the response was destroyed
 */

import { ConfigError, preview } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';

export class ErrorReporter {
  readonly #limitName: string;
  readonly #onError: ((error: unknown) => unknown) | undefined;

  constructor(limitName: string, onError: ((error: unknown) => unknown) | undefined) {
    this.#limitName = limitName;
    this.#onError = onError;
  }

  checkFailed(error: unknown): void {
    this.#report('UNCHECKED', 'a request could not be checked', error);
  }

  settleFailed(error: unknown): void {
    this.#report('UNCHECKED', 'a permit could not be settled', error);
  }

  inspectFailed(error: unknown): void {
    this.#report('UNCHECKED', 'the state of a key could not be read for the headers', error);
  }

  optionFailed(error: unknown): void {
    this.#report('INVALID_RESULT', 'an option failed for a request', error);
  }

  refusedTooLate(error: unknown): void {
    this.#report('TOO_LATE', 'a response had begun before it was refused', error);
  }

  #report(code: 'UNCHECKED' | 'INVALID_RESULT' | 'TOO_LATE', what: string, error: unknown): void {
    if (this.#isHandled(error)) return;
    const message = `limit "${this.#limitName}": ${what}: ${describeError(error)}`;
    emitProcessWarning(code, message, `${this.#limitName}: ${what}`);
  }

  #isHandled(error: unknown): boolean {
    if (!this.#onError) return false;
    try {
      ignoreRejection(this.#onError(error));
      return true;
    } catch {
      return false; // a handler that throws counts as none
    }
  }
}

const describeError = (error: unknown): string =>
  error instanceof Error ? `${error.name}: ${error.message}` : preview(error);

/** Requests are decided synchronously, so a promise is an error; its rejection is ignored. */
export function requireSync<T>(name: string, value: T): T {
  if (!isThenable(value)) return value;
  ignoreRejection(value);
  throw new ConfigError(name, 'a function that returns a value at once', 'a promise');
}

const isThenable = (value: unknown): value is PromiseLike<unknown> =>
  typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';

function ignoreRejection(value: unknown): void {
  if (isThenable(value)) Promise.resolve(value).catch(() => {});
}
