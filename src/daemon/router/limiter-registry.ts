/**
 * The limiters of the daemon by name. A reload keeps the limiter, and with it the counts, of every rule
 * whose text has not changed.
 */

import type { AnyBackendFactory } from '../../backends/daemon-backend.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { createHasher, type Hasher } from '../../core/hash.ts';
import { PendingSet } from '../../core/pending.ts';
import type { AsyncLimiter, RemoteLimiter } from '../../limiter/async-limiter.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import {
  dryRunFactoryOf,
  fingerprint,
  type LimitConfig,
  type RuleOptions,
} from '../config/limits.ts';
import { MAX_WAITING } from '../config/read.ts';

/** The limiter of one rule: of a limit, or of all its overrides with one name. */
export interface LimiterEntry {
  readonly name: string;
  /** A rule with the same fingerprint keeps its limiter. */
  readonly fingerprint: string;
  readonly limiter: SyncLimiter | AsyncLimiter;
  /** Checks that wait for a remote backend. */
  readonly pending: PendingSet;
}

export interface RegistryContext {
  readonly clock?: Clock | undefined;
  readonly hasher: Hasher;
  /** Read once per chunk, for rules that do not need the exact time. */
  readonly batchClock?: Clock | undefined;
  readonly backendFor: BackendSelector;
}

/** The backend of a limit; undefined: local. */
export type BackendSelector = (
  limit: Pick<LimitConfig, 'backends'>,
) => AnyBackendFactory | undefined;

export interface RegistryChange {
  readonly created: readonly LimiterEntry[];
  readonly removed: readonly LimiterEntry[];
  /** All limiters after the change. */
  readonly entries: ReadonlyMap<string, LimiterEntry>;
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

  /** Creates missing limiters, keeps those still needed, drops the rest. @throws like `prepare` */
  apply(limits: readonly LimitConfig[]): RegistryChange {
    const change = this.prepare(limits);
    this.commit(change);
    return change;
  }

  /**
   * Creates missing limiters; `commit` puts them to use. If one cannot be created, the others are closed.
   * @throws {ConfigError} of the limiter that cannot be created
   */
  prepare(limits: readonly LimitConfig[]): RegistryChange {
    const entries = new Map<string, LimiterEntry>();
    const isNew = (entry: LimiterEntry): boolean => this.#entries.get(entry.name) !== entry;
    try {
      for (const limit of limits) {
        entries.set(limit.name, this.#keepOrCreate(limit.name, limit.rule, limit));
        for (const override of limit.overrides) {
          const name = overrideName(limit.name, override.name);
          if (!entries.has(name)) entries.set(name, this.#keepOrCreate(name, override.rule, limit));
        }
      }
    } catch (error) {
      void closeLimiters([...entries.values()].filter(isNew));
      throw error;
    }
    const removed = this.all.filter((old) => entries.get(old.name) !== old);
    return { created: [...entries.values()].filter(isNew), removed, entries };
  }

  commit({ entries }: RegistryChange): void {
    this.#entries = entries;
  }

  #keepOrCreate(name: string, rule: RuleOptions, limit: LimitConfig): LimiterEntry {
    const { backends } = limit;
    const text = fingerprint(rule) + backends.map(({ identity }) => identity).join();
    const old = this.#entries.get(name);
    if (old?.fingerprint === text) return old;
    const { clock, batchClock, hasher, backendFor } = this.#context;
    const backend = backendFor(limit);
    const queue = { max: MAX_WAITING }; // `Waiting` has the bound
    const options = { ...rule, name, queue, ...(clock && { clock }), ...(backend && { backend }) };
    const isExact = backends.some(({ needsExactTime }) => needsExactTime);
    const limiter = createLimiter(options, { hasher, clock: isExact ? systemClock : batchClock });
    return { name, fingerprint: text, limiter, pending: new PendingSet() };
  }
}

/** A registry for `explain` and validation: connects to no backend. */
export function dryRunRegistry(limits: readonly LimitConfig[]): LimiterRegistry {
  const backendFor: BackendSelector = ({ backends }) => dryRunFactoryOf(backends);
  const registry = new LimiterRegistry({ hasher: createHasher([0, 0]), backendFor });
  registry.apply(limits);
  return registry;
}

/** The name of an override's limiter in metrics and responses. */
export const overrideName = (limit: string, override: string): string => `${limit}[${override}]`;

/** True for the name of a limit, which has no brackets: overrides are not counted as limits. */
export const isLimitName = (name: string): boolean => !name.endsWith(']');

/** True for a limit on calls in flight. */
export const isConcurrencyLimit = (limiter: SyncLimiter): boolean =>
  limiter.inspect('').inFlight !== undefined;

/**
 * Detaches limiters from their backends: leaves the peers, and returns prefetched tokens once pending
 * checks are answered. Each check has a deadline, so this ends soon.
 */
export async function closeLimiters(entries: readonly LimiterEntry[]): Promise<void> {
  for (const { limiter } of entries) if (limiter instanceof SyncLimiter) limiter.detach();
  const remote = entries.filter(({ limiter }) => limiter.isRemote);
  await Promise.all(remote.map(({ pending }) => pending.drained()));
  await Promise.allSettled(remote.map(({ limiter }) => (limiter as RemoteLimiter).close()));
}
