/**
 * A daemon's place in a pool: limits that say so are divided among the daemons of the pool.
 *
 * It comes before anybody is answered, but waits for nobody: until the others have made room, and whenever the
 * store was out of reach for too long, it has no part, and refuses.
 */

import type { BackendFactory } from '../../backends/backend.ts';
import { PoolBackend } from '../../backends/pool/backend.ts';
import { Pool, type PoolView } from '../../backends/pool/membership.ts';
import { redisStore } from '../../backends/pool/redis-store.ts';
import type { PoolMemberRecord, PoolStore } from '../../backends/pool/store.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { ConfigError, errorMessageOf, UnavailableError } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import type { Random } from '../../core/random.ts';
import type { PoolConfig, StoreConfig } from '../config/pool.ts';
import { type NatsConnection, NatsConnector } from './nats-connection.ts';
import type { RedisClients } from './redis-connections.ts';

/** How long a daemon that starts waits for a connection before it calls its store out of reach. */
const CONNECT_TIMEOUT_MS: Millis = 1000;

export interface PoolMembershipContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly clients: RedisClients;
}

/** What a daemon shows of its pool. */
export interface PoolStatus extends PoolView {
  /** Everybody, as the store knows them; left out if it cannot be asked. */
  readonly members?: readonly PoolMemberRecord[];
}

export class PoolMembership {
  /** Makes limits that are divided. */
  readonly backendFactory: BackendFactory;
  readonly #pool: Pool;
  readonly #store: PoolStore;
  readonly #name: string;

  /** @throws {ConfigError} if it cannot be as the configuration says. */
  static async join(config: PoolConfig, context: PoolMembershipContext): Promise<PoolMembership> {
    const { store, connected } = await openStore(config.store, context);
    await completesWithin(context.clock, CONNECT_TIMEOUT_MS, connected);
    return new PoolMembership(store, config, context);
  }

  private constructor(
    store: PoolStore,
    { options }: PoolConfig,
    { clock, random, log }: PoolMembershipContext,
  ) {
    this.#store = store;
    this.#name = options.name;
    const { onUnavailable } = options;
    const pool = new Pool(store, options, clock, random);
    this.#pool = pool;
    this.backendFactory = {
      isRemote: false,
      create: (policy, context) => new PoolBackend(policy, context, pool),
    };
    pool.on(({ type, view }) => {
      const { name, size, active, reason = '' } = view;
      if (type === 'available') log('info', 'pool available again', { pool: name });
      else if (type === 'unavailable') log('warn', 'pool unavailable', { pool: name, reason });
      else if (view.isAvailable) log('info', 'size of the pool', { pool: name, size, active });
      else log('warn', 'pool unavailable for too long', { pool: name, onUnavailable });
    });
    pool.open();
  }

  view(): PoolView {
    return this.#pool.view();
  }

  async status(): Promise<PoolStatus> {
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

interface OpenedStore {
  readonly store: PoolStore;
  /** Resolves once there is a connection, if one is needed. */
  readonly connected: Promise<unknown>;
}

async function openStore(
  config: StoreConfig,
  context: PoolMembershipContext,
): Promise<OpenedStore> {
  if (config.kind === 'own') return { store: config.make(), connected: Promise.resolve() };
  if (config.kind === 'redis') {
    const client = context.clients.clientOf(config.url);
    const store = redisStore(client, config.options);
    const ready = new Promise((resolve) => client.once('ready', resolve));
    return { store, connected: client.isReady ? Promise.resolve() : ready };
  }
  const { natsStore } = await loadNatsStore();
  const connector = await NatsConnector.connect(config.servers, {
    clock: context.clock,
    section: 'pool',
  });
  const make = (connection: NatsConnection): PoolStore => natsStore(connection, config.options);
  return { store: lazyNatsStore(connector, make), connected: connector.connected };
}

/** Loaded only by those who meet in NATS, as it needs a package that others may not have. */
async function loadNatsStore(): Promise<typeof import('../../backends/pool/nats-store.ts')> {
  try {
    return await import('../../backends/pool/nats-store.ts');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/kv" installed (${errorMessageOf(error)})`;
    throw new ConfigError('pool.nats', expected, 'nats');
  }
}

/** A store on a connection that may be yet to come. */
function lazyNatsStore(
  connector: NatsConnector,
  make: (connection: NatsConnection) => PoolStore,
): PoolStore {
  let made: PoolStore | undefined;
  const store = (): PoolStore => {
    const { connection, lastError = 'there is no connection yet' } = connector;
    if (!connection) throw new UnavailableError('nats', lastError);
    made ??= make(connection);
    return made;
  };
  return {
    name: 'nats',
    sync: async (...asked) => store().sync(...asked),
    leave: async (...asked) => store().leave(...asked),
    saveCheckpoint: async (...asked) => store().saveCheckpoint(...asked),
    loadCheckpoint: async (...asked) => store().loadCheckpoint(...asked),
    members: async (...asked) => store().members(...asked),
    async close() {
      await made?.close();
      await connector.close();
    },
  };
}
