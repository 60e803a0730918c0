import type { KeyBound } from '../backends/backend.ts';
import {
  CLOSED_REFUSAL,
  type RemoteBackend,
  type RemoteBackendFactory,
  type RemoteDecision,
} from '../backends/remote-backend.ts';
import { UNAVAILABLE_RETRY_MS } from '../backends/remote-limit.ts';
import { type Millis, timersEndWithRequest } from '../core/clock.ts';
import { type AttemptOutcome, type Decision, deny, NEVER } from '../core/decision.ts';
import { ConfigError, errorMessageOf } from '../core/errors.ts';
import { requireNumber } from '../core/options.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import { requireCost } from '../policies/cost.ts';
import { createPolicy, type Limit } from '../policies/limit.ts';
import { type Feedback, keyStatusOf, type Policy, type State } from '../policies/policy.ts';
import { layoutOf } from '../policies/rules.ts';
import { type Inspection, inspectionOf } from './inspection.ts';
import type { RemoteLimiterInternals } from './internals.ts';
import {
  cannotChange,
  type Denied,
  LimiterCore,
  type LimiterSettings,
  withDueTime,
} from './limiter-core.ts';
import type { Limiter, Stats } from './limiter-interface.ts';
import { endPermit, type Permit, type PermitResult, type Refusal } from './permit.ts';
import {
  type RemoteGrant,
  type RemoteWaitLimits,
  RemoteWaitScheduler,
  TOO_LONG,
} from './remote-wait-scheduler.ts';
import type { CounterSnapshot } from './stats.ts';
import {
  type CallResult,
  type IdOptions,
  readFeedback,
  readWaitLimits,
  requireKey,
  requireRemoteCheckOptions,
  requireRemoteOptions,
  requireResult,
  requireWillSettle,
  type SettleOptions,
  type WaitOptions,
} from './validate.ts';
import type { QueueSettings, WaitRefusal } from './wait-scheduler.ts';

/** A `Limiter` whose backend decides elsewhere: every result is a promise. */
export interface RemoteLimiter extends Pick<Limiter, 'name' | 'on'> {
  /**
   * May `cost` (default 1) happen for this key now? All or nothing, and counted. Rejects with a ConfigError for a limit
   * whose calls must be settled (concurrency), without `willSettle`: use `acquire` or `tryAcquire` there.
   */
  check(key: string, cost?: number, options?: IdOptions & SettleOptions): Promise<Decision>;
  /** Returns the decision of `tryAcquire`, without counting; undefined while the backend is unavailable. */
  peek(key: string, cost?: number): Promise<Decision | undefined>;
  /** A permit now or a refusal. */
  tryAcquire(key: string, cost?: number, options?: IdOptions): Promise<Permit | Refusal>;
  /** A permit, waiting if need be. Only an abort or a failed check rejects. */
  acquire(key: string, cost?: number, options?: WaitOptions & IdOptions): Promise<Permit | Refusal>;
  /** Takes as many as there are, up to `max`, and returns how many. */
  takeUpTo(key: string, max: number): Promise<number>;
  /** Returns `unused` of what `takeUpTo` took. */
  giveBack(key: string, unused: number, takenAt?: Millis): Promise<void>;
  /** Reports how an allowed call went. */
  settle(key: string, result?: CallResult): Promise<void>;
  /** Feeds in what happened elsewhere; false if this limit has no use for it. */
  update(key: string, feedback: Feedback): Promise<boolean>;
  /** Lock-out: reports how an attempt of the key ended, where it has no permit to settle. */
  report(key: string, attempt: AttemptOutcome, cost?: number): Promise<void>;
  /** The status of a key; undefined while the backend is unavailable. */
  inspect(key: string): Promise<Inspection | undefined>;
  /** Current sizes, and counters since the limiter was created. */
  stats(): RemoteStats;
  /**
   * Gives the limit other numbers: what was spent stays spent, calls stay in flight, waiting calls are decided anew.
   * Rejects with a ConfigError for another kind, or if the backend is unavailable: nothing has changed then.
   */
  change(limit: Limit | Readonly<Record<string, Limit>>): Promise<void>;
  /** Refuses waiting and later calls with reason `closed`, and gives back what it holds. The connection stays open. */
  close(): Promise<void>;
}

/** Whether the limiter's backend decides elsewhere, so that every result is a promise. */
export const isRemote = (limiter: object): limiter is RemoteLimiter =>
  (limiter as Partial<RemoteLimiterInternals>).isRemote === true;

/** Counters and sizes of a remote limiter. Keys and their memory are in the backend. */
export interface RemoteStats
  extends CounterSnapshot,
    Pick<Stats, 'waiting' | 'held' | 'eventLoopDelayMs'> {
  /** False while the backend is unavailable. */
  readonly isAvailable: boolean;
  /** Calls decided by `onUnavailable`. */
  readonly fallback: number;
}

export interface AsyncLimiterSettings extends LimiterSettings {
  /** False if the name is the default, the rule's kind. */
  readonly hasExplicitName: boolean;
  readonly maxKeys: KeyBound;
}

export class AsyncLimiter extends LimiterCore implements RemoteLimiterInternals {
  readonly isRemote = true;
  readonly mustSettle: boolean;
  protected policy: Policy;
  readonly #backend: RemoteBackend;
  readonly #scheduler: RemoteWaitScheduler;
  readonly #hasExplicitName: boolean;
  /** Settings of this limiter's wait queues; a composite has queues of its own. */
  readonly queueSettings: QueueSettings;
  #fallbackCount = 0;
  /** Changes of the limit run one after the other. */
  #lastChange: Promise<void> = Promise.resolve();

  constructor(policy: Policy, factory: RemoteBackendFactory, settings: AsyncLimiterSettings) {
    super(settings);
    this.mustSettle = policy.traits.needsOutcome;
    this.#hasExplicitName = settings.hasExplicitName;
    this.queueSettings = settings;
    this.#backend = factory.create(policy, {
      ...settings,
      onCapacity: (key) => this.#scheduler.wake(key),
      onAvailability: (isAvailable, cause) => {
        this.telemetry.recordAvailability(isAvailable, cause, this.#backend.onUnavailable);
        if (isAvailable) this.#scheduler.wakeAll();
      },
      hasListeners: () => this.telemetry.hasListeners,
    });
    this.policy = this.#backend.policy ?? policy;
    const expireMs = (): Millis => this.policy.traits.expireMs;
    this.#scheduler = new RemoteWaitScheduler({
      ...settings,
      backend: this.#backend,
      canReserve: policy.traits.canReserve,
      expireMs,
      drainMs: (units) => this.policy.queue?.drainMs(units) ?? 0,
      neverFits: (cost) => {
        const now = this.clock.now();
        const state = new Float64Array(this.policy.width);
        this.policy.init(state, 0, now);
        const decision = peekState(this.policy, state, cost, now);
        return decision.verdict === 'deny' && decision.retryAfterMs === NEVER;
      },
      cooldownMs: (key) => this.cooldowns.remainingMs(key, this.clock.now()),
    });
  }

  /** Forgets what a key has consumed, and its cool-down. Rejects if the backend is unavailable, or cannot. */
  async forget(key: string): Promise<void> {
    if (!this.#backend.forget) throw new Error('the backend of the limit cannot forget a key');
    await this.#backend.forget(key);
    this.cooldowns.remove(key);
    this.#scheduler.wake(key);
  }

  check(key: string, cost = 1, options?: IdOptions & SettleOptions): Promise<Decision> {
    try {
      requireKey(key);
      requireCost(cost);
      if (options !== undefined) requireRemoteCheckOptions(options);
      if (this.mustSettle && cost > 0) requireWillSettle(options, this.name);
      const id = options?.id;
      if (id !== undefined && cost > 0)
        return this.idempotent(key, id, () => this.#checkOnce(key, cost, id));
      const local = this.localRefusal(key, cost) ?? this.#backend.checkPrefetched?.(key, cost);
      if (local === undefined) return this.#checkRemote(key, cost);
      this.telemetry.recordDecision(key, cost, local, 0);
      return Promise.resolve(local);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #checkOnce(key: string, cost: number, id: string): Promise<Decision> {
    const { checkOnce } = this.#backend;
    const refused = this.localRefusal(key, cost);
    if (!checkOnce || refused) return this.check(key, cost, { willSettle: true });
    const call = { id, forMs: this.idForMs, mayReserve: true };
    return this.#checkRemote(key, cost, checkOnce.call(this.#backend, key, cost, call));
  }

  #checkRemote(
    key: string,
    cost: number,
    sent = this.#backend.check(key, cost),
  ): Promise<Decision> {
    return sent.then((reply) => {
      if (reply.fromFallback) this.#fallbackCount++;
      const { expireMs } = this.policy.traits;
      const decision = withDueTime(this.denyIfLate(reply), reply.decidedAt, expireMs);
      this.telemetry.recordDecision(key, cost, decision, 0);
      return decision;
    });
  }

  async peek(key: string, cost = 1): Promise<Decision | undefined> {
    requireKey(key);
    requireCost(cost);
    const refused = this.localRefusal(key, cost);
    if (refused) return refused;
    const read = await this.#backend.readState(key);
    return read && peekState(this.#currentPolicy(), read.state, cost, read.at);
  }

  async tryAcquire(key: string, cost = 1, options: IdOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    requireRemoteOptions(options);
    const { id } = options;
    if (id === undefined || cost === 0) return this.#tryAcquireNow(key, cost);
    const { checkOnce } = this.#backend;
    const call = { id, forMs: this.idForMs, mayReserve: false };
    const send = checkOnce && (() => checkOnce.call(this.#backend, key, cost, call));
    return this.idempotent(key, id, () => this.#tryAcquireNow(key, cost, send));
  }

  async #tryAcquireNow(
    key: string,
    cost: number,
    send = () => this.#backend.checkNow(key, cost),
  ): Promise<Permit | Refusal> {
    const local = this.localRefusal(key, cost);
    if (local?.verdict === 'deny') return this.refuseNow(key, cost, local);
    const reply = await send();
    if (reply.fromFallback) this.#fallbackCount++;
    const decision = this.denyIfLate(reply);
    return decision.verdict === 'deny'
      ? this.refuseReply(key, cost, decision, reply.fromFallback)
      : this.permitFor(key, cost, reply, 0);
  }

  // For a check of several limiters as one (`remote-charge.ts`): arguments are validated already, and a decision is
  // recorded only when all limiters have agreed.

  get backend(): RemoteBackend {
    return this.#backend;
  }

  countFallback(): void {
    this.#fallbackCount++;
  }

  /** Capacity of a key came back. */
  wake(key: string): void {
    this.#scheduler.wake(key);
  }

  recordCancelled(key: string, cost: number, waitedMs: Millis): void {
    this.telemetry.recordCancelled(key, cost, waitedMs);
  }

  /** The permit of a call that the backend has just allowed. */
  permitFor(key: string, cost: number, reply: RemoteDecision, waitedMs: Millis): Permit {
    const { decision, decidedAt: dueAt, leaseId, callId, fromFallback = false } = reply;
    const isKnown = decision.verdict === 'allow' && !fromFallback;
    const remaining = isKnown ? decision.remaining : undefined;
    const grant = { verdict: 'allow', dueAt, fromFallback, leaseId, callId } as const;
    return this.#issuePermit(key, cost, grant, waitedMs, remaining);
  }

  /** The refusal of a call that the backend, or its fallback, has just denied. */
  refuseReply(key: string, cost: number, decision: Denied, fromFallback = false): Refusal {
    return fromFallback && this.#failsClosed
      ? this.refuse(key, cost, { ...decision, reason: 'unavailable' }, 0)
      : this.refuseNow(key, cost, decision);
  }

  /** The refusal of a call that has waited, or would have to. */
  refuseWait(key: string, cost: number, refused: WaitRefusal, waitedMs: Millis): Refusal {
    const { fromFallback, reason, rule } = refused;
    if (!fromFallback || reason !== 'too-long' || !this.#failsClosed)
      return this.refuse(key, cost, refused, waitedMs, rule);
    this.#fallbackCount++;
    const retryAfterMs = Math.max(refused.retryAfterMs, UNAVAILABLE_RETRY_MS);
    return this.refuse(key, cost, { retryAfterMs, reason: 'unavailable' }, waitedMs);
  }

  get #failsClosed(): boolean {
    return this.#backend.onUnavailable === 'deny' && !this.isClosed;
  }

  /** True while the backend is unavailable and `onUnavailable` denies every call. */
  get isFailingClosed(): boolean {
    return !this.#backend.isAvailable && this.#failsClosed;
  }

  async acquire(
    key: string,
    cost = 1,
    { id, ...options }: WaitOptions & IdOptions = {},
  ): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    if (id !== undefined) {
      const wait = (signal: AbortSignal) => this.acquire(key, cost, { ...options, signal });
      return this.idempotentWait(key, id, readWaitLimits(options).signal, wait);
    }
    const { maxWaitMs, ...limits } = readWaitLimits(options);
    const isNow = maxWaitMs <= 0 && !this.#scheduler.hasWaiters(key) && !limits.signal?.aborted;
    if (isNow) return this.tryAcquire(key, cost);
    const since = this.clock.now();
    for (let waitedMs = 0, isRequeued = false; ; isRequeued = true) {
      if (this.isClosed) return this.refuse(key, cost, CLOSED_REFUSAL, waitedMs);
      const leftMs = maxWaitMs - waitedMs;
      if (isRequeued && leftMs <= 0) return this.refuse(key, cost, TOO_LONG, waitedMs);
      const result = await this.#waitForPermit(key, cost, {
        ...limits,
        maxWaitMs: leftMs,
        isRequeued,
      }).catch((error: unknown) => {
        this.telemetry.recordCancelled(key, cost, this.clock.now() - since);
        throw error;
      });
      waitedMs = Math.max(0, this.clock.now() - since);
      if (result.verdict === 'deny') return this.refuseWait(key, cost, result, waitedMs);
      if ('usableUntil' in result && this.#isTooLate(result.usableUntil)) continue;
      if (result.fromFallback) this.#fallbackCount++;
      return this.#issuePermit(key, cost, result, waitedMs, result.remaining);
    }
  }

  /** The decision, or a refusal if its slot is lost by now: a lost slot counts as used. */
  denyIfLate({ decision, usableUntil }: RemoteDecision): Decision {
    const isLost = decision.verdict !== 'deny' && this.#isTooLate(usableUntil);
    return isLost ? deny(Math.ceil(this.policy.traits.refillMs ?? 0)) : decision;
  }

  /** The reply took too long: the reserved slot may no longer be usable. */
  #isTooLate(usableUntil: Millis | undefined): boolean {
    return usableUntil !== undefined && this.clock.now() > usableUntil;
  }

  /** Waits in the backend's queue for the whole fleet, where there is one, else in this process's. */
  #waitForPermit(key: string, cost: number, limits: RemoteWaitLimits) {
    const isInCooldown = this.cooldowns.remainingMs(key, this.clock.now()) > 0;
    if (this.#backend.waitForPermit && !isInCooldown)
      return this.#backend.waitForPermit(key, cost, limits);
    return this.#scheduler.waitForPermit(key, cost, limits);
  }

  #issuePermit(
    key: string,
    cost: number,
    grant: RemoteGrant,
    waitedMs: Millis,
    remaining?: number,
  ): Permit {
    if (timersEndWithRequest) this.telemetry.expireOverduePermits();
    const { dueAt, fromFallback, leaseId, callId } = grant;
    const lease = leaseId === undefined ? undefined : this.#backend.leaseOf?.(leaseId);
    const about = { key, cost, dueAt, issuedAt: this.clock.now(), waitedMs, remaining };
    const init = lease ? { ...about, fencingToken: lease.fencingToken } : about;
    const permit = this.telemetry.issuePermit(init, (result, rttMs) => {
      const settlement = { ...result, rttMs, cost, dueAt };
      this.#settle(key, settlement, fromFallback, { leaseId, callId }).catch((error: unknown) => {
        const why = `a permit of limit "${this.name}" was not settled: ${errorMessageOf(error)}`;
        emitProcessWarning('UNCHECKED', why, this.name);
      });
    });
    if (lease) lease.onLost = () => endPermit(permit, `limit "${this.name}" lost its lease`);
    return permit;
  }

  async takeUpTo(key: string, most: number, ...options: unknown[]): Promise<number> {
    const refused = this.refuseTake(key, most, options);
    const taken = refused ? 0 : await this.#backend.takeUpTo(key, most);
    return this.recordTaken(key, most, taken, refused);
  }

  async giveBack(key: string, unused: number, takenAt?: Millis): Promise<void> {
    requireNumber('unused', unused, { min: 0, integer: true });
    if (takenAt !== undefined) requireNumber('takenAt', takenAt, {});
    const dueAt = takenAt === undefined ? Number.NaN : this.#serverTimeOf(key, takenAt);
    const known = Number.isNaN(dueAt) ? {} : { dueAt };
    await this.settle(key, { outcome: 'ignored', cost: unused, ...known });
  }

  #serverTimeOf(key: string, at: Millis): Millis {
    return this.#backend.toServerTime?.(key, at) ?? at;
  }

  async settle(key: string, result: CallResult = {}): Promise<void> {
    requireKey(key);
    requireResult(result);
    await this.#settle(key, result, false, {});
  }

  /** Sends a settlement only if it changes the backend's state: the call did not use what it was charged for. */
  async #settle(
    key: string,
    result: CallResult & PermitResult,
    fromFallback: boolean,
    { leaseId, callId }: Pick<RemoteDecision, 'leaseId' | 'callId'>,
  ): Promise<void> {
    const { outcome = 'ok', cost = 1, used, rttMs, retryAfterMs, dueAt = Number.NaN } = result;
    const known = { ...(used !== undefined && { used }), ...(rttMs !== undefined && { rttMs }) };
    this.telemetry.recordSettled(key, cost, outcome, used, rttMs);
    if (result.attempt !== undefined) await this.applyReport(key, result.attempt, cost);
    if (retryAfterMs !== undefined) this.startCooldown(key, retryAfterMs, this.clock.now());
    const isAsCharged =
      outcome !== 'ignored' && (used ?? cost) === cost && !this.policy.traits.needsOutcome;
    // The backend knows nothing of what the fallback granted, except of a lease.
    const isKnown = !fromFallback || leaseId !== undefined;
    const sent =
      isAsCharged || !isKnown
        ? undefined
        : this.#backend.settle(key, {
            outcome,
            cost,
            dueAt,
            leaseId,
            callId,
            fromFallback,
            ...known,
          });
    this.#scheduler.wake(key); // its check follows the settlement, in the same round trip or the next
    await sent;
  }

  async update(key: string, given: Feedback): Promise<boolean> {
    requireKey(key);
    const feedback = readFeedback(given);
    const isCooldown = this.updateCooldown(key, feedback);
    if ('hits' in feedback) await this.#backend.addHits(key, feedback.hits);
    return isCooldown || 'hits' in feedback;
  }

  async report(key: string, attempt: AttemptOutcome, cost = 1): Promise<void> {
    this.requireReport(key, attempt, cost);
    // Sent before the report, in its round trip. What a fallback counted, the backend may not know.
    const isCompared = this.#fallbackCount === 0 && this.isNewReport(key);
    const before = isCompared ? this.inspect(key).catch(() => undefined) : undefined;
    await this.applyReport(key, attempt, cost);
    this.#scheduler.wake(key);
    this.compareReport(key, await before);
  }

  protected async applyReport(
    key: string,
    report: AttemptOutcome | 'refusal',
    count: number,
  ): Promise<void> {
    if (this.takesReports || this.countsRefusals) await this.#backend.report?.(key, report, count);
  }

  async inspect(key: string): Promise<Inspection | undefined> {
    requireKey(key);
    const read = await this.#backend.readState(key);
    if (!read) return undefined;
    const cooldownMs = this.cooldowns.remainingMs(key, this.clock.now());
    const status = keyStatusOf(this.#currentPolicy(), read.state, read.at);
    return inspectionOf(this.name, status, cooldownMs, this.isClosed);
  }

  /** The backend's rule may change while it runs, as a group's part does. */
  #currentPolicy(): Policy {
    return this.#backend.policy ?? this.policy;
  }

  stats(): RemoteStats {
    const { isAvailable } = this.#backend;
    const waiting = this.#scheduler.size + (this.#backend.waiterCount ?? 0);
    const fallback = this.#fallbackCount;
    return { ...this.telemetry.snapshot(), waiting, isAvailable, fallback };
  }

  change(limit: Limit): Promise<void> {
    const change = this.#lastChange.then(() => this.requireChange(limit)());
    this.#lastChange = change.catch(() => {});
    return change;
  }

  /** True if `change` would accept the limit. */
  canChange(limit: Limit): boolean {
    const policy = createPolicy(limit, this.random);
    return this.#changeTo(policy) !== undefined;
  }

  #changeTo(policy: Policy): (() => Promise<void>) | undefined {
    const isAlike = policy.traits.canReserve === this.policy.traits.canReserve;
    return isAlike ? this.#backend.prepareChange?.(policy) : undefined;
  }

  /** True if both have the same keys in a server, as far as the rule decides it. */
  hasSameKeys(other: AsyncLimiter): boolean {
    return layoutOf(this.policy) === layoutOf(other.policy);
  }

  /** @throws {ConfigError} if the limit cannot become this one; `path` is its name in the message. */
  requireChange(limit: Limit, path?: string): () => Promise<void> {
    const policy = createPolicy(limit, this.random, path);
    if (!this.#hasExplicitName) {
      const expected = 'given to a limit that changes: without one it is known by its numbers';
      throw new ConfigError('name', expected, undefined);
    }
    const change = this.#changeTo(policy);
    if (!change) throw cannotChange(this.policy, policy, path);
    return async () => {
      await change();
      this.policy = this.#backend.policy ?? policy;
      this.#scheduler.wakeAll();
      this.telemetry.recordReconfigured(limit);
    };
  }

  async close(): Promise<void> {
    this.isClosed = true;
    await this.#scheduler.close();
    await this.#backend.close();
  }
}

/** The decision of a check that may not reserve ahead; changes `state`, which is a copy. */
function peekState(policy: Policy, state: State, cost: number, now: Millis): Decision {
  const decision = policy.check(state, 0, cost, now);
  return decision.verdict === 'wait' ? deny(Math.ceil(decision.waitMs)) : decision;
}
