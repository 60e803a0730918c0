/** A Redis for the tests of one block: started once, empty before each test, and nothing left open behind it. */

import { afterAll, afterEach, beforeAll, beforeEach } from 'vitest';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import type { RedisConnection } from './redis-clients.ts';
import { redisCli, type Service, startRedis } from './services.ts';

export interface RedisFixture {
  /** There from the first test on, as all that follows. */
  readonly service: Service;
  /** Connections as of two processes. */
  readonly firstClient: RedisConnection;
  readonly secondClient: RedisConnection;
  /** Closed after the test, each of them. */
  readonly limiters: RemoteLimiter[];
  /** Runs a command there and gives what it says. */
  cli(...words: string[]): string;
}

/** To be called where a block of tests is described. */
export function redisFixture(connect: (port: number) => Promise<RedisConnection>): RedisFixture {
  let service: Service;
  let clients: RedisConnection[];
  const made: RemoteLimiter[] = [];
  const cli = (...words: string[]): string => redisCli(service.port, ...words);

  beforeAll(async () => {
    service = await startRedis();
    clients = await Promise.all([connect(service.port), connect(service.port)]);
  });
  afterAll(async () => {
    for (const client of clients) client.disconnect();
    await service.stop();
  });
  beforeEach(() => {
    cli('FLUSHALL');
  });
  afterEach(async () => {
    for (const api of made.splice(0)) await api.close();
  });

  return {
    get service() {
      return service;
    },
    get firstClient() {
      return clients[0];
    },
    get secondClient() {
      return clients[1];
    },
    limiters: made,
    cli,
  };
}
