/**
 * A daemon's place in a pool: limits that say so are divided among the daemons of the pool.
 *
 * It comes before anybody is answered, but waits for nobody: until the others have made room, and whenever the
 * store was out of reach for too long, it has no part, and refuses.
 */

import type { ShareMaker } from '../../backends/backend.ts';
import { PoolShare } from '../../backends/pool/backend.ts';
import { Pool, type PoolView } from '../../backends/pool/membership.ts';
import { redisStore } from '../../backends/pool/redis-store.ts';
import type { PoolMemberRecord, PoolStore } from '../../backends/pool/store.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { atMost } from '../../core/deadline.ts';
import { ConfigError, reasonOf, UnavailableError } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import type { Random } from '../../core/random.ts';
import type { PoolConfig, StoreConfig } from '../config/pool.ts';
import { type NatsConnection, NatsLink } from './nats-connection.ts';
import type { RedisClients } from './redis-connections.ts';

/** How long a daemon that starts waits for a connection before it calls its store out of reach. */
const REACH_WITHIN_MS: Millis = 1000;

export interface PoolSetting {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly clients: RedisClients;
}

/** What a daemon shows of its pool. */
export interface PoolShown extends PoolView {
  /** Everybody, as the store knows them; left out if it cannot be asked. */
  readonly members?: readonly PoolMemberRecord[];
}

export class PoolPlace {
  /** Makes limits that are divided. */
  readonly share: ShareMaker;
  readonly #pool: Pool;
  readonly #store: PoolStore;
  readonly #name: string;

  /** @throws {ConfigError} if it cannot be as the configuration says. */
  static async join(config: PoolConfig, setting: PoolSetting): Promise<PoolPlace> {
    const { store, reached } = await storeOf(config.store, setting);
    await atMost(setting.clock, REACH_WITHIN_MS, reached);
    return new PoolPlace(store, config, setting);
  }

  private constructor(
    store: PoolStore,
    { options }: PoolConfig,
    { clock, random, log }: PoolSetting,
  ) {
    this.#store = store;
    this.#name = options.name;
    const { onUnavailable } = options;
    const pool = new Pool(store, options, clock, random);
    this.#pool = pool;
    this.share = {
      isRemote: false,
      make: (policy, setting) => new PoolShare(policy, setting, pool),
    };
    pool.on(({ type, view }) => {
      const { name, size, active, reason = '' } = view;
      if (type === 'in-reach') log('info', 'pool in reach again', { pool: name });
      else if (type === 'out-of-reach') log('warn', 'pool out of reach', { pool: name, reason });
      else if (view.isAvailable) log('info', 'size of the pool', { pool: name, size, active });
      else log('warn', 'pool out of reach for too long', { pool: name, onUnavailable });
    });
    pool.open();
  }

  view(): PoolView {
    return this.#pool.view();
  }

  async shown(): Promise<PoolShown> {
    const view = this.view();
    try {
      return { ...view, members: await this.#store.members(this.#name) };
    } catch {
      return view;
    }
  }

  /** Leaves: the others have its part within a second. */
  async close(): Promise<void> {
    await this.#pool.close();
    await this.#store.close();
  }
}

interface Found {
  readonly store: PoolStore;
  /** Resolves once there is a connection, if one is needed. */
  readonly reached: Promise<unknown>;
}

async function storeOf(config: StoreConfig, setting: PoolSetting): Promise<Found> {
  if (config.kind === 'own') return { store: config.make(), reached: Promise.resolve() };
  if (config.kind === 'redis') {
    const client = setting.clients.clientOf(config.url);
    const store = redisStore(client, config.options);
    const ready = new Promise((resolve) => client.once('ready', resolve));
    return { store, reached: client.isReady ? Promise.resolve() : ready };
  }
  const { natsStore } = await natsStores();
  const link = await NatsLink.to(config.servers, { clock: setting.clock, what: 'pool' });
  const make = (connection: NatsConnection): PoolStore => natsStore(connection, config.options);
  return { store: onLink(link, make), reached: link.connected };
}

/** Loaded only by those who meet in NATS, as it needs a package that others may not have. */
async function natsStores(): Promise<typeof import('../../backends/pool/nats-store.ts')> {
  try {
    return await import('../../backends/pool/nats-store.ts');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/kv" installed (${reasonOf(error)})`;
    throw new ConfigError('pool.nats', expected, 'nats');
  }
}

/** A store on a connection that may be yet to come. */
function onLink(link: NatsLink, make: (connection: NatsConnection) => PoolStore): PoolStore {
  let made: PoolStore | undefined;
  const store = (): PoolStore => {
    const { connection, reason = 'there is no connection yet' } = link;
    if (!connection) throw new UnavailableError('nats', reason);
    made ??= make(connection);
    return made;
  };
  return {
    name: 'nats',
    sync: async (...asked) => store().sync(...asked),
    leave: async (...asked) => store().leave(...asked),
    note: async (...asked) => store().note(...asked),
    recall: async (...asked) => store().recall(...asked),
    members: async (...asked) => store().members(...asked),
    async close() {
      await made?.close();
      await link.close();
    },
  };
}
