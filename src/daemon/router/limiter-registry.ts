/**
 * The limiters of the daemon by name. A reload keeps the limiter, and with it the counts, of every rule whose text has
 * not changed. A rule with other numbers keeps its counts too:
 *
 *     other numbers of the rule          the limiter changes its rule: permits and waiters stay. Where a server decides,
 *                                        the keys there are converted first (`changeRemote`)
 *     other `maxKeys`, backend, `queue`  a new limiter, to which the keys are copied
 *     another kind of rule               a new limiter without counts; the log says so
 */

import type { SharedMemory } from '../../backends/backend.ts';
import type { AnyBackendFactory } from '../../backends/daemon-backend.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { createHasher, type Hasher } from '../../core/hash.ts';
import { PendingSet } from '../../core/pending.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import type { AsyncLimiter, RemoteLimiter } from '../../limiter/async-limiter.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { dryRunFactoryOf, type LimitConfig } from '../config/limits.ts';
import type { Overrides } from '../config/overrides.ts';
import { MAX_WAITING } from '../config/read.ts';
import { fingerprint, type RuleOptions } from '../config/rule.ts';

/** The limiter of a limit's rule, of a plan, or of all overrides with one name. */
export interface LimiterEntry {
  readonly name: string;
  /** A rule with the same fingerprint keeps its limiter. */
  fingerprint: string;
  /** The rule as it was written. */
  rule: RuleOptions;
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
  /** Bounds the keys of all limits without `maxKeys` together. */
  readonly memory?: SharedMemory;
}

/** The backend of a limit; undefined: local. */
export type BackendSelector = (
  limit: Pick<LimitConfig, 'backends'>,
) => AnyBackendFactory | undefined;

/** A limit in a server that gets other numbers. */
interface RemoteChange {
  readonly name: string;
  readonly limiter: Pick<AsyncLimiter, 'inspect'>;
  readonly apply: () => Promise<void>;
  /** Used if the server is unavailable: its keys are not converted then. */
  readonly replace: () => LimiterEntry;
}

export interface RegistryChange {
  readonly limits: readonly LimitConfig[];
  readonly created: LimiterEntry[];
  readonly remote: readonly RemoteChange[];
  /** Takes effect at `commit`: changes of rules, and copies of keys to new limiters. */
  readonly transfers: readonly (() => void)[];
  /** Names of limiters that begin without counts although there was one of this name before. */
  readonly restarted: string[];
  /** All limiters after the change. */
  readonly entries: Map<string, LimiterEntry>;
}

interface RuntimeOverride {
  readonly limit: string;
  readonly rule: RuleOptions;
}

export class LimiterRegistry {
  readonly #context: RegistryContext;
  #entries: Map<string, LimiterEntry> = new Map();
  /** The configured overrides by limit. */
  #configured: ReadonlyMap<string, Overrides> = new Map();
  /** Overrides that were set at run time, by the name of their limiter. */
  readonly #overrides = new Map<string, RuntimeOverride>();

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
    const change = runAtOnce(this.prepare(limits));
    this.commit(change);
    return change;
  }

  /**
   * Creates missing limiters; `commit` puts them to use. If one cannot be created, the others are closed.
   * @throws {ConfigError} of the limiter that cannot be created
   */
  *prepare(limits: readonly LimitConfig[]): Steps<RegistryChange> {
    const entries = new Map<string, LimiterEntry>();
    const transfers: (() => void)[] = [];
    const remote: RemoteChange[] = [];
    const restarted: string[] = [];
    const copiesLeft = new Map<LimiterEntry, number>();
    const add = (
      name: string,
      rule: RuleOptions,
      limit: LimitConfig,
      predecessor?: LimiterEntry,
    ): void => {
      const old = this.#entries.get(name) ?? predecessor;
      const changed = old?.name === name ? this.#changeRule(old, rule, limit) : undefined;
      if (old && changed) {
        entries.set(name, old);
        if (typeof changed === 'function') transfers.push(changed);
        else remote.push(changed);
        return;
      }
      const entry = this.#keepOrCreate(name, rule, limit);
      entries.set(name, entry);
      if (!old || old === entry) return;
      const copy = prepareCopy(old, entry);
      copiesLeft.set(old, (copiesLeft.get(old) ?? 0) + 1);
      transfers.push(() => {
        const left = (copiesLeft.get(old) ?? 1) - 1;
        copiesLeft.set(old, left);
        const isLast = left === 0 && entries.get(old.name) !== old;
        if (!copy(isLast)) restarted.push(name);
      });
    };
    const isNew = (entry: LimiterEntry): boolean => this.#entries.get(entry.name) !== entry;
    try {
      for (const limit of limits) {
        add(limit.name, limit.rule, limit);
        yield;
        for (const [plan, rule] of limit.plans) {
          add(overrideName(limit.name, plan), rule, limit);
          yield;
        }
        const predecessors = yield* this.#predecessors(limit);
        for (const override of limit.overrides.rules) {
          const name = overrideName(limit.name, override.name);
          if (!entries.has(name)) add(name, override.rule, limit, predecessors.get(name));
          yield;
        }
        for (const [name, override] of this.#overrides)
          if (override.limit === limit.name && !entries.has(name)) add(name, override.rule, limit);
      }
      const created = [...entries.values()].filter(isNew);
      return { limits, created, remote, entries, transfers, restarted };
    } catch (error) {
      void closeLimiters([...entries.values()].filter(isNew));
      throw error;
    }
  }

  /**
   * Converts the keys of limits in servers. A limit whose server is unavailable gets a new limiter, and its keys stay
   * as they are. Returns the names of these limits.
   */
  async changeRemote({ remote, entries, created }: RegistryChange): Promise<string[]> {
    const unconverted: string[] = [];
    await probeChanged(remote);
    for (const { name, apply, replace } of remote) {
      try {
        await apply();
      } catch {
        const entry = replace();
        entries.set(name, entry);
        created.push(entry);
        unconverted.push(name);
      }
    }
    return unconverted;
  }

  /** The limiter of an override that was set at run time; keys with the same override share it. */
  addOverride(limit: LimitConfig, name: string, rule: RuleOptions): LimiterEntry {
    const known = this.#entries.get(name);
    if (known) return known;
    const entry = this.#keepOrCreate(name, rule, limit);
    this.#entries.set(name, entry);
    this.#overrides.set(name, { limit: limit.name, rule });
    return entry;
  }

  /** Removes the limiters of run-time overrides that no control needs; the caller closes them. */
  removeOverrides(isNeeded: (name: string) => boolean): LimiterEntry[] {
    const unused = [...this.#overrides.keys()].filter((name) => !isNeeded(name));
    return unused.flatMap((name) => {
      const entry = this.#entries.get(name);
      this.#overrides.delete(name);
      this.#entries.delete(name);
      return entry ?? [];
    });
  }

  /** Returns the limiters that are no longer in use; the caller closes them. */
  commit({ limits, entries, transfers }: RegistryChange): readonly LimiterEntry[] {
    const names = new Set(limits.map(({ name }) => name));
    // Set at run time while the change was prepared.
    for (const [name, { limit }] of this.#overrides) {
      const entry = this.#entries.get(name);
      if (entry && !entries.has(name) && names.has(limit)) entries.set(name, entry);
    }
    const removed = this.all.filter((old) => entries.get(old.name) !== old);
    this.#configured = new Map(limits.map(({ name, overrides }) => [name, overrides]));
    this.#entries = entries;
    for (const transfer of transfers) transfer();
    return removed;
  }

  /**
   * The limiters that overrides had before their rule, and with it the name, changed: those of the same pattern. By the
   * new name, if no limiter has it.
   */
  *#predecessors({ name, overrides }: LimitConfig): Steps<ReadonlyMap<string, LimiterEntry>> {
    const found = new Map<string, LimiterEntry>();
    const before = this.#configured.get(name);
    if (!before) return found;
    const names = overrides.rules.map((rule) => overrideName(name, rule.name));
    const missing = new Set(names.filter((each) => !this.#entries.has(each)));
    for (let n = 0; n < overrides.patterns.length && missing.size > 0; n++) {
      const newName = names[overrides.ruleNumberOf(n)];
      if (!missing.has(newName)) continue;
      const known = before.patterns.find(overrides.patterns.textAt(n));
      const old = known < 0 ? undefined : before.rules[before.ruleNumberOf(known)];
      const entry = old && this.#entries.get(overrideName(name, old.name));
      if (entry) {
        found.set(newName, entry);
        missing.delete(newName);
      }
      yield;
    }
    return found;
  }

  /** Prepares the new numbers for the limiter of a rule; undefined if it has to be another limiter, or nothing changed. */
  #changeRule(
    entry: LimiterEntry,
    rule: RuleOptions,
    limit: LimitConfig,
  ): (() => void) | RemoteChange | undefined {
    const text = fingerprintOf(rule, limit);
    const before = entry.rule;
    const isSameOtherwise = fingerprintOf({ ...before, limit: rule.limit }, limit) === text;
    const isSameBackend = fingerprintOf(before, limit) === entry.fingerprint;
    if (text === entry.fingerprint || !isSameOtherwise || !isSameBackend) return undefined;
    const { name, limiter } = entry;
    const keep = (): void => {
      entry.fingerprint = text;
      entry.rule = rule;
    };
    if (limiter instanceof SyncLimiter) {
      const change = limiter.prepareChange(rule.limit);
      return (
        change &&
        (() => {
          change();
          keep();
        })
      );
    }
    if (!limiter.canChange(rule.limit)) return undefined;
    const apply = () => limiter.change(rule.limit).then(keep);
    return { name, limiter, apply, replace: () => this.#keepOrCreate(name, rule, limit) };
  }

  #keepOrCreate(name: string, rule: RuleOptions, limit: LimitConfig): LimiterEntry {
    const { backends, queue: order = 'fifo' } = limit;
    const text = fingerprintOf(rule, limit);
    const old = this.#entries.get(name);
    if (old?.fingerprint === text) return old;
    const { clock, batchClock, hasher, memory, backendFor } = this.#context;
    const backend = backendFor(limit);
    const queue = { max: MAX_WAITING, order }; // `Waiting` has the bound
    const options = { ...rule, name, queue, ...(clock && { clock }), ...(backend && { backend }) };
    const isExact = backends.some(({ needsExactTime }) => needsExactTime);
    const inner = { hasher, memory, clock: isExact ? systemClock : batchClock };
    const limiter = createLimiter(options, inner);
    return { name, fingerprint: text, rule, limiter, pending: new PendingSet() };
  }
}

/** Changed limits that are probed at the same time. */
const MAX_PROBED = 50;

/** Read, never written. */
const PROBE_KEY = 'sluice-reload';

/**
 * Reads one key of each changed limit. A server that hangs is then known within `deadline`. A conversion of keys has a
 * longer deadline, and would delay the reload once for each limit.
 */
async function probeChanged(remote: readonly RemoteChange[]): Promise<void> {
  for (let first = 0; first < remote.length; first += MAX_PROBED) {
    const probed = remote.slice(first, first + MAX_PROBED);
    await Promise.allSettled(probed.map(({ limiter }) => limiter.inspect(PROBE_KEY)));
  }
}

/** A registry for `explain` and validation: connects to no backend. */
export function dryRunRegistry(limits: readonly LimitConfig[]): LimiterRegistry {
  const backendFor: BackendSelector = ({ backends }) => dryRunFactoryOf(backends);
  const registry = new LimiterRegistry({ hasher: createHasher([0, 0]), backendFor });
  registry.apply(limits);
  return registry;
}

const fingerprintOf = (rule: RuleOptions, { backends, queue }: LimitConfig): string =>
  fingerprint(rule) +
  backends.map(({ identity }) => identity).join() +
  (queue === 'fair' ? ' fair' : '');

/**
 * Returns a function that copies the keys of a limit to its replacement; false if that begins without counts. A remote
 * backend keeps the keys itself. Calls in flight are not copied: they settle with the old limiter.
 */
function prepareCopy(
  from: LimiterEntry,
  { name, limiter }: LimiterEntry,
): (isLast: boolean) => boolean {
  const before = from.limiter;
  if (!(limiter instanceof SyncLimiter))
    return () => before.isRemote && from.name === name && before.hasSameKeys(limiter);
  if (!(before instanceof SyncLimiter) || isConcurrencyLimit(before)) return () => false;
  before.prepareCopy();
  return (isLast) => limiter.copyFrom(before, from.rule.limit, isLast);
}

/** The name of the limiter of an override or a plan in metrics and responses. */
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
