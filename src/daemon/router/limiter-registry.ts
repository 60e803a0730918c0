/**
 * The limiters a daemon has, by name, and how they live on when its configuration changes: a rule that
 * reads the same as before keeps its counts, whatever else has changed around it.
 */

import type { ShareMaker } from '../../backends/backend.ts';
import { alone } from '../../backends/peers/backend.ts';
import { undivided } from '../../backends/pool/backend.ts';
import type { RemoteShareMaker } from '../../backends/remote-backend.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { type Hasher, hasher } from '../../core/hash.ts';
import { Underway } from '../../core/pending.ts';
import type { RemoteEngine, RemoteLimiter } from '../../limiter/async-limiter.ts';
import { engineOf } from '../../limiter/limiter.ts';
import { Engine } from '../../limiter/sync-limiter.ts';
import { fingerprint, type LimitConfig, type RuleOptions } from '../config/limits.ts';
import { trial } from '../config/redis.ts';

/** One rule at work: a limit's own, or that of an override. */
export interface Shelved {
  readonly name: string;
  /** Same text, same counts. */
  readonly fingerprint: string;
  readonly engine: Engine | RemoteEngine;
  /** Questions that somebody else still has to answer. */
  readonly underway: Underway;
}

export interface ShelfSetting {
  readonly clock?: Clock | undefined;
  readonly hasher: Hasher;
  /** Looked at as often as the surfaces say, where a rule can bear that. */
  readonly held?: Clock | undefined;
  /** Who else spends from a limit, reached the way the configuration says. */
  readonly shareOf: ShareOf;
}

/** Nobody else: undefined. */
export type ShareOf = (
  limit: Pick<LimitConfig, 'redis' | 'etcd' | 'peers' | 'pool' | 'groups'>,
) => RemoteShareMaker | ShareMaker | undefined;

/** How the shelf has changed. */
export interface Stocked {
  readonly made: readonly Shelved[];
  readonly dropped: readonly Shelved[];
}

export class Shelf {
  readonly #setting: ShelfSetting;
  #shelved: ReadonlyMap<string, Shelved> = new Map();

  constructor(setting: ShelfSetting) {
    this.#setting = setting;
  }

  get all(): readonly Shelved[] {
    return [...this.#shelved.values()];
  }

  get(name: string): Shelved | undefined {
    return this.#shelved.get(name);
  }

  /**
   * Makes what these limits need and keeps what they still need. Nothing changes if one cannot be
   * made. What is new comes back, and what nobody needs any more.
   */
  stock(limits: readonly LimitConfig[]): Stocked {
    const next = new Map<string, Shelved>();
    for (const limit of limits) {
      const own = this.#keptOrMade(limit.name, limit.rule, limit);
      next.set(own.name, own);
      for (const { match, rule } of limit.overrides) {
        const name = overrideName(limit.name, match.text);
        next.set(name, this.#keptOrMade(name, rule, limit));
      }
    }
    const dropped = this.all.filter((old) => next.get(old.name) !== old);
    const made = [...next.values()].filter((own) => this.#shelved.get(own.name) !== own);
    this.#shelved = next;
    return { made, dropped };
  }

  #keptOrMade(name: string, rule: RuleOptions, limit: LimitConfig): Shelved {
    const { redis, etcd, peers, pool, groups } = limit;
    const decider = redis ? JSON.stringify(redis) : etcd?.text;
    const part = groups && `groups ${groups.part}`;
    const sharedBy = [decider, peers && 'peers', pool && 'pool', part];
    const text = fingerprint(rule) + sharedBy.filter(Boolean).join();
    const old = this.#shelved.get(name);
    if (old?.fingerprint === text) return old;
    const { clock, held, hasher, shareOf } = this.#setting;
    const share = shareOf(limit);
    const options = { ...rule, name, ...(clock && { clock }), ...(share && { share }) };
    // In a pool every second has its own part: a look at the clock that is shared would spend one that is over.
    const engine = engineOf(options, { hasher, clock: pool ? systemClock : held });
    return { name, fingerprint: text, engine, underway: new Underway() };
  }
}

/** A shelf for looking at only: nobody is connected to. */
export function shelfFor(limits: readonly LimitConfig[]): Shelf {
  const keeperOf: ShareOf = ({ redis, etcd, peers, pool }) => {
    if (redis || etcd) return redis ? trial(redis) : etcd?.trial;
    return peers ? alone : pool ? undivided : undefined;
  };
  const shareOf: ShareOf = (limit) =>
    limit.groups ? limit.groups.trial(keeperOf(limit)) : keeperOf(limit);
  const shelf = new Shelf({ hasher: hasher([0, 0]), shareOf });
  shelf.stock(limits);
  return shelf;
}

/** What an override is called in metrics and answers. */
export const overrideName = (limit: string, pattern: string): string => `${limit}[${pattern}]`;

/** Whether a call of this limit is in flight until it is settled. */
export const countsFlights = (engine: Engine): boolean => engine.inspect('').inFlight !== undefined;

/**
 * Ends what limiters have with others: a fleet is left, and what is held of a limit that others share is
 * given back, once what was asked is answered. Each question has a deadline, so that is not for long.
 */
export async function closeAll(shelved: readonly Shelved[]): Promise<void> {
  for (const { engine } of shelved) if (engine instanceof Engine) engine.leave();
  const remote = shelved.filter(({ engine }) => 'isRemote' in engine);
  await Promise.all(remote.map(({ underway }) => underway.ended()));
  await Promise.allSettled(remote.map(({ engine }) => (engine as RemoteLimiter).close()));
}
