/**
 * A stock of permits taken ahead, for limits that are asked more often than Redis can answer.
 *
 * With `lease: 100` a process takes a hundred permits of a key in one trip and spends them here, at
 * the speed of a local limit. What it costs is said plainly: permits that were taken and not yet
 * spent are spent later than Redis thinks, so in any span of time up to `lease` more may happen for
 * each process than the limit says, and never more than that. What is not spent within a second is
 * given back, and so is the rest when the limiter is closed.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { allow, type Decision } from '../../core/decision.ts';
import { DelegatingRemoteBackend } from '../delegating-remote-backend.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';

/** The most keys with a stock at once; the one that has had one for longest makes room. */
const MAX_PREFETCHED_KEYS = 10_000;

/** How long a permit may lie about. */
const PREFETCH_TTL_MS: Millis = 1000;

interface PrefetchedTokens {
  remaining: number;
  refilledAt: Millis;
  /** The trip that is under way for it. */
  pendingRefill: Promise<void> | undefined;
}

/** Where permits come from. */
export interface PrefetchSource extends RemoteBackend {
  takeSurplus: NonNullable<RemoteBackend['takeSurplus']>;
  credit: NonNullable<RemoteBackend['credit']>;
  /** As `take`, and none while Redis is out of reach: what stands in for it has nothing to take ahead. */
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

  /** The answer without a trip, if the stock has it. */
  checkPrefetched(key: string, cost: number): Decision | undefined {
    const tokens = this.#tokensByKey.get(key);
    if (tokens === undefined || tokens.remaining < cost || !this.#isFresh(tokens)) return undefined;
    tokens.remaining -= cost;
    return allow(tokens.remaining);
  }

  override check(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  override async checkNow(key: string, cost: number): Promise<RemoteDecision> {
    // Twice at most: others who waited for the same trip may have emptied the stock before us.
    for (let trip = 0; trip < 2 && cost <= this.#prefetchSize; trip++) {
      const decision = this.checkPrefetched(key, cost);
      if (decision) return { decision, decidedAt: this.#clock.now() };
      await this.#refillOnce(key);
    }
    const decision = this.checkPrefetched(key, cost);
    return decision ? { decision, decidedAt: this.#clock.now() } : super.checkNow(key, cost);
  }

  override async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    return toBatchDecision(await this.checkNow(key, costs[0]));
  }

  /** One trip at a time for a key, whoever asks. */
  #refillOnce(key: string): Promise<void> {
    const tokens = this.#tokensByKey.get(key) ?? this.#createTokens(key);
    tokens.pendingRefill ??= this.#refill(key, tokens).finally(() => {
      tokens.pendingRefill = undefined;
    });
    return tokens.pendingRefill;
  }

  async #refill(key: string, tokens: PrefetchedTokens): Promise<void> {
    if (!this.#isFresh(tokens)) this.#returnUnused(key, tokens);
    tokens.remaining += await this.inner.takeRemote(
      key,
      this.#prefetchSize - Math.ceil(tokens.remaining),
    );
    tokens.refilledAt = this.#clock.now();
  }

  #createTokens(key: string): PrefetchedTokens {
    if (this.#tokensByKey.size >= MAX_PREFETCHED_KEYS) {
      const [[oldest, tokens]] = this.#tokensByKey;
      this.#tokensByKey.delete(oldest);
      this.#drain(oldest, tokens);
    }
    const tokens: PrefetchedTokens = {
      remaining: 0,
      refilledAt: this.#clock.now(),
      pendingRefill: undefined,
    };
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

  /** Gives back what it has, and what is on its way. */
  async #drain(key: string, tokens: PrefetchedTokens): Promise<void> {
    await tokens.pendingRefill;
    await this.#returnUnused(key, tokens);
  }

  takeSurplus(key: string, most: number, leave: number): Promise<number> {
    return this.inner.takeSurplus(key, most, leave);
  }

  credit(key: string, units: number, upTo: number): Promise<void> {
    return this.inner.credit(key, units, upTo);
  }

  override async close(): Promise<void> {
    await Promise.all([...this.#tokensByKey].map(([key, tokens]) => this.#drain(key, tokens)));
    this.#tokensByKey.clear();
    await super.close();
  }
}
