/** A limit shared through one real Redis, by both clients people use. */

import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { describe } from 'vitest';
import { type Client, remoteContract } from '../../../test/support/remote-contract.ts';
import { redisServer, startRedis } from '../../../test/support/services.ts';

async function nodeRedis(port: number): Promise<Client> {
  const client = createClient({
    socket: { port, host: '127.0.0.1', reconnectStrategy: 50 },
    disableOfflineQueue: true,
  });
  client.on('error', () => {}); // an outage is told by the limiter
  await client.connect();
  return { client, end: () => client.destroy() };
}

async function ioRedis(port: number): Promise<Client> {
  const client = new Redis(port, '127.0.0.1', {
    retryStrategy: () => 50,
    maxRetriesPerRequest: 1,
    lazyConnect: true,
  });
  client.on('error', () => {});
  await client.connect();
  return { client, end: () => client.disconnect() };
}

const stageFor = (connect: (port: number) => Promise<Client>) => async () => {
  const service = await startRedis();
  return {
    servers: () => [service],
    connect: () => connect(service.port),
    trips: () => 1,
    stop: () => service.stop(),
  };
};

describe.skipIf(redisServer() === undefined)('one Redis', () => {
  remoteContract('node-redis', stageFor(nodeRedis));
  remoteContract('ioredis', stageFor(ioRedis));
});
