/**
 * Tests clients of other versions and kinds against a real Redis: node-redis 4 and 5, @upstash/redis by HTTP.
 *
 * Code blocks of docs/reference/redis.md refer to this test.
 */

import { createClient as createClient4 } from 'redis4';
import { createClient as createClient5 } from 'redis5';
import { describe, expect, test, vi } from 'vitest';
import type { RedisConnection } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { upstash } from '../../../test/support/upstash-bridge.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redisChannel } from '../peers/redis-transport.ts';
import { type RedisOptions, redis } from './options.ts';

async function nodeRedis4(port: number): Promise<RedisConnection> {
  const client = createClient4({ socket: { port, host: '127.0.0.1' } });
  client.on('error', () => {});
  await client.connect();
  return { client, disconnect: () => void client.disconnect() };
}

async function nodeRedis5(port: number): Promise<RedisConnection> {
  const client = createClient5({ socket: { port, host: '127.0.0.1' } });
  client.on('error', () => {});
  await client.connect();
  return { client, disconnect: () => client.destroy() };
}

/** Longer than any call takes on a loaded machine. */
const deadline = '10s';

const CLIENTS = { 'node-redis 4': nodeRedis4, 'node-redis 5': nodeRedis5, Upstash: upstash };

describe.skipIf(redisServer() === undefined).each(Object.entries(CLIENTS))(
  '%s',
  (name, connect) => {
    const fixture = redisFixture(connect);

    /** One limit in two processes. */
    const inTwo = (limit: Limit, options: RedisOptions = {}) =>
      [fixture.firstClient, fixture.secondClient].map(({ client }) => {
        const api = limiter({
          name: 'api',
          limit,
          backend: redis(client, { deadline, ...options }),
        });
        fixture.limiters.push(api);
        return api;
      });

    test('redis backend: two processes share one bucket, also after Redis has lost its scripts', async () => {
      const [first, second] = inTwo({ bucket: { rate: '1/h', burst: 3 } });
      expect(await first.check('k')).toMatchObject({ verdict: 'allow', remaining: 2 });
      expect(await second.check('k')).toMatchObject({ verdict: 'allow', remaining: 1 });
      fixture.cli('SCRIPT', 'FLUSH');
      expect(await first.check('k')).toMatchObject({ verdict: 'allow', remaining: 0 });
      const denied = await second.check('k');
      expect(denied).toMatchObject({ verdict: 'deny' });
      expect('retryAfterMs' in denied && denied.retryAfterMs).toBeGreaterThan(3_500_000);
    });

    test('redis backend: two processes share a concurrency limit', async () => {
      const [first, second] = inTwo({ concurrency: 1 });
      const permit = await first.tryAcquire('k');
      expect(permit.verdict).toBe('allow');
      expect((await second.tryAcquire('k')).verdict).toBe('deny');
      if (permit.verdict === 'allow') permit.settle();
      // The release and the next call use different connections.
      await vi.waitFor(async () => expect((await second.tryAcquire('k')).verdict).toBe('allow'));
    });

    test('redis backend: a changed limit converts the keys that Redis has', async () => {
      const [first] = inTwo({ bucket: { rate: '1/h', burst: 3 } });
      await first.check('k', 2);
      await first.change({ bucket: { rate: '1/h', burst: 10 } });
      expect(await first.check('k')).toMatchObject({ verdict: 'allow' });
    });

    test('redis backend: a fair queue works with a connection, and is refused without', async () => {
      const limit: Limit = { spacing: { every: '50ms' } };
      if (name === 'Upstash') {
        expect(() => inTwo(limit, { fairQueue: true })).toThrow(/HTTP cannot deliver messages/);
        expect(() => redisChannel(fixture.firstClient.client)).toThrow(/HTTP cannot/);
        return;
      }
      const [first, second] = inTwo(limit, { fairQueue: true });
      const permits = [first, second, first].map((api) => api.acquire('k', 1, { wait: '20s' }));
      expect((await Promise.all(permits)).map(({ verdict }) => verdict)).toEqual(
        Array(3).fill('allow'),
      );
    });
  },
);
