/** The same stories on a cluster: all keys of a pool live in one place. */

import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe } from 'vitest';
import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import {
  type Client,
  ioRedisCluster,
  nodeRedisCluster,
} from '../../../test/support/redis-clients.ts';
import { type Cluster, redisServer, startCluster } from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import { redisStore } from './redis-store.ts';

const CLIENTS = { 'node-redis': nodeRedisCluster, ioredis: ioRedisCluster };

describe.skipIf(redisServer() === undefined)('a cluster', () => {
  let cluster: Cluster;
  beforeAll(async () => {
    cluster = await startCluster();
  }, 60_000);
  afterAll(() => cluster?.stop());

  for (const [name, connect] of Object.entries(CLIENTS)) {
    poolStoreContract(`a cluster, through ${name}`, { isServer: false }, async () => {
      const { client, end }: Client = await connect(cluster);
      return {
        clock: systemClock,
        pass: (ms) => sleep(ms),
        store: () => redisStore(client, { prefix: name }),
        stop: async () => end(),
      };
    });
  }
});
