/**
 * Connections to Redis servers that several limits and backends share: one per URL, opened on first use.
 *
 * A daemon starts whether or not Redis is available. While it is unavailable, each limit's `onUnavailable` decides.
 */

import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import { connectClient } from './node-redis-connection.ts';
import { redactUrl } from './server-url.ts';

type CreateClient = typeof import('redis')['createClient'];
export type SharedRedisClient = ReturnType<CreateClient>;

/** A server that a configuration needs, and the field that names it. */
export interface ServerUse {
  readonly field: string;
  readonly url: string;
}

const RECONNECT_MS = 200;

/** Distinct reasons that are logged for one outage. */
const MAX_REASONS = 8;

export class SharedConnections {
  readonly #log: Log;
  readonly #clients = new Map<string, SharedRedisClient>();
  /** Functions that close a client, by URL. */
  readonly #destroyers = new Map<string, () => void>();
  #createClient: CreateClient | undefined;

  constructor(log: Log) {
    this.#log = log;
  }

  /** Loads the client package if a server is needed. @throws {ConfigError} if it is missing. */
  async prepare([first]: readonly ServerUse[]): Promise<void> {
    if (!first || this.#createClient) return;
    try {
      this.#createClient = (await import('redis')).createClient;
    } catch (error) {
      const expected = `left out, or the package "redis" installed (${errorMessageOf(error)})`;
      throw new ConfigError(first.field, expected, redactUrl(first.url));
    }
  }

  /** Returns the client for a URL. `prepare` must have resolved before. */
  redisClient(url: string): SharedRedisClient {
    const existing = this.#clients.get(url);
    if (existing) return existing;
    if (!this.#createClient) throw new Error('the package "redis" was not loaded');
    const client = this.#createClient({
      url,
      disableOfflineQueue: true,
      commandOptions: { timeout: undefined as never }, // each limit has its own deadline
      socket: { reconnectStrategy: RECONNECT_MS },
    }) as SharedRedisClient;
    this.#clients.set(url, client);
    this.#logAvailability(client, redactUrl(url));
    const { opened, destroy } = connectClient(client);
    this.#destroyers.set(url, destroy);
    opened.catch(() => {}); // logged by the error handler, or closed meanwhile
    return client;
  }

  /** Logs each reason of an outage once. Limits log that they are unavailable, and only the client knows why. */
  #logAvailability(client: SharedRedisClient, url: string): void {
    const logged = new Set<string>();
    client.on('error', (error: NodeJS.ErrnoException) => {
      const reason = errorMessageOf(error) || error.code || 'no connection'; // an AggregateError has no message
      if (logged.has(reason) || logged.size >= MAX_REASONS) return;
      logged.add(reason);
      this.#log('warn', 'redis unavailable', { url, reason });
    });
    client.on('ready', () => {
      if (logged.size > 0) this.#log('info', 'redis available again', { url });
      logged.clear();
    });
  }

  closeUnused(needed: readonly ServerUse[]): void {
    const urls = new Set(needed.map(({ url }) => url));
    for (const [url, destroy] of this.#destroyers) {
      if (urls.has(url)) continue;
      this.#clients.delete(url);
      this.#destroyers.delete(url);
      destroy();
    }
  }
}
