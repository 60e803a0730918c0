/**
 * An hour of history of every limit, kept in memory so that a page that is opened later shows it.
 *
 *     every 5 s:  counters of each limit ──▶ difference to the sample before ──▶ rings of typed arrays (`series.ts`)
 *
 * Decisions do not come here: a sample reads counters that exist anyway. Memory is bounded by the number of limits and
 * the samples of each. Further limits are part of the total only.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { runInSlices, type Steps } from '../../core/steps.ts';
import type { AsyncLimiter } from '../../limiter/async-limiter.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { LimitConfig } from '../config/limits.ts';
import type { LimiterEntry } from '../router/limiter-registry.ts';
import {
  ALL_KEYS,
  findNearLimitKeys,
  type KeyUse,
  type NearLimitSources,
  useOf,
} from './near-limit-keys.ts';
import { MAX_SAMPLES, type Sample, Series } from './series.ts';

const INTERVAL_MS: Millis = 5000;

/** Limits with a history of their own: 2.3 MB together. */
const MAX_HISTORY_LIMITS = 100;

/** The one key of a limit with `per: limit`. */
const SHARED_KEY = '*';

export interface HistoryContext extends NearLimitSources {
  readonly clock: Clock;
  readonly limits: () => readonly LimitConfig[];
  /** The keys of a limit that learns, each with its state. */
  readonly learntKeys: (limiter: AnyLimiter) => readonly LearntKey[];
}

type AnyLimiter = SyncLimiter | AsyncLimiter;

type AnyStats = ReturnType<AnyLimiter['stats']>;

type LearntKey = Partial<Inspection> & { readonly key: string };

/** Counters at the last sample. */
interface Totals {
  readonly allowed: number;
  readonly waited: number;
  readonly denied: number;
  readonly rttCount: number;
  readonly rttSumMs: number;
}

const NOTHING: Totals = { allowed: 0, waited: 0, denied: 0, rttCount: 0, rttSumMs: 0 };

/** The state of a limit at the last sample. */
export interface LimitNow {
  readonly keys?: number;
  readonly held: number;
  readonly waiting: number;
  /** Left out for a limit that this process decides. */
  readonly isAvailable?: boolean;
  readonly fallback?: number;
  /** The key that limit, calls in flight and tokens are of, in a limit with a state for each key. */
  readonly learntKey?: string;
}

const NOW: LimitNow = { held: 0, waiting: 0 };

interface LimitHistory {
  readonly series: Series;
  now: LimitNow;
  /** At the last sample. */
  use: number | undefined;
}

export class History {
  readonly #context: HistoryContext;
  /** When each sample was taken; 0: not yet. */
  readonly #times = new Float64Array(MAX_SAMPLES);
  readonly #total = new Series();
  readonly #limits = new Map<string, LimitHistory>();
  readonly #totals = new Map<string, Totals>();
  #slot = 0;
  #lastAt: Millis;
  #nearest: readonly KeyUse[] = [];
  #cancelTimer = (): void => {};
  #isStopped = false;

  constructor(context: HistoryContext) {
    this.#context = context;
    this.#lastAt = context.clock.now();
  }

  start(): void {
    const { clock } = this.#context;
    const next = (): void => {
      if (!this.#isStopped) this.start();
    };
    const run = (): unknown => runInSlices(this.sample()).then(next, next);
    this.#cancelTimer = schedule(clock, clock.now() + INTERVAL_MS, run, false);
  }

  stop(): void {
    this.#isStopped = true;
    this.#cancelTimer();
  }

  /** Memory of all samples. */
  get bytes(): number {
    const rings = [this.#total, ...[...this.#limits.values()].map(({ series }) => series)];
    return rings.reduce((sum, { bytes }) => sum + bytes, this.#times.byteLength);
  }

  /** The keys that were nearest to their limits at the last sample. */
  get nearest(): readonly KeyUse[] {
    return this.#nearest;
  }

  /** The highest use of a limit's quota by one key, at the last sample: 0 to 1; undefined if none is known. */
  lastUseOf(limit: string): number | undefined {
    return this.#limits.get(limit)?.use;
  }

  /** Takes one sample; a step is one key or one limit. */
  *sample(): Steps<void> {
    const { clock, limits: configured, router } = this.#context;
    const { nearest, highest } = yield* findNearLimitKeys(this.#context);
    this.#nearest = nearest;
    const now = clock.now();
    const seconds = Math.max(1, now - this.#lastAt) / 1000;
    const byLimit = entriesByLimit(router.registry.all);
    const limits = configured();
    this.#forgetAllBut(new Set(limits.map(({ name }) => name)));
    const sum = { allowed: 0, waited: 0, denied: 0 };
    for (const limit of limits) {
      const entries = byLimit.get(limit.name) ?? [];
      const stats: AnyStats[] = [];
      for (const { limiter } of entries) {
        stats.push(limiter.stats());
        yield;
      }
      const totals = totalsOf(stats);
      const rates = ratesOf(this.#totals.get(limit.name) ?? NOTHING, totals, seconds);
      this.#totals.set(limit.name, totals);
      if (!limit.shadow) for (const name of RATES) sum[name] += rates[name];
      const history = this.#historyOf(limit.name);
      if (!history) continue;
      const own = entries.find(({ name }) => name === limit.name);
      this.#record(history, limit, own?.limiter, { ...rates, use: highest.get(limit.name) });
      history.now = { ...history.now, ...nowOf(stats) };
    }
    this.#total.set(this.#slot, sum);
    this.#times[this.#slot] = now;
    this.#slot = (this.#slot + 1) % MAX_SAMPLES;
    this.#lastAt = now;
  }

  #record(
    history: LimitHistory,
    { per }: LimitConfig,
    limiter: AnyLimiter | undefined,
    sample: Sample,
  ): void {
    const isShared = per === 'limit' && limiter instanceof SyncLimiter;
    const shared = isShared ? limiter.inspect(SHARED_KEY) : undefined;
    const learnt = limiter && this.#learntOf(limiter, shared);
    const { limit, inFlight, level: tokens } = learnt ?? {};
    const use = shared ? Math.max(0, ...shared.rules.map(useOf)) : sample.use;
    history.series.set(this.#slot, { ...sample, use, limit, inFlight, tokens });
    history.use = use;
    history.now = { ...NOW, ...(learnt && { learntKey: learnt.key }) };
  }

  /** The key with most calls in flight; all keys as one for a limit with `per: limit`. */
  #learntOf(limiter: AnyLimiter, shared: Inspection | undefined): LearntKey | undefined {
    const known = this.#context.learntKeys(limiter);
    if (shared && known.length > 0) return { key: ALL_KEYS, ...shared };
    return known.reduce<LearntKey | undefined>(
      (most, each) => (most && (most.inFlight ?? 0) >= (each.inFlight ?? 0) ? most : each),
      undefined,
    );
  }

  #historyOf(name: string): LimitHistory | undefined {
    const known = this.#limits.get(name);
    if (known || this.#limits.size >= MAX_HISTORY_LIMITS) return known;
    const created = { series: new Series(), now: NOW, use: undefined };
    this.#limits.set(name, created);
    return created;
  }

  #forgetAllBut(names: ReadonlySet<string>): void {
    for (const name of this.#totals.keys()) if (!names.has(name)) this.#totals.delete(name);
    for (const name of this.#limits.keys()) if (!names.has(name)) this.#limits.delete(name);
  }

  /** The samples after an instant, oldest first, as JSON text. A step is one limit. */
  *json(since: Millis): Steps<string> {
    const slots = this.#slotsSince(since);
    const limits = this.#context.limits();
    const shown = limits.filter(({ name }) => this.#limits.has(name));
    const parts: string[] = [];
    for (const { name, rule, per, shadow, backends } of shown) {
      const history = this.#limits.get(name);
      if (!history) continue;
      const about = {
        name,
        rule: rule.limit,
        per,
        ...(shadow && { shadow: true }),
        backends: backends.map((backend) => backend.name),
        ...history.now,
        totals: this.#totals.get(name),
        series: history.series.read(slots),
      };
      parts.push(JSON.stringify(about));
      yield;
    }
    const head = JSON.stringify({
      at: Math.round(this.#context.clock.now()),
      intervalMs: INTERVAL_MS,
      maxSamples: MAX_SAMPLES,
      times: slots.map((slot) => Math.round(this.#times[slot])),
      total: this.#total.read(slots),
      omittedLimits: limits.length - shown.length,
    });
    return `${head.slice(0, -1)},"limits":[${parts.join(',')}]}\n`;
  }

  #slotsSince(since: Millis): number[] {
    const slots: number[] = [];
    for (let n = 0; n < MAX_SAMPLES; n++) {
      const slot = (this.#slot + n) % MAX_SAMPLES;
      const at = Math.round(this.#times[slot]);
      if (at > 0 && at > since) slots.push(slot);
    }
    return slots;
  }
}

/** Limiters by the limit that they belong to: its own, and those of its overrides and plans. */
function entriesByLimit(all: readonly LimiterEntry[]): ReadonlyMap<string, LimiterEntry[]> {
  const byLimit = new Map<string, LimiterEntry[]>();
  for (const entry of all) {
    const name = entry.name.split('[', 1)[0];
    const known = byLimit.get(name);
    if (known) known.push(entry);
    else byLimit.set(name, [entry]);
  }
  return byLimit;
}

function totalsOf(all: readonly AnyStats[]): Totals {
  const sum = (read: (stats: AnyStats) => number): number =>
    all.reduce((total, stats) => total + read(stats), 0);
  return {
    allowed: sum(({ allowed }) => allowed),
    waited: sum(({ waited }) => waited),
    denied: sum(({ denied }) => denied),
    rttCount: sum(({ rttMs }) => rttMs.count),
    rttSumMs: sum(({ rttMs }) => rttMs.sumMs),
  };
}

const RATES = ['allowed', 'waited', 'denied'] as const;

/** Per second; a counter that has fallen began anew. */
function ratesOf(before: Totals, now: Totals, seconds: number) {
  const grown = (name: keyof Totals): number =>
    now[name] - (now[name] < before[name] ? 0 : before[name]);
  const calls = grown('rttCount');
  return {
    allowed: grown('allowed') / seconds,
    waited: grown('waited') / seconds,
    denied: grown('denied') / seconds,
    rttMs: calls > 0 ? grown('rttSumMs') / calls : undefined,
  };
}

function nowOf(all: readonly Partial<LimitNow>[]): LimitNow {
  const sum = (name: 'keys' | 'held' | 'waiting' | 'fallback'): number =>
    all.reduce((total, stats) => total + (stats[name] ?? 0), 0);
  const isRemote = all.some(({ isAvailable }) => isAvailable !== undefined);
  const isAvailable = all.every((stats) => stats.isAvailable !== false);
  return {
    held: sum('held'),
    waiting: sum('waiting'),
    ...(isRemote ? { isAvailable, fallback: sum('fallback') } : { keys: sum('keys') }),
  };
}
