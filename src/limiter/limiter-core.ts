/**
 * State and steps that local and remote limiters have in common, besides the decision: Retry-After cool-downs,
 * telemetry, refusals and closing.
 *
 *     check ──▶ closed or in cool-down? ──▶ deny          no backend is queried
 *                 │ no
 *                 ▼
 *               backend ──▶ decision ──▶ counters, listeners, permit or refusal
 */

import { CLOSED_REFUSAL } from '../backends/remote-backend.ts';
import type { Clock, Millis } from '../core/clock.ts';
import { type AttemptOutcome, type Decision, deny, NEVER, type Outcome } from '../core/decision.ts';
import { ConfigError, preview } from '../core/errors.ts';
import { MAX_AMOUNT, requireNumber } from '../core/options.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import type { Feedback, Policy } from '../policies/policy.ts';
import { cooldownIn, KeyCooldowns } from './cooldowns.ts';
import type { Listener } from './events.ts';
import {
  DEFAULT_ID_FOR_MS,
  type Decided,
  IdempotentCalls,
  isHeld,
  requireId,
} from './idempotent-calls.ts';
import type { Inspection } from './inspection.ts';
import { decisionOfRefusal, Refusal, type RefusalReason } from './permit.ts';
import { type EventLoopMonitor, GRANTED, LimiterTelemetry } from './telemetry.ts';
import { requireAttempt, requireKey, requireNoTakeOptions } from './validate.ts';
import type { QueueSettings } from './wait-scheduler.ts';

/** A limiter's options with all defaults applied. */
export interface LimiterSettings extends QueueSettings {
  readonly name: string;
  readonly random: Random;
  readonly permitTimeoutMs: Millis;
  readonly maxCooldownMs: Millis;
  /** How long the id of a call is remembered. */
  readonly idForMs?: Millis | undefined;
}

const REFUSED: Decision = deny(0);

export type Denied = Extract<Decision, { verdict: 'deny' }>;

type Report = Extract<Feedback, { report: unknown }>;

/** The most keys of reports that are compared with counted keys: enough to detect a mistake in how keys are made. */
const MAX_REPORTED_KEYS = 1000;

/** The limit that `report` expects, for its error. */
export const REPORTABLE = 'a lockout with `on: failure`, alone or in `all`, for `report`';

export abstract class LimiterCore {
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  protected readonly telemetry: LimiterTelemetry;
  protected readonly cooldowns = new KeyCooldowns();
  protected isClosed = false;
  readonly #maxCooldownMs: Millis;
  /** Created with the first id: most limiters never get one. */
  #idempotency: IdempotentCalls | undefined;
  /** How long the id of a call is remembered. */
  readonly idForMs: Millis;
  /** Reported keys that were counted. Undefined, without comparison, after a warning or `MAX_REPORTED_KEYS`. */
  #reportedKeys: Set<string> | undefined = new Set();

  constructor(settings: LimiterSettings) {
    const {
      name,
      clock,
      random,
      permitTimeoutMs,
      maxCooldownMs,
      idForMs = DEFAULT_ID_FOR_MS,
    } = settings;
    this.name = name;
    this.clock = clock;
    this.random = random;
    this.telemetry = new LimiterTelemetry(name, clock, permitTimeoutMs);
    this.#maxCooldownMs = maxCooldownMs;
    this.idForMs = idForMs;
  }

  /** Decides once for all calls of a key with this id. A closed limiter decides anew. */
  protected idempotent<T extends Decided | Promise<Decided>>(
    key: string,
    id: string,
    decide: () => T,
  ): T {
    const calls = this.#callsById(key, id);
    return this.isClosed ? decide() : calls.idempotent(key, id, decide);
  }

  /** `idempotent` for a call that waits; it is aborted when all its callers have aborted. */
  protected idempotentWait<T extends Decided>(
    key: string,
    id: string,
    signal: AbortSignal | undefined,
    wait: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    return this.#callsById(key, id).idempotentWait(key, id, signal, wait);
  }

  #callsById(key: string, id: string): IdempotentCalls {
    requireKey(key);
    requireId(id);
    const isRepeatable = this.mustSettle ? isHeld : undefined;
    this.#idempotency ??= new IdempotentCalls(this.clock, this.random, this.idForMs, isRepeatable);
    return this.#idempotency;
  }

  protected abstract readonly policy: Policy;

  /** True if each allowed call must be settled. Set when the limiter is made, so that other limits pay nothing for it. */
  abstract readonly mustSettle: boolean;

  on(listener: Listener): () => void {
    if (typeof listener !== 'function') throw new ConfigError('listener', 'a function', listener);
    return this.telemetry.on(listener);
  }

  /** True if the limit is a fixed number of calls in flight. */
  get countsInFlight(): boolean {
    return this.policy.traits.concurrencyLimit !== undefined;
  }

  get isCapacity(): boolean {
    return this.policy.traits.protectsServer;
  }

  observeEventLoop(monitor: EventLoopMonitor): void {
    this.telemetry.eventLoop = monitor;
  }

  recordDecision(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.telemetry.recordDecision(key, cost, decision, waitedMs);
  }

  recordDeniedRetry(key: string, cost: number, outcome: Outcome): void {
    this.telemetry.recordDeniedRetry(key, cost, outcome);
  }

  get denied(): number {
    return this.telemetry.denied;
  }

  get allowed(): number {
    return this.telemetry.allowed;
  }

  /** Counts a refusal and creates it. A cost that never fits is explained, because it is a mistake of the caller. */
  refuse(
    key: string,
    cost: number,
    { retryAfterMs, reason }: { readonly retryAfterMs: Millis; readonly reason: RefusalReason },
    waitedMs: Millis,
    rule?: string,
  ): Refusal {
    const detail = reason === 'never' ? this.explainNever(cost) : undefined;
    const refusal = new Refusal(this.name, retryAfterMs, reason, waitedMs, detail, rule);
    const decision = reason === 'closed' ? CLOSED_REFUSAL : decisionOfRefusal(refusal);
    this.telemetry.recordDecision(key, cost, decision, waitedMs);
    const hasWaited = reason === 'too-long' || reason === 'queue-full';
    if (hasWaited && this.countsRefusals) this.applyReport(key, 'refusal', 1);
    return refusal;
  }

  /** True if a lock-out counts refusals. A waiting call then counts once, when it is refused in the end. */
  get countsRefusals(): boolean {
    return this.policy.chain?.recordRefusal !== undefined;
  }

  get takesReports(): boolean {
    return this.policy.traits.takesReports;
  }

  protected abstract applyReport(key: string, report: Report['report'], count: number): unknown;

  /** Validates the arguments of `report`. */
  protected requireReport(key: string, attempt: AttemptOutcome, cost: number): void {
    requireKey(key);
    requireAttempt('attempt', attempt);
    requireCost(cost);
    if (!this.takesReports) throw new ConfigError('limit', REPORTABLE, this.policy.kind);
  }

  /** True if a report of this key is still to be compared. A limiter without allowed checks only gets reports. */
  protected isNewReport(key: string): boolean {
    return this.allowed > 0 && this.#reportedKeys?.has(key) === false;
  }

  /** Warns if no check has counted the key of a report, by its state before the report. */
  protected compareReport(key: string, before: Inspection | undefined): void {
    const { failures, locks = 0 } = before ?? {};
    if (failures === undefined || this.#reportedKeys === undefined) return;
    const isCounted = failures + locks > 0;
    if (isCounted) this.#reportedKeys.add(key);
    else
      emitProcessWarning(
        'UNCOUNTED_REPORT',
        `limit "${this.name}": report of key ${preview(key)}, which no check has counted: the attempts of the key that was checked stay failures. Report that key; HTTP middleware knows it: limited.report(request, attempt)`,
        this.name,
      );
    if (!isCounted || this.#reportedKeys.size >= MAX_REPORTED_KEYS) this.#reportedKeys = undefined;
  }

  /** Why a cost never fits: `cost 4000 exceeds the burst 2250 of \`tokens\``. */
  explainNever(cost: number): string {
    const { policy, name } = this;
    // A learnt limit has no fixed capacity to compare with.
    const capacity = policy.traits.needsOutcome ? Infinity : maxCostOf(policy, this.clock.now());
    if (capacity >= cost) return `cost ${cost} never fits \`${name}\``;
    const what = policy.share?.maxDebt === undefined ? 'limit' : 'burst';
    return `cost ${cost} exceeds the ${what} ${capacity} of \`${name}\``;
  }

  /** The refusal of `tryAcquire`. */
  refuseNow(key: string, cost: number, { retryAfterMs, rule, reason: why }: Denied): Refusal {
    if (this.isClosed) return this.refuse(key, cost, CLOSED_REFUSAL, 0);
    const timed = why === 'locked' ? 'locked' : 'not-now';
    const reason = retryAfterMs === NEVER ? 'never' : timed;
    return this.refuse(key, cost, { retryAfterMs, reason }, 0, rule);
  }

  /** Refuses without the backend: the limiter is closed, or the key is in cool-down. A cost of 0 passes a cool-down. */
  localRefusal(key: string, cost: number): Decision | undefined {
    if (this.isClosed) return CLOSED_REFUSAL;
    if (this.cooldowns.isEmpty || cost === 0) return undefined;
    const leftMs = this.cooldowns.remainingMs(key, this.clock.now());
    return leftMs > 0 ? deny(leftMs) : undefined;
  }

  protected startCooldown(key: string, ms: Millis | undefined, now: Millis): void {
    if (ms !== undefined && ms > 0)
      this.cooldowns.add(key, now + Math.min(ms, this.#maxCooldownMs));
  }

  /** Starts the cool-down that feedback carries; true if it carries one. */
  protected updateCooldown(key: string, feedback: Feedback): boolean {
    const ms = cooldownIn(feedback);
    this.startCooldown(key, ms, this.clock.now());
    return ms > 0;
  }

  /** Validates the arguments of `takeUpTo`; returns the refusal that needs no backend. */
  protected refuseTake(
    key: string,
    most: number,
    options: readonly unknown[],
  ): Decision | undefined {
    requireKey(key);
    requireNoTakeOptions(options);
    if (most !== Infinity) requireNumber('max', most, { min: 0, integer: true });
    return most > 0 ? this.localRefusal(key, 1) : undefined;
  }

  /** Counts what `takeUpTo` took, as one decision. */
  protected recordTaken(key: string, most: number, taken: number, refused?: Decision): number {
    const decision = taken > 0 ? GRANTED : (refused ?? REFUSED);
    if (most > 0) this.telemetry.recordDecision(key, taken || 1, decision, 0);
    return taken;
  }
}

/** The largest whole cost that can ever fit, found by checks of new keys: a ramp's limit grows beyond its start. */
function maxCostOf(policy: Policy, now: Millis): number {
  const state = new Float64Array(policy.width);
  const fits = (cost: number): boolean => {
    policy.init(state, 0, now);
    const decision = policy.check(state, 0, cost, now);
    return decision.verdict !== 'deny' || decision.retryAfterMs !== NEVER;
  };
  policy.init(state, 0, now);
  let low = policy.available(state, 0, now);
  if (!fits(low + 1)) return low;
  let high = 2 * MAX_AMOUNT;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

/** A `wait` decision with its due time and, where the rule has one, its expiry. Other decisions are unchanged. */
export function withDueTime(decision: Decision, decidedAt: Millis, expireMs: Millis): Decision {
  if (decision.verdict !== 'wait') return decision;
  const { verdict, waitMs } = decision;
  const dueAt = decidedAt + waitMs;
  return expireMs < Infinity
    ? { verdict, waitMs, dueAt, expiresAt: dueAt + expireMs }
    : { verdict, waitMs, dueAt };
}

/** The error of `change` for a limit that cannot take over the keys. */
export function cannotChange(from: Policy, to: Policy, path = 'limit'): ConfigError {
  const expected =
    from.kind === to.kind
      ? 'with other numbers only: the same rules, partitions, priorities, `reserve`, `resumeFor`, and with `fairQueue` the same `per` and `steps` of a window; else create a limiter'
      : `a ${from.kind}, as the limit is now; for another kind create a limiter`;
  return new ConfigError(path, expected, to.kind);
}
