/**
 * Connections to the Redis servers that limits are shared through: one for each address, made when the
 * first limit needs it.
 *
 * A daemon starts whether or not Redis is there. Until it is, and whenever it is not, limits answer by
 * their `onUnavailable`.
 */

import { redis } from '../../backends/redis/options.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import type { Config } from '../config/read.ts';
import { type RedisConfig, redactUrl } from '../config/redis.ts';

type Client = ReturnType<typeof import('redis')['createClient']>;
type CreateClient = typeof import('redis')['createClient'];

const RECONNECT_MS = 200;

/** More reasons than this for one outage tell nobody anything. */
const MAX_REASONS = 8;

export class RedisClients {
  readonly #log: Log;
  readonly #clients = new Map<string, Client>();
  #createClient: CreateClient | undefined;

  constructor(log: Log) {
    this.#log = log;
  }

  /** Loads the client's package if it is needed. @throws {ConfigError} if it is missing. */
  async loadPackage(config: Config): Promise<void> {
    const [needing] = redisUses(config);
    if (!needing || this.#createClient) return;
    try {
      this.#createClient = (await import('redis')).createClient;
    } catch (error) {
      const expected = `left out, or the package "redis" installed (${errorMessageOf(error)})`;
      throw new ConfigError(needing.field, expected, redactUrl(needing.url));
    }
  }

  backendFactory({ url, options }: RedisConfig): RemoteBackendFactory {
    return redis(this.clientOf(url), options);
  }

  clientOf(url: string): Client {
    const known = this.#clients.get(url);
    if (known) return known;
    if (!this.#createClient) throw new Error('the package "redis" was not loaded');
    const client = this.#createClient({
      url,
      disableOfflineQueue: true,
      commandOptions: { timeout: undefined as never }, // each limit has a deadline of its own
      socket: { reconnectStrategy: RECONNECT_MS },
    });
    this.#clients.set(url, client as Client);
    this.#logAvailability(client as Client, redactUrl(url));
    client.connect().catch(() => {}); // it was told, or it was let go
    return client as Client;
  }

  /** Limits tell that they cannot be asked; why that is, it alone knows. Each reason is told once an outage. */
  #logAvailability(client: Client, url: string): void {
    const told = new Set<string>();
    client.on('error', (error: NodeJS.ErrnoException) => {
      const reason = errorMessageOf(error) || error.code || 'no connection'; // several at once have no words
      if (told.has(reason) || told.size >= MAX_REASONS) return;
      told.add(reason);
      this.#log('warn', 'redis unavailable', { url, reason });
    });
    client.on('ready', () => {
      if (told.size > 0) this.#log('info', 'redis available again', { url });
      told.clear();
    });
  }

  /** Ends connections that are not needed any more: none is, without a configuration. */
  closeUnused(config: Config | undefined): void {
    const needed = new Set(config && redisUses(config).map(({ url }) => url));
    for (const [url, client] of this.#clients) {
      if (needed.has(url)) continue;
      client.destroy();
      this.#clients.delete(url);
    }
  }
}

/** What a configuration needs Redis for, and where that stands. */
function redisUses({
  limits,
  peers,
  pool,
}: Config): { readonly field: string; readonly url: string }[] {
  const needed = limits.flatMap(({ name, redis: own }) =>
    own ? [{ field: `limits.${name}.redis`, url: own.url }] : [],
  );
  if (peers?.transport.kind === 'redis') {
    needed.push({ field: 'peers.redis', url: peers.transport.url });
  }
  if (pool?.store.kind === 'redis') needed.push({ field: 'pool.redis', url: pool.store.url });
  return needed;
}
