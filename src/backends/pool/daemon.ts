/**
 * The pool backend in a daemon: limits of the pool are divided among its daemons.
 *
 * A daemon joins before it listens, without waiting for other members. It has no part, and denies, until the members
 * have agreed on the new size, and after the store was unavailable for too long.
 */

import type { Millis } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { ConfigError, errorMessageOf, UnavailableError } from '../../core/errors.ts';
import type { MetricFamily } from '../../core/metric-family.ts';
import type { BackendFactory } from '../backend.ts';
import { type NatsConnection, NatsConnector } from '../connections/nats-connection.ts';
import type {
  BackendModule,
  BackendSection,
  BackendStartContext,
  LimitBackend,
  RunningBackend,
} from '../daemon-backend.ts';
import { dryRunPool, PoolBackend } from './backend.ts';
import { type PoolConfig, readPoolConfig, type StoreConfig } from './daemon-config.ts';
import { type PoolStatus, poolMetrics, poolPage } from './daemon-view.ts';
import { Pool } from './pool.ts';
import { redisStore } from './redis-store.ts';
import type { PoolStore } from './store.ts';

/** How long a starting daemon waits for the connection to its store. */
const CONNECT_TIMEOUT_MS: Millis = 1000;

const NAME = 'pool';

export const poolModule: BackendModule = { name: NAME, readSection, page: poolPage };

const LIMIT: LimitBackend = {
  name: NAME,
  identity: NAME,
  view: true,
  unsupported:
    'left out: a pool can divide bucket, spacing, ramp, concurrency, adaptive, lockout (on failures), windows and quotas of at most an hour, and no other rule',
  // Parts are per second: with a clock read once per batch, a decision could spend a part of a past second.
  needsExactTime: true,
  dryRun: () => dryRunPool,
};

function readSection(value: unknown, path: string): BackendSection {
  const config = readPoolConfig(value, path);
  const { store } = config;
  return {
    limit: LIMIT,
    identity: JSON.stringify(value),
    servers: store.kind === 'redis' ? [{ field: `${path}.redis`, url: store.url }] : [],
    start: (context) => RunningPool.join(config, context),
  };
}

class RunningPool implements RunningBackend {
  readonly #pool: Pool;
  readonly #store: PoolStore;

  static async join(config: PoolConfig, context: BackendStartContext): Promise<RunningPool> {
    const { store, connected } = await openStore(config.store, context);
    await completesWithin(context.clock, CONNECT_TIMEOUT_MS, connected);
    return new RunningPool(store, config, context);
  }

  private constructor(
    store: PoolStore,
    { options }: PoolConfig,
    { clock, random, log }: BackendStartContext,
  ) {
    this.#store = store;
    const { onUnavailable } = options;
    const pool = new Pool(store, options, clock, random);
    this.#pool = pool;
    pool.on(({ type, view }) => {
      const { name, size, active, reason = '' } = view;
      if (type === 'available') log('info', 'pool available again', { pool: name });
      else if (type === 'unavailable') log('warn', 'pool unavailable', { pool: name, reason });
      else if (view.isAvailable) log('info', 'size of the pool', { pool: name, size, active });
      else log('warn', 'pool unavailable for too long', { pool: name, onUnavailable });
    });
    pool.open();
  }

  createFactory(): BackendFactory {
    const create: BackendFactory['create'] = (...args) => new PoolBackend(...args, this.#pool);
    return { isRemote: false, create };
  }

  async view(): Promise<PoolStatus> {
    const view = this.#pool.view();
    try {
      return { ...view, members: await this.#pool.members() };
    } catch {
      return view;
    }
  }

  metrics(): readonly MetricFamily[] {
    return poolMetrics(this.#pool.view());
  }

  /** Leaves: other members receive its part within 1 s. */
  async close(): Promise<void> {
    await this.#pool.close();
    await this.#store.close();
  }
}

interface OpenedStore {
  readonly store: PoolStore;
  /** Resolves when the store is connected, or at once if it needs no connection. */
  readonly connected: Promise<unknown>;
}

async function openStore(
  config: StoreConfig,
  { clock, connections }: BackendStartContext,
): Promise<OpenedStore> {
  if (config.kind === 'standalone') return { store: config.create(), connected: Promise.resolve() };
  if (config.kind === 'redis') {
    const client = connections.redisClient(config.url);
    const store = redisStore(client, config.options);
    const ready = new Promise((resolve) => client.once('ready', resolve));
    return { store, connected: client.isReady ? Promise.resolve() : ready };
  }
  const { natsStore } = await loadNatsStore();
  const connector = await NatsConnector.connect(config.servers, { clock, section: NAME });
  const create = (connection: NatsConnection): PoolStore => natsStore(connection, config.options);
  return { store: lazyNatsStore(connector, create), connected: connector.connected };
}

/** Loads the NATS store only if it is used: its package is optional. */
async function loadNatsStore(): Promise<typeof import('./nats-store.ts')> {
  try {
    return await import('./nats-store.ts');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/kv" installed (${errorMessageOf(error)})`;
    throw new ConfigError('pool.nats', expected, 'nats');
  }
}

/** A store whose connection may be established later. */
function lazyNatsStore(
  connector: NatsConnector,
  create: (connection: NatsConnection) => PoolStore,
): PoolStore {
  let created: PoolStore | undefined;
  const store = (): PoolStore => {
    const { connection, lastError = 'there is no connection yet' } = connector;
    if (!connection) throw new UnavailableError('nats', lastError);
    created ??= create(connection);
    return created;
  };
  return {
    name: 'nats',
    sync: async (...args) => store().sync(...args),
    leave: async (...args) => store().leave(...args),
    saveCheckpoint: async (...args) => store().saveCheckpoint(...args),
    loadCheckpoint: async (...args) => store().loadCheckpoint(...args),
    members: async (...args) => store().members(...args),
    async close() {
      await created?.close();
      await connector.close();
    },
  };
}
