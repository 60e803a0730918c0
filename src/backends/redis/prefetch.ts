/**
 * Prefetch: takes tokens of a bucket from Redis in batches and spends them in this process.
 *
 * With `prefetch: 100` a process takes 100 tokens of a key in one round trip and decides at the speed of a local limit.
 * Tokens are spent later than Redis counted them, so the overshoot in any span of time is at most `prefetch` per
 * process. Tokens older than 1 s are not spent: the key's next refill returns them, and closing returns all others.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { allow, type Decision } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { DelegatingRemoteBackend } from '../delegating-remote-backend.ts';
import {
  type BatchDecision,
  type JointDecision,
  type JointPartRequest,
  type RemoteBackend,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';
import type { JointCall, JointMember } from './joint.ts';

/** The most keys with prefetched tokens. Beyond it, the oldest key is evicted and its tokens are returned. */
const MAX_PREFETCHED_KEYS = 10_000;

/** Tokens older than this are returned. */
const PREFETCH_TTL_MS: Millis = 1000;

interface PrefetchedTokens {
  remaining: number;
  refilledAt: Millis;
  pendingRefill: Promise<void> | undefined;
}

export interface PrefetchSource extends RemoteBackend {
  takeSurplus: NonNullable<RemoteBackend['takeSurplus']>;
  credit: NonNullable<RemoteBackend['credit']>;
  toServerTime: NonNullable<RemoteBackend['toServerTime']>;
  forget: NonNullable<RemoteBackend['forget']>;
  reserve: NonNullable<RemoteBackend['reserve']>;
  confirm: NonNullable<RemoteBackend['confirm']>;
  cancel: NonNullable<RemoteBackend['cancel']>;
  cancelFallback: NonNullable<RemoteBackend['cancelFallback']>;
  chargeTogether: NonNullable<RemoteBackend['chargeTogether']>;
  jointCall: JointMember['jointCall'];
  /** `takeUpTo` that returns 0 while Redis is unavailable: tokens of the fallback must not be prefetched. */
  takeRemote(key: string, most: number): Promise<number>;
}

export class PrefetchBackend extends DelegatingRemoteBackend<PrefetchSource> {
  readonly #clock: Clock;
  readonly #prefetchSize: number;
  readonly #tokensByKey = new Map<string, PrefetchedTokens>();

  constructor(inner: PrefetchSource, clock: Clock, size: number) {
    super(inner);
    this.#clock = clock;
    this.#prefetchSize = size;
  }

  /** Decides without a round trip if there are enough fresh tokens. */
  checkPrefetched(key: string, cost: number): Decision | undefined {
    const tokens = this.#tokensByKey.get(key);
    if (tokens === undefined || tokens.remaining < cost || !this.#isFresh(tokens)) return undefined;
    tokens.remaining -= cost;
    return allow(tokens.remaining);
  }

  override check(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  override async checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    const decision = await this.takePrefetched(key, cost);
    if (decision) return { decision, decidedAt: this.#clock.now() };
    return super.checkNow(key, cost, isWaiting);
  }

  async takePrefetched(key: string, cost: number): Promise<Decision | undefined> {
    // Two attempts: concurrent calls that waited for the same refill may have used it up.
    for (let attempt = 0; attempt < 2 && cost <= this.#prefetchSize; attempt++) {
      const decision = this.checkPrefetched(key, cost);
      if (decision) return decision;
      await this.#refillOnce(key);
    }
    return this.checkPrefetched(key, cost);
  }

  /** Returns units to the prefetched tokens. The next refill returns tokens that are too old to Redis. */
  async returnPrefetched(key: string, cost: number): Promise<void> {
    const tokens = this.#tokensByKey.get(key);
    if (tokens) tokens.remaining += cost;
    else await this.inner.settle(key, { outcome: 'ignored', cost, dueAt: Number.NaN });
  }

  reserve(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.inner.reserve(key, cost, isWaiting);
  }

  confirm(key: string, reservationId: string): Promise<boolean> {
    return this.inner.confirm(key, reservationId);
  }

  cancel(key: string, reservationId: string): Promise<void> {
    return this.inner.cancel(key, reservationId);
  }

  cancelFallback(key: string, cost: number): void {
    this.inner.cancelFallback(key, cost);
  }

  chargeTogether(
    parts: readonly JointPartRequest[],
    isWaiting = false,
  ): Promise<JointDecision> | undefined {
    return this.inner.chargeTogether(parts, isWaiting);
  }

  jointCall(key: string, cost: number, isWaiting: boolean): JointCall {
    return this.inner.jointCall(key, cost, isWaiting);
  }

  /** Forgets a key in Redis. Prefetched tokens stay here: they are part of the new capacity. */
  forget(key: string): Promise<void> {
    return this.inner.forget(key);
  }

  override async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    return toBatchDecision(await this.checkNow(key, costs[0], true));
  }

  /** Concurrent calls for a key share one refill. */
  #refillOnce(key: string): Promise<void> {
    const tokens = this.#tokensByKey.get(key) ?? this.#createTokens(key);
    tokens.pendingRefill ??= this.#refill(key, tokens).finally(() => {
      tokens.pendingRefill = undefined;
    });
    return tokens.pendingRefill;
  }

  async #refill(key: string, tokens: PrefetchedTokens): Promise<void> {
    if (!this.#isFresh(tokens)) this.#returnUnused(key, tokens);
    const missing = this.#prefetchSize - Math.ceil(tokens.remaining);
    tokens.remaining += await this.inner.takeRemote(key, missing);
    tokens.refilledAt = this.#clock.now();
  }

  #createTokens(key: string): PrefetchedTokens {
    if (this.#tokensByKey.size >= MAX_PREFETCHED_KEYS) {
      const [[oldest, tokens]] = this.#tokensByKey;
      this.#tokensByKey.delete(oldest);
      this.#drain(oldest, tokens);
    }
    const tokens = { remaining: 0, refilledAt: this.#clock.now(), pendingRefill: undefined };
    this.#tokensByKey.set(key, tokens);
    return tokens;
  }

  #isFresh({ refilledAt }: PrefetchedTokens): boolean {
    return this.#clock.now() - refilledAt <= PREFETCH_TTL_MS;
  }

  #returnUnused(key: string, tokens: PrefetchedTokens): Promise<void> {
    const cost = tokens.remaining;
    tokens.remaining = 0;
    if (cost <= 0) return Promise.resolve();
    return this.inner.settle(key, { outcome: 'ignored', cost, dueAt: Number.NaN });
  }

  /** Returns unused tokens, including those of a refill in flight. */
  async #drain(key: string, tokens: PrefetchedTokens): Promise<void> {
    await tokens.pendingRefill;
    await this.#returnUnused(key, tokens);
  }

  takeSurplus(key: string, most: number, leave: number): Promise<number> {
    return this.inner.takeSurplus(key, most, leave);
  }

  credit(key: string, tokens: number, upTo: number): Promise<void> {
    return this.inner.credit(key, tokens, upTo);
  }

  toServerTime(key: string, at: Millis): Millis {
    return this.inner.toServerTime(key, at);
  }

  /** Returns the prefetched tokens before the change: they were taken at the old numbers. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    const change = this.inner.prepareChange?.(policy);
    if (!change) return undefined;
    return async () => {
      await this.#drainAll();
      await change();
    };
  }

  async #drainAll(): Promise<void> {
    await Promise.all([...this.#tokensByKey].map(([key, tokens]) => this.#drain(key, tokens)));
    this.#tokensByKey.clear();
  }

  override async close(): Promise<void> {
    await this.#drainAll();
    await super.close();
  }
}
