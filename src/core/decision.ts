import type { Millis } from './clock.ts';

/**
 * The result of a check. A refusal is a value and is never thrown.
 *
 * | verdict | the caller should                                                |
 * | ------- | ---------------------------------------------------------------- |
 * | allow   | proceed; a further cost of `remaining` would fit at this instant |
 * | wait    | proceed in `waitMs`: a slot is reserved                          |
 * | deny    | stop; a retry before `retryAfterMs` is refused as well           |
 */
export type Decision =
  | { readonly verdict: 'allow'; readonly remaining: number }
  | {
      readonly verdict: 'wait';
      readonly waitMs: Millis;
      /** When the reserved slot is due, on the clock that decided; a limiter adds it, for `settle`. */
      readonly dueAt?: Millis;
      /** When the slot is lost if it is not used by then; left out where the rule has no expiry. */
      readonly expiresAt?: Millis;
    }
  | {
      readonly verdict: 'deny';
      readonly retryAfterMs: Millis;
      /**
       * `closed` if the limiter is closed, `locked` if a lock-out has locked the key, `joining` if a suspended peer has no
       * state of its fleet yet; else left out.
       */
      readonly reason?: string;
      /** The rule that refused, if the limit has several (`all`), such as `bucket` or `bucket-2`. */
      readonly rule?: string;
    };

/** The `retryAfterMs` of a request that never fits, however long it waits. */
export const NEVER: Millis = Number.POSITIVE_INFINITY;

/**
 * The `retryAfterMs` of a request that fits as soon as a call in flight settles: a concurrency limit cannot know when
 * that is.
 */
export const WHEN_SETTLED: Millis = 0;

/** A `busy` limit that is unlimited in practice, in calls per second. */
export const UNLIMITED = 9_999_999;

export const allow = (remaining: number): Decision => ({ verdict: 'allow', remaining });
export const wait = (waitMs: Millis): Decision => ({ verdict: 'wait', waitMs });
export const deny = (retryAfterMs: Millis): Decision => ({ verdict: 'deny', retryAfterMs });

/** The decision while a backend is unavailable: fail open, fail closed, or by a local part of the limit. */
export type OnUnavailable = 'allow' | 'deny' | 'local';

/**
 * How a call went, as the caller reports it.
 *
 * | outcome | meaning                                                      |
 * | ------- | ------------------------------------------------------------ |
 * | ok      | succeeded; adaptive limits learn from its round-trip time    |
 * | busy    | the server signalled back-pressure                           |
 * | timeout | the server did not reply in time                             |
 * | failed  | failed for a reason that is unrelated to load                |
 * | ignored | did not happen: what it was charged is returned              |
 */
export type Outcome = 'ok' | 'busy' | 'timeout' | 'failed' | 'ignored';

export const OUTCOMES: readonly Outcome[] = ['ok', 'busy', 'timeout', 'failed', 'ignored'];

/** How an attempt of a key ended, such as a login: by the right password or a wrong one. Says nothing about the service. */
export type AttemptOutcome = 'success' | 'failure';

export const ATTEMPT_OUTCOMES: readonly AttemptOutcome[] = ['success', 'failure'];
