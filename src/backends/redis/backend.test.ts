import { describe } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { ioRedis, nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { redisContract } from '../../../test/support/redis-contract.ts';
import { redisServer } from '../../../test/support/services.ts';

const harnessFor = (connect: (port: number) => Promise<RedisConnection>) => async () => {
  const service = await borrowRedis();
  return {
    servers: () => [service],
    connect: () => connect(service.port),
    expectedRoundTrips: () => 1,
    stop: () => service.stop(),
  };
};

describe.skipIf(redisServer() === undefined)('redis backend, one server', () => {
  redisContract('node-redis', harnessFor(nodeRedis), 'full');
  redisContract('ioredis', harnessFor(ioRedis));
});
