/**
 * The limiters whose figures somebody wants to see.
 *
 * A limiter counts all by itself, so watching one costs nothing until it is read, with one exception:
 * a limit that learns has figures for each key, and to know which keys there are, somebody has to
 * listen. All others are left alone.
 *
 * Every watched limiter has a name of its own. Two of the same name would be one series with two
 * values, which a database refuses, and a sum would be wrong for a limit; so that is a mistake,
 * found when the second one is added.
 */

import { ConfigError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import { isRemote, type RemoteLimiter, type RemoteStats } from '../../limiter/async-limiter.ts';
import type { CounterSnapshot } from '../../limiter/stats.ts';
import type { Limiter, Stats } from '../../limiter/sync-limiter.ts';
import { LONE_SURROGATE, ReportedKeys } from './keys.ts';

/** The most keys of a limit that learns to show one by one, unless told otherwise. */
export const DEFAULT_MAX_KEYS = 20;

/** More would be a series for each client, which is what metrics are worst at. */
export const MAX_KEYS_CEILING = 10_000;

/** What any limiter counts, and what only one that decides here, or only one that does not, can say. */
export type AnyStats = CounterSnapshot &
  Pick<Stats, 'waiting' | 'held'> &
  Partial<Stats & RemoteStats>;

/** A limiter that decides here, or one that asks somebody. */
export type AnyLimiter = Limiter | RemoteLimiter;

/** One limiter at one moment. */
export interface LimiterSnapshot {
  readonly limit: string;
  readonly stats: AnyStats;
  /** The keys that are shown; none if the limit does not learn. */
  readonly keys: readonly KeySnapshot[];
  /** True if calls in flight are known for each key, false if only all together. */
  readonly hasInFlightByKey: boolean;
}

export interface KeySnapshot {
  readonly key: string;
  readonly limit: number;
  readonly inFlight?: number;
}

export class MetricCollector {
  readonly #maxKeys: number;
  readonly #sources = new Map<AnyLimiter, LimiterSource>();

  constructor(maxKeys: number) {
    this.#maxKeys = maxKeys;
  }

  add(limiter: AnyLimiter, field = 'limiter'): void {
    requireLimiter(limiter, field);
    const name = labelName(limiter.name);
    if ([...this.#sources.values()].some((other) => other.name === name)) {
      throw new ConfigError(`${field}.name`, 'unlike those of the other limiters', name);
    }
    this.#sources.set(limiter, new LimiterSource(limiter, name, this.#maxKeys));
  }

  /** All of them or none. */
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

  collect(): LimiterSnapshot[] {
    return [...this.#sources.values()].map((watched) => watched.snapshot());
  }
}

class LimiterSource {
  readonly name: string;
  readonly stop: () => void;
  readonly #limiter: AnyLimiter;
  readonly #keys: ReportedKeys;
  readonly #hasInFlightByKey: boolean;

  constructor(limiter: AnyLimiter, name: string, maxKeys: number) {
    this.name = name;
    this.#limiter = limiter;
    this.#keys = new ReportedKeys(maxKeys);
    const { limit, inFlight } = localKeyStateOf(limiter, ''); // any key will do to see what it knows of one
    this.#hasInFlightByKey = inFlight !== undefined && maxKeys > 0;
    this.stop = limit !== undefined && maxKeys > 0 ? this.#trackKeys() : () => {};
  }

  snapshot(): LimiterSnapshot {
    const keys = this.#keys.list().map((key) => this.#snapshotKey(key));
    const { name: limit } = this;
    return { limit, stats: this.#limiter.stats(), keys, hasInFlightByKey: this.#hasInFlightByKey };
  }

  #snapshotKey(key: string): KeySnapshot {
    const { limit = Number.NaN, inFlight } = localKeyStateOf(this.#limiter, key);
    return { key, limit, ...(inFlight !== undefined && { inFlight }) };
  }

  #trackKeys(): () => void {
    return this.#limiter.on((event) => {
      if (event.type === 'settled') this.#keys.record(event.key, event.at);
    });
  }
}

/** How a key stands, where that can be seen without asking anybody. */
const localKeyStateOf = (
  limiter: AnyLimiter,
  key: string,
): { limit?: number; inFlight?: number } => (isRemote(limiter) ? {} : limiter.inspect(key));

/** One limiter or several, as a list. */
export function toLimiterList(limiters: AnyLimiter | readonly AnyLimiter[]): readonly AnyLimiter[] {
  return Array.isArray(limiters) ? limiters : [limiters as AnyLimiter];
}

export function requireLimiter(value: unknown, field: string): void {
  const doors = ['on', 'stats', 'inspect'];
  if (isRecord(value) && doors.every((door) => typeof value[door] === 'function')) return;
  throw new ConfigError(field, 'a limiter', value);
}

/** The name as it will be written: names that become the same in UTF-8 are the same. */
export const labelName = (name: string): string =>
  name.replace(new RegExp(LONE_SURROGATE, 'gu'), '\ufffd');
