/**
 * The limiters a daemon has, by name, and how they live on when its configuration changes: a rule that
 * reads the same as before keeps its counts, whatever else has changed around it.
 */

import type { BackendFactory } from '../../backends/backend.ts';
import { dryRunPeers } from '../../backends/peers/backend.ts';
import { dryRunPool } from '../../backends/pool/backend.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { createHasher, type Hasher } from '../../core/hash.ts';
import { PendingSet } from '../../core/pending.ts';
import type { AsyncLimiter, RemoteLimiter } from '../../limiter/async-limiter.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { fingerprint, type LimitConfig, type RuleOptions } from '../config/limits.ts';
import { dryRunRedis } from '../config/redis.ts';

/** One rule at work: a limit's own, or that of an override. */
export interface LimiterEntry {
  readonly name: string;
  /** Same text, same counts. */
  readonly fingerprint: string;
  readonly limiter: SyncLimiter | AsyncLimiter;
  /** Questions that somebody else still has to answer. */
  readonly pending: PendingSet;
}

export interface RegistryContext {
  readonly clock?: Clock | undefined;
  readonly hasher: Hasher;
  /** Looked at as often as the surfaces say, where a rule can bear that. */
  readonly batchClock?: Clock | undefined;
  /** Who else spends from a limit, reached the way the configuration says. */
  readonly backendFor: BackendSelector;
}

/** Nobody else: undefined. */
export type BackendSelector = (
  limit: Pick<LimitConfig, 'redis' | 'etcd' | 'peers' | 'pool' | 'groups'>,
) => RemoteBackendFactory | BackendFactory | undefined;

/** How the shelf has changed. */
export interface RegistryChange {
  readonly created: readonly LimiterEntry[];
  readonly removed: readonly LimiterEntry[];
}

export class LimiterRegistry {
  readonly #context: RegistryContext;
  #entries: ReadonlyMap<string, LimiterEntry> = new Map();

  constructor(context: RegistryContext) {
    this.#context = context;
  }

  get all(): readonly LimiterEntry[] {
    return [...this.#entries.values()];
  }

  get(name: string): LimiterEntry | undefined {
    return this.#entries.get(name);
  }

  /**
   * Makes what these limits need and keeps what they still need. Nothing changes if one cannot be
   * made. What is new comes back, and what nobody needs any more.
   */
  apply(limits: readonly LimitConfig[]): RegistryChange {
    const next = new Map<string, LimiterEntry>();
    for (const limit of limits) {
      const own = this.#keepOrCreate(limit.name, limit.rule, limit);
      next.set(own.name, own);
      for (const { match, rule } of limit.overrides) {
        const name = overrideName(limit.name, match.text);
        next.set(name, this.#keepOrCreate(name, rule, limit));
      }
    }
    const removed = this.all.filter((old) => next.get(old.name) !== old);
    const created = [...next.values()].filter((own) => this.#entries.get(own.name) !== own);
    this.#entries = next;
    return { created, removed };
  }

  #keepOrCreate(name: string, rule: RuleOptions, limit: LimitConfig): LimiterEntry {
    const { redis, etcd, peers, pool, groups } = limit;
    const decider = redis ? JSON.stringify(redis) : etcd?.source;
    const part = groups && `groups ${groups.fraction}`;
    const sharedBy = [decider, peers && 'peers', pool && 'pool', part];
    const text = fingerprint(rule) + sharedBy.filter(Boolean).join();
    const old = this.#entries.get(name);
    if (old?.fingerprint === text) return old;
    const { clock, batchClock, hasher, backendFor } = this.#context;
    const backend = backendFor(limit);
    const options = { ...rule, name, ...(clock && { clock }), ...(backend && { backend }) };
    // In a pool every second has its own part: a look at the clock that is shared would spend one that is over.
    const limiter = createLimiter(options, { hasher, clock: pool ? systemClock : batchClock });
    return { name, fingerprint: text, limiter, pending: new PendingSet() };
  }
}

/** A shelf for looking at only: nobody is connected to. */
export function dryRunRegistry(limits: readonly LimitConfig[]): LimiterRegistry {
  const bucketBackendFor: BackendSelector = ({ redis, etcd, peers, pool }) => {
    if (redis || etcd) return redis ? dryRunRedis(redis) : etcd?.dryRunFactory;
    return peers ? dryRunPeers : pool ? dryRunPool : undefined;
  };
  const backendFor: BackendSelector = (limit) =>
    limit.groups ? limit.groups.dryRunFactory(bucketBackendFor(limit)) : bucketBackendFor(limit);
  const registry = new LimiterRegistry({ hasher: createHasher([0, 0]), backendFor });
  registry.apply(limits);
  return registry;
}

/** What an override is called in metrics and answers. */
export const overrideName = (limit: string, pattern: string): string => `${limit}[${pattern}]`;

/** Whether a call of this limit is in flight until it is settled. */
export const isConcurrencyLimit = (limiter: SyncLimiter): boolean =>
  limiter.inspect('').inFlight !== undefined;

/**
 * Ends what limiters have with others: a fleet is left, and what is held of a limit that others share is
 * given back, once what was asked is answered. Each question has a deadline, so that is not for long.
 */
export async function closeLimiters(entries: readonly LimiterEntry[]): Promise<void> {
  for (const { limiter } of entries) if (limiter instanceof SyncLimiter) limiter.detach();
  const remote = entries.filter(({ limiter }) => limiter.isRemote);
  await Promise.all(remote.map(({ pending }) => pending.drained()));
  await Promise.allSettled(remote.map(({ limiter }) => (limiter as RemoteLimiter).close()));
}
