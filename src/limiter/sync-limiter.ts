/**
 * The engine: one road from ask to decision.
 *
 * It checks what was handed in, keeps out whom the other side wants to see no more for a while, asks
 * its share, and writes down what came of it. Whoever would rather wait stands in its waiting room.
 */

import type { Backend, TableSnapshot } from '../backends/backend.ts';
import type { Clock, Millis } from '../core/clock.ts';
import { type Decision, deny, NEVER } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import type { KeyHash } from '../core/hash.ts';
import { requireNumber } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import { partitionIndexOf } from '../policies/partitions.ts';
import type { Feedback, Policy, Settlement } from '../policies/policy.ts';
import { cooldownIn, KeyCooldowns } from './cooldowns.ts';
import type { Listener } from './events.ts';
import { type Inspection, inspectionOf, type NamedRuleStatus, nameRules } from './inspection.ts';
import type { Permit, Refusal } from './permit.ts';
import type { CounterSnapshot } from './stats.ts';
import { LimiterTelemetry } from './telemetry.ts';
import {
  type CallResult,
  readWaitLimits,
  requireCheckOptions,
  requireFeedback,
  requireKey,
  requireResult,
  type WaitOptions,
} from './validate.ts';
import type { QueueOrder, QueuePosition } from './wait-queue.ts';
import {
  type PermitRequest,
  type RefusalReason,
  type WaitLimits,
  type WaitResult,
  WaitScheduler,
} from './wait-scheduler.ts';

/** What an ask may say besides key and cost. */
export interface CheckOptions {
  /** Which part of a limit with partitions it counts against. Default: none, what they leave. */
  readonly partition?: string;
}

/** What `acquire` takes: how it waits, and for which part. */
export interface AcquireOptions extends CheckOptions, WaitOptions {}

/** Decides here, at once. Where somebody else decides it is a `RemoteLimiter`. */
export interface Limiter {
  readonly name: string;
  /** May `cost` (default 1) happen for this key now? All or nothing. */
  check(key: string, cost?: number, options?: CheckOptions): Decision;
  /** What `tryAcquire` would be told. Looking changes nothing, and nobody hears of it. */
  peek(key: string, cost?: number, options?: CheckOptions): Decision;
  /** A permit at once or none: `ask` for those who hold and settle. */
  tryAcquire(key: string, cost?: number, options?: CheckOptions): Permit | Refusal;
  /** Waits for a permit if it has to. A refusal is a value here too; only an abort rejects. */
  acquire(key: string, cost?: number, options?: AcquireOptions): Promise<Permit | Refusal>;
  /** True if it went through at once, past nobody who waits. A no is not counted: `acquire` next. */
  tryPass(key: string, cost?: number): boolean;
  /** The same with a permit: the call may begin before anything else happens. */
  tryPassWithPermit(key: string, cost?: number, options?: CheckOptions): Permit | undefined;
  /** True if somebody waits for this key: whoever asks now would jump the line. */
  hasWaiters(key: string, options?: CheckOptions): boolean;
  /** Takes up to `most` and says how many it got; Infinity takes all there is. */
  takeUpTo(key: string, most: number): number;
  /** Gives back `unused` of what `take` granted, now or at `takenAt`: a ramp drops what is late. */
  giveBack(key: string, unused: number, takenAt?: Millis): void;
  /** Says how a call went that had been allowed. */
  settle(key: string, result?: CallResult): void;
  /** True if a permit that was due then is wasted by now (or at `at`): ask again. */
  isExpired(dueAt: Millis, at?: Millis): boolean;
  /** Takes in what happened elsewhere; false if this limit has no use for it. */
  update(key: string, feedback: Feedback): boolean;
  /** How the key stands: what is left, which rule says no, until when. Looking changes nothing. */
  inspect(key: string): Inspection;
  /** Tells `listener` of every decision and every call settled; what comes back ends that. */
  on(listener: Listener): () => void;
  /** What it holds now, and what it has done since it was made. */
  stats(): Stats;
  /** True if an ask is answered with allow or deny only, and a call as asked for needs no settling. */
  readonly isCheckOnly: boolean;
  /** The time it lives in, for those who wait on its behalf. */
  readonly clock: Clock;
  /** The chance it goes by. */
  readonly random: Random;
}

/** What a limiter holds right now, and what it counted from the start on. */
export interface Stats extends CounterSnapshot {
  /** Keys that have a state right now. */
  readonly keys: number;
  /** Keys that had to make room while still in use: above 0, `maxKeys` is too small. */
  readonly evicted: number;
  /** Memory held for keys. */
  readonly bytes: number;
  /** How many wait in line. */
  readonly waiting: number;
  /** Permits that are out. */
  readonly held: number;
  /** In a pool: how many share the limit; 0: this process has no part of it. */
  readonly poolSize?: number;
}

/** A decision, and the status of each rule right after it. */
export interface NamedCheckWithStatus {
  readonly decision: Decision;
  readonly rules: readonly NamedRuleStatus[];
}

/** What it goes by, all of it decided. */
export interface SyncLimiterSettings {
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly queue: { readonly max: number; readonly order: QueueOrder; readonly keepAlive: boolean };
  readonly permitTimeoutMs: Millis;
  readonly maxCooldownMs: Millis;
}

export class SyncLimiter implements Limiter {
  readonly name: string;
  readonly isCheckOnly: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly #policy: Policy;
  readonly #backend: Backend;
  readonly #scheduler: WaitScheduler;
  readonly #cooldowns = new KeyCooldowns();
  readonly #maxCooldownMs: Millis;
  readonly #telemetry: LimiterTelemetry;

  constructor(policy: Policy, backend: Backend, settings: SyncLimiterSettings) {
    const { name, clock, random, queue, permitTimeoutMs, maxCooldownMs } = settings;
    this.name = name;
    this.clock = clock;
    this.random = random;
    this.isCheckOnly = !policy.needsOutcome && !policy.canReserve;
    this.#policy = policy;
    this.#backend = backend;
    this.#maxCooldownMs = maxCooldownMs;
    this.#telemetry = new LimiterTelemetry(name, clock, permitTimeoutMs);
    this.#scheduler = new WaitScheduler({
      clock,
      order: queue.order,
      maxWaiters: queue.max,
      keepAlive: queue.keepAlive,
      partitions: policy.partitions ?? [],
      checkNow: (key, cost, now, partitionIndex) => this.reserve(key, cost, now, partitionIndex),
      peek: (key, cost, partitionIndex) => backend.peek(key, cost, partitionIndex),
    });
  }

  check(key: string, cost = 1, options?: CheckOptions): Decision {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    const decision = this.#cooldowns.isEmpty
      ? this.#backend.check(key, cost, partitionIndex)
      : (this.#cooldownRefusal(key, cost) ?? this.#backend.check(key, cost, partitionIndex));
    this.recordDecision(key, cost, decision, 0);
    return decision;
  }

  /**
   * The same for a surface that hashed the key's bytes, with the hasher its share was made with. A
   * name costs more than a decision: undefined if somebody wants to know it, so ask by name.
   */
  checkHashed({ low, high }: KeyHash, cost: number): Decision | undefined {
    if (!this.#cooldowns.isEmpty || this.#telemetry.hasListeners || this.#backend.needsKeyNames)
      return undefined;
    const decision = this.#backend.checkHashed(low, high, cost);
    this.#telemetry.countDecision(decision);
    return decision;
  }

  /** `checkHashed`, and the status of each rule after it, from one lookup; undefined as there. */
  checkWithStatus({ low, high }: KeyHash, cost: number): NamedCheckWithStatus | undefined {
    if (!this.#cooldowns.isEmpty || this.#telemetry.hasListeners || this.#backend.needsKeyNames)
      return undefined;
    const checked = this.#backend.checkWithStatus?.(low, high, cost);
    if (checked === undefined) return undefined;
    this.#telemetry.countDecision(checked.decision);
    return { decision: checked.decision, rules: nameRules(this.name, checked.rules) };
  }

  tryPass(key: string, cost = 1): boolean {
    requireKey(key);
    requireCost(cost);
    if (this.#scheduler.hasWaiters(key)) return false;
    const decision = this.reserve(key, cost, this.clock.now());
    if (decision.verdict === 'deny') return false;
    this.recordDecision(key, cost, decision, 0);
    return true;
  }

  tryPassWithPermit(key: string, cost = 1, options?: CheckOptions): Permit | undefined {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    if (this.#scheduler.hasWaiters(key, partitionIndex)) return undefined;
    const now = this.clock.now();
    const decision = this.reserve(key, cost, now, partitionIndex);
    return decision.verdict === 'deny'
      ? undefined
      : this.issuePermit(key, cost, now, 0, partitionIndex);
  }

  peek(key: string, cost = 1, options?: CheckOptions): Decision {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    return this.peekUnvalidated(key, cost, partitionIndex);
  }

  tryAcquire(key: string, cost = 1, options?: CheckOptions): Permit | Refusal {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    const now = this.clock.now();
    const decision = this.reserve(key, cost, now, partitionIndex);
    if (decision.verdict !== 'deny') return this.issuePermit(key, cost, now, 0, partitionIndex);
    const { retryAfterMs } = decision;
    const reason = retryAfterMs === NEVER ? 'never' : 'not-now';
    return this.refuse(key, cost, { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const limits = readWaitLimits(options);
    const { partition } = options;
    const partitionIndex =
      partition === undefined ? undefined : partitionIndexOf(this.#policy, partition);
    const since = this.clock.now();
    const result = await this.waitForPermit({ key, cost, partitionIndex }, limits, since);
    if (result.verdict === 'deny') return this.refuse(key, cost, result, this.clock.now() - since);
    const { dueAt = since, waitedMs = 0 } = result;
    return this.issuePermit(key, cost, dueAt, waitedMs, partitionIndex);
  }

  /** Lays down the state of all keys, for a successor with the same rule and hasher. */
  snapshot(): TableSnapshot {
    return this.#backend.snapshot();
  }

  restore(snapshot: TableSnapshot): void {
    this.#backend.restore(snapshot);
  }

  /** Nobody asks it any more: those it was kept together with need not bother. */
  detach(): void {
    this.#backend.detach?.();
  }

  // Doors for `all`, which asks several of them as one: what was handed in is checked and known already, nobody is told before
  // all have agreed, and a partition goes by its place in the policy's list.

  /** What `hold` would be told. */
  peekUnvalidated(key: string, cost: number, partitionIndex?: number): Decision {
    return this.#cooldownRefusal(key, cost) ?? this.#backend.peek(key, cost, partitionIndex);
  }

  /** Takes what is wanted now, or nothing. It is not counted, and nobody hears of it yet. */
  reserve(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    return (
      this.#cooldownRefusal(key, cost) ?? this.#backend.checkNow(key, cost, now, partitionIndex)
    );
  }

  /** Gives back what was held a moment ago. As nobody saw it gone, nobody is called. */
  unreserve(key: string, cost: number, issuedAt: Millis, partitionIndex?: number): void {
    this.#backend.settle(key, {
      outcome: 'ignored',
      cost,
      dueAt: issuedAt,
      partition: partitionIndex,
    });
  }

  /** Counts and tells a decision. */
  recordDecision(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.#telemetry.recordDecision(key, cost, decision, waitedMs);
  }

  /** The place of a partition in the policy's list; undefined if this limit has none of that name. */
  findPartitionIndex(partition: string): number | undefined {
    const partitionIndex = this.#policy.partitions?.indexOf(partition) ?? -1;
    return partitionIndex < 0 ? undefined : partitionIndex;
  }

  hasWaitersInPartition(key: string, partitionIndex: number | undefined): boolean {
    return this.#scheduler.hasWaiters(key, partitionIndex);
  }

  /** Whether somebody who waits for this key has its turn before `rank`. */
  hasEarlierWaiter(
    key: string,
    partitionIndex: number | undefined,
    position: QueuePosition,
  ): boolean {
    return this.#scheduler.hasEarlierWaiter(key, partitionIndex, position);
  }

  /** Stands in line from `now` on; whoever gives up is counted, with all the time since it came. */
  async waitForPermit(
    request: PermitRequest,
    limits: WaitLimits,
    since: Millis,
    now = since,
  ): Promise<WaitResult> {
    try {
      return await this.#scheduler.waitForPermit(request, limits, now);
    } catch (error) {
      this.#telemetry.recordCancelled(request.key, request.cost, this.clock.now() - since);
      throw error;
    }
  }

  /** Hands out the permit for what was taken already, and that a moment ago: it is held from when it was good. */
  issuePermit(
    key: string,
    cost: number,
    dueAt: Millis,
    waitedMs: Millis,
    partitionIndex?: number,
  ): Permit {
    const grant = { key, cost, dueAt, issuedAt: dueAt, waitedMs };
    return this.#telemetry.issuePermit(
      grant,
      ({ outcome = 'ok', used, retryAfterMs }, rttMs, now) =>
        this.#settle(
          key,
          { outcome, cost, used, dueAt, rttMs, partition: partitionIndex },
          retryAfterMs,
          now,
        ),
    );
  }

  refuse(
    key: string,
    cost: number,
    refusal: { readonly retryAfterMs: Millis; readonly reason: RefusalReason },
    waitedMs: Millis,
  ): Refusal {
    return this.#telemetry.refuse(key, cost, refusal, waitedMs);
  }

  /** Something came for a key: whoever waits for it may try again. */
  wake(key: string): void {
    this.#scheduler.wake(key);
  }

  hasWaiters(key: string, options?: CheckOptions): boolean {
    return this.#scheduler.hasWaiters(key, options && this.#requirePartitionIndex(options));
  }

  takeUpTo(key: string, most: number): number {
    requireKey(key);
    if (most !== Infinity) requireNumber('most', most, { min: 0, integer: true });
    const paused = most > 0 ? this.#cooldownRefusal(key, 1) : undefined;
    const taken = paused ? 0 : this.#backend.takeUpTo(key, most);
    if (most > 0)
      this.recordDecision(key, taken || 1, taken > 0 ? GRANTED : (paused ?? EXHAUSTED), 0);
    return taken;
  }

  giveBack(key: string, unused: number, takenAt = this.clock.now()): void {
    requireNumber('unused', unused, { min: 0, integer: true });
    this.settle(key, { outcome: 'ignored', cost: unused, dueAt: takenAt });
  }

  settle(key: string, result: CallResult = {}): void {
    requireKey(key);
    requireResult(result);
    const now = this.clock.now();
    const { outcome = 'ok', cost = 1, dueAt = now, rttMs, used, retryAfterMs, partition } = result;
    const partitionIndex =
      partition === undefined ? undefined : partitionIndexOf(this.#policy, partition);
    this.#settle(
      key,
      { outcome, cost, used, dueAt, rttMs, partition: partitionIndex },
      retryAfterMs,
      now,
    );
  }

  /** Every settlement has the same fields, known or not: putting some together cost ten times as much as the rest. */
  #settle(
    key: string,
    settlement: Settlement,
    retryAfterMs: Millis | undefined,
    now: Millis,
  ): void {
    this.#backend.settle(key, settlement, now);
    if (retryAfterMs !== undefined) this.#startCooldown(key, retryAfterMs, now);
    const { cost, outcome, used, rttMs } = settlement;
    this.#telemetry.recordSettled(key, cost, outcome, used, rttMs);
    this.#scheduler.wake(key); // whatever came back may be what somebody waits for
  }

  isExpired(dueAt: Millis, at = this.clock.now()): boolean {
    return at > dueAt + this.#policy.expireMs;
  }

  update(key: string, feedback: Feedback): boolean {
    requireKey(key);
    requireFeedback(feedback);
    const pauseMs = cooldownIn(feedback);
    if (pauseMs > 0) this.#startCooldown(key, pauseMs, this.clock.now());
    const heard = this.#backend.update(key, feedback);
    this.#scheduler.wake(key);
    return heard || pauseMs > 0;
  }

  inspect(key: string): Inspection {
    requireKey(key);
    const now = this.clock.now(); // one look for all: it costs more than the rest
    const cooldownMs = this.#cooldowns.remainingMs(key, now);
    return inspectionOf(this.name, this.#backend.inspect(key, now), cooldownMs);
  }

  on(listener: Listener): () => void {
    if (typeof listener !== 'function') throw new ConfigError('listener', 'a function', listener);
    return this.#telemetry.on(listener);
  }

  stats(): Stats {
    const { keys, evicted, bytes, poolSize } = this.#backend;
    const part = poolSize === undefined ? {} : { poolSize };
    return {
      keys,
      evicted,
      bytes,
      ...part,
      waiting: this.#scheduler.size,
      ...this.#telemetry.snapshot(),
    };
  }

  /** The refusal of a key that is paused. Looking, at no cost, is always allowed. */
  #cooldownRefusal(key: string, cost: number): Decision | undefined {
    if (this.#cooldowns.isEmpty || cost === 0) return undefined;
    const leftMs = this.#cooldowns.remainingMs(key, this.clock.now());
    return leftMs > 0 ? deny(leftMs) : undefined;
  }

  #startCooldown(key: string, ms: Millis, now: Millis): void {
    if (ms > 0) this.#cooldowns.add(key, now + Math.min(ms, this.#maxCooldownMs));
  }

  #requirePartitionIndex(options: CheckOptions): number | undefined {
    requireCheckOptions(options);
    const { partition } = options;
    return partition === undefined ? undefined : partitionIndexOf(this.#policy, partition);
  }
}

const GRANTED: Decision = { verdict: 'allow', remaining: 0 };
const EXHAUSTED: Decision = deny(0);
