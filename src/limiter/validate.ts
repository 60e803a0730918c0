/** Validates arguments of methods, before anything changes. A misspelt field is an error, not a default. */

import type { FairWaitLimits } from '../backends/remote-backend.ts';
import type { Millis } from '../core/clock.ts';
import { ATTEMPT_OUTCOMES, type AttemptOutcome, OUTCOMES, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { FLOW_FIELDS, type FlowOptions, readFlow } from '../core/flow.ts';
import { isRecord, MAX_AMOUNT, parseWaitMs, requireNumber } from '../core/options.ts';
import type { CallClass } from '../policies/partitions.ts';
import type { Feedback } from '../policies/policy.ts';

/** How a call went, for `settle`. */
export interface CallResult {
  /** Default ok. */
  readonly outcome?: Outcome | undefined;
  /** The cost the call was charged. Default 1. */
  readonly cost?: number | undefined;
  /** The units that the call used, if different from its cost. */
  readonly used?: number | undefined;
  /** When the permit was due: `dueAt` of a wait decision or permit. Default now. */
  readonly dueAt?: Millis | undefined;
  /** Round-trip time of the call. */
  readonly rttMs?: Millis | undefined;
  /** The server's Retry-After: calls of this key are refused until then. */
  readonly retryAfterMs?: Millis | undefined;
  /** Lock-out: how the attempt ended, such as a login. Left out, it counts as a failure until it is reported. */
  readonly attempt?: AttemptOutcome | undefined;
  /** The partition that the call was charged to. */
  readonly partition?: string | undefined;
  /** The level that the call was charged to. */
  readonly level?: string | undefined;
}

/** Identifies a call that may be repeated. */
export interface IdOptions {
  /** Repeats of a call with the same key and id within `idFor` are charged once, such as after a lost reply. */
  readonly id?: string | undefined;
}

/** Whether the caller of `check` settles the call. */
export interface SettleOptions {
  /**
   * True if the caller calls `settle(key, result)` after each allowed check. Limits that count calls in flight or learn
   * from their results (`concurrency`, `adaptive`, `busy`) need it: without it, `check` throws there.
   */
  readonly willSettle?: boolean | undefined;
}

/** How `acquire` waits. */
export interface WaitOptions extends FlowOptions {
  /** Ends the wait and gives the slot back when it aborts. */
  readonly signal?: AbortSignal | undefined;
  /** The longest wait: true (default) as long as it takes, false not at all. */
  readonly wait?: boolean | Duration | undefined;
  /** In a queue ordered by priority, higher goes first. Default 0. */
  readonly priority?: number | undefined;
}

const CLASS_FIELDS = ['partition', 'level'];
const CHECK_FIELDS = [...CLASS_FIELDS, 'id'];
/** Options of `check`, in this process and on a server. */
const COUNTED_CHECK_FIELDS = [...CHECK_FIELDS, 'willSettle'];
const REMOTE_CHECK_FIELDS = ['id', 'willSettle'];
const RESULT_FIELDS = [
  ...['outcome', 'cost', 'used', 'dueAt', 'rttMs', 'retryAfterMs', 'attempt'],
  ...CLASS_FIELDS,
];
const ACQUIRE_FIELDS = ['signal', 'wait', 'priority', ...FLOW_FIELDS, ...CHECK_FIELDS];
/** The fields of each kind of feedback, by the field that names the kind. */
const FEEDBACK_KINDS: Readonly<Record<string, readonly string[]>> = {
  hits: ['hits'],
  poolSize: ['poolSize', 'rank'],
  resume: ['resume', 'reachedAt'],
  remaining: ['remaining', 'resetMs'],
  retryAfterMs: ['retryAfterMs'],
  report: ['report', 'count'],
};
const FEEDBACK_KIND_NAMES = Object.keys(FEEDBACK_KINDS);
const FEEDBACK_FIELDS = Object.values(FEEDBACK_KINDS).flat();
const OUTCOME_NAMES = `one of ${OUTCOMES.join(', ')}`;

export function requireKey(key: unknown): void {
  if (typeof key !== 'string') throw new ConfigError('key', 'a string', key);
}

/** `takeUpTo` accepts no id: its result depends on the remaining capacity, so a repeat would get a different number. */
export function requireNoTakeOptions(options: readonly unknown[]): void {
  const [first] = options;
  if (first === undefined) return;
  throw new ConfigError('options', 'left out, as takeUpTo takes no options and no id', first);
}

export function requireCheckOptions(options: object): void {
  requireKnownFields('options', options, CHECK_FIELDS);
}

export function requireCountedCheckOptions(options: object): void {
  requireKnownFields('options', options, COUNTED_CHECK_FIELDS);
}

export function requireRemoteCheckOptions(options: object): void {
  requireKnownFields('options', options, REMOTE_CHECK_FIELDS);
}

/** Requires `willSettle` where calls must be settled. Unsettled calls stay in flight, until every call is refused. */
export function requireWillSettle(options: SettleOptions | undefined, limit: string): void {
  if (options?.willSettle === true) return;
  throw new ConfigError('willSettle', willSettleExpected(limit), options?.willSettle);
}

const willSettleExpected = (limit: string): string =>
  `true for \`check\` of limit "${limit}", whose calls must be settled: use acquire, tryAcquire or throttle, whose permit settles, or call settle(key) after each allowed check and pass { willSettle: true }`;

export function requireRemoteOptions(options: object): void {
  requireKnownFields('options', options, ['id']);
}

/** Rejects an id for `peek`, which charges nothing. */
export function requireNoId({ id }: IdOptions = {}): void {
  if (id !== undefined) throw new ConfigError('id', 'left out of peek, which charges nothing', id);
}

/** The given partition and level as check options; undefined if neither is given. */
export function callClassOf(partition?: string, level?: string): CallClass | undefined {
  if (level === undefined) return partition === undefined ? undefined : { partition };
  return partition === undefined ? { level } : { partition, level };
}

/** Validated wait options. */
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
  return { maxWaitMs, priority, signal, flow: readFlow(options) };
}

export const isAbortSignal = (value: unknown): value is AbortSignal =>
  typeof value === 'object' && value !== null && 'aborted' in value && 'addEventListener' in value;

export function requireResult(result: CallResult): void {
  requireKnownFields('result', result, RESULT_FIELDS);
  const { outcome, cost, used, dueAt, rttMs, retryAfterMs, attempt } = result;
  if (outcome !== undefined && !OUTCOMES.includes(outcome)) {
    throw new ConfigError('outcome', OUTCOME_NAMES, outcome);
  }
  if (cost !== undefined) requireNumber('cost', cost, { min: 0 });
  if (used !== undefined) requireNumber('used', used, { min: 0 });
  if (dueAt !== undefined) requireNumber('dueAt', dueAt, {});
  if (rttMs !== undefined) requireNumber('rttMs', rttMs, { min: 0 });
  if (retryAfterMs !== undefined) requireNumber('retryAfterMs', retryAfterMs, { min: 0 });
  if (attempt !== undefined) requireAttempt('attempt', attempt);
}

export function requireAttempt(field: string, attempt: unknown): void {
  if (!ATTEMPT_OUTCOMES.includes(attempt as AttemptOutcome))
    throw new ConfigError(field, `one of ${ATTEMPT_OUTCOMES.join(', ')}`, attempt);
}

/** Validates feedback and drops undefined members, because policies test which members exist. */
export function readFeedback(given: Feedback): Feedback {
  requireKnownFields('feedback', given, FEEDBACK_FIELDS);
  const feedback = withoutUndefined(given);
  requireFeedback(feedback);
  return feedback;
}

/** Returns the object itself if all its members are defined. */
function withoutUndefined<T extends object>(value: T): T {
  const entries = Object.entries(value);
  if (entries.every(([, member]) => member !== undefined)) return value;
  return Object.fromEntries(entries.filter(([, member]) => member !== undefined)) as T;
}

function requireFeedback(feedback: Feedback): void {
  requireOneKind(feedback);
  if ('hits' in feedback) {
    requireNumber('hits', feedback.hits, { min: 0, max: MAX_AMOUNT });
  } else if ('poolSize' in feedback) {
    requireNumber('poolSize', feedback.poolSize, { min: 1, integer: true });
    if (feedback.rank === undefined) return;
    requireNumber('rank', feedback.rank, { min: 0, max: feedback.poolSize - 1, integer: true });
  } else if ('remaining' in feedback) {
    requireNumber('remaining', feedback.remaining, { min: 0 });
    if (feedback.resetMs !== undefined) requireNumber('resetMs', feedback.resetMs, { min: 0 });
  } else if ('retryAfterMs' in feedback) {
    requireNumber('retryAfterMs', feedback.retryAfterMs, { min: 0 });
  } else if ('report' in feedback) {
    if (feedback.report !== 'refusal') requireAttempt('report', feedback.report);
    if (feedback.count !== undefined) requireNumber('count', feedback.count, { min: 0 });
  } else {
    requireNumber('resume', feedback.resume, { above: 0 });
    requireNumber('reachedAt', feedback.reachedAt, {});
  }
}

/** Rejects feedback of two kinds: only one of them would be applied. */
function requireOneKind(feedback: Feedback): void {
  const kind = FEEDBACK_KIND_NAMES.find((name) => name in feedback);
  if (kind === undefined)
    throw new ConfigError('feedback', `one of ${FEEDBACK_KIND_NAMES.join(', ')}`, feedback);
  for (const name in feedback) {
    if (FEEDBACK_KINDS[kind].includes(name)) continue;
    const value = feedback[name as keyof Feedback];
    throw new ConfigError(name, `left out beside \`${kind}\``, value);
  }
}

function requireKnownFields(what: string, value: unknown, known: readonly string[]): void {
  if (!isRecord(value)) throw new ConfigError(what, 'an object', value);
  for (const name in value) {
    if (!known.includes(name) && value[name] !== undefined)
      throw ConfigError.unknownName(name, name, known);
  }
}
