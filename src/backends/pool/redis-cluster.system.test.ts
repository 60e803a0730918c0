import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe } from 'vitest';
import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import { ioRedisCluster } from '../../../test/support/redis-clients.ts';
import {
  type RedisCluster,
  redisServer,
  startRedisCluster,
} from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import { redisStore } from './redis-store.ts';

describe.skipIf(redisServer() === undefined)('redis pool store: cluster', () => {
  let cluster: RedisCluster;
  beforeAll(async () => {
    cluster = await startRedisCluster();
  }, 60_000);
  afterAll(() => cluster?.stop());

  poolStoreContract('a cluster, through ioredis', { isServer: false }, async () => {
    const { client, disconnect } = await ioRedisCluster(cluster);
    return {
      clock: systemClock,
      advance: (ms) => sleep(ms),
      store: () => redisStore(client),
      stop: async () => disconnect(),
    };
  });
});
