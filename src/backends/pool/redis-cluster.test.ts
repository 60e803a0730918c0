/** The store contract on a Redis cluster: all keys of a pool are in one slot. */

import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe } from 'vitest';
import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import {
  ioRedisCluster,
  nodeRedisCluster,
  type RedisConnection,
} from '../../../test/support/redis-clients.ts';
import {
  type RedisCluster,
  redisServer,
  startRedisCluster,
} from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import { redisStore } from './redis-store.ts';

const CLIENTS = { 'node-redis': nodeRedisCluster, ioredis: ioRedisCluster };

describe.skipIf(redisServer() === undefined)('redis pool store: cluster', () => {
  let cluster: RedisCluster;
  beforeAll(async () => {
    cluster = await startRedisCluster();
  }, 60_000);
  afterAll(() => cluster?.stop());

  for (const [name, connect] of Object.entries(CLIENTS)) {
    poolStoreContract(`a cluster, through ${name}`, { isServer: false }, async () => {
      const { client, disconnect }: RedisConnection = await connect(cluster);
      return {
        clock: systemClock,
        advance: (ms) => sleep(ms),
        store: () => redisStore(client, { prefix: name }),
        stop: async () => disconnect(),
      };
    });
  }
});
