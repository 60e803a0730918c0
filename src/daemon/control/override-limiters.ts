/**
 * The limiters of overrides: created when an override is set, removed when none needs them any more.
 *
 *     begin   what the key has consumed by the configured rule is copied to the limiter of the override
 *     end     it is copied back, to the rule of the key and to the plans that its requests have named
 */

import { errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import { PendingSet } from '../../core/pending.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { LimitConfig } from '../config/limits.ts';
import {
  closeLimiters,
  isConcurrencyLimit,
  type LimiterEntry,
  type LimiterRegistry,
  overrideName,
} from '../router/limiter-registry.ts';
import type { Router } from '../router/router.ts';
import { copyConsumption, hasState } from './consumption.ts';
import {
  binaryKeyOf,
  type ControlKey,
  type ControlRecord,
  canonicalKeyOf,
  idOf,
} from './control-record.ts';
import { overrideLimiterName, overrideOptions } from './override-rule.ts';

export interface OverrideContext {
  readonly log: Log;
  readonly registry: LimiterRegistry;
  readonly limits: () => readonly LimitConfig[];
  /** Called when overrides have created or removed limiters. */
  readonly onLimitersChanged?: () => void;
}

const NOT_COPIED = 'consumption not taken along';

export class OverrideLimiters {
  readonly #context: OverrideContext;
  readonly #router: () => Router | undefined;
  /** An override ended, and its limiter may no longer be needed. */
  #hasEnded = false;
  /** Plans that requests have named under an override, by its id: at most those of its limit. */
  readonly #namedPlans = new Map<string, Set<string>>();
  /** Copies of consumption to or from a remote limiter. */
  readonly #copies = new PendingSet();
  /** Why consumption was not copied, by the override that was set. */
  readonly #copyProblems = new WeakMap<ControlRecord, Promise<readonly string[]>>();

  constructor(context: OverrideContext, router: () => Router | undefined) {
    this.#context = context;
    this.#router = router;
  }

  /** The limit of an override; undefined for another control. */
  limitOf({ kind, limit }: ControlRecord): LimitConfig | undefined {
    if (kind !== 'override') return undefined;
    return this.#context.limits().find(({ name }) => name === limit);
  }

  /** The limiter that decides under the override, created if there is none. */
  entryOf(limit: LimitConfig, { rule }: ControlRecord): LimiterEntry {
    const options = overrideOptions(limit, rule as never);
    return this.#context.registry.addOverride(
      limit,
      overrideLimiterName(limit.name, rule as never),
      options,
    );
  }

  /** Copies the key's consumption to the limiter of its override, from the configured limiters and a replaced override. */
  begin(record: ControlRecord, replaced: ControlRecord | undefined): void {
    const limit = this.limitOf(record);
    if (!limit) return;
    const to = this.entryOf(limit, record);
    const before = replaced && this.entryOf(limit, replaced);
    const key = canonicalKeyOf(record, this.#router());
    const copies = this.#configuredEntries(limit, record, limit.plans.keys()).map((from) =>
      this.#copy(key, from, to),
    );
    const problems = Promise.all(copies).then((all) => all.filter((each) => each !== undefined));
    this.#copyProblems.set(record, problems);
    if (before && before !== to) this.#leave(record, before, [to]);
    this.#hasEnded ||= before !== undefined;
    this.#context.onLimitersChanged?.();
  }

  end(record: ControlRecord): void {
    const limit = this.limitOf(record);
    this.#hasEnded ||= record.kind === 'override';
    const named = this.#namedPlans.get(idOf(record));
    this.#namedPlans.delete(idOf(record));
    if (!limit) return;
    const isShared = canonicalKeyOf(record, this.#router()) !== binaryKeyOf(record);
    // The consumption of one address under its override is not that of its network.
    const followers = isShared
      ? []
      : this.#configuredEntries(limit, record, this.#usedPlans(limit, record, named));
    this.#leave(record, this.entryOf(limit, record), followers);
  }

  /** A request under the override has named a plan of its limit. */
  addPlan(record: ControlRecord, plan: string): void {
    const id = idOf(record);
    this.#namedPlans.set(id, (this.#namedPlans.get(id) ?? new Set()).add(plan));
  }

  /** After overrides have ended: removes limiters that no active one needs. */
  removeUnused(active: () => readonly ControlRecord[]): void {
    if (!this.#hasEnded) return;
    this.#hasEnded = false;
    const overrides = active().filter(({ kind }) => kind === 'override');
    const needed = new Set(
      overrides.map(({ limit = '', rule }) => overrideLimiterName(limit, rule as never)),
    );
    void closeLimiters(this.#context.registry.removeOverrides((name) => needed.has(name)));
    this.#context.onLimitersChanged?.();
  }

  /** Why consumption was not copied to an override that was just set. */
  async problemsOf(record: ControlRecord): Promise<readonly string[]> {
    return (await this.#copyProblems.get(record)) ?? [];
  }

  /** Resolves when all copies have ended. */
  copied(): Promise<void> {
    return this.#copies.drained();
  }

  /** The key leaves the limiter of an override; other addresses of its network may still count there. */
  #leave(record: ControlKey, from: LimiterEntry, followers: readonly LimiterEntry[]): void {
    const counted = canonicalKeyOf(record, this.#router());
    for (const to of followers) this.#copy(counted, from, to);
    const { limiter } = from;
    if (
      limiter instanceof SyncLimiter &&
      !isConcurrencyLimit(limiter) &&
      counted === binaryKeyOf(record)
    )
      limiter.forget(counted);
  }

  /** Resolves to why it was not copied. */
  #copy(key: string, from: LimiterEntry, to: LimiterEntry): Promise<string | undefined> {
    const copied = copyConsumption(key, from, to)?.then(
      () => undefined,
      (error: unknown) => {
        const reason = errorMessageOf(error);
        this.#context.log('warn', NOT_COPIED, { limit: to.name, reason });
        return `${NOT_COPIED}: ${reason}`;
      },
    );
    if (!copied) return Promise.resolve(undefined);
    this.#copies.add(copied);
    for (const { pending } of [from, to]) pending.add(copied); // a limiter closes after it
    return copied;
  }

  /** Plans that requests for the key have named, under the override or, as far as this process knows, before. */
  #usedPlans(
    { name, plans }: LimitConfig,
    record: ControlKey,
    named: ReadonlySet<string> = new Set(),
  ): readonly string[] {
    const counted = canonicalKeyOf(record, this.#router());
    return [...plans.keys()].filter((plan) => {
      const limiter = this.#context.registry.get(overrideName(name, plan))?.limiter;
      return named.has(plan) || (limiter !== undefined && hasState(limiter, counted));
    });
  }

  /** The limiters that the configuration has for the key: that of its own rule, and those of these plans. */
  #configuredEntries(
    { name }: LimitConfig,
    record: ControlKey,
    plans: Iterable<string>,
  ): readonly LimiterEntry[] {
    const own = this.#router()?.configuredName(name, binaryKeyOf(record)) ?? name;
    const names = new Set([own, ...[...plans].map((plan) => overrideName(name, plan))]);
    return [...names].flatMap((each) => this.#context.registry.get(each) ?? []);
  }
}
