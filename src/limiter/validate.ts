/**
 * Checks what callers hand in: a key, how a call went, news from elsewhere.
 *
 * Nonsense is named and refused before it changes anything. A misspelt field is a mistake, not a
 * default.
 */

import type { Millis } from '../core/clock.ts';
import { OUTCOMES, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { isRecord, requireNumber, waitMsIn } from '../core/options.ts';
import type { News } from '../policies/policy.ts';

/** How a call went, for `settle`. Only what is known needs to be said. */
export interface Result {
  /** Default ok. */
  readonly outcome?: Outcome;
  /** What was asked for. Default 1. */
  readonly cost?: number;
  /** What was really used, if that was not the cost. */
  readonly used?: number;
  /** When the permit was good, on the limiter's clock. Default now. */
  readonly dueAt?: Millis;
  /** How long the work took. */
  readonly rttMs?: Millis;
  /** The other side wants nothing more for so long: nobody is let through until then. */
  readonly retryAfterMs?: Millis;
  /** Which partition it was asked for. */
  readonly partition?: string;
}

/** How `acquire` waits. */
export interface WaitOptions {
  /** Gives up, and gives the place back, when it aborts. */
  readonly signal?: AbortSignal;
  /** How long to wait at most: true (default) as long as it takes, false not at all. */
  readonly wait?: boolean | Duration;
  /** With order priority, higher goes first. Default 0. */
  readonly priority?: number;
}

const RESULT_FIELDS = ['outcome', 'cost', 'used', 'dueAt', 'rttMs', 'retryAfterMs', 'partition'];
const PATIENCE_FIELDS = ['signal', 'wait', 'priority', 'partition'];
const NEWS_FIELDS = [
  'hits',
  'poolSize',
  'rank',
  'resume',
  'reachedAt',
  'remaining',
  'resetMs',
  'retryAfterMs',
];
const OUTCOME_NAMES = `one of ${OUTCOMES.join(', ')}`;

export function requireKey(key: unknown): void {
  if (typeof key !== 'string') throw new ConfigError('key', 'a text', key);
}

/** Which part of a limit; whoever waits says more in the same place. */
export function requireAskOptions(options: object): void {
  requireFields('options', options, PATIENCE_FIELDS);
}

/** How long, and how badly, somebody wants to wait, checked and read. */
export function patienceIn(options: WaitOptions): {
  readonly waitMsMax: Millis;
  readonly priority: number;
  readonly signal: AbortSignal | undefined;
} {
  requireFields('options', options, PATIENCE_FIELDS);
  const { wait = true, priority = 0, signal } = options;
  const waitMsMax = waitMsIn(wait);
  requireNumber('priority', priority, {});
  if (signal !== undefined && !isSignal(signal)) {
    throw new ConfigError('signal', 'an AbortSignal', signal);
  }
  return { waitMsMax, priority, signal };
}

export const isSignal = (value: unknown): value is AbortSignal =>
  typeof value === 'object' && value !== null && 'aborted' in value && 'addEventListener' in value;

export function requireResult(result: Result): void {
  requireFields('result', result, RESULT_FIELDS);
  const { outcome, cost, used, dueAt, rttMs, retryAfterMs } = result;
  if (outcome !== undefined && !OUTCOMES.includes(outcome)) {
    throw new ConfigError('outcome', OUTCOME_NAMES, outcome);
  }
  if (cost !== undefined) requireNumber('cost', cost, { min: 0 });
  if (used !== undefined) requireNumber('used', used, { min: 0 });
  if (dueAt !== undefined) requireNumber('dueAt', dueAt, {});
  if (rttMs !== undefined) requireNumber('rttMs', rttMs, { min: 0 });
  if (retryAfterMs !== undefined) requireNumber('retryAfterMs', retryAfterMs, { min: 0 });
}

export function requireNews(news: News): void {
  requireFields('news', news, NEWS_FIELDS);
  if ('hits' in news) {
    requireNumber('hits', news.hits, { min: 0 });
  } else if ('poolSize' in news) {
    requireNumber('poolSize', news.poolSize, { min: 1, whole: true });
    if (news.rank === undefined) return;
    requireNumber('rank', news.rank, { min: 0, max: news.poolSize - 1, whole: true });
  } else if ('remaining' in news) {
    requireNumber('remaining', news.remaining, { min: 0 });
    if (news.resetMs !== undefined) requireNumber('resetMs', news.resetMs, { min: 0 });
  } else if ('retryAfterMs' in news) {
    requireNumber('retryAfterMs', news.retryAfterMs, { min: 0 });
  } else {
    requireNumber('resume', news.resume, { above: 0 });
    requireNumber('reachedAt', news.reachedAt, {});
  }
}

function requireFields(what: string, value: unknown, known: readonly string[]): void {
  if (!isRecord(value)) throw new ConfigError(what, 'an object', value);
  for (const name in value) {
    if (!known.includes(name)) throw new ConfigError(name, `one of ${known.join(', ')}`, name);
  }
}
