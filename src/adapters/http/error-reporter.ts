/** Reports errors of limiters and options to `onError`, or as one process warning per limit. Nothing is thrown. */

import { ConfigError, preview } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import { isPromiseLike } from '../../throttle/run-with-permit.ts';

/** By warning code: what happened to the request. */
const SITUATIONS = {
  UNCHECKED: 'a request could not be checked', // not counted: `onUnavailable` decided
  MISREAD: 'an option failed for a request', // its default was used
  TOO_LATE: 'a response had begun before it was refused', // the response was destroyed
} as const;

export class ErrorReporter {
  readonly #limitName: string;
  readonly #onError: ((error: unknown) => unknown) | undefined;

  constructor(limitName: string, onError: ((error: unknown) => unknown) | undefined) {
    this.#limitName = limitName;
    this.#onError = onError;
  }

  report(code: keyof typeof SITUATIONS, error: unknown): void {
    if (this.#isHandled(error)) return;
    const message = `limit "${this.#limitName}": ${SITUATIONS[code]}: ${describeError(error)}`;
    emitProcessWarning(code, message, this.#limitName);
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
  if (!isPromiseLike(value)) return value;
  ignoreRejection(value);
  throw new ConfigError(name, 'a function that returns a value at once', 'a promise');
}

function ignoreRejection(value: unknown): void {
  if (isPromiseLike(value)) Promise.resolve(value).catch(() => {});
}
