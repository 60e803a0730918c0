/**
 * The methods of `composite-limiter.ts` as promises, for composites with at least one remote backend.
 *
 * Local limiters are charged first, because that takes no time, then the others (`remote-charge.ts`). A refusal returns
 * earlier charges. Waiting calls have a queue here for each key, and only the first waiter checks.
 */

import { type BatchDecision, CLOSED_REFUSAL } from '../backends/remote-backend.ts';
import type { Clock, Millis } from '../core/clock.ts';
import { type AttemptOutcome, allow, type Decision, type Outcome } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { isRecord, presentNames } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import type { Limit } from '../policies/limit.ts';
import type { Feedback } from '../policies/policy.ts';
import { AsyncLimiter, type RemoteStats } from './async-limiter.ts';
import { type AnyComponent, identity, limiterNamed } from './composite-component.ts';
import {
  type ComponentReservation,
  isLonger,
  isRefused,
  mergeCalls,
  recordDecision,
  release,
  remainingOf,
  reserveAll,
  usedFieldOf,
} from './composite-reservation.ts';
import type { Listener } from './events.ts';
import { type Decided, IdempotentCalls, requireId } from './idempotent-calls.ts';
import { combineInspections, type Inspection } from './inspection.ts';
import type { RemoteLimiterInternals } from './internals.ts';
import { type Denied, REPORTABLE } from './limiter-core.ts';
import { Permit, type PermitResult, type Refusal } from './permit.ts';
import { chargeAll, isRemoteRefusal, type RemoteCharge, undoAll } from './remote-charge.ts';
import { RemoteWaitScheduler } from './remote-wait-scheduler.ts';
import { mergeSnapshots } from './stats.ts';
import { SyncLimiter } from './sync-limiter.ts';
import type { EventLoopMonitor } from './telemetry.ts';
import {
  type CallResult,
  type IdOptions,
  readWaitLimits,
  requireAttempt,
  requireKey,
  requireNoTakeOptions,
  requireRemoteCheckOptions,
  requireRemoteOptions,
  requireResult,
  requireWillSettle,
  type SettleOptions,
  type WaitOptions,
} from './validate.ts';

type AnyLimiter = SyncLimiter | AsyncLimiter;

interface PartCall<L extends AnyLimiter = AnyLimiter> {
  readonly limiter: L;
  readonly key: string;
  readonly cost: number;
  readonly costOf: (cost: number) => number;
  readonly partitionIndex: undefined;
}

/** The charges of a call on all components. */
interface Reserved {
  readonly local: readonly ComponentReservation[];
  readonly remote: readonly RemoteCharge<PartCall<AsyncLimiter>>[];
}

interface PartRefusal {
  readonly by: PartCall;
  readonly decision: Denied;
  readonly fromFallback?: boolean | undefined;
}

/** The most keys whose last refusal is remembered for waiting calls. Beyond it, the oldest is forgotten. */
const MAX_REFUSALS = 10_000;

export class RemoteCompositeLimiter implements RemoteLimiterInternals {
  readonly isRemote = true;
  readonly components: readonly AnyComponent[];
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly #scheduler: RemoteWaitScheduler;
  /** Charges granted to waiters that have not taken them yet, by grant number. */
  readonly #granted = new Map<string, Reserved>();
  /** The refusal for which a key's first waiter waits, by key. */
  readonly #refusals = new Map<string, PartRefusal>();
  #lastGrant = 0;
  #idempotency: IdempotentCalls | undefined;
  /** The first limit whose calls must be settled. */
  readonly #mustSettle: string | undefined;

  constructor(components: readonly AnyComponent[], name: string) {
    this.components = components;
    this.#mustSettle = components.find(({ limiter }) => limiter.mustSettle)?.limiter.name;
    this.name = name;
    const limiters = components.map(({ limiter }) => limiter);
    const first = limiters.find((limiter) => limiter instanceof AsyncLimiter) as AsyncLimiter;
    this.clock = first.clock;
    this.random = first.random;
    this.#scheduler = new RemoteWaitScheduler({
      ...first.queueSettings,
      random: this.random,
      backend: {
        check: async () => ({ decision: CLOSED_REFUSAL, decidedAt: 0 }), // nothing is reserved ahead
        checkBatch: (key, [cost]) => this.#checkWaiter(key, cost),
        settle: (_key, { leaseId = '' }) => this.#undo(this.#takeGranted(leaseId)),
      },
      canReserve: false,
      expireMs: () => Infinity,
      cooldownMs: () => 0, // the component in cool-down refuses
    });
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

  /** A decision that no component made is counted by the first. */
  recordDecision(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.components[0].limiter.recordDecision(key, cost, decision, waitedMs);
  }

  recordDeniedRetry(key: string, cost: number, outcome: Outcome): void {
    this.components[0].limiter.recordDeniedRetry(key, cost, outcome);
  }

  /** The charges of several limits have no id in common on their servers: this process remembers the call. */
  #idempotent<T extends Decided>(key: string, id: string, decide: () => Promise<T>): Promise<T> {
    return this.#callsById(key, id).idempotent(key, id, decide);
  }

  #callsById(key: string, id: string): IdempotentCalls {
    requireKey(key);
    requireId(id);
    if (this.#idempotency === undefined) {
      const idForMs = Math.min(...this.components.map(({ limiter }) => limiter.idForMs));
      this.#idempotency = new IdempotentCalls(this.clock, this.random, idForMs);
    }
    return this.#idempotency;
  }

  async check(key: string, cost = 1, options: IdOptions & SettleOptions = {}): Promise<Decision> {
    requireRemoteCheckOptions(options);
    if (this.#mustSettle !== undefined && cost > 0) requireWillSettle(options, this.#mustSettle);
    const { id } = options;
    return id === undefined
      ? this.#check(key, cost)
      : this.#idempotent(key, id, () => this.#check(key, cost));
  }

  async #check(key: string, cost: number): Promise<Decision> {
    const reserved = await this.#reserve(this.#callsOf(key, cost));
    if (isPartRefusal(reserved)) {
      const { by, decision } = reserved;
      by.limiter.recordDecision(by.key, by.cost, decision, 0);
      return decision;
    }
    const { local, remote } = reserved;
    for (const { call, remaining } of local) recordDecision(call, allow(remaining));
    for (const { call, reply } of remote)
      call.limiter.recordDecision(call.key, call.cost, reply.decision, 0);
    return allow(leastOf(reserved));
  }

  async peek(key: string, cost = 1): Promise<Decision | undefined> {
    const calls = this.#callsOf(key, cost);
    const decisions = await Promise.all(
      calls.map((call) => call.limiter.peek(call.key, call.cost)),
    );
    let refused: Denied | undefined;
    for (const decision of decisions) {
      if (decision?.verdict !== 'deny') continue;
      if (!refused || isLonger(decision.retryAfterMs, refused.retryAfterMs)) refused = decision;
    }
    if (refused) return refused;
    const known = decisions.filter((decision) => decision !== undefined);
    return known.length < calls.length ? undefined : allow(Math.min(...known.map(remainingOf)));
  }

  async tryAcquire(key: string, cost = 1, options: IdOptions = {}): Promise<Permit | Refusal> {
    requireRemoteOptions(options);
    if (options.id !== undefined)
      return this.#idempotent(key, options.id, () => this.tryAcquire(key, cost));
    const reserved = await this.#reserve(this.#callsOf(key, cost));
    return isPartRefusal(reserved)
      ? refusalOf(reserved)
      : this.#issuePermit(key, cost, reserved, 0);
  }

  async acquire(
    key: string,
    cost = 1,
    options: WaitOptions & IdOptions = {},
  ): Promise<Permit | Refusal> {
    if (options.id !== undefined) {
      const { id, ...rest } = options;
      const wait = (signal: AbortSignal) => this.acquire(key, cost, { ...rest, signal });
      return this.#callsById(key, id).idempotentWait(key, id, readWaitLimits(rest).signal, wait);
    }
    const calls = this.#callsOf(key, cost);
    const { maxWaitMs, ...limits } = readWaitLimits(options);
    const isNow = maxWaitMs <= 0 && !this.#scheduler.hasWaiters(key) && !limits.signal?.aborted;
    if (isNow) return this.tryAcquire(key, cost);
    const since = this.clock.now();
    const wait = { ...limits, maxWaitMs, isRequeued: false };
    const result = await this.#scheduler.waitForPermit(key, cost, wait).catch((error: unknown) => {
      const { limiter, key, cost } = calls.find(isRemoteCall) as PartCall<AsyncLimiter>;
      limiter.recordCancelled(key, cost, this.clock.now() - since);
      throw error;
    });
    const waitedMs = Math.max(0, this.clock.now() - since);
    if (result.verdict === 'allow')
      return this.#issuePermit(key, cost, this.#takeGranted(result.leaseId ?? ''), waitedMs);
    const { by, decision } = this.#refusals.get(key) ?? { by: calls[0], decision: undefined };
    const isClosed = decision?.reason === 'closed';
    const refusal = isClosed ? CLOSED_REFUSAL : { ...result, rule: decision?.rule };
    return by.limiter instanceof AsyncLimiter
      ? by.limiter.refuseWait(by.key, by.cost, refusal, waitedMs)
      : by.limiter.refuse(by.key, by.cost, refusal, waitedMs, decision?.rule);
  }

  /** Charges the cost for the first waiter of a key, and keeps the charge until the waiter takes it. */
  async #checkWaiter(key: string, cost: number): Promise<BatchDecision> {
    const reserved = await this.#reserve(this.#callsOf(key, cost), true);
    const decidedAt = this.clock.now();
    this.#refusals.delete(key);
    if (isPartRefusal(reserved)) {
      const [oldest] = this.#refusals.keys();
      if (this.#refusals.size >= MAX_REFUSALS) this.#refusals.delete(oldest);
      this.#refusals.set(key, reserved);
      const { decision: refusal, fromFallback = false } = reserved;
      return { granted: 0, refusal, decidedAt, fromFallback };
    }
    const leaseId = String(++this.#lastGrant);
    this.#granted.set(leaseId, reserved);
    return { granted: 1, refusal: undefined, decidedAt, leaseIds: [leaseId] };
  }

  #takeGranted(leaseId: string): Reserved {
    const reserved = this.#granted.get(leaseId) ?? { local: [], remote: [] };
    this.#granted.delete(leaseId);
    return reserved;
  }

  /** Takes from all components, or from none. */
  async #reserve(calls: readonly PartCall[], isWaiting = false): Promise<Reserved | PartRefusal> {
    const local = reserveAll(calls.filter(isLocalCall), isWaiting);
    if (isRefused(local)) {
      const { by, ...decision } = local;
      return { by: { ...by, partitionIndex: undefined }, decision };
    }
    const charged = chargeAll(calls.filter(isRemoteCall), isWaiting);
    const remote = await charged.catch((error: unknown) => {
      local.forEach(release);
      throw error;
    });
    if (!isRemoteRefusal(remote)) return { local, remote };
    local.forEach(release);
    return remote;
  }

  async #undo({ local, remote }: Reserved): Promise<void> {
    local.forEach(release);
    await undoAll(remote);
  }

  #issuePermit(key: string, cost: number, reserved: Reserved, waitedMs: Millis): Permit {
    const parts = [
      ...reserved.local.map(({ call, reservedAt }) => ({
        call,
        permit: call.limiter.issuePermit(call.key, call.cost, reservedAt, waitedMs),
      })),
      ...reserved.remote.map(({ call, reply }) => ({
        call,
        permit: call.limiter.permitFor(call.key, call.cost, reply, waitedMs),
      })),
    ];
    const permits = parts.map(({ permit }) => permit);
    const [{ dueAt, issuedAt }] = permits;
    const remaining = leastOf(reserved);
    const leased = permits.find((permit) => permit.fencingToken !== undefined);
    const { fencingToken } = leased ?? {};
    return new Permit(
      { key, cost, dueAt, issuedAt, remaining, fencingToken, children: permits },
      ({ used, ...rest }: PermitResult) => {
        // All results are validated before any permit is settled: an invalid one must not leave half of them settled.
        const settlements = parts.map(({ call }) => ({ ...rest, ...usedFieldOf(call, used) }));
        for (const settlement of settlements) requireResult(settlement);
        for (const [n, permit] of permits.entries()) permit.settle(settlements[n]);
        this.#wake(key);
      },
    );
  }

  /** Wakes waiters. A concurrency limit may be shared by other keys, whose calls do not know when it opens. */
  #wake(key: string): void {
    if (this.components.some(({ limiter }) => limiter.countsInFlight)) this.#scheduler.wakeAll();
    else this.#scheduler.wake(key);
  }

  /** Takes as many as every component has; the excess taken from a component is given back. */
  async takeUpTo(key: string, most: number, ...options: unknown[]): Promise<number> {
    requireNoTakeOptions(options);
    let granted = most;
    const taken: { readonly call: PartCall; readonly count: number }[] = [];
    for (const call of this.#unitCostCalls(key)) {
      granted = await call.limiter.takeUpTo(call.key, granted);
      taken.push({ call, count: granted });
      if (granted === 0) break;
    }
    const excess = taken.filter(({ count }) => count > granted);
    await Promise.all(
      excess.map(({ call, count }) => call.limiter.giveBack(call.key, count - granted)),
    );
    return granted;
  }

  async giveBack(key: string, unused: number, takenAt?: Millis): Promise<void> {
    const calls = this.#unitCostCalls(key);
    await Promise.all(calls.map((call) => call.limiter.giveBack(call.key, unused, takenAt)));
    this.#wake(key);
  }

  /** A batch is a number of equal calls: a component with its own cost cannot tell how many. */
  #unitCostCalls(key: string): readonly PartCall[] {
    const priced = this.components.find(({ costOf }) => costOf !== identity);
    if (!priced) return this.#callsOf(key, 1);
    const expected = 'a component without a `cost` option';
    throw new ConfigError(priced.limiter.name, expected, 'one with a cost');
  }

  async settle(key: string, result: CallResult = {}): Promise<void> {
    requireResult(result);
    const { cost = 1, used, ...rest } = result;
    const calls = this.#callsOf(key, cost);
    const settlements = calls.map((call) => ({
      ...rest,
      ...usedFieldOf(call, used),
      cost: call.cost,
    }));
    for (const settlement of settlements) requireResult(settlement);
    await Promise.all(calls.map((call, n) => call.limiter.settle(call.key, settlements[n])));
    this.#wake(key);
  }

  async update(key: string, feedback: Feedback): Promise<boolean> {
    const calls = this.#callsOf(key, 1);
    const applied = await Promise.all(calls.map((call) => call.limiter.update(call.key, feedback)));
    return applied.includes(true);
  }

  /** Reports the attempt to every component with a lock-out, under the component's key. */
  async report(key: string, attempt: AttemptOutcome, cost = 1): Promise<void> {
    requireAttempt('attempt', attempt);
    const calls = this.#callsOf(key, cost).filter(({ limiter }) => limiter.takesReports);
    if (calls.length === 0) throw new ConfigError('components', REPORTABLE, this.name);
    await Promise.all(calls.map((call) => call.limiter.report(call.key, attempt, call.cost)));
  }

  /** Finds all parts before the first one changes. Then they change one by one, up to the first that cannot. */
  async change(limits: Readonly<Record<string, Limit>>): Promise<void> {
    if (!isRecord(limits)) throw new ConfigError('limit', 'the limits of parts by name', limits);
    const changes = presentNames(limits).map((name) => {
      const limit = limits[name];
      const limiter = limiterNamed(this.#limiters(), name);
      limiter.requireChange(limit, `limit.${name}`); // before the first one changes
      return { limiter, limit };
    });
    for (const { limiter, limit } of changes) await limiter.change(limit);
    this.#scheduler.wakeAll();
  }

  async inspect(key: string): Promise<Inspection | undefined> {
    const calls = this.#callsOf(key, 1);
    const each = await Promise.all(calls.map((call) => call.limiter.inspect(call.key)));
    const known = each.filter((one) => one !== undefined);
    return known.length < calls.length ? undefined : combineInspections(this.name, known);
  }

  /** Every component reports its own decisions. */
  on(listener: Listener): () => void {
    const stops = this.#limiters().map((limiter) => limiter.on(listener));
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** The sum over the components: a call on three of them counts three times. */
  stats(): RemoteStats {
    const each = this.#limiters().map(remoteStatsOf);
    const isAvailable = each.every((stats) => stats.isAvailable);
    const counters = each.map(({ isAvailable, ...stats }) => stats).reduce(mergeSnapshots);
    return { ...counters, waiting: counters.waiting + this.#scheduler.size, isAvailable };
  }

  /** Closes every component, also for its other users. */
  async close(): Promise<void> {
    await this.#scheduler.close();
    await Promise.all(this.#limiters().map((limiter) => limiter.close()));
  }

  #limiters(): AnyLimiter[] {
    return [...new Set(this.components.map(({ limiter }) => limiter))];
  }

  /** One call per component. If a limiter and key occur twice, their costs are added. */
  #callsOf(key: string, cost: number): readonly PartCall[] {
    requireKey(key);
    requireCost(cost);
    const calls: PartCall[] = [];
    for (const { limiter, keyOf, costOf } of this.components) {
      const call = { limiter, key: keyOf(key), cost: costOf(cost), costOf };
      requireKey(call.key);
      requireCost(call.cost);
      const n = calls.findIndex((other) => other.limiter === limiter && other.key === call.key);
      if (n < 0) calls.push({ ...call, partitionIndex: undefined });
      else calls[n] = mergeCalls(calls[n], call);
    }
    return calls;
  }
}

/** Reduces a local limiter's statistics to those that a remote one reports. */
function remoteStatsOf(limiter: AnyLimiter): RemoteStats {
  if (limiter instanceof AsyncLimiter) return limiter.stats();
  const { keys, evicted, bytes, poolSize, poolTokens, poolUsed, poolSaturation, ...stats } =
    limiter.stats();
  return { ...stats, isAvailable: true, fallback: 0 };
}

const isPartRefusal = (result: Reserved | PartRefusal): result is PartRefusal => 'by' in result;

const isLocalCall = (call: PartCall): call is PartCall<SyncLimiter> =>
  call.limiter instanceof SyncLimiter;

const isRemoteCall = (call: PartCall): call is PartCall<AsyncLimiter> =>
  call.limiter instanceof AsyncLimiter;

const refusalOf = ({ by, decision, fromFallback }: PartRefusal): Refusal =>
  by.limiter instanceof AsyncLimiter
    ? by.limiter.refuseReply(by.key, by.cost, decision, fromFallback)
    : by.limiter.refuseNow(by.key, by.cost, decision);

/** The remaining capacity of the tightest component; `MAX_SAFE_INTEGER` where none reports it. */
const leastOf = ({ local, remote }: Reserved): number =>
  Math.min(
    Number.MAX_SAFE_INTEGER,
    ...local.map(({ remaining }) => remaining),
    ...remote.map(({ reply }) => remainingOf(reply.decision)),
  );
