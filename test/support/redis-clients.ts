/** Connections to a test Redis, with both supported clients. */

import { Cluster as IoCluster, Redis } from 'ioredis';
import { createClient, createCluster } from 'redis';
import type { RedisClient } from '../../src/backends/redis/client.ts';
import type { RedisCluster } from './services.ts';

export interface RedisConnection {
  readonly client: RedisClient;
  /** One server: resolves when Redis has executed, or lost, all commands of limiters that are closed. */
  drained?(): Promise<unknown>;
  disconnect(): void;
}

export async function nodeRedis(port: number): Promise<RedisConnection> {
  const client = createClient({
    socket: { port, host: '127.0.0.1', reconnectStrategy: 50 },
    disableOfflineQueue: true,
  });
  client.on('error', () => {}); // the limiter reports outages
  await client.connect();
  const drained = () => client.ping().catch(() => {});
  return { client, drained, disconnect: () => client.destroy() };
}

export async function ioRedis(port: number, keyPrefix = ''): Promise<RedisConnection> {
  const client = new Redis(port, '127.0.0.1', {
    keyPrefix,
    retryStrategy: () => 50,
    maxRetriesPerRequest: 1,
    enableOfflineQueue: false,
    lazyConnect: true,
  });
  client.on('error', () => {});
  await client.connect();
  const drained = () => client.ping().catch(() => {});
  return { client, drained, disconnect: () => client.disconnect() };
}

export async function nodeRedisCluster({ nodes }: RedisCluster): Promise<RedisConnection> {
  const client = createCluster({
    rootNodes: nodes.map(({ port }) => ({ url: `redis://127.0.0.1:${port}` })),
    defaults: { socket: { reconnectStrategy: 50 }, disableOfflineQueue: true },
  });
  client.on('error', () => {});
  await client.connect();
  return { client, disconnect: () => client.destroy() };
}

export async function ioRedisCluster({ nodes }: RedisCluster): Promise<RedisConnection> {
  const client = new IoCluster(
    nodes.map(({ port }) => ({ port, host: '127.0.0.1' })),
    { lazyConnect: true, clusterRetryStrategy: () => 50 },
  );
  client.on('error', () => {});
  await client.connect();
  return { client, disconnect: () => client.disconnect() };
}
