/**
 * What goes wrong at the door is told to whoever asked to hear of it, and thrown at nobody.
 *
 *     unchecked   the limiter failed: the request went through, or was refused, without being counted
 *     misread     an option made no sense of this request: it was counted in some plainer way
 *     too late    the limit refused a request whose response had begun: it was broken off
 */

import { ConfigError, show } from '../../core/errors.ts';
import { warn } from '../../core/process-warning.ts';

export class Reporter {
  readonly #limit: string;
  readonly #onError: ((error: unknown) => unknown) | undefined;

  constructor(limit: string, onError: ((error: unknown) => unknown) | undefined) {
    this.#limit = limit;
    this.#onError = onError;
  }

  unchecked(error: unknown): void {
    this.#tell('UNCHECKED', 'a request could not be checked against', error);
  }

  misread(error: unknown): void {
    this.#tell('MISREAD', 'an option makes no sense of a request to', error);
  }

  tooLate(error: unknown): void {
    this.#tell('TOO_LATE', 'a response had begun before it was refused by', error);
  }

  #tell(code: 'UNCHECKED' | 'MISREAD' | 'TOO_LATE', what: string, error: unknown): void {
    if (this.#isHeard(error)) return;
    warn(code, `${what} limit "${this.#limit}": ${worded(error)}`, this.#limit);
  }

  #isHeard(error: unknown): boolean {
    if (!this.#onError) return false;
    try {
      defuse(this.#onError(error));
      return true;
    } catch {
      return false; // then it is told as if nobody listened
    }
  }
}

const worded = (error: unknown): string =>
  error instanceof Error ? `${error.name}: ${error.message}` : show(error);

/** A request is decided here and now: a promise is a mistake, and its failure nobody's to hear. */
export function atOnce<T>(name: string, value: T): T {
  if (!isThenable(value)) return value;
  defuse(value);
  throw new ConfigError(name, 'a function that answers at once', 'a promise');
}

const isThenable = (value: unknown): value is PromiseLike<unknown> =>
  typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';

/** Nobody waits for this; if it is a promise that fails, it fails quietly. */
function defuse(value: unknown): void {
  if (isThenable(value)) Promise.resolve(value).catch(() => {});
}
