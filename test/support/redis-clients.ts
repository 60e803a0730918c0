/** Connections to a Redis of the tests, by both clients people use. */

import { Redis } from 'ioredis';
import { createClient } from 'redis';
import type { RedisClient } from '../../src/share/redis/client.ts';

export interface Client {
  readonly client: RedisClient;
  end(): void;
}

export async function nodeRedis(port: number): Promise<Client> {
  const client = createClient({
    socket: { port, host: '127.0.0.1', reconnectStrategy: 50 },
    disableOfflineQueue: true,
  });
  client.on('error', () => {}); // an outage is told by the limiter
  await client.connect();
  return { client, end: () => client.destroy() };
}

export async function ioRedis(port: number): Promise<Client> {
  const client = new Redis(port, '127.0.0.1', {
    retryStrategy: () => 50,
    maxRetriesPerRequest: 1,
    enableOfflineQueue: false,
    lazyConnect: true,
  });
  client.on('error', () => {});
  await client.connect();
  return { client, end: () => client.disconnect() };
}
