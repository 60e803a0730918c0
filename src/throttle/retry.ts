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

import { alarm, type Clock, type Millis } from '../core/clock.ts';
import { OUTCOMES, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { Fields } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { isSignal } from '../limiter/validate.ts';

/** When to try again, how often and how soon. */
export interface RetryOptions {
  /** How often to try again after the first time. Default 3. */
  readonly times?: number;
  /** The longest first back-off; each further one may be twice as long. Default 100 ms. */
  readonly first?: Duration;
  /** The longest back-off, and the longest "come back in" worth waiting for. Default 30 s. */
  readonly max?: Duration;
  /** The most calls that may be backing off at once; one more fails with what it has. Default 1,000. */
  readonly waitingMax?: number;
  /** What is tried again: a list of outcomes, or a function that decides. Default busy and timeout. */
  readonly on?: readonly Outcome[] | ((tried: Tried) => boolean);
  /** Hears of what is given up, when the next try begins. `n` is 1 before the first retry. */
  readonly onRetry?: (tried: Tried, n: number) => void;
}

/** What became of one try. */
export interface Tried {
  readonly outcome: Outcome;
  /** How long the other side wants nothing more, if it said so. */
  readonly retryAfterMs?: Millis | undefined;
  /** What was thrown, if anything was. */
  readonly error?: unknown;
  readonly result?: unknown;
}

const TIMES_MAX = 100;

export class Retries {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #times: number;
  readonly #firstMs: Millis;
  readonly #maxMs: Millis;
  readonly #waitingMax: number;
  readonly #isWorthIt: (tried: Tried) => boolean;
  readonly #onRetry: RetryOptions['onRetry'];
  #waiting = 0;

  constructor(options: number | true | RetryOptions, clock: Clock, random: Random) {
    const given =
      typeof options === 'number' ? { times: options } : options === true ? {} : options;
    const fields = new Fields('retry', given, 'true, a number of times, or an object');
    this.#clock = clock;
    this.#random = random;
    this.#times = fields.number('times', { min: 0, max: TIMES_MAX, whole: true }, 3);
    this.#firstMs = fields.duration('first', 100);
    this.#maxMs = fields.duration('max', 30_000);
    this.#waitingMax = fields.whole('waitingMax', 0, 1000);
    this.#isWorthIt = readOn(fields);
    this.#onRetry = fields.optional('onRetry', isFunction, 'a function');
    fields.done();
  }

  /** How long before try `n` (1 is the first retry); undefined if there shall be none. */
  delayMs(n: number, tried: Tried): Millis | undefined {
    const { retryAfterMs = 0 } = tried;
    const isOver = n > this.#times || this.#waiting >= this.#waitingMax;
    if (isOver || retryAfterMs > this.#maxMs || !this.#isWorthIt(tried)) return undefined;
    const backOffMs = Math.min(this.#maxMs, this.#firstMs * 2 ** (n - 1));
    return retryAfterMs + backOffMs * this.#random();
  }

  /** Try `n` begins, in the place of what `last` brought. */
  begin(last: Tried, n: number): void {
    this.#onRetry?.(last, n - 1);
  }

  /** Waits; rejects if the signal aborts first. */
  async sleep(ms: Millis, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.#waiting++;
    try {
      await new Promise<void>((wake, giveUp) => {
        const onAbort = (): void => {
          cancel();
          giveUp(signal?.reason);
        };
        const cancel = alarm(
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
      this.#waiting--;
    }
  }
}

const isFunction = (value: unknown): value is NonNullable<RetryOptions['onRetry']> =>
  typeof value === 'function';

function readOn(fields: Fields): (tried: Tried) => boolean {
  const given = fields.raw('on') ?? ['busy', 'timeout'];
  if (typeof given === 'function') return given as (tried: Tried) => boolean;
  if (!Array.isArray(given) || !given.every((name) => OUTCOMES.includes(name))) {
    fields.fail('on', `a function, or a list out of ${OUTCOMES.join(', ')}`);
  }
  return ({ outcome }) => given.includes(outcome);
}

/** One signal for all calls, or one that is found in a call's arguments. */
export function signalReader<A extends unknown[]>(
  signal: unknown,
): ((...args: A) => AbortSignal | undefined) | undefined {
  if (signal === undefined) return undefined;
  if (typeof signal === 'function') return signal as (...args: A) => AbortSignal | undefined;
  if (!isSignal(signal)) throw new ConfigError('signal', 'an AbortSignal, or a function', signal);
  return () => signal;
}
