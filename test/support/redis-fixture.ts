/** A Redis for one describe block: started once, emptied before each test, limiters closed after each test. */

import { afterAll, afterEach, beforeAll, beforeEach } from 'vitest';
import { type RedisOptions, redis } from '../../src/backends/redis/options.ts';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import type { Limit } from '../../src/policies/limit.ts';
import { borrowRedis } from './borrowed-servers.ts';
import type { RedisConnection } from './redis-clients.ts';
import { redisCli, type Service } from './services.ts';

export interface RedisFixture {
  readonly service: Service;
  /** Two connections, as of two processes. */
  readonly firstClient: RedisConnection;
  readonly secondClient: RedisConnection;
  /** Closed after each test. */
  readonly limiters: RemoteLimiter[];
  /** A limiter of the first or the second process, with a deadline for a loaded machine. */
  createShared(
    name: string | undefined,
    limit: Limit,
    options?: RedisOptions,
    isSecond?: boolean,
  ): RemoteLimiter;
  /** Runs a command with redis-cli and returns its output. */
  cli(...words: string[]): string;
}

/** Call it inside a describe block. */
export function redisFixture(connect: (port: number) => Promise<RedisConnection>): RedisFixture {
  let service: Service;
  let clients: RedisConnection[];
  const limiters: RemoteLimiter[] = [];
  const cli = (...words: string[]): string => redisCli(service.port, ...words);

  beforeAll(async () => {
    service = await borrowRedis();
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
    for (const api of limiters.splice(0)) await api.close();
    await Promise.all(clients.map((client) => client.drained?.())); // a late command would change the next test
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
    limiters,
    createShared(name, limit, options = {}, isSecond = false) {
      const { client } = clients[isSecond ? 1 : 0];
      const backend = redis(client, { deadline: '5s', ...options });
      const created = limiter({ name, limit, backend });
      limiters.push(created);
      return created;
    },
    cli,
  };
}
