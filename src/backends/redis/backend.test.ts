/** A limit shared through one real Redis, by both clients people use. */

import { describe } from 'vitest';
import { ioRedis, nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { remoteContract } from '../../../test/support/remote-contract.ts';
import { redisServer, startRedis } from '../../../test/support/services.ts';

const stageFor = (connect: (port: number) => Promise<RedisConnection>) => async () => {
  const service = await startRedis();
  return {
    servers: () => [service],
    connect: () => connect(service.port),
    expectedRoundTrips: () => 1,
    stop: () => service.stop(),
  };
};

describe.skipIf(redisServer() === undefined)('one Redis', () => {
  remoteContract('node-redis', stageFor(nodeRedis));
  remoteContract('ioredis', stageFor(ioRedis));
});
