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
import type { Counted } from '../../limiter/stats.ts';
import type { Limiter, Stats } from '../../limiter/sync-limiter.ts';
import { HALF_CHARACTER, SeenKeys } from './keys.ts';

/** The most keys of a limit that learns to show one by one, unless told otherwise. */
export const SHOWN_KEYS_MAX_DEFAULT = 20;

/** More would be a series for each client, which is what metrics are worst at. */
export const SHOWN_KEYS_MAX_MAX = 10_000;

/** What any limiter counts, and what only one that decides here, or only one that does not, can say. */
export type Seen = Counted & Pick<Stats, 'waiting' | 'held'> & Partial<Stats & RemoteStats>;

/** A limiter that decides here, or one that asks somebody. */
export type AnyLimiter = Limiter | RemoteLimiter;

/** One limiter at one moment. */
export interface Reading {
  readonly limit: string;
  readonly stats: Seen;
  /** The keys that are shown; none if the limit does not learn. */
  readonly keys: readonly KeyReading[];
  /** True if calls in flight are known for each key, false if only all together. */
  readonly inFlightByKey: boolean;
}

export interface KeyReading {
  readonly key: string;
  readonly limit: number;
  readonly inFlight?: number;
}

export class Watchlist {
  readonly #keysMax: number;
  readonly #watched = new Map<AnyLimiter, Watched>();

  constructor(keysMax: number) {
    this.#keysMax = keysMax;
  }

  add(limiter: AnyLimiter, field = 'limiter'): void {
    requireLimiter(limiter, field);
    const name = shownName(limiter.name);
    if ([...this.#watched.values()].some((other) => other.name === name)) {
      throw new ConfigError(`${field}.name`, 'unlike those of the other limiters', name);
    }
    this.#watched.set(limiter, new Watched(limiter, name, this.#keysMax));
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
    this.#watched.get(limiter)?.stop();
    this.#watched.delete(limiter);
  }

  stop(): void {
    for (const limiter of [...this.#watched.keys()]) this.remove(limiter);
  }

  read(): Reading[] {
    return [...this.#watched.values()].map((watched) => watched.read());
  }
}

class Watched {
  readonly name: string;
  readonly stop: () => void;
  readonly #limiter: AnyLimiter;
  readonly #keys: SeenKeys;
  readonly #inFlightByKey: boolean;

  constructor(limiter: AnyLimiter, name: string, keysMax: number) {
    this.name = name;
    this.#limiter = limiter;
    this.#keys = new SeenKeys(keysMax);
    const { limit, inFlight } = seenIn(limiter, ''); // any key will do to see what it knows of one
    this.#inFlightByKey = inFlight !== undefined && keysMax > 0;
    this.stop = limit !== undefined && keysMax > 0 ? this.#listen() : () => {};
  }

  read(): Reading {
    const keys = this.#keys.names().map((key) => this.#readKey(key));
    const { name: limit } = this;
    return { limit, stats: this.#limiter.stats(), keys, inFlightByKey: this.#inFlightByKey };
  }

  #readKey(key: string): KeyReading {
    const { limit = Number.NaN, inFlight } = seenIn(this.#limiter, key);
    return { key, limit, ...(inFlight !== undefined && { inFlight }) };
  }

  #listen(): () => void {
    return this.#limiter.on((event) => {
      if (event.type === 'settled') this.#keys.saw(event.key, event.at);
    });
  }
}

/** How a key stands, where that can be seen without asking anybody. */
const seenIn = (limiter: AnyLimiter, key: string): { limit?: number; inFlight?: number } =>
  isRemote(limiter) ? {} : limiter.inspect(key);

/** One limiter or several, as a list. */
export function listOf(limiters: AnyLimiter | readonly AnyLimiter[]): readonly AnyLimiter[] {
  return Array.isArray(limiters) ? limiters : [limiters as AnyLimiter];
}

export function requireLimiter(value: unknown, field: string): void {
  const doors = ['on', 'stats', 'inspect'];
  if (isRecord(value) && doors.every((door) => typeof value[door] === 'function')) return;
  throw new ConfigError(field, 'a limiter', value);
}

/** The name as it will be written: names that become the same in UTF-8 are the same. */
export const shownName = (name: string): string =>
  name.replace(new RegExp(HALF_CHARACTER, 'gu'), '\ufffd');
