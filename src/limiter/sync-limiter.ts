import type { Backend, TableSnapshot } from '../backends/backend.ts';
import { CLOSED_REFUSAL } from '../backends/remote-backend.ts';
import { setBackTable } from '../backends/set-back.ts';
import type { TableSlices } from '../backends/table-slices.ts';
import { type BatchClock, type Millis, timersEndWithRequest } from '../core/clock.ts';
import type { AttemptOutcome, Decision } from '../core/decision.ts';
import type { KeyHash } from '../core/hash.ts';
import { requireNumber } from '../core/options.ts';
import { requireCost } from '../policies/cost.ts';
import { createPolicy, type Limit } from '../policies/limit.ts';
import { type CallClass, classNames, partitionIndexOf } from '../policies/partitions.ts';
import type { Feedback, KeyState, Policy, Settlement } from '../policies/policy.ts';
import { isJoint } from '../policies/rules.ts';
import { Adjustments } from './adjustments.ts';
import type { LearntLimit } from './events.ts';
import { type Inspection, inspectionOf, type NamedRuleStatus, nameRules } from './inspection.ts';
import type { LimiterInternals } from './internals.ts';
import { cannotChange, LimiterCore, type LimiterSettings, withDueTime } from './limiter-core.ts';
import type { AcquireOptions, CheckOptions, Stats } from './limiter-interface.ts';
import type { Permit, Refusal } from './permit.ts';
import { PermitEpochs } from './permit-epochs.ts';
import {
  type CallResult,
  readFeedback,
  readWaitLimits,
  requireCheckOptions,
  requireCountedCheckOptions,
  requireKey,
  requireNoId,
  requireResult,
  requireWillSettle,
  type SettleOptions,
  type WaitLimits,
} from './validate.ts';
import { type PermitRequest, type WaitResult, WaitScheduler } from './wait-scheduler.ts';

/** A decision, and the status of each rule right after it. */
export interface NamedCheckWithStatus {
  readonly decision: Decision;
  readonly rules: readonly NamedRuleStatus[];
}

export interface SyncLimiterSettings extends LimiterSettings {
  /** The limiter's clock for a rule that reserves: one check reads it once, so that due times are exact. */
  readonly batchClock?: BatchClock | undefined;
}

export class SyncLimiter extends LimiterCore implements LimiterInternals {
  readonly isRemote = false;
  readonly isCheckOnly: boolean;
  readonly mustSettle: boolean;
  expireMs: Millis;
  protected policy: Policy;
  readonly #backend: Backend;
  /** The wait queues; `CompositeLimiter` reads their order. */
  readonly scheduler: WaitScheduler;
  readonly #batchClock: BatchClock | undefined;
  readonly #adjustments = new Adjustments();
  readonly #epochs = new PermitEpochs();

  constructor(policy: Policy, backend: Backend, settings: SyncLimiterSettings) {
    super(settings);
    this.policy = policy;
    this.mustSettle = policy.traits.needsOutcome;
    this.isCheckOnly = !policy.traits.needsOutcome && !policy.traits.canReserve;
    this.expireMs = policy.traits.expireMs;
    this.#backend = backend;
    this.#batchClock = settings.batchClock;
    this.scheduler = new WaitScheduler({
      ...settings,
      partitions: classNames(policy.classes, 'partition'),
      levels: classNames(policy.classes, 'priority'),
      mayOpenEarlier: policy.traits.mayOpenEarlier,
      checkNow: (key, cost, now, partitionIndex) =>
        this.#reserveForWaiter(key, cost, now, partitionIndex),
      peek: (key, cost, partitionIndex) => backend.peek(key, cost, partitionIndex),
      timeToGrantMs: (key, units) => backend.timeToGrantMs?.(key, units) ?? 0,
      ...(timersEndWithRequest && {
        beforeTimer: () => this.telemetry.expireOverduePermits(),
      }),
    });
  }

  check(key: string, cost = 1, options?: CheckOptions & SettleOptions): Decision {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requireCountedPartitionIndex(options);
    if (this.mustSettle && cost > 0) requireWillSettle(options, this.name);
    if (options?.id !== undefined) return this.#checkOnce(key, cost, options, options.id);
    const decision =
      this.cooldowns.isEmpty && !this.isClosed
        ? this.#decide(key, cost, partitionIndex)
        : (this.localRefusal(key, cost) ?? this.#decide(key, cost, partitionIndex));
    this.telemetry.recordDecision(key, cost, decision, 0);
    return decision;
  }

  // A separate method: V8 then inlines `check` and `tryAcquire`.
  #checkOnce(key: string, cost: number, options: CheckOptions, id: string): Decision {
    return this.idempotent(key, id, () => this.check(key, cost, { ...options, id: undefined }));
  }

  #tryAcquireOnce(key: string, cost: number, options: CheckOptions, id: string): Permit | Refusal {
    return this.idempotent(key, id, () =>
      this.tryAcquire(key, cost, { ...options, id: undefined }),
    );
  }

  #decide(key: string, cost: number, partitionIndex: number | undefined): Decision {
    const clock = this.#batchClock;
    if (clock === undefined) return this.#backend.check(key, cost, partitionIndex);
    clock.freeze();
    try {
      const decision = this.#backend.check(key, cost, partitionIndex);
      return withDueTime(decision, clock.now(), this.expireMs);
    } finally {
      clock.unfreeze();
    }
  }

  /**
   * `check` by the key's hash, made with the backend's hasher: decoding a key costs more than a decision. Undefined if
   * the key itself is needed (cool-downs, listeners, backend) or the limiter is closed: the caller checks by key.
   */
  checkHashed({ low, high }: KeyHash, cost: number): Decision | undefined {
    if (!this.cooldowns.isEmpty || this.telemetry.hasListeners || this.isClosed) return undefined;
    if (this.#backend.needsKeyNames) return undefined;
    const decision = this.#backend.checkHashed(low, high, cost);
    this.telemetry.countDecision(decision);
    return decision;
  }

  /** `checkHashed`, and the status of each rule after it, from one lookup; undefined as there. */
  checkWithStatus({ low, high }: KeyHash, cost: number): NamedCheckWithStatus | undefined {
    if (!this.cooldowns.isEmpty || this.telemetry.hasListeners || this.isClosed) return undefined;
    if (this.#backend.needsKeyNames) return undefined;
    const checked = this.#backend.checkWithStatus?.(low, high, cost);
    if (checked === undefined) return undefined;
    this.telemetry.countDecision(checked.decision);
    return { decision: checked.decision, rules: nameRules(this.name, checked.rules) };
  }

  tryPass(key: string, cost = 1): boolean {
    requireKey(key);
    requireCost(cost);
    if (this.scheduler.hasWaiters(key)) return false;
    const decision = this.#reserveForWaiter(key, cost, this.clock.now());
    if (decision.verdict === 'deny') return false;
    this.telemetry.recordDecision(key, cost, decision, 0);
    return true;
  }

  tryPassWithPermit(key: string, cost = 1, options?: CheckOptions): Permit | undefined {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    if (this.scheduler.hasWaiters(key, partitionIndex)) return undefined;
    const now = this.clock.now();
    const decision = this.#reserveForWaiter(key, cost, now, partitionIndex);
    return decision.verdict === 'deny'
      ? undefined
      : this.issuePermit(key, cost, now, 0, partitionIndex);
  }

  peek(key: string, cost = 1, options?: CheckOptions): Decision {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    requireNoId(options);
    return this.peekUnvalidated(key, cost, partitionIndex);
  }

  tryAcquire(key: string, cost = 1, options?: CheckOptions): Permit | Refusal {
    requireKey(key);
    requireCost(cost);
    const partitionIndex = options && this.#requirePartitionIndex(options);
    if (options?.id !== undefined) return this.#tryAcquireOnce(key, cost, options, options.id);
    const now = this.clock.now();
    const decision = this.reserve(key, cost, now, partitionIndex);
    return decision.verdict === 'deny'
      ? this.refuseNow(key, cost, decision)
      : this.issuePermit(key, cost, now, 0, partitionIndex);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const limits = readWaitLimits(options);
    if (options.id !== undefined) {
      const { id, ...rest } = options;
      const wait = (signal: AbortSignal) => this.acquire(key, cost, { ...rest, signal });
      return this.idempotentWait(key, id, limits.signal, wait);
    }
    const partitionIndex = partitionIndexOf(this.policy, options);
    const since = this.clock.now();
    const result = await this.waitForPermit({ key, cost, partitionIndex }, limits, since);
    if (result.verdict === 'deny') {
      const waitedMs = this.clock.now() - since;
      return this.refuse(key, cost, result, waitedMs, this.ruleRefusing(key, cost, partitionIndex));
    }
    const { dueAt = since, waitedMs = 0 } = result;
    return this.issuePermit(key, cost, dueAt, waitedMs, partitionIndex);
  }

  /** Forgets the key's consumption and cool-down. Calls in flight no longer count; settling them has no effect. */
  forget(key: string): void {
    if ((this.#backend.inspect(key).state.inFlight ?? 0) > 0) {
      if (this.telemetry.held === 0) this.#epochs.clear();
      this.#epochs.end(key);
    }
    this.#backend.forget(key);
    this.cooldowns.remove(key);
    this.scheduler.wake(key);
  }

  /** The state of one key, for `restore` of another limiter with the same hasher. */
  keySnapshot(key: string): TableSnapshot {
    return this.#backend.keySnapshot(key);
  }

  /** The state of all keys, for a successor with the same rule and hasher. */
  snapshot(): TableSnapshot {
    return this.#backend.snapshot();
  }

  /** `snapshot` in slices, without a pause: calls may be decided between two slices. */
  slices(): TableSlices {
    return this.#backend.slices();
  }

  /** Shifts a snapshot of the limit `from`, as if a clock set back by `byMs`, now at `now`, had written it. */
  setBack(snapshot: TableSnapshot, from: unknown, byMs: Millis, now: Millis): TableSnapshot {
    return setBackTable(snapshot, createPolicy(from, this.random), byMs, now);
  }

  /** Restores a snapshot; with `from`, one of a limit with other numbers. False for another kind of limit. */
  restore(snapshot: TableSnapshot, from?: unknown, keepsDebt?: boolean): boolean {
    if (from === undefined) return this.#backend.restore(snapshot);
    return this.#backend.restore(snapshot, createPolicy(from, this.random), keepsDebt);
  }

  /** Copies the keys of the limiter that this one replaces; false if its rule is of another kind. */
  copyFrom(source: SyncLimiter, limit: unknown, isLast = false): boolean {
    const isCopied = this.#backend.copyFrom?.(source.#backend, isLast);
    return isCopied ?? this.restore(source.snapshot(), limit);
  }

  /** Prepares the limiter for other limiters that copy its keys. */
  prepareCopy(): void {
    this.#backend.prepareCopy?.();
  }

  /**
   * Prepares a change of the limit's numbers: spent tokens stay spent, calls in flight and waiters stay. Returns
   * undefined for another kind of rule. Nothing changes before the returned function is called.
   */
  prepareChange(limit: Limit, path?: string): (() => void) | undefined {
    const policy = createPolicy(limit, this.random, path);
    if (policy.traits.canReserve !== this.policy.traits.canReserve) return undefined; // reads the clock in another way
    const change = this.#backend.prepareChange?.(policy);
    if (!change) return undefined;
    return () => {
      change();
      this.policy = policy;
      this.expireMs = policy.traits.expireMs;
      this.scheduler.wakeAll();
      this.telemetry.recordReconfigured(limit);
    };
  }

  change(limit: Limit): void {
    this.requireChange(limit)();
  }

  /** `prepareChange` for callers that name the limit. @throws {ConfigError} for a rule of another kind. */
  requireChange(limit: Limit, path?: string): () => void {
    const change = this.prepareChange(limit, path);
    if (change) return change;
    throw cannotChange(this.policy, createPolicy(limit, this.random), path);
  }

  /** Leaves the other processes that share the limit; this process then decides alone. */
  detach(): void {
    this.#backend.detach?.();
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.scheduler.close();
    this.detach();
  }

  /** The rule that refuses the call now; undefined in a limit with one rule. */
  ruleRefusing(key: string, cost: number, partitionIndex?: number): string | undefined {
    if (!isJoint(this.policy)) return undefined;
    const decision = this.peekUnvalidated(key, cost, partitionIndex);
    return decision.verdict === 'deny' ? decision.rule : undefined;
  }

  refusingLimit(): string {
    return this.name;
  }

  // For `CompositeLimiter`, which checks several limiters as one: arguments are already validated, and a decision is
  // recorded only when all limiters have agreed.

  /** The decision of `reserve`, without taking the cost. */
  peekUnvalidated(key: string, cost: number, partitionIndex?: number): Decision {
    return this.localRefusal(key, cost) ?? this.#backend.peek(key, cost, partitionIndex);
  }

  /** Takes the cost now or nothing, without recording it. */
  reserve(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    if (timersEndWithRequest) this.telemetry.expireOverduePermits();
    return this.localRefusal(key, cost) ?? this.#backend.checkNow(key, cost, now, partitionIndex);
  }

  /** `reserve` for a waiting call: its refusal is not final yet. */
  #reserveForWaiter(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    if (this.countsRefusals) {
      const peeked = this.peekUnvalidated(key, cost, partitionIndex);
      if (peeked.verdict === 'deny') return peeked;
    }
    return this.reserve(key, cost, now, partitionIndex);
  }

  /** Undoes a `reserve` of the same tick. No waiter was refused because of it, so none is woken. */
  unreserve(key: string, cost: number, reservedAt: Millis, partition?: number): void {
    this.#backend.settle(key, { outcome: 'ignored', cost, dueAt: reservedAt, partition });
  }

  /** The partition or level of a call, if this limit has one of that name. */
  knownClass({ partition, level }: CallClass): CheckOptions {
    const { classes } = this.policy;
    if (partition !== undefined && classNames(classes, 'partition').includes(partition))
      return { partition };
    return level !== undefined && classNames(classes, 'priority').includes(level) ? { level } : {};
  }

  /** The index of a call's partition or level; undefined if this limit has none of that name. */
  findPartitionIndex(names: CallClass): number | undefined {
    return partitionIndexOf(this.policy, this.knownClass(names));
  }

  /** Waits from `now` on; an aborted call is counted with all its time since it arrived. */
  async waitForPermit(
    request: PermitRequest,
    limits: WaitLimits,
    since: Millis,
    now = since,
  ): Promise<WaitResult> {
    if (this.isClosed) return CLOSED_REFUSAL;
    try {
      return await this.scheduler.waitForPermit(request, limits, now);
    } catch (error) {
      this.telemetry.recordCancelled(request.key, request.cost, this.clock.now() - since);
      throw error;
    }
  }

  /** Issues the permit for a cost that was just taken; it is held from its due time on. */
  issuePermit(
    key: string,
    cost: number,
    dueAt: Millis,
    waitedMs: Millis,
    partitionIndex?: number,
  ): Permit {
    const grant = { key, cost, dueAt, issuedAt: dueAt, waitedMs };
    const { current: epoch } = this.#epochs;
    return this.telemetry.issuePermit(grant, (result, rttMs, now) => {
      const { outcome = 'ok', used, retryAfterMs } = result;
      if (this.#epochs.isOver(key, epoch))
        return this.telemetry.recordSettled(key, cost, outcome, used, rttMs);
      if (result.attempt !== undefined) this.applyReport(key, result.attempt, cost);
      this.#settle(
        key,
        { outcome, cost, used, dueAt, rttMs, partition: partitionIndex },
        retryAfterMs,
        now,
      );
    });
  }

  hasWaiters(key: string, options?: CheckOptions): boolean {
    return this.scheduler.hasWaiters(key, options && this.#requirePartitionIndex(options));
  }

  takeUpTo(key: string, most: number, ...options: unknown[]): number {
    const refused = this.refuseTake(key, most, options);
    const taken = refused ? 0 : this.#backend.takeUpTo(key, most);
    return this.recordTaken(key, most, taken, refused ?? this.#refusalOfTake(key, most, taken));
  }

  /** Why nothing was taken: the rule, and when one unit fits. */
  #refusalOfTake(key: string, most: number, taken: number): Decision | undefined {
    if (taken > 0 || most === 0) return undefined;
    const decision = this.#backend.peek(key, 1);
    return decision.verdict === 'deny' ? decision : undefined;
  }

  giveBack(key: string, unused: number, takenAt = this.clock.now()): void {
    requireNumber('unused', unused, { min: 0, integer: true });
    this.settle(key, { outcome: 'ignored', cost: unused, dueAt: takenAt });
  }

  settle(key: string, result: CallResult = {}): void {
    requireKey(key);
    requireResult(result);
    const now = this.clock.now();
    const { outcome = 'ok', cost = 1, dueAt = now, rttMs, used, retryAfterMs } = result;
    const partition = partitionIndexOf(this.policy, result);
    if (result.attempt !== undefined) this.applyReport(key, result.attempt, cost);
    this.#settle(key, { outcome, cost, used, dueAt, rttMs, partition }, retryAfterMs, now);
  }

  /** Settlements always have the same fields, known or not: objects of different shapes cost ten times as much. */
  #settle(
    key: string,
    settlement: Settlement,
    retryAfterMs: Millis | undefined,
    now: Millis,
  ): void {
    const { cost, outcome, used, rttMs } = settlement;
    // Only listeners need the state of a learning limit before and after it has learnt from the call.
    const isObserved = this.mustSettle && this.telemetry.hasListeners;
    const before = isObserved ? this.#backend.inspect(key, now).state : undefined;
    this.#backend.settle(key, settlement, now);
    this.startCooldown(key, retryAfterMs, now);
    const learnt = before && outcome !== 'ignored' ? learntLimitOf(before) : undefined;
    this.telemetry.recordSettled(key, cost, outcome, used, rttMs, learnt);
    if (before) this.#reportAdjustment(key, settlement, before, now);
    this.scheduler.wake(key);
  }

  #reportAdjustment(
    key: string,
    { cost, outcome }: Settlement,
    before: KeyState,
    now: Millis,
  ): void {
    const { state: after } = this.#backend.inspect(key, now);
    const adjustment = this.#adjustments.between(key, before, after, outcome);
    if (adjustment) this.telemetry.recordAdjusted(key, cost, adjustment);
  }

  update(key: string, given: Feedback): boolean {
    requireKey(key);
    const feedback = readFeedback(given);
    const isCooldown = this.updateCooldown(key, feedback);
    const isApplied = this.#backend.update(key, feedback);
    this.scheduler.wake(key);
    return isApplied || isCooldown;
  }

  report(key: string, attempt: AttemptOutcome, cost = 1): void {
    this.requireReport(key, attempt, cost);
    if (this.isNewReport(key)) this.compareReport(key, this.inspect(key));
    this.applyReport(key, attempt, cost);
    this.scheduler.wake(key);
  }

  protected applyReport(key: string, report: AttemptOutcome | 'refusal', count: number): void {
    this.#backend.update(key, { report, count });
  }

  inspect(key: string): Inspection {
    requireKey(key);
    const now = this.clock.now(); // one read for all: it costs more than the rest
    const cooldownMs = this.cooldowns.remainingMs(key, now);
    return inspectionOf(this.name, this.#backend.inspect(key, now), cooldownMs, this.isClosed);
  }

  stats(): Stats {
    const { keys, evicted, bytes, poolStats } = this.#backend;
    const waiting = this.scheduler.size;
    return { keys, evicted, bytes, ...poolStats, waiting, ...this.telemetry.snapshot() };
  }

  #requirePartitionIndex(options: CheckOptions): number | undefined {
    requireCheckOptions(options);
    return partitionIndexOf(this.policy, options);
  }

  #requireCountedPartitionIndex(options: CheckOptions): number | undefined {
    requireCountedCheckOptions(options);
    return partitionIndexOf(this.policy, options);
  }
}

function learntLimitOf({ limit, inFlight }: KeyState): LearntLimit | undefined {
  if (limit === undefined) return undefined;
  return inFlight === undefined ? { rateLimit: limit } : { concurrency: { limit, inFlight } };
}
