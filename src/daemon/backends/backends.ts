/**
 * Whom a daemon keeps limits with: its place in a fleet of peers, in a pool, in a group, and the servers that decide.
 *
 *     a limit that says …      is kept by
 *     redis, etcd              that server
 *     peers: true              the fleet: each decides, and tells the others
 *     pool: true               each of the pool, on its part
 *     groups: true             the region, however of the above it keeps its bucket, and steals from others
 */

import type { Clock } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import type { Log } from '../../core/log.ts';
import type { Random } from '../../core/random.ts';
import type { Config } from '../config/read.ts';
import type { ShareOf } from '../router/limiter-registry.ts';
import { GroupsPlace } from './groups.ts';
import { PeersPlace } from './peers.ts';
import { PoolPlace } from './pool.ts';
import type { RedisClients } from './redis-connections.ts';

export interface CompanySetting {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly clients: RedisClients;
  readonly hasher: Hasher;
}

export class Company {
  readonly peers: PeersPlace | undefined;
  readonly pool: PoolPlace | undefined;
  readonly groups: GroupsPlace | undefined;
  readonly #clients: RedisClients;

  /** @throws {ConfigError} if it cannot be as the configuration says. */
  static async prepare(config: Config, setting: CompanySetting): Promise<Company> {
    const peers = config.peers && (await PeersPlace.prepare(config.peers, setting));
    const pool = config.pool && (await PoolPlace.join(config.pool, setting));
    const groups = config.groups && new GroupsPlace(config.groups, setting);
    return new Company(setting.clients, peers, pool, groups);
  }

  private constructor(
    clients: RedisClients,
    peers: PeersPlace | undefined,
    pool: PoolPlace | undefined,
    groups: GroupsPlace | undefined,
  ) {
    this.#clients = clients;
    this.peers = peers;
    this.pool = pool;
    this.groups = groups;
  }

  /** Who keeps a limit; undefined: this daemon alone. */
  readonly shareOf: ShareOf = (limit) =>
    limit.groups ? this.groups?.share(this.#keeperOf(limit)) : this.#keeperOf(limit);

  readonly #keeperOf: ShareOf = ({ redis, etcd, peers, pool }) => {
    if (redis) return this.#clients.shareOf(redis);
    if (etcd) return etcd.make();
    return peers ? this.peers?.share : pool ? this.pool?.share : undefined;
  };

  /** Meets the fleet, now that there are limits to tell of. */
  async join(): Promise<void> {
    await this.peers?.join();
  }

  /** They go on without it. */
  async leave(): Promise<void> {
    this.groups?.close();
    await Promise.all([this.peers?.close(), this.pool?.close()]);
  }
}

/** Sections that differ: whom a daemon keeps limits with does not change while it runs. */
export function changedCompany(before: Config, after: Config): string[] {
  const isSame = {
    peers: JSON.stringify(before.peers) === JSON.stringify(after.peers),
    pool: before.pool?.text === after.pool?.text,
    groups: before.groups?.text === after.groups?.text,
  };
  return Object.entries(isSame).flatMap(([section, same]) => (same ? [] : [section]));
}
