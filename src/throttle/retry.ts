/**
 * Trying again, with manners.
 *
 * A call that was told "busy" waits before it comes back, longer each time, and by a random part of
 * that: callers that failed together must not return together. If the other side said when to come
 * back, nobody comes before. Between two tries a call holds no place, and each try asks the limit
 * anew and is timed on its own, so a retry is a call like any other.
 *
 * Bounded both ways: so many tries a call, and so many calls that may be backing off at once. During
 * an outage everything backs off, and an unbounded crowd of those would eat the memory.
 */

import { type Clock, type Millis, schedule } from '../core/clock.ts';
import { OUTCOMES, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { isAbortSignal } from '../limiter/validate.ts';

/** When to try again, how often and how soon. */
export interface RetryOptions {
  /** How often to try again after the first time. Default 3. */
  readonly maxRetries?: number;
  /** The longest first back-off; each further one may be twice as long. Default 100 ms. */
  readonly initialDelay?: Duration;
  /** The longest back-off, and the longest "come back in" worth waiting for. Default 30 s. */
  readonly maxDelay?: Duration;
  /** The most calls that may be backing off at once; one more fails with what it has. Default 1,000. */
  readonly maxWaiting?: number;
  /** What is tried again: a list of outcomes, or a function that decides. Default busy and timeout. */
  readonly on?: readonly Outcome[] | ((attempt: Attempt) => boolean);
  /** Hears of what is given up, when the next try begins. `n` is 1 before the first retry. */
  readonly onRetry?: (attempt: Attempt, n: number) => void;
}

/** What became of one try. */
export interface Attempt {
  readonly outcome: Outcome;
  /** How long the other side wants nothing more, if it said so. */
  readonly retryAfterMs?: Millis | undefined;
  /** What was thrown, if anything was. */
  readonly error?: unknown;
  readonly result?: unknown;
}

const MAX_RETRIES = 100;

export class RetryPolicy {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #maxRetries: number;
  readonly #initialDelayMs: Millis;
  readonly #maxDelayMs: Millis;
  readonly #maxWaiting: number;
  readonly #isRetryable: (attempt: Attempt) => boolean;
  readonly #onRetry: RetryOptions['onRetry'];
  #backingOff = 0;

  constructor(options: number | true | RetryOptions, clock: Clock, random: Random) {
    const given =
      typeof options === 'number' ? { maxRetries: options } : options === true ? {} : options;
    const reader = new OptionReader('retry', given, 'true, a number of times, or an object');
    this.#clock = clock;
    this.#random = random;
    this.#maxRetries = reader.number('maxRetries', { min: 0, max: MAX_RETRIES, integer: true }, 3);
    this.#initialDelayMs = reader.duration('initialDelay', 100);
    this.#maxDelayMs = reader.duration('maxDelay', 30_000);
    this.#maxWaiting = reader.integer('maxWaiting', 0, 1000);
    this.#isRetryable = readRetryable(reader);
    this.#onRetry = reader.optional('onRetry', isFunction, 'a function');
    reader.finish();
  }

  /** How long before try `n` (1 is the first retry); undefined if there shall be none. */
  delayMs(n: number, attempt: Attempt): Millis | undefined {
    const { retryAfterMs = 0 } = attempt;
    const isOver = n > this.#maxRetries || this.#backingOff >= this.#maxWaiting;
    if (isOver || retryAfterMs > this.#maxDelayMs || !this.#isRetryable(attempt)) return undefined;
    const backOffMs = Math.min(this.#maxDelayMs, this.#initialDelayMs * 2 ** (n - 1));
    return retryAfterMs + backOffMs * this.#random();
  }

  /** Try `n` begins, in the place of what `last` brought. */
  notifyRetry(last: Attempt, n: number): void {
    this.#onRetry?.(last, n - 1);
  }

  /** Waits; rejects if the signal aborts first. */
  async sleep(ms: Millis, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.#backingOff++;
    try {
      await new Promise<void>((wake, giveUp) => {
        const onAbort = (): void => {
          cancel();
          giveUp(signal?.reason);
        };
        const cancel = schedule(
          this.#clock,
          this.#clock.now() + ms,
          () => {
            signal?.removeEventListener('abort', onAbort);
            wake();
          },
          true,
        );
        signal?.addEventListener('abort', onAbort, { once: true });
      });
    } finally {
      this.#backingOff--;
    }
  }
}

const isFunction = (value: unknown): value is NonNullable<RetryOptions['onRetry']> =>
  typeof value === 'function';

function readRetryable(reader: OptionReader): (attempt: Attempt) => boolean {
  const given = reader.get('on') ?? ['busy', 'timeout'];
  if (typeof given === 'function') return given as (attempt: Attempt) => boolean;
  if (!Array.isArray(given) || !given.every((name) => OUTCOMES.includes(name))) {
    reader.throwFor('on', `a function, or a list out of ${OUTCOMES.join(', ')}`);
  }
  return ({ outcome }) => given.includes(outcome);
}

/** One signal for all calls, or one that is found in a call's arguments. */
export function signalGetter<A extends unknown[]>(
  signal: unknown,
): ((...args: A) => AbortSignal | undefined) | undefined {
  if (signal === undefined) return undefined;
  if (typeof signal === 'function') return signal as (...args: A) => AbortSignal | undefined;
  if (!isAbortSignal(signal))
    throw new ConfigError('signal', 'an AbortSignal, or a function', signal);
  return () => signal;
}
