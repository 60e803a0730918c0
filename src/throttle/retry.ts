/**
 * Retries with exponential back-off and full jitter.
 *
 *     delay before retry n = Retry-After + random() × min(maxDelay, initialDelay × 2ⁿ⁻¹)
 *
 * Jitter keeps calls that failed together from retrying together. Between attempts a call holds no permit; each attempt
 * acquires, times and settles its own, so a retry counts like any other call.
 *
 * Three bounds: retries per call, calls backing off at once, and retries as a share of calls (`retry-budget.ts`). In an
 * outage every call backs off: without the second bound they would fill the memory, without the third the server would
 * get several times its load.
 */

import { type Clock, type Millis, schedule } from '../core/clock.ts';
import { OUTCOMES, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { isFunction, OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { isAbortSignal } from '../limiter/validate.ts';
import { RetryBudget } from './retry-budget.ts';

/** Which calls are retried, how often and when. */
export interface RetryOptions {
  /** The most retries per call. Default 3. */
  readonly maxRetries?: number | undefined;
  /** The longest back-off before the first retry; doubles with each retry. Default 100 ms. */
  readonly initialDelay?: Duration | undefined;
  /** The longest back-off, and the longest Retry-After worth waiting for. Default 30 s. */
  readonly maxDelay?: Duration | undefined;
  /** The most calls backing off at once; one more ends with its last result. Default 1,000. */
  readonly maxWaiting?: number | undefined;
  /**
   * The most retries of all calls of the function, as a share of its calls in the last 10 seconds, from 0 to 1; false:
   * no bound. One retry more ends with the result of its last attempt. Default 0.1.
   */
  readonly budget?: number | false | undefined;
  /** Retries a second, in the mean of 10 seconds, that the budget always has. Default 1. */
  readonly minPerSecond?: number | undefined;
  /** The outcomes to retry, or a function that decides. Default busy and timeout. */
  readonly on?: readonly Outcome[] | ((attempt: Attempt) => boolean) | undefined;
  /** Called with the discarded attempt when a retry starts. `n` is 1 for the first retry. */
  readonly onRetry?: ((attempt: Attempt, n: number) => void) | undefined;
}

/** The result of one attempt. */
export interface Attempt {
  readonly outcome: Outcome;
  /** The server's Retry-After, if it sent one. */
  readonly retryAfterMs?: Millis | undefined;
  /** The error, if the attempt threw one. */
  readonly error?: unknown;
  readonly result?: unknown;
  /** The arguments of the call. */
  readonly args: readonly unknown[];
}

const MAX_RETRIES = 100;

export function toRetryOptions(retry: number | true | RetryOptions): RetryOptions {
  if (retry === true) return {};
  return typeof retry === 'number' ? { maxRetries: retry } : retry;
}

export type RetryPolicy = ReturnType<typeof createRetryPolicy>;

/** @throws {ConfigError} if an option is invalid. */
export function createRetryPolicy(
  options: number | true | RetryOptions,
  clock: Clock,
  random: Random,
) {
  const expected = 'true, a number of times, or an object';
  const reader = new OptionReader('retry', toRetryOptions(options), expected);
  const maxRetries = reader.number('maxRetries', { min: 0, max: MAX_RETRIES, integer: true }, 3);
  const initialDelayMs = reader.duration('initialDelay', 100);
  const maxDelayMs = reader.duration('maxDelay', 30_000);
  const maxWaiting = reader.integer('maxWaiting', 0, 1000);
  const budget = readBudget(reader, clock);
  const isRetryable = readRetryable(reader);
  const { onRetry } = reader.functions<RetryOptions>(['onRetry'], 'a function');
  reader.finish();
  let backingOff = 0;

  return {
    /** The delay before retry `n` (1 is the first); undefined: no retry. */
    delayMs(n: number, attempt: Attempt): Millis | undefined {
      const { retryAfterMs = 0 } = attempt;
      const isExhausted = n > maxRetries || backingOff >= maxWaiting;
      if (isExhausted || retryAfterMs > maxDelayMs || !isRetryable(attempt)) return undefined;
      return retryAfterMs + Math.min(maxDelayMs, initialDelayMs * 2 ** (n - 1)) * random();
    },
    /** A call makes its first attempt. */
    recordCall: (): void => budget?.recordCall(),
    /** False if the budget of all calls is used up; else a retry is counted. */
    spendBudget: (): boolean => budget?.tryRetry() ?? true,
    /** Attempt `n` starts and replaces the result of `last`. */
    notifyRetry: (last: Attempt, n: number): void => onRetry?.(last, n - 1),
    /** Waits; rejects if the signal aborts first. */
    async sleep(ms: Millis, signal?: AbortSignal): Promise<void> {
      signal?.throwIfAborted();
      backingOff++;
      try {
        await new Promise<void>((wake, reject) => {
          const onAbort = (): void => {
            cancel();
            reject(signal?.reason);
          };
          const onTime = (): void => {
            signal?.removeEventListener('abort', onAbort);
            wake();
          };
          const cancel = schedule(clock, clock.now() + ms, onTime, true);
          signal?.addEventListener('abort', onAbort, { once: true });
        });
      } finally {
        backingOff--;
      }
    },
  };
}

function readBudget(reader: OptionReader, clock: Clock): RetryBudget | undefined {
  const minPerSecond = reader.number('minPerSecond', { min: 0 }, 1);
  if (reader.get('budget') === false) return undefined;
  return new RetryBudget(clock, reader.number('budget', { min: 0, max: 1 }, 0.1), minPerSecond);
}

function readRetryable(reader: OptionReader): (attempt: Attempt) => boolean {
  const given = reader.get('on') ?? ['busy', 'timeout'];
  if (typeof given === 'function') return given as (attempt: Attempt) => boolean;
  if (!Array.isArray(given) || !given.every((name) => OUTCOMES.includes(name))) {
    reader.throwFor('on', `a function, or a list of ${OUTCOMES.join(', ')}`);
  }
  return ({ outcome }) => given.includes(outcome);
}

type SignalGetter = (...args: never[]) => AbortSignal | undefined;

/** One signal for all calls, or a function that finds it in a call's arguments. */
export function signalGetter(signal: unknown): SignalGetter | undefined {
  if (signal === undefined || isFunction<SignalGetter>(signal)) return signal;
  if (isAbortSignal(signal)) return () => signal;
  throw new ConfigError('signal', 'an AbortSignal, or a function', signal);
}
