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
import { isRecord, parseWaitMs, requireNumber } from '../core/options.ts';
import type { Feedback } from '../policies/policy.ts';

/** How a call went, for `settle`. Only what is known needs to be said. */
export interface CallResult {
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
const ACQUIRE_FIELDS = ['signal', 'wait', 'priority', 'partition'];
const FEEDBACK_FIELDS = [
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
export function requireCheckOptions(options: object): void {
  requireKnownFields('options', options, ACQUIRE_FIELDS);
}

/** How long, and how badly, somebody wants to wait, checked and read. */
export function readWaitLimits(options: WaitOptions): {
  readonly maxWaitMs: Millis;
  readonly priority: number;
  readonly signal: AbortSignal | undefined;
} {
  requireKnownFields('options', options, ACQUIRE_FIELDS);
  const { wait = true, priority = 0, signal } = options;
  const maxWaitMs = parseWaitMs(wait);
  requireNumber('priority', priority, {});
  if (signal !== undefined && !isAbortSignal(signal)) {
    throw new ConfigError('signal', 'an AbortSignal', signal);
  }
  return { maxWaitMs, priority, signal };
}

export const isAbortSignal = (value: unknown): value is AbortSignal =>
  typeof value === 'object' && value !== null && 'aborted' in value && 'addEventListener' in value;

export function requireResult(result: CallResult): void {
  requireKnownFields('result', result, RESULT_FIELDS);
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

export function requireFeedback(feedback: Feedback): void {
  requireKnownFields('feedback', feedback, FEEDBACK_FIELDS);
  if ('hits' in feedback) {
    requireNumber('hits', feedback.hits, { min: 0 });
  } else if ('poolSize' in feedback) {
    requireNumber('poolSize', feedback.poolSize, { min: 1, integer: true });
    if (feedback.rank === undefined) return;
    requireNumber('rank', feedback.rank, { min: 0, max: feedback.poolSize - 1, integer: true });
  } else if ('remaining' in feedback) {
    requireNumber('remaining', feedback.remaining, { min: 0 });
    if (feedback.resetMs !== undefined) requireNumber('resetMs', feedback.resetMs, { min: 0 });
  } else if ('retryAfterMs' in feedback) {
    requireNumber('retryAfterMs', feedback.retryAfterMs, { min: 0 });
  } else {
    requireNumber('resume', feedback.resume, { above: 0 });
    requireNumber('reachedAt', feedback.reachedAt, {});
  }
}

function requireKnownFields(what: string, value: unknown, known: readonly string[]): void {
  if (!isRecord(value)) throw new ConfigError(what, 'an object', value);
  for (const name in value) {
    if (!known.includes(name)) throw new ConfigError(name, `one of ${known.join(', ')}`, name);
  }
}
