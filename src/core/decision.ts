import type { Millis } from './clock.ts';

/**
 * The answer to "may this happen now?".
 *
 * Being over the limit is an answer, not an error, so nothing here is ever thrown.
 *
 * | verdict | the caller should                                             |
 * | ------- | ------------------------------------------------------------- |
 * | allow   | go ahead; `remaining` more would fit at this instant          |
 * | wait    | go ahead in `waitMs`: a place is already reserved             |
 * | deny    | give up; asking again before `retryAfterMs` is wasted effort  |
 */
export type Decision =
  | { readonly verdict: 'allow'; readonly remaining: number }
  | {
      readonly verdict: 'wait';
      readonly waitMs: Millis;
      /** When the reserved place is due, on the clock that decided; a limiter adds it, for `settle`. */
      readonly dueAt?: Millis;
      /** When the place is lost if it is not used by then; left out where the rule has no expiry. */
      readonly expiresAt?: Millis;
    }
  | { readonly verdict: 'deny'; readonly retryAfterMs: Millis };

/** The `retryAfterMs` of a request that no amount of waiting will make fit. */
export const NEVER: Millis = Number.POSITIVE_INFINITY;

/**
 * The `retryAfterMs` of a request that fits as soon as some call in flight settles: a concurrency
 * limit cannot know when that will be.
 */
export const WHEN_SETTLED: Millis = 0;

export const allow = (remaining: number): Decision => ({ verdict: 'allow', remaining });
export const wait = (waitMs: Millis): Decision => ({ verdict: 'wait', waitMs });
export const deny = (retryAfterMs: Millis): Decision => ({ verdict: 'deny', retryAfterMs });

/** What a call is told while whoever decides is out of reach: yes, no, or what a part of the limit says here. */
export type OnUnavailable = 'allow' | 'deny' | 'local';

/**
 * How the work went, in the words of whoever did it.
 *
 * | outcome | what it says                                                     |
 * | ------- | ---------------------------------------------------------------- |
 * | ok      | done; its round-trip time is worth learning from                 |
 * | busy    | the other side asked for less                                    |
 * | timeout | the other side did not answer in time                            |
 * | failed  | it went wrong for a reason that says nothing about load          |
 * | ignored | it never happened: what was taken for it is given back           |
 */
export type Outcome = 'ok' | 'busy' | 'timeout' | 'failed' | 'ignored';

export const OUTCOMES: readonly Outcome[] = ['ok', 'busy', 'timeout', 'failed', 'ignored'];
