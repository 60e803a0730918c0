/**
 * Several limiters checked as one: a call is allowed only if every one of them allows it.
 *
 *     const perUser = limiter({ name: 'user', limit: { bucket: { rate: '1/s', burst: 10 } } });
 *     const total = limiter({ name: 'total', limit: { bucket: { rate: '500/s' } } });
 *     const api = all([perUser, { limiter: total, key: '*' }]);
 *
 * A limit written as `{ all: [...] }` has one key and one cost for all its rules. Here each component has its own: per
 * user and in total, requests and tokens. The result is a limiter like any other.
 *
 * A waiting call is in the queue of the limiter that refuses it, behind the calls that were there before. When another
 * limiter refuses at its turn, it moves to that limiter's queue and keeps its order of arrival. `held-positions.ts` sees
 * to it that this ends.
 */

import type { Clock, Millis } from '../core/clock.ts';
import { isNonEmptyString } from '../core/config-helpers.ts';
import {
  type AttemptOutcome,
  allow,
  type Decision,
  deny,
  type Outcome,
  WHEN_SETTLED,
} from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { isRecord, OptionReader, presentNames } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import type { Limit } from '../policies/limit.ts';
import type { Feedback } from '../policies/policy.ts';
import type { RemoteLimiter } from './async-limiter.ts';
import {
  type AnyComponent,
  type Component,
  identity,
  isLocal,
  limiterNamed,
  readComponents,
} from './composite-component.ts';
import {
  type ComponentCall,
  type ComponentReservation,
  findRefusal,
  hasWaiters,
  isInFlight,
  isRefused,
  mergeCalls,
  peekCall,
  recordDecision,
  release,
  remainingOf,
  reserveAll,
  usedFieldOf,
} from './composite-reservation.ts';
import type { Listener } from './events.ts';
import { HeldPositions } from './held-positions.ts';
import { type Decided, IdempotentCalls, isHeld, requireId } from './idempotent-calls.ts';
import { combineInspections, type Inspection } from './inspection.ts';
import type { LimiterInternals } from './internals.ts';
import { REPORTABLE } from './limiter-core.ts';
import type { AcquireOptions, CheckOptions, Limiter, Stats } from './limiter-interface.ts';
import { Permit, type PermitResult, type Refusal } from './permit.ts';
import { RemoteCompositeLimiter } from './remote-composite-limiter.ts';
import { mergeSnapshots } from './stats.ts';
import type { SyncLimiter } from './sync-limiter.ts';
import type { EventLoopMonitor } from './telemetry.ts';
import {
  type CallResult,
  callClassOf,
  readWaitLimits,
  requireAttempt,
  requireCheckOptions,
  requireCountedCheckOptions,
  requireKey,
  requireNoId,
  requireNoTakeOptions,
  requireResult,
  requireWillSettle,
  type SettleOptions,
} from './validate.ts';
import { nextArrival } from './wait-queue.ts';
import { MOVED } from './wait-scheduler.ts';

/** A component of a composite, and how a call counts against it. */
export interface ComponentOptions {
  readonly limiter: Limiter;
  /** Its key: one for all calls, or a function of the call's key. Default: the call's key. */
  readonly key?: string | ((key: string) => string) | undefined;
  /** Its cost: a constant, or a function of the call's cost. Default: the call's cost. */
  readonly cost?: number | ((cost: number) => number) | undefined;
}

/** A component of a composite whose backends may decide elsewhere. */
export interface RemoteComponentOptions extends Omit<ComponentOptions, 'limiter'> {
  readonly limiter: Limiter | RemoteLimiter;
}

/** Options of `all`. */
export interface AllOptions {
  /** Default: the components' names, such as `user+total`. */
  readonly name?: string | undefined;
}

/** The most limiters in one composite. */
const MAX_COMPONENTS = 64;

/** Combines several limiters into one. @throws {ConfigError} for invalid components. */
export function all(
  components: readonly (Limiter | ComponentOptions)[],
  options?: AllOptions,
): Limiter;
/** Combines limiters of which at least one has a remote backend. */
export function all(
  components: readonly (Limiter | RemoteLimiter | RemoteComponentOptions)[],
  options?: AllOptions,
): RemoteLimiter;
export function all(
  components: readonly (Limiter | RemoteLimiter | RemoteComponentOptions)[],
  options: AllOptions = {},
): Limiter | RemoteLimiter {
  const { read, name } = readComposite(components, options);
  if (read.length > MAX_COMPONENTS) {
    throw new ConfigError('components', `at most ${MAX_COMPONENTS} limiters`, read.length);
  }
  requireDifferent(read);
  return read.every(isLocal)
    ? new CompositeLimiter(read, name)
    : new RemoteCompositeLimiter(read, name);
}

/** A limiter twice, with the same key and cost, charges each call twice: with a burst of 1, none fits. */
function requireDifferent(components: readonly AnyComponent[]): void {
  const seen = new Set<unknown>();
  for (const { limiter, keyOf, costOf } of components) {
    if (keyOf !== identity || costOf !== identity) continue;
    if (seen.has(limiter)) {
      const expected =
        'different limiters, or one limiter with a `key` or `cost` of its own: twice the same would charge each call twice';
      throw new ConfigError('components', expected, limiter.name);
    }
    seen.add(limiter);
  }
}

/** Combines local limiters without `MAX_COMPONENTS`, for callers with a bound of their own. */
export function createComposite(
  components: readonly (Limiter | ComponentOptions)[],
): CompositeLimiter {
  const { read, name } = readComposite(components, {});
  return new CompositeLimiter(read.filter(isLocal), name);
}

function readComposite(
  components: readonly unknown[],
  options: AllOptions,
): { readonly read: readonly AnyComponent[]; readonly name: string } {
  if (!Array.isArray(components) || components.length === 0) {
    throw new ConfigError('components', 'a list of at least one limiter', components);
  }
  const read = components.flatMap((one, n) =>
    readComponents(one, `components[${n}]`, componentsOf),
  );
  const reader = new OptionReader('', options);
  const name = reader.optional('name', isNonEmptyString, 'a string of at least one character');
  reader.finish();
  return { read, name: name ?? read.map(({ limiter }) => limiter.name).join('+') };
}

const componentsOf = (value: unknown): readonly AnyComponent[] | undefined =>
  value instanceof CompositeLimiter || value instanceof RemoteCompositeLimiter
    ? value.components
    : undefined;

/** A decision, and the name of the limit that refused. */
export interface NamedDecision {
  readonly decision: Decision;
  readonly limit?: string;
}

/** The reservations of a call after its wait, or its refusal. */
interface WaitedReservation {
  readonly reserved: readonly ComponentReservation[];
  readonly waitedMs: Millis;
  readonly refusal?: Refusal;
}

export class CompositeLimiter implements LimiterInternals {
  readonly isRemote = false;
  readonly components: readonly Component[];
  readonly name: string;
  readonly isCheckOnly: boolean;
  readonly clock: Clock;
  readonly random: Random;
  #idempotency: IdempotentCalls | undefined;
  /** The first limit whose calls must be settled. */
  readonly #mustSettle: string | undefined;

  constructor(components: readonly Component[], name: string) {
    this.components = components;
    this.#mustSettle = components.find(({ limiter }) => limiter.mustSettle)?.limiter.name;
    this.name = name;
    this.isCheckOnly = components.every(({ limiter }) => limiter.isCheckOnly);
    this.clock = components[0].limiter.clock;
    this.random = components[0].limiter.random;
  }

  get expireMs(): Millis {
    return Math.min(...this.components.map(({ limiter }) => limiter.expireMs));
  }

  get isCapacity(): boolean {
    return this.components.every(({ limiter }) => limiter.isCapacity);
  }

  get takesReports(): boolean {
    return this.components.some(({ limiter }) => limiter.takesReports);
  }

  observeEventLoop(monitor: EventLoopMonitor): void {
    this.components[0].limiter.observeEventLoop(monitor);
  }

  /** All limits are read before the first one changes. */
  change(limits: Readonly<Record<string, Limit>>): void {
    if (!isRecord(limits)) throw new ConfigError('limit', 'the limits of parts by name', limits);
    const changes = presentNames(limits).map((name) =>
      limiterNamed(this.#limiters(), name).requireChange(limits[name], `limit.${name}`),
    );
    for (const change of changes) change();
  }

  /** A decision that no component made is counted by the first. */
  recordDecision(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.components[0].limiter.recordDecision(key, cost, decision, waitedMs);
  }

  recordDeniedRetry(key: string, cost: number, outcome: Outcome): void {
    this.components[0].limiter.recordDeniedRetry(key, cost, outcome);
  }

  #idempotent<T extends Decided | Promise<Decided>>(key: string, id: string, decide: () => T): T {
    return this.#callsById(key, id).idempotent(key, id, decide);
  }

  #callsById(key: string, id: string): IdempotentCalls {
    requireKey(key);
    requireId(id);
    if (this.#idempotency === undefined) {
      const idForMs = Math.min(...this.components.map(({ limiter }) => limiter.idForMs));
      const isRepeatable = this.isCheckOnly ? undefined : isHeld;
      this.#idempotency = new IdempotentCalls(this.clock, this.random, idForMs, isRepeatable);
    }
    return this.#idempotency;
  }

  /** Allows or denies; reserves nothing ahead. */
  check(key: string, cost = 1, options?: CheckOptions & SettleOptions): Decision {
    if (options !== undefined) requireCountedCheckOptions(options);
    if (this.#mustSettle !== undefined && cost > 0) requireWillSettle(options, this.#mustSettle);
    if (options === undefined) return this.checkNamed(key, cost).decision;
    const { id, willSettle: _, ...rest } = options;
    const decide = (): Decision => this.checkNamed(key, cost, rest).decision;
    return id === undefined ? decide() : this.#idempotent(key, id, decide);
  }

  checkNamed(key: string, cost = 1, options?: CheckOptions): NamedDecision {
    const reserved = reserveAll(this.#componentCalls(key, cost, options));
    if (!isRefused(reserved)) return { decision: this.#recordAllowed(reserved) };
    const { by, ...decision } = reserved;
    recordDecision(by, decision);
    return { decision, limit: by.limiter.name };
  }

  tryPass(key: string, cost = 1): boolean {
    const reserved = this.#reserveIfNoWaiters(key, cost, undefined);
    if (reserved) this.#recordAllowed(reserved);
    return reserved !== undefined;
  }

  tryPassWithPermit(key: string, cost = 1, options?: CheckOptions): Permit | undefined {
    const reserved = this.#reserveIfNoWaiters(key, cost, options);
    return reserved && this.#issuePermit(key, cost, reserved, 0);
  }

  /** Reserves in all components at once, ahead of no waiter. */
  #reserveIfNoWaiters(
    key: string,
    cost: number,
    options?: CheckOptions,
  ): readonly ComponentReservation[] | undefined {
    const calls = this.#componentCalls(key, cost, options);
    if (calls.some(hasWaiters)) return undefined;
    const reserved = reserveAll(calls);
    return isRefused(reserved) ? undefined : reserved;
  }

  peek(key: string, cost = 1, options?: CheckOptions): Decision {
    requireNoId(options);
    const calls = this.#componentCalls(key, cost, options);
    const refused = findRefusal(calls);
    if (refused) {
      const { by: _, ...decision } = refused;
      return decision;
    }
    return allow(Math.min(...calls.map((call) => remainingOf(peekCall(call)))));
  }

  tryAcquire(key: string, cost = 1, options?: CheckOptions): Permit | Refusal {
    if (options?.id !== undefined) {
      const { id, ...rest } = options;
      return this.#idempotent(key, id, () => this.tryAcquire(key, cost, rest));
    }
    const reserved = reserveAll(this.#componentCalls(key, cost, options));
    if (!isRefused(reserved)) return this.#issuePermit(key, cost, reserved, 0);
    const { by } = reserved;
    return by.limiter.refuseNow(by.key, by.cost, reserved);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    if (options.id !== undefined) {
      const { id, ...rest } = options;
      const wait = (signal: AbortSignal) => this.acquire(key, cost, { ...rest, signal });
      return this.#callsById(key, id).idempotentWait(key, id, readWaitLimits(rest).signal, wait);
    }
    const { reserved, waitedMs, refusal } = await this.#reserveWaiting(key, cost, options);
    return refusal ?? this.#issuePermit(key, cost, reserved, waitedMs);
  }

  /**
   * `check` that waits: the call is counted and gets no permit. A slot of a concurrency limit is released at once,
   * because no settlement would end the call.
   */
  async checkWaiting(
    key: string,
    cost: number,
    options: AcquireOptions,
  ): Promise<Decision | Refusal> {
    const { reserved, waitedMs, refusal } = await this.#reserveWaiting(key, cost, options);
    if (refusal) return refusal;
    for (const reservation of reserved) if (isInFlight(reservation)) release(reservation);
    return this.#recordAllowed(reserved, waitedMs);
  }

  /** Reserves in all components, or in none: nothing is taken while the call waits. */
  async #reserveWaiting(
    key: string,
    cost: number,
    options: AcquireOptions,
  ): Promise<WaitedReservation> {
    const { maxWaitMs, ...limits } = readWaitLimits(options);
    const calls = this.#componentCalls(key, cost, callClassOf(options.partition, options.level));
    const since = this.clock.now();
    const position = { arrival: nextArrival(), priority: limits.priority, flow: limits.flow };
    let held: HeldPositions | undefined;
    let reserved: readonly ComponentReservation[] | undefined;
    let at = calls.find(hasWaiters) ?? calls[0];
    let hasWaited = false;

    /** Reserves in all components when it is first in the current queue, ahead of no earlier waiter in another. */
    const check = (): Decision | typeof MOVED => {
      const earlier = calls.find(
        ({ limiter, key, partitionIndex }, n) =>
          calls[n] !== at && limiter.scheduler.hasEarlierWaiter(key, partitionIndex, position),
      );
      const result: ReturnType<typeof reserveAll> = earlier
        ? { by: earlier, verdict: 'deny', retryAfterMs: WHEN_SETTLED }
        : reserveAll(calls, true);
      if (!isRefused(result)) {
        reserved = result;
        return allow(0);
      }
      const isHere = result.by === at;
      held ??= new HeldPositions(position.arrival);
      if (earlier) held.end();
      else held.onRefusal(at, result.by, result.retryAfterMs);
      at = result.by;
      return isHere ? deny(result.retryAfterMs) : MOVED;
    };

    try {
      for (;;) {
        const call: ComponentCall = at;
        const { limiter } = call;
        const leftMs = Math.max(0, maxWaitMs - (this.clock.now() - since));
        held?.join(call);
        const result = await limiter.waitForPermit(
          { ...call, check, arrival: position.arrival },
          { ...limits, maxWaitMs: leftMs },
          since,
          limiter.clock.now(),
        );
        hasWaited ||= 'waitedMs' in result && (result.waitedMs ?? 0) > 0;
        const waitedMs = this.clock.now() - since;
        if (reserved) return { reserved, waitedMs: hasWaited ? waitedMs : 0 };
        if (result.verdict !== 'deny') continue;
        const rule = limiter.ruleRefusing(call.key, call.cost, call.partitionIndex);
        const refusal = limiter.refuse(call.key, call.cost, result, waitedMs, rule);
        return { reserved: [], waitedMs, refusal };
      }
    } finally {
      held?.end();
    }
  }

  hasWaiters(key: string, options?: CheckOptions): boolean {
    return this.#componentCalls(key, 1, options).some(hasWaiters);
  }

  /** Takes as many as every component has; the excess taken from a component is given back. */
  takeUpTo(key: string, most: number, ...options: unknown[]): number {
    requireNoTakeOptions(options);
    const calls = this.#unitCostCalls(key);
    let granted = most;
    const taken: { readonly call: ComponentCall; readonly count: number }[] = [];
    for (const call of calls) {
      granted = call.limiter.takeUpTo(call.key, granted);
      taken.push({ call, count: granted });
      if (granted === 0) break;
    }
    for (const { call, count } of taken) {
      if (count > granted) call.limiter.giveBack(call.key, count - granted);
    }
    return granted;
  }

  giveBack(key: string, unused: number, takenAt?: Millis): void {
    for (const call of this.#unitCostCalls(key)) call.limiter.giveBack(call.key, unused, takenAt);
  }

  /** A batch is a number of equal calls: a component with its own cost cannot tell how many. */
  #unitCostCalls(key: string): readonly ComponentCall[] {
    const priced = this.components.find(({ costOf }) => costOf !== identity);
    if (!priced) return this.#componentCalls(key, 1);
    const expected = 'a component without a `cost` option';
    throw new ConfigError(priced.limiter.name, expected, 'one with a cost');
  }

  settle(key: string, result: CallResult = {}): void {
    requireResult(result);
    const { cost = 1, used, partition, level, ...rest } = result;
    const names = callClassOf(partition, level);
    const calls = this.#componentCalls(key, cost, names);
    const settlements = calls.map((call) => ({
      ...rest,
      ...usedFieldOf(call, used),
      ...(names && call.limiter.knownClass(names)),
      cost: call.cost,
    }));
    for (const settlement of settlements) requireResult(settlement);
    for (const [n, call] of calls.entries()) call.limiter.settle(call.key, settlements[n]);
  }

  update(key: string, feedback: Feedback): boolean {
    const calls = this.#componentCalls(key, 1);
    return calls.map((call) => call.limiter.update(call.key, feedback)).includes(true);
  }

  /** Reports the attempt to every component with a lock-out, under the component's key. */
  report(key: string, attempt: AttemptOutcome, cost = 1): void {
    requireAttempt('attempt', attempt);
    const calls = this.#componentCalls(key, cost).filter(({ limiter }) => limiter.takesReports);
    if (calls.length === 0) throw new ConfigError('components', REPORTABLE, this.name);
    for (const call of calls) call.limiter.report(call.key, attempt, call.cost);
  }

  inspect(key: string): Inspection {
    const inspections = this.#componentCalls(key, 1).map((call) => call.limiter.inspect(call.key));
    return combineInspections(this.name, inspections);
  }

  /** Every component reports its own decisions. */
  on(listener: Listener): () => void {
    const stops = this.#limiters().map((limiter) => limiter.on(listener));
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** The sum over the components: a call on three of them counts three times. What pools report does not add up. */
  stats(): Stats {
    return this.#limiters()
      .map((limiter) => limiter.stats())
      .map(({ poolSize, poolTokens, poolUsed, poolSaturation, ...stats }): Stats => stats)
      .reduce(mergeSnapshots);
  }

  /** Closes every component, also for its other users. */
  close(): void {
    for (const limiter of this.#limiters()) limiter.close();
  }

  refusingLimit(key: string, cost: number): string {
    return findRefusal(this.#componentCalls(key, cost))?.by.limiter.name ?? this.name;
  }

  explainNever(cost: number, key: string): string {
    const refused = findRefusal(this.#componentCalls(key, cost))?.by;
    return refused?.limiter.explainNever(refused.cost) ?? '';
  }

  #limiters(): SyncLimiter[] {
    return [...new Set(this.components.map(({ limiter }) => limiter))];
  }

  /**
   * One call per component. If a limiter and key occur twice, their costs are added: checked one after the other, each
   * could fit although the sum does not.
   */
  #componentCalls(key: string, cost: number, options?: CheckOptions): readonly ComponentCall[] {
    requireKey(key);
    requireCost(cost);
    if (options) this.#requireCheckOptions(options);
    const calls: ComponentCall[] = [];
    for (const { limiter, keyOf, costOf } of this.components) {
      const call = { limiter, key: keyOf(key), cost: costOf(cost), costOf };
      requireKey(call.key);
      requireCost(call.cost);
      const n = calls.findIndex((other) => other.limiter === limiter && other.key === call.key);
      const partitionIndex = options && limiter.findPartitionIndex(options);
      if (n < 0) calls.push({ ...call, partitionIndex });
      else calls[n] = mergeCalls(calls[n], call);
    }
    return calls;
  }

  /** A partition or level counts in the components that have it; at least one must. */
  #requireCheckOptions(options: CheckOptions): void {
    requireCheckOptions(options);
    const { partition, level } = options;
    for (const [name, value] of Object.entries({ partition, level })) {
      if (value === undefined) continue;
      const isKnown = ({ limiter }: Component): boolean =>
        limiter.findPartitionIndex({ [name]: value }) !== undefined;
      if (!this.components.some(isKnown))
        throw new ConfigError(name, `a ${name} of one of its limits`, value);
    }
  }

  #recordAllowed(reserved: readonly ComponentReservation[], waitedMs = 0): Decision {
    for (const { call, remaining } of reserved) recordDecision(call, allow(remaining), waitedMs);
    return allow(Math.min(...reserved.map(({ remaining }) => remaining)));
  }

  #issuePermit(
    key: string,
    cost: number,
    reserved: readonly ComponentReservation[],
    waitedMs: Millis,
  ): Permit {
    const permits = reserved.map(({ call, reservedAt }) =>
      call.limiter.issuePermit(call.key, call.cost, reservedAt, waitedMs, call.partitionIndex),
    );
    const [{ dueAt, issuedAt }] = permits;
    return new Permit(
      { key, cost, dueAt, issuedAt, children: permits },
      ({ used, ...rest }: PermitResult) => {
        // All results are validated before any permit is settled: an invalid one must not leave half of them settled.
        const settlements = reserved.map(({ call }) => ({ ...rest, ...usedFieldOf(call, used) }));
        for (const settlement of settlements) requireResult(settlement);
        for (const [n, permit] of permits.entries()) permit.settle(settlements[n]);
      },
    );
  }
}
