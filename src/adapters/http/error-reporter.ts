import { ConfigError, preview } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import { isPromiseLike } from '../../throttle/run-with-permit.ts';

/** The warning code and the text of each failure. */
const FAILURES = {
  check: ['UNCHECKED', 'a request could not be checked'], // not counted: `onUnavailable` decided
  settle: ['UNCHECKED', 'a permit could not be settled'],
  report: ['UNCHECKED', 'an attempt could not be reported'], // it counts as a failure
  inspect: ['UNCHECKED', 'the state of a key could not be read for the headers'], // left out
  option: ['INVALID_RESULT', 'an option failed for a request'], // its default was used
  refusal: ['TOO_LATE', 'a response had begun before it was refused'], // the response was destroyed
} as const;

export class ErrorReporter {
  readonly #limitName: string;
  readonly #onError: ((error: unknown) => unknown) | undefined;

  constructor(limitName: string, onError: ((error: unknown) => unknown) | undefined) {
    this.#limitName = limitName;
    this.#onError = onError;
  }

  report(what: keyof typeof FAILURES, error: unknown): void {
    if (this.#isHandled(error)) return;
    const [code, text] = FAILURES[what];
    const message = `limit "${this.#limitName}": ${text}: ${describeError(error)}`;
    emitProcessWarning(code, message, `${this.#limitName}: ${text}`);
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
