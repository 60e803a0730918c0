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
import type { BackendSelector } from '../router/limiter-registry.ts';
import { GroupMembership } from './groups.ts';
import { PeerMembership } from './peers.ts';
import { PoolMembership } from './pool.ts';
import type { RedisClients } from './redis-connections.ts';

export interface BackendsSetup {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly clients: RedisClients;
  readonly hasher: Hasher;
}

export class Backends {
  readonly peers: PeerMembership | undefined;
  readonly pool: PoolMembership | undefined;
  readonly groups: GroupMembership | undefined;
  readonly #clients: RedisClients;

  /** @throws {ConfigError} if it cannot be as the configuration says. */
  static async create(config: Config, context: BackendsSetup): Promise<Backends> {
    const peers = config.peers && (await PeerMembership.create(config.peers, context));
    const pool = config.pool && (await PoolMembership.join(config.pool, context));
    const groups = config.groups && new GroupMembership(config.groups, context);
    return new Backends(context.clients, peers, pool, groups);
  }

  private constructor(
    clients: RedisClients,
    peers: PeerMembership | undefined,
    pool: PoolMembership | undefined,
    groups: GroupMembership | undefined,
  ) {
    this.#clients = clients;
    this.peers = peers;
    this.pool = pool;
    this.groups = groups;
  }

  /** Who keeps a limit; undefined: this daemon alone. */
  readonly backendFor: BackendSelector = (limit) =>
    limit.groups
      ? this.groups?.backendFactory(this.#bucketBackendFor(limit))
      : this.#bucketBackendFor(limit);

  readonly #bucketBackendFor: BackendSelector = ({ redis, etcd, peers, pool }) => {
    if (redis) return this.#clients.backendFactory(redis);
    if (etcd) return etcd.createFactory();
    return peers ? this.peers?.backendFactory : pool ? this.pool?.backendFactory : undefined;
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
export function changedBackendSections(before: Config, after: Config): string[] {
  const isSame = {
    peers: JSON.stringify(before.peers) === JSON.stringify(after.peers),
    pool: before.pool?.source === after.pool?.source,
    groups: before.groups?.source === after.groups?.source,
  };
  return Object.entries(isSame).flatMap(([section, same]) => (same ? [] : [section]));
}
