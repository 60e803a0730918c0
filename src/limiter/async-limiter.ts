/**
 * The engine for a limit that somebody else decides: the doors of `sync-limiter.ts`, as promises.
 *
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, share: redis(client) });
 *     const decision = await api.ask('token');
 */

import {
  CLOSED_REFUSAL,
  type RemoteBackend,
  type RemoteBackendFactory,
  type RemoteDecision,
} from '../backends/remote-backend.ts';
import type { Clock, Millis } from '../core/clock.ts';
import { type Decision, deny, NEVER } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { requireNumber } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import { type Feedback, keyStatusOf, type Policy } from '../policies/policy.ts';
import { cooldownIn, KeyCooldowns } from './cooldowns.ts';
import type { Listener } from './events.ts';
import { type Inspection, inspectionOf } from './inspection.ts';
import type { Permit, PermitResult, Refusal } from './permit.ts';
import {
  type RemoteGrant,
  type RemoteWaitLimits,
  RemoteWaitScheduler,
  TOO_LONG,
} from './remote-wait-scheduler.ts';
import type { CounterSnapshot } from './stats.ts';
import { LimiterTelemetry } from './telemetry.ts';
import {
  type CallResult,
  readWaitLimits,
  requireFeedback,
  requireKey,
  requireResult,
  type WaitOptions,
} from './validate.ts';
import type { QueueOrder } from './wait-queue.ts';

/** What `Limiter` is where somebody else decides, such as Redis: every answer is a promise. */
export interface RemoteLimiter {
  readonly name: string;
  readonly isRemote: true;
  /** May `cost` (default 1) happen for this key now? All or nothing. */
  check(key: string, cost?: number): Promise<Decision>;
  /** A permit at once or none. */
  tryAcquire(key: string, cost?: number): Promise<Permit | Refusal>;
  /** Waits for a permit if it has to. Only an abort rejects. */
  acquire(key: string, cost?: number, options?: WaitOptions): Promise<Permit | Refusal>;
  /** Takes up to `most` and says how many it got. */
  takeUpTo(key: string, most: number): Promise<number>;
  /** Gives back `unused` of what `take` granted. */
  giveBack(key: string, unused: number, takenAt?: Millis): Promise<void>;
  /** Says how a call went that had been allowed. */
  settle(key: string, result?: CallResult): Promise<void>;
  /** Takes in what happened elsewhere; false if this limit has no use for it. */
  update(key: string, feedback: Feedback): Promise<boolean>;
  /** How the key stands; undefined while whoever decides is out of reach. */
  inspect(key: string): Promise<Inspection | undefined>;
  /** Tells `listener` of every decision and every call settled; what comes back ends that. */
  on(listener: Listener): () => void;
  /** What it holds now, and what it has done since it was made. */
  stats(): RemoteStats;
  /** Refuses those who wait, gives back what it holds and stops. The connection is yours, and stays open. */
  close(): Promise<void>;
  /** The time it lives in, for those who wait on its behalf. */
  readonly clock: Clock;
  /** The chance it goes by. */
  readonly random: Random;
}

/** Whether somebody else decides, so that every answer is a promise. */
export const isRemote = (limiter: object): limiter is RemoteLimiter => 'isRemote' in limiter;

/** What such a limiter knows of itself; keys and their memory are with whoever decides. */
export interface RemoteStats extends CounterSnapshot {
  /** How many wait in line. */
  readonly waiting: number;
  /** Permits that are out. */
  readonly held: number;
  /** False while whoever decides is out of reach. */
  readonly isAvailable: boolean;
  /** Calls that were answered by `onUnavailable`. */
  readonly fallback: number;
}

export interface AsyncLimiterSettings {
  readonly name: string;
  /** False if nobody gave it its name, which is then that of its rule. */
  readonly hasExplicitName: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly maxKeys: number;
  readonly queue: { readonly max: number; readonly order: QueueOrder; readonly keepAlive: boolean };
  readonly permitTimeoutMs: Millis;
  readonly maxCooldownMs: Millis;
}

export class AsyncLimiter implements RemoteLimiter {
  readonly isRemote = true;
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly #policy: Policy;
  readonly #backend: RemoteBackend;
  readonly #scheduler: RemoteWaitScheduler;
  readonly #telemetry: LimiterTelemetry;
  readonly #cooldowns = new KeyCooldowns();
  readonly #maxCooldownMs: Millis;
  #fallbackCount = 0;
  #isClosed = false;

  constructor(policy: Policy, factory: RemoteBackendFactory, settings: AsyncLimiterSettings) {
    const { name, clock, random, queue, maxKeys } = settings;
    this.name = name;
    this.clock = clock;
    this.random = random;
    this.#maxCooldownMs = settings.maxCooldownMs;
    this.#telemetry = new LimiterTelemetry(name, clock, settings.permitTimeoutMs);
    const onAvailability = (isAvailable: boolean, why: unknown): void => {
      this.#telemetry.recordAvailability(isAvailable, why, this.#backend.onUnavailable);
      if (isAvailable) this.#scheduler.wakeAll();
    };
    this.#backend = factory.create(policy, {
      name,
      hasExplicitName: settings.hasExplicitName,
      clock,
      random,
      maxKeys,
      maxWaiters: queue.max,
      keepAlive: queue.keepAlive,
      onCapacity: (key) => this.#scheduler.wake(key),
      onAvailability,
    });
    this.#policy = this.#backend.policy ?? policy;
    this.#scheduler = new RemoteWaitScheduler({
      backend: this.#backend,
      clock,
      random,
      order: queue.order,
      maxWaiters: queue.max,
      keepAlive: queue.keepAlive,
      canReserve: policy.canReserve,
      expireMs: policy.expireMs,
      cooldownMs: (key) => this.#cooldowns.remainingMs(key, clock.now()),
    });
  }

  check(key: string, cost = 1): Promise<Decision> {
    try {
      requireKey(key);
      requireCost(cost);
      const here = this.#localRefusal(key, cost) ?? this.#backend.checkPrefetched?.(key, cost);
      if (here === undefined) return this.#checkRemote(key, cost);
      this.#telemetry.recordDecision(key, cost, here, 0);
      return Promise.resolve(here);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async #checkRemote(key: string, cost: number): Promise<Decision> {
    const answer = await this.#backend.check(key, cost);
    if (answer.fromFallback) this.#fallbackCount++;
    const decision = this.#denyIfLate(answer);
    this.#telemetry.recordDecision(key, cost, decision, 0);
    return decision;
  }

  async tryAcquire(key: string, cost = 1): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const here = this.#localRefusal(key, cost);
    const answer = here
      ? { decision: here, decidedAt: 0 }
      : await this.#backend.checkNow(key, cost);
    const { decidedAt, leaseId, fromFallback = false }: RemoteDecision = answer;
    if (fromFallback) this.#fallbackCount++;
    const decision = this.#denyIfLate(answer);
    if (decision.verdict !== 'deny')
      return this.#issuePermit(
        key,
        cost,
        { verdict: 'allow', dueAt: decidedAt, fromFallback, leaseId },
        0,
      );
    if (this.#isClosed) return this.#telemetry.refuse(key, cost, CLOSED_REFUSAL, 0);
    const { retryAfterMs } = decision;
    const isUndecided = fromFallback && this.#backend.onUnavailable === 'deny';
    const reason = isUndecided ? 'unavailable' : retryAfterMs === NEVER ? 'never' : 'not-now';
    return this.#telemetry.refuse(key, cost, { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: WaitOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const { maxWaitMs, ...own } = readWaitLimits(options);
    const isAtOnce = maxWaitMs <= 0 && !this.#scheduler.hasWaiters(key) && !own.signal?.aborted;
    if (isAtOnce) return this.tryAcquire(key, cost);
    const since = this.clock.now();
    for (let waitedMs = 0, isRequeued = false; ; isRequeued = true) {
      if (this.#isClosed) return this.#telemetry.refuse(key, cost, CLOSED_REFUSAL, waitedMs);
      const leftMs = maxWaitMs - waitedMs;
      if (isRequeued && leftMs <= 0) return this.#telemetry.refuse(key, cost, TOO_LONG, waitedMs);
      const limits = { ...own, maxWaitMs: leftMs, isRequeued };
      const entry = await this.#waitForPermit(key, cost, limits).catch((error: unknown) => {
        this.#telemetry.recordCancelled(key, cost, this.clock.now() - since);
        throw error;
      });
      waitedMs = Math.max(0, this.clock.now() - since);
      if (entry.verdict === 'deny') return this.#telemetry.refuse(key, cost, entry, waitedMs);
      if ('usableUntil' in entry && this.#isTooLate(entry.usableUntil)) continue;
      if (entry.fromFallback) this.#fallbackCount++;
      return this.#issuePermit(key, cost, entry, waitedMs);
    }
  }

  /** What was decided, if it can still begin: a place that is lost is as good as used. */
  #denyIfLate({ decision, usableUntil }: RemoteDecision): Decision {
    const isLost = decision.verdict !== 'deny' && this.#isTooLate(usableUntil);
    return isLost ? deny(Math.ceil(this.#policy.refillMs ?? 0)) : decision;
  }

  /** The process was held up on the way from where the place was given: the next one may be too close by now. */
  #isTooLate(usableUntil: Millis | undefined): boolean {
    return usableUntil !== undefined && this.clock.now() > usableUntil;
  }

  /** In the line that the decider keeps, or in one of this process. */
  #waitForPermit(key: string, cost: number, limits: RemoteWaitLimits) {
    const cooldownMs = this.#cooldowns.isEmpty
      ? 0
      : this.#cooldowns.remainingMs(key, this.clock.now());
    if (this.#backend.waitForPermit && cooldownMs === 0)
      return this.#backend.waitForPermit(key, cost, limits);
    return this.#scheduler.waitForPermit(key, cost, limits);
  }

  #issuePermit(key: string, cost: number, result: RemoteGrant, waitedMs: Millis): Permit {
    const { dueAt, fromFallback, leaseId } = result;
    const issuedAt = this.clock.now();
    return this.#telemetry.issuePermit(
      { key, cost, dueAt, issuedAt, waitedMs },
      (settled, rttMs) => {
        this.#settle(key, { ...settled, rttMs, cost, dueAt }, fromFallback, leaseId);
      },
    );
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    requireKey(key);
    if (most !== Infinity) requireNumber('most', most, { min: 0, integer: true });
    const here = most > 0 ? this.#localRefusal(key, 1) : undefined;
    const taken = here ? 0 : await this.#backend.takeUpTo(key, most);
    const decision: Decision = taken > 0 ? { verdict: 'allow', remaining: 0 } : (here ?? deny(0));
    if (most > 0) this.#telemetry.recordDecision(key, taken || 1, decision, 0);
    return taken;
  }

  async giveBack(key: string, unused: number, takenAt?: Millis): Promise<void> {
    requireNumber('unused', unused, { min: 0, integer: true });
    const dueAt = takenAt === undefined ? {} : { dueAt: takenAt };
    await this.settle(key, { outcome: 'ignored', cost: unused, ...dueAt });
  }

  async settle(key: string, result: CallResult = {}): Promise<void> {
    requireKey(key);
    requireResult(result);
    await this.#settle(key, result, false, undefined);
  }

  /** Only what was not used as asked for is worth the way. */
  async #settle(
    key: string,
    result: CallResult & PermitResult,
    fromFallback: boolean,
    leaseId: string | undefined,
  ): Promise<void> {
    const { outcome = 'ok', cost = 1, used, rttMs, retryAfterMs, dueAt = Number.NaN } = result;
    const known = { ...(used !== undefined && { used }), ...(rttMs !== undefined && { rttMs }) };
    this.#telemetry.recordSettled(key, cost, outcome, used, rttMs);
    if (retryAfterMs !== undefined) this.#startCooldown(key, retryAfterMs);
    const isAsAsked =
      outcome !== 'ignored' && (used ?? cost) === cost && !this.#policy.needsOutcome;
    // What somebody else never gave is not settled there; a place that is held by a name is, wherever that was.
    const isKnown = !fromFallback || leaseId !== undefined;
    const told =
      isAsAsked || !isKnown
        ? undefined
        : this.#backend.settle(key, { outcome, cost, dueAt, leaseId, ...known });
    this.#scheduler.wake(key); // whoever waits here asks right behind it, in the same trip or the next
    await told;
  }

  async update(key: string, feedback: Feedback): Promise<boolean> {
    requireKey(key);
    requireFeedback(feedback);
    const cooldownMs = cooldownIn(feedback);
    if (cooldownMs > 0) this.#startCooldown(key, cooldownMs);
    if ('hits' in feedback) await this.#backend.addHits(key, feedback.hits);
    return cooldownMs > 0 || 'hits' in feedback;
  }

  async inspect(key: string): Promise<Inspection | undefined> {
    requireKey(key);
    const seen = await this.#backend.readState(key);
    if (!seen) return undefined;
    const { state, at } = seen;
    const { policy = this.#policy } = this.#backend;
    const cooldownMs = this.#cooldowns.remainingMs(key, this.clock.now());
    return inspectionOf(this.name, keyStatusOf(policy, state, at), cooldownMs);
  }

  on(listener: Listener): () => void {
    if (typeof listener !== 'function') throw new ConfigError('listener', 'a function', listener);
    return this.#telemetry.on(listener);
  }

  stats(): RemoteStats {
    const { isAvailable } = this.#backend;
    const waiting = this.#scheduler.size + (this.#backend.waiterCount ?? 0);
    const fallback = this.#fallbackCount;
    return { ...this.#telemetry.snapshot(), waiting, isAvailable, fallback };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#scheduler.close();
    await this.#backend.close();
  }

  /** A refusal that nobody else is needed for: it is closed, or the key is paused. */
  #localRefusal(key: string, cost: number): Decision | undefined {
    if (this.#isClosed) return deny(CLOSED_REFUSAL.retryAfterMs);
    if (this.#cooldowns.isEmpty || cost === 0) return undefined;
    const leftMs = this.#cooldowns.remainingMs(key, this.clock.now());
    return leftMs > 0 ? deny(leftMs) : undefined;
  }

  #startCooldown(key: string, ms: Millis): void {
    if (ms > 0) this.#cooldowns.add(key, this.clock.now() + Math.min(ms, this.#maxCooldownMs));
  }
}
