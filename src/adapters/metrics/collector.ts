/**
 * A limiter counts anyway, so exporting it costs nothing until it is read. The exception are limits that learn: they have
 * a limit for each key, and a listener is needed to know the keys and to count limits and calls in flight. No listener is
 * attached to other limiters.
 *
 * The names of exported limiters are unique. Two limiters of one name would be one series with two values, which a
 * database refuses, and their sum would be wrong for a gauge. Adding the second one is therefore an error.
 */

import { ConfigError } from '../../core/errors.ts';
import { isRecord, type OptionReader } from '../../core/options.ts';
import { isRemote, type RemoteLimiter, type RemoteStats } from '../../limiter/async-limiter.ts';
import type { LimitEvent } from '../../limiter/events.ts';
import type { Inspection, NamedRuleStatus } from '../../limiter/inspection.ts';
import type { Limiter, Stats } from '../../limiter/limiter-interface.ts';
import { BucketCounter, type CounterSnapshot } from '../../limiter/stats.ts';
import { LONE_SURROGATE, ReportedKeys } from './reported-keys.ts';

/** Above `max` it would come close to a series for each client, which metrics databases handle badly. */
const EXPORTED_KEYS_RANGE = { min: 0, max: 10_000, integer: true };
const DEFAULT_EXPORTED_KEYS = 20;

/** For limits that learn: how many keys get series of their own. */
export const readMaxKeys = (reader: OptionReader): number =>
  reader.number('maxKeys', EXPORTED_KEYS_RANGE, DEFAULT_EXPORTED_KEYS);

/** Buckets of the limit on calls in flight, and of calls in flight. */
export const CONCURRENCY_BOUNDS: readonly number[] = [
  1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000,
];

/** The statistics of every limiter, and those of local or remote ones only. */
export type AnyStats = CounterSnapshot &
  Pick<Stats, 'waiting' | 'held' | 'eventLoopDelayMs'> &
  Partial<Stats & RemoteStats>;

/** A limiter with a local or a remote backend. */
export type AnyLimiter = Limiter | RemoteLimiter;

/** The state of one limiter at one instant. */
export interface LimiterSnapshot {
  readonly limit: string;
  readonly stats: AnyStats;
  /** The reported keys; none if the limit does not learn. */
  readonly keys: readonly KeySnapshot[];
  /** True if calls in flight are known per key, false if only in total. */
  readonly hasInFlightByKey: boolean;
  /** Its limits and calls in flight, counted once per settled call; undefined if it does not count calls in flight. */
  readonly concurrency: ConcurrencyCounts | undefined;
  /** busy: its limits in calls a second, counted once per settled call. */
  readonly rateLimit: BucketCounter | undefined;
  /** The rules as a new key has them; none where a server decides. */
  readonly rules: readonly NamedRuleStatus[];
  /** How often its learnt limits changed, by cause. */
  readonly adjustments: Readonly<Record<string, number>>;
}

/** Buckets of a limit in calls a second. */
export const RATE_BOUNDS: readonly number[] = [
  0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000,
];

interface ConcurrencyCounts {
  readonly limit: BucketCounter;
  readonly inFlight: BucketCounter;
}

/** The state of a reported key, as far as its limit knows it. */
export interface KeySnapshot extends Partial<Inspection> {
  readonly key: string;
}

export class MetricCollector {
  readonly #maxKeys: number | undefined;
  readonly #sources = new Map<AnyLimiter, LimiterSource>();

  /** `maxKeys` undefined: attaches no listener at all. */
  constructor(maxKeys: number | undefined) {
    this.#maxKeys = maxKeys;
  }

  add(limiter: AnyLimiter, field = 'limiter'): void {
    requireLimiter(limiter, field);
    const name = labelName(limiter.name);
    if ([...this.#sources.values()].some((source) => source.name === name)) {
      throw new ConfigError(`${field}.name`, 'a name that no other exported limiter has', name);
    }
    this.#sources.set(limiter, createSource(limiter, name, this.#maxKeys));
  }

  /** Adds all of them or none. */
  addAll(limiters: readonly AnyLimiter[]): void {
    try {
      for (const [n, limiter] of limiters.entries()) this.add(limiter, `limiters[${n}]`);
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  remove(limiter: AnyLimiter): void {
    this.#sources.get(limiter)?.stop();
    this.#sources.delete(limiter);
  }

  stop(): void {
    for (const limiter of [...this.#sources.keys()]) this.remove(limiter);
  }

  /** The reported keys of one limiter. */
  keysOf(limiter: AnyLimiter): readonly KeySnapshot[] {
    return this.#sources.get(limiter)?.keys() ?? [];
  }

  collect(): LimiterSnapshot[] {
    return [...this.#sources.values()].map((source) => source.snapshot());
  }
}

type LimiterSource = ReturnType<typeof createSource>;

/** `maxKeys` undefined: attaches no listener. */
function createSource(limiter: AnyLimiter, name: string, maxKeys: number | undefined) {
  const keys = new ReportedKeys(maxKeys ?? 0);
  const known = localKeyStateOf(limiter, ''); // any key shows what the limit knows per key
  const countsCalls = known.inFlight !== undefined;
  /** ramp, spacing: their calls need no settlement. */
  const tracksDecisions = known.level !== undefined || known.reserved !== undefined;
  const concurrency: ConcurrencyCounts | undefined = countsCalls
    ? {
        limit: new BucketCounter(CONCURRENCY_BOUNDS),
        inFlight: new BucketCounter(CONCURRENCY_BOUNDS),
      }
    : undefined;
  const learnsRate = known.limit !== undefined && !countsCalls;
  const rateLimit = learnsRate ? new BucketCounter(RATE_BOUNDS) : undefined;
  const adjustments: Record<string, number> = {};
  const track = (event: LimitEvent): void => {
    if (event.type === 'limit-changed')
      adjustments[event.cause] = (adjustments[event.cause] ?? 0) + 1;
    if (tracksDecisions && event.type === 'decision') keys.record(event.key, event.at);
    if (event.type !== 'settled' || tracksDecisions) return;
    keys.record(event.key, event.at);
    if (event.rateLimit !== undefined) rateLimit?.add(event.rateLimit);
    if (!event.concurrency) return;
    concurrency?.limit.add(event.concurrency.limit);
    concurrency?.inFlight.add(event.concurrency.inFlight);
  };
  const isTracked = (known.limit !== undefined || tracksDecisions) && maxKeys !== undefined;
  const stop =
    isTracked && (maxKeys > 0 || countsCalls || learnsRate) ? limiter.on(track) : () => {};
  const reported = (): KeySnapshot[] =>
    keys.list().map((key) => ({ key, ...localKeyStateOf(limiter, key) }));
  return {
    name,
    stop,
    keys: reported,
    snapshot: (): LimiterSnapshot => ({
      limit: name,
      stats: limiter.stats(),
      keys: reported(),
      adjustments,
      rateLimit,
      rules: known.rules ?? [],
      hasInFlightByKey: countsCalls && (maxKeys ?? 0) > 0,
      concurrency,
    }),
  };
}

/** The state of a key, for local limiters only: a remote one would need a round trip. */
const localKeyStateOf = (limiter: AnyLimiter, key: string): Partial<Inspection> =>
  isRemote(limiter) ? {} : limiter.inspect(key);

export function toLimiterList(limiters: AnyLimiter | readonly AnyLimiter[]): readonly AnyLimiter[] {
  return Array.isArray(limiters) ? limiters : [limiters as AnyLimiter];
}

export function requireLimiter(value: unknown, field: string): void {
  const methods = ['on', 'stats', 'inspect'];
  if (isRecord(value) && methods.every((name) => typeof value[name] === 'function')) return;
  throw new ConfigError(field, 'a limiter', value);
}

/** The name as it is encoded: names that are equal in UTF-8 are one name. */
export const labelName = (name: string): string =>
  name.replace(new RegExp(LONE_SURROGATE, 'gu'), '\ufffd');
