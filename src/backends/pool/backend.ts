/**
 * Pool backend: this process decides synchronously, on its part of the limit.
 *
 * A local backend with a divided policy: the pool's agreement determines the part that this member may spend. Time is
 * the store's, so all members count equal seconds.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { allow, type Decision, deny } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import type {
  Feedback,
  KeyStatus,
  Policy,
  PoolPosition,
  RuleStatus,
  Settlement,
  State,
} from '../../policies/policy.ts';
import type {
  Backend,
  BackendContext,
  BackendFactory,
  CheckWithStatus,
  PoolStats,
  TableSnapshot,
} from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import { LocalBackend } from '../local/backend.ts';
import type { TableSlices } from '../table-slices.ts';
import type { Pool } from './pool.ts';
import { type CheckpointedLimit, type RampLevel, RampProgress } from './ramp-checkpoint.ts';
import { SaturationMeter } from './saturation.ts';

/** Retry time of a member without a part. */
const NO_CLAIM_RETRY_MS: Millis = 100;

/** The members of the pool that the backend uses. */
export type PoolClaimSource = Pick<
  Pool,
  'claim' | 'claimValidUntil' | 'nextSecondBoundary' | 'clockOffsetMs' | 'isUnlimited' | 'add'
>;

const ALLOW_ALL = allow(Number.MAX_SAFE_INTEGER);

/** The store's time at the last call: reading the clock costs as much as a decision. */
class StoreClock implements Clock {
  currentTime: Millis = 0;

  now(): Millis {
    return this.currentTime;
  }
}

export class PoolBackend extends DelegatingBackend<LocalBackend> {
  #policy: Policy;
  #position: PoolPosition | undefined;
  readonly #pool: PoolClaimSource;
  readonly #clock: Clock;
  readonly #storeClock: StoreClock;
  readonly #unregister: () => void;
  readonly #meter: SaturationMeter;
  readonly #rampProgress: RampProgress | undefined;
  /** True if ramp levels are saved, which needs key names. */
  override readonly needsKeyNames: boolean;
  /** The time at which the claim must be read again. */
  #recheckAt: Millis = -Infinity;
  /** The decision for all keys, while the limit itself does not decide. */
  #fixedDecision: Decision | undefined;
  #size = 0;
  #hasHadClaim = false;
  #clockOffsetMs: Millis = 0;

  /** @throws {ConfigError} if the policy cannot be divided. */
  constructor(policy: Policy, context: BackendContext, pool: PoolClaimSource) {
    requireDivisible(policy);
    const { name, clock, ...rest } = context;
    const storeClock = new StoreClock();
    super(new LocalBackend(policy, { ...rest, clock: storeClock }));
    this.#storeClock = storeClock;
    this.#policy = policy;
    this.#pool = pool;
    this.#clock = clock;
    const rateOf = (state: State, i: number, at: Millis): number =>
      this.#policy.divide?.ratePerSecond?.(state, i, at) ?? 0;
    this.#meter = new SaturationMeter(() => sampleMean(this.inner, rateOf) * this.inner.keys);
    const { resumeForMs } = policy.divide;
    this.needsKeyNames = resumeForMs !== undefined;
    const checkpointed =
      resumeForMs === undefined ? undefined : this.#createCheckpointedLimit(name, resumeForMs);
    this.#rampProgress = checkpointed?.rampProgress;
    this.#unregister = pool.add({
      name,
      ...(checkpointed && { checkpointed }),
      // Refreshes at once, with or without calls: if a member regains a part, other members may have spent it.
      onClaimChanged: () => this.#refreshClaim(clock.now()),
      saturation: (now) => this.#saturation(now),
    });
    this.#refreshClaim(clock.now());
  }

  get poolStats(): PoolStats {
    const now = this.#clock.now();
    this.#refreshFixedDecision(now);
    const poolSaturation = this.#saturation(now);
    if (!this.#policy.divide?.ratePerSecond) return { poolSize: this.#size, poolSaturation };
    const { used: poolUsed, capacity } = this.#meter;
    const poolTokens = this.#size === 0 ? 0 : capacity;
    return { poolSize: this.#size, poolTokens, poolUsed, poolSaturation };
  }

  override check(key: string, cost: number, partitionIndex?: number): Decision {
    const fixed = this.#refreshFixedDecision();
    if (fixed) return fixed;
    this.#rampProgress?.onCall(key);
    return this.#recordAllowed(cost, this.inner.check(key, cost, partitionIndex));
  }

  override checkHashed(low: number, high: number, cost: number): Decision {
    const fixed = this.#refreshFixedDecision();
    return fixed ?? this.#recordAllowed(cost, this.inner.checkHashed(low, high, cost));
  }

  override checkWithStatus(low: number, high: number, cost: number): CheckWithStatus | undefined {
    if (this.#refreshFixedDecision()) return undefined;
    const checked = this.inner.checkWithStatus(low, high, cost);
    if (checked) this.#recordAllowed(cost, checked.decision);
    return checked;
  }

  override checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    const fixed = this.#refreshFixedDecision(now);
    if (fixed) return fixed;
    this.#rampProgress?.onCall(key);
    return this.#recordAllowed(
      cost,
      this.inner.checkNow(key, cost, now + this.#clockOffsetMs, partitionIndex),
    );
  }

  override timeToGrantMs(key: string, units: number): Millis {
    return this.#refreshFixedDecision() ? 0 : this.inner.timeToGrantMs(key, units);
  }

  override peek(key: string, cost: number, partitionIndex?: number): Decision {
    return this.#refreshFixedDecision() ?? this.inner.peek(key, cost, partitionIndex);
  }

  override takeUpTo(key: string, most: number): number {
    const fixed = this.#refreshFixedDecision();
    if (fixed) return fixed.verdict === 'allow' && Number.isFinite(most) ? most : 0;
    this.#rampProgress?.onCall(key);
    const taken = this.inner.takeUpTo(key, most);
    this.#meter.record(taken, this.#storeClock.currentTime);
    return taken;
  }

  override settle(key: string, settlement: Settlement, now?: Millis): void {
    this.#refreshFixedDecision(now);
    const { outcome, cost, used = cost } = settlement;
    const dueAt = settlement.dueAt + this.#clockOffsetMs;
    this.inner.settle(key, { ...settlement, dueAt });
    const extra = outcome === 'ignored' ? -cost : used - cost;
    const { currentTime } = this.#storeClock;
    if (extra < 0) this.#meter.recordReturn(-extra, dueAt, currentTime);
    else if (extra > 0) this.#meter.record(extra, currentTime);
  }

  override update(key: string, feedback: Feedback): boolean {
    this.#refreshFixedDecision();
    return 'poolSize' in feedback ? false : this.inner.update(key, feedback);
  }

  /** Without a part nothing remains, whatever the limit reports. */
  override inspect(key: string, now?: Millis): KeyStatus {
    const fixed = this.#refreshFixedDecision(now);
    const { state, rules } = this.inner.inspect(key);
    state.poolSize = this.#size;
    if (fixed?.verdict !== 'deny') return { state, rules };
    state.remaining = Math.min(0, state.remaining);
    const opensIn = (rule: RuleStatus): Millis => Math.max(rule.opensInMs ?? 0, fixed.retryAfterMs);
    return {
      state,
      rules: rules.map((rule) => ({ ...rule, remaining: 0, opensInMs: opensIn(rule) })),
    };
  }

  override forget(key: string): void {
    this.#refreshFixedDecision();
    this.inner.forget(key);
  }

  override snapshot(): TableSnapshot {
    this.#refreshFixedDecision();
    return this.inner.snapshot();
  }

  override slices(): TableSlices {
    this.#refreshFixedDecision();
    return this.inner.slices();
  }

  override restore(snapshot: TableSnapshot, from?: Policy, keepsDebt?: boolean): boolean {
    this.#refreshFixedDecision();
    return this.inner.restore(snapshot, from, keepsDebt);
  }

  override copyFrom(source: Backend, isLast?: boolean): boolean | undefined {
    this.#refreshFixedDecision();
    return super.copyFrom(source, isLast);
  }

  prepareChange(policy: Policy): (() => void) | undefined {
    requireDivisible(policy);
    const isSaved = (p: Policy): boolean => p.divide?.resumeForMs !== undefined;
    if (isSaved(policy) || isSaved(this.#policy)) return undefined; // its levels are in the store
    if (!this.inner.prepareChange(policy)) return undefined;
    return () => {
      this.#refreshFixedDecision(); // the change happens at an instant of the store's clock
      const { currentTime } = this.#storeClock;
      this.#policy = this.#position ? policy.divide.ofPool(this.#position, currentTime) : policy;
      this.inner.prepareChange(this.#policy)?.();
    };
  }

  override detach(): void {
    this.#unregister();
    super.detach();
  }

  #recordAllowed(cost: number, decision: Decision): Decision {
    if (decision.verdict !== 'deny') this.#meter.record(cost, this.#storeClock.currentTime);
    return decision;
  }

  #saturation(now: Millis): number {
    if (this.#policy.divide?.ratePerSecond) return this.#meter.read(now + this.#clockOffsetMs);
    const { width } = this.#policy;
    return sampleMean(this.inner, (state, i, at) => {
      const { inFlight = 0, limit = 1 } = this.#policy.keyState(state.slice(i, i + width), 0, at);
      return Math.min(1, inFlight / Math.max(1, limit));
    });
  }

  #createCheckpointedLimit(name: string, resumeForMs: Millis): CheckpointedLimit {
    const resume = (key: string, [level, at]: RampLevel): void => {
      this.inner.update(key, { resume: level, reachedAt: at });
    };
    const levelOf = (key: string): number | undefined => this.inner.keyState(key).level;
    return { name, resumeForMs, rampProgress: new RampProgress(resume), levelOf };
  }

  #refreshFixedDecision(now = this.#clock.now()): Decision | undefined {
    this.#storeClock.currentTime = now + this.#clockOffsetMs;
    if (now >= this.#recheckAt) this.#refreshClaim(now);
    return this.#fixedDecision;
  }

  #refreshClaim(now: Millis): void {
    const pool = this.#pool;
    const { size, rank } = pool.claim(now);
    this.#clockOffsetMs = pool.clockOffsetMs;
    this.#storeClock.currentTime = now + this.#clockOffsetMs;
    const hadClaim = this.#size > 0;
    this.#size = size;
    if (size === 0) {
      this.#fixedDecision = pool.isUnlimited(now) ? ALLOW_ALL : deny(NO_CLAIM_RETRY_MS);
      this.#recheckAt = Math.min(pool.claimValidUntil(now), now + NO_CLAIM_RETRY_MS);
      return;
    }
    const { refillMs = 0 } = this.#policy.traits;
    this.#moveTo(size, rank);
    // A member that joins or returns has no saved burst: other members may have spent it.
    const isFirst = size === 1 && !this.#hasHadClaim;
    if (!hadClaim && !isFirst && refillMs > 0)
      this.inner.markAllSpent(this.#storeClock.currentTime + refillMs);
    this.#hasHadClaim = true;
    const countsBySecond = this.#policy.chain?.advance !== undefined; // which must not begin twice
    const [from, to] = countsBySecond ? pool.nextSecondBoundary(now) : [Infinity, Infinity];
    const isBetween = now >= from; // the second may be over, and the next may not have begun
    this.#fixedDecision = isBetween ? deny(Math.max(1, Math.ceil(to - now))) : undefined;
    this.#recheckAt = Math.min(pool.claimValidUntil(now), isBetween ? to : from);
  }

  /** Divides the policy again if the pool's size or this member's rank has changed. */
  #moveTo(size: number, rank: number): void {
    const { size: sizeBefore = 1, rank: rankBefore, since = -Infinity } = this.#position ?? {};
    if (this.#position && size === sizeBefore && rank === rankBefore) return;
    const { currentTime } = this.#storeClock;
    this.#position = { size, rank, since: size === sizeBefore ? since : currentTime };
    this.#policy = this.#policy.divide?.ofPool?.(this.#position, currentTime) ?? this.#policy;
    this.inner.usePolicy(this.#policy);
  }
}

/** Keys that are sampled to estimate the mean of all. */
const SAMPLED_KEYS = 64;

function sampleMean(local: LocalBackend, read: (...at: [State, number, Millis]) => number): number {
  const values = local.sample(SAMPLED_KEYS, read);
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

/** A pool of one member, for validating a limit without joining a pool. */
export const dryRunPool: BackendFactory = {
  isRemote: false,
  create(policy, { clock, random, maxKeys }) {
    requireDivisible(policy);
    return new LocalBackend(policy, { clock, random, maxKeys });
  },
};

type DivisiblePolicy = Policy & { divide: { ofPool(at: PoolPosition, now: Millis): Policy } };

function requireDivisible(policy: Policy): asserts policy is DivisiblePolicy {
  if (policy.divide?.ofPool) return;
  const expected =
    'made of bucket, spacing, ramp, concurrency, adaptive, lockout (on failures), or a window or quota of at most an hour in a pool';
  throw new ConfigError('limit', expected, policy.kind);
}
