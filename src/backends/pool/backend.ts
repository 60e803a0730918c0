/**
 * Pool: this process decides, on its part of the limit.
 *
 * A share that decides alone by a rule that is divided: what part of it is spent here, the pool says. Time is
 * the store's, so that a second is the same one for all members.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { allow, type Decision, deny } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import type {
  Feedback,
  KeyStatus,
  Policy,
  RuleStatus,
  Settlement,
  State,
} from '../../policies/policy.ts';
import type { BackendContext, BackendFactory, CheckWithStatus, TableSnapshot } from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import { LocalBackend } from '../local/backend.ts';
import type { Pool } from './membership.ts';
import type { CheckpointedLimit } from './ramp-checkpoint.ts';
import { type RampLevel, RampProgress } from './ramp-levels.ts';
import { SaturationMeter } from './saturation.ts';

/** What one is told who has no part yet, or none any more. */
const NO_CLAIM_RETRY_MS: Millis = 100;

/** What a share needs of its pool. */
export type PoolClaimSource = Pick<
  Pool,
  'claim' | 'claimValidUntil' | 'nextSecondBoundary' | 'clockOffsetMs' | 'isUnlimited' | 'add'
>;

const ALLOW_ALL = allow(Number.MAX_SAFE_INTEGER);

/** The store's time when the last question came: a look at the clock costs as much as deciding. */
class StoreClock implements Clock {
  currentTime: Millis = 0;

  now(): Millis {
    return this.currentTime;
  }
}

export class PoolBackend extends DelegatingBackend<LocalBackend> {
  readonly #policy: Policy;
  readonly #pool: PoolClaimSource;
  readonly #clock: Clock;
  readonly #storeClock: StoreClock;
  readonly #unregister: () => void;
  readonly #meter: SaturationMeter;
  readonly #rampProgress: RampProgress | undefined;
  /** True if names are noted. */
  readonly needsKeyNames: boolean;
  /** When it has to be looked again what may be used. */
  #recheckAt: Millis = -Infinity;
  /** What everybody is told, if it is not the limit's to say. */
  #fixedDecision: Decision | undefined;
  #size = 0;
  /** Whether it ever had a part. */
  #hasHadClaim = false;
  #clockOffsetMs: Millis = 0;

  /** @throws {ConfigError} if the rule cannot be divided. */
  constructor(policy: Policy, setting: BackendContext, pool: PoolClaimSource) {
    requireDivisible(policy);
    const { name, clock, ...own } = setting;
    const storeClock = new StoreClock();
    super(new LocalBackend(policy, { ...own, clock: storeClock }));
    this.#storeClock = storeClock;
    this.#policy = policy;
    this.#pool = pool;
    this.#clock = clock;
    const paceOf = (cells: State, i: number, at: Millis): number =>
      policy.ratePerSecond?.(cells, i, at) ?? 0;
    this.#meter = new SaturationMeter(() => sampleMean(this.inner, paceOf) * this.inner.keys);
    const { resumeForMs } = policy;
    this.needsKeyNames = resumeForMs !== undefined;
    const checkpointed =
      resumeForMs === undefined ? undefined : this.#createCheckpointedLimit(name, resumeForMs);
    this.#rampProgress = checkpointed?.rampProgress;
    this.#unregister = pool.add({
      name,
      ...(checkpointed && { checkpointed }),
      // At once, asked or not: what one comes back to after a while without a part, others may have spent.
      onClaimChanged: () => this.#refreshClaim(clock.now()),
      saturation: (now) => this.#saturation(now),
    });
    this.#refreshClaim(clock.now());
  }

  get poolSize(): number {
    this.#refreshFixedDecision();
    return this.#size;
  }

  override check(key: string, cost: number, part?: number): Decision {
    const told = this.#refreshFixedDecision();
    if (told) return told;
    this.#rampProgress?.onCall(key);
    return this.#recordAllowed(cost, this.inner.check(key, cost, part));
  }

  override checkHashed(low: number, high: number, cost: number): Decision {
    const told = this.#refreshFixedDecision();
    return told ?? this.#recordAllowed(cost, this.inner.checkHashed(low, high, cost));
  }

  override checkWithStatus(low: number, high: number, cost: number): CheckWithStatus | undefined {
    if (this.#refreshFixedDecision()) return undefined;
    const checked = this.inner.checkWithStatus(low, high, cost);
    if (checked) this.#recordAllowed(cost, checked.decision);
    return checked;
  }

  override checkNow(key: string, cost: number, now: Millis, part?: number): Decision {
    const told = this.#refreshFixedDecision(now);
    if (told) return told;
    this.#rampProgress?.onCall(key);
    return this.#recordAllowed(
      cost,
      this.inner.checkNow(key, cost, now + this.#clockOffsetMs, part),
    );
  }

  override peek(key: string, cost: number, part?: number): Decision {
    return this.#refreshFixedDecision() ?? this.inner.peek(key, cost, part);
  }

  override takeUpTo(key: string, most: number): number {
    const told = this.#refreshFixedDecision();
    if (told) return told.verdict === 'allow' && Number.isFinite(most) ? most : 0;
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
    this.#meter.record(outcome === 'ignored' ? -cost : used - cost, this.#storeClock.currentTime);
  }

  override update(key: string, news: Feedback): boolean {
    this.#refreshFixedDecision();
    return 'poolSize' in news ? false : this.inner.update(key, news);
  }

  /** Who has no part has nothing left, whatever the limit says. */
  override inspect(key: string, now?: Millis): KeyStatus {
    const told = this.#refreshFixedDecision(now);
    const { state, rules } = this.inner.inspect(key);
    state.poolSize = this.#size;
    if (told?.verdict !== 'deny') return { state, rules };
    state.remaining = Math.min(0, state.remaining);
    const opensIn = (own: RuleStatus): Millis => Math.max(own.opensInMs ?? 0, told.retryAfterMs);
    return {
      state,
      rules: rules.map((own) => ({ ...own, remaining: 0, opensInMs: opensIn(own) })),
    };
  }

  override snapshot(): TableSnapshot {
    this.#refreshFixedDecision();
    return this.inner.snapshot();
  }

  override restore(copy: TableSnapshot): void {
    this.#refreshFixedDecision();
    this.inner.restore(copy);
  }

  override detach(): void {
    this.#unregister();
  }

  #recordAllowed(cost: number, decision: Decision): Decision {
    if (decision.verdict !== 'deny') this.#meter.record(cost, this.#storeClock.currentTime);
    return decision;
  }

  #saturation(now: Millis): number {
    if (this.#policy.ratePerSecond) return this.#meter.read(now + this.#clockOffsetMs);
    const { width } = this.#policy;
    return sampleMean(this.inner, (cells, i, at) => {
      const { inFlight = 0, limit = 1 } = this.#policy.keyState(cells.slice(i, i + width), 0, at);
      return inFlight / limit;
    });
  }

  #createCheckpointedLimit(name: string, resumeForMs: Millis): CheckpointedLimit {
    const resume = (key: string, [pool, at]: RampLevel): void => {
      this.inner.update(key, { resume: pool, reachedAt: at });
    };
    const levelOf = (key: string): number | undefined => this.inner.keyState(key).pool;
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
    const hadPart = this.#size > 0;
    this.#size = size;
    if (size === 0) {
      this.#fixedDecision = pool.isUnlimited(now) ? ALLOW_ALL : deny(NO_CLAIM_RETRY_MS);
      this.#recheckAt = Math.min(pool.claimValidUntil(now), now + NO_CLAIM_RETRY_MS);
      return;
    }
    const { isPerSecond = false, refillMs = 0 } = this.#policy;
    this.#policy.divide?.({ size, rank }, this.#storeClock.currentTime);
    // Who comes to others, or comes back, has not saved up anything: what there was, they may have spent.
    const isFirst = size === 1 && !this.#hasHadClaim;
    if (!hadPart && !isFirst && refillMs > 0)
      this.inner.markAllSpent(this.#storeClock.currentTime + refillMs);
    this.#hasHadClaim = true;
    const [from, to] = isPerSecond ? pool.nextSecondBoundary(now) : [Infinity, Infinity];
    const isBetween = now >= from; // one second may be over, and the next may not have begun
    this.#fixedDecision = isBetween ? deny(Math.max(1, Math.ceil(to - now))) : undefined;
    this.#recheckAt = Math.min(pool.claimValidUntil(now), isBetween ? to : from);
  }
}

/** Keys that are looked at to know how the others stand, too. */
const SAMPLED_KEYS = 64;

function sampleMean(local: LocalBackend, read: (...at: [State, number, Millis]) => number): number {
  const values = local.sample(SAMPLED_KEYS, read);
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

/** A pool of nobody else, to see what a rule would be in one. */
export const dryRunPool: BackendFactory = {
  isRemote: false,
  create(policy, { clock, random, maxKeys }) {
    requireDivisible(policy);
    return new LocalBackend(policy, { clock, random, maxKeys });
  },
};

function requireDivisible(policy: Policy): void {
  if (!policy.divide) throw new ConfigError('limit', 'one that a pool can divide', policy.kind);
}
