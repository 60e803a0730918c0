/**
 * Validates the arguments of a limiter's verbs: keys, call results, feedback, wait options.
 *
 * An invalid argument throws before it changes anything. A misspelt field is an error, not a default.
 */

import type { FairWaitLimits } from '../backends/remote-backend.ts';
import type { Millis } from '../core/clock.ts';
import { OUTCOMES, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { isRecord, parseWaitMs, requireNumber } from '../core/options.ts';
import type { Feedback } from '../policies/policy.ts';

/** How a call went, for `settle`. */
export interface CallResult {
  /** Default ok. */
  readonly outcome?: Outcome;
  /** The cost the call was charged. Default 1. */
  readonly cost?: number;
  /** What the call really used, if that differs from its cost. */
  readonly used?: number;
  /** When the permit was due: `dueAt` of a wait decision or permit. Default now. */
  readonly dueAt?: Millis;
  /** Round-trip time of the call. */
  readonly rttMs?: Millis;
  /** The server's Retry-After: calls of this key are refused until then. */
  readonly retryAfterMs?: Millis;
  /** The partition the call was charged to. */
  readonly partition?: string;
}

/** How `acquire` waits. */
export interface WaitOptions {
  /** Ends the wait and gives the place back when it aborts. */
  readonly signal?: AbortSignal;
  /** The longest wait: true (default) as long as it takes, false not at all. */
  readonly wait?: boolean | Duration;
  /** In a queue ordered by priority, higher goes first. Default 0. */
  readonly priority?: number;
}

const RESULT_FIELDS = ['outcome', 'cost', 'used', 'dueAt', 'rttMs', 'retryAfterMs', 'partition'];
const ACQUIRE_FIELDS = ['signal', 'wait', 'priority', 'partition'];
const FEEDBACK_FIELDS = 'hits poolSize rank resume reachedAt remaining resetMs retryAfterMs'.split(
  ' ',
);
const OUTCOME_NAMES = `one of ${OUTCOMES.join(', ')}`;

export function requireKey(key: unknown): void {
  if (typeof key !== 'string') throw new ConfigError('key', 'a string', key);
}

/** Options of `check` and `acquire` may be the same object. */
export function requireCheckOptions(options: object): void {
  requireKnownFields('options', options, ACQUIRE_FIELDS);
}

/** Wait options, read. */
export interface WaitLimits extends FairWaitLimits {
  readonly priority: number;
}

export function readWaitLimits(options: WaitOptions): WaitLimits {
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
