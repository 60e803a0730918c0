/** One line for all processes, in trouble: nobody hangs, and nobody is forgotten. */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { type Client, ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisCli, redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import { limiter } from '../../limiter.ts';
import type { RemoteLimiter } from '../../remote-limiter.ts';
import { type RedisOptions, redis } from './redis.ts';

const LINE = 'sluice:{api:token}:spacing:line';
const ALIVE = 'sluice:{api:token}:spacing:alive';
const LATER = '9999999999999';

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('waiting fairly by %s, in trouble', (_name, connect) => {
  let service: Service;
  let own: Client;
  let other: Client;
  const made: RemoteLimiter[] = [];

  beforeAll(async () => {
    service = await startRedis();
    own = await connect(service.port);
    other = await connect(service.port);
  });
  afterAll(async () => {
    own.end();
    other.end();
    await service.stop();
  });
  beforeEach(() => {
    redisCli(service.port, 'FLUSHALL');
  });
  afterEach(async () => {
    for (const api of made.splice(0)) await api.close();
  });

  function fair(every: number, options: RedisOptions = {}, from = own): RemoteLimiter {
    const share = redis(from.client, { fair: true, deadline: 50, ...options });
    const api = limiter({ name: 'api', limit: { spacing: { every } }, share });
    made.push(api);
    return api;
  }

  const lineIs = (length: number) =>
    vi.waitFor(() => expect(redisCli(service.port, 'LLEN', LINE)).toBe(String(length)), {
      timeout: 5000,
    });

  /** Redis stands still, and whoever asks finds out. */
  async function inSilence(api: RemoteLimiter, act: () => Promise<void>): Promise<void> {
    service.pause();
    try {
      await api.ask('another');
      expect(api.stats().isReachable).toBe(false);
      await act();
    } finally {
      service.resume();
    }
  }

  test('whoever comes while Redis is away can give up, and is served when it is back', async () => {
    const api = fair(10);
    let staying: Promise<unknown> = Promise.resolve();
    await inSilence(api, async () => {
      const giveUp = new AbortController();
      staying = api.acquire('token');
      const leaving = api.acquire('token', 1, { signal: giveUp.signal });
      const impatient = api.acquire('token', 1, { maxWaitMs: 50 });
      expect(await impatient).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      giveUp.abort(new Error('enough'));
      await expect(leaving).rejects.toThrow('enough');
      expect(api.stats().waiting).toBe(1);
    });
    expect(await staying).toMatchObject({ verdict: 'allow' });
    expect((await api.acquire('token')).verdict).toBe('allow');
  });

  test('those in line go ahead while Redis is away, if whoever stands in lets them', async () => {
    const api = fair(60_000, { onUnavailable: 'allow' });
    await api.acquire('token');
    const waiting = [api.acquire('token'), api.acquire('token')];
    await lineIs(2);
    await inSilence(api, async () => {
      const entries = await Promise.all(waiting);
      expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow']);
      expect(api.stats()).toMatchObject({ waiting: 0, makeshift: 3 });
    });
  });

  test('a line that Redis has forgotten is joined again by all, whoever else has come since', async () => {
    const [a, b] = [fair(300), fair(300, {}, other)];
    await a.acquire('token');
    const waiting = [a.acquire('token'), b.acquire('token'), b.acquire('token')];
    await lineIs(3);
    redisCli(service.port, 'FLUSHALL');
    redisCli(service.port, 'RPUSH', LINE, 'ghost/1/1');
    redisCli(service.port, 'HSET', ALIVE, 'ghost', LATER);
    await lineIs(4);
    redisCli(service.port, 'LPOP', LINE);
    const entries = await Promise.all(waiting);
    expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow']);
  }, 10_000);

  test('a place in line that nobody waits for any more is given up', async () => {
    const api = fair(50);
    await api.acquire('token');
    await api.acquire('token');
    redisCli(service.port, 'RPUSH', LINE, 'ghost/1/1');
    redisCli(service.port, 'HSET', ALIVE, 'ghost', LATER);
    const giveUp = new AbortController();
    const leaving = [1, 2, 3].map(() => api.acquire('token', 1, { signal: giveUp.signal }));
    const left = Promise.allSettled(leaving);
    await lineIs(4);
    const staying = api.acquire('token');
    await lineIs(5);
    await inSilence(api, async () => {
      giveUp.abort(new Error('enough'));
      await left;
    });
    await vi.waitFor(() => expect(api.stats().isReachable).toBe(true), { timeout: 3000 });
    redisCli(service.port, 'LPOP', LINE);
    expect((await staying).verdict).toBe('allow');
  }, 10_000);

  test('a line nobody asks about any more is forgotten', async () => {
    const api = fair(60_000);
    await api.acquire('token');
    expect(redisCli(service.port, 'EXISTS', LINE, ALIVE)).toBe('0');
    const waiting = api.acquire('token', 1, { maxWaitMs: 300 });
    await lineIs(1);
    for (const key of [LINE, ALIVE]) {
      expect(Number(redisCli(service.port, 'PTTL', key))).toBeGreaterThan(0);
    }
    await waiting;
  });
});

describe.skipIf(redisServer() === undefined)('waiting fairly by ioredis with a prefix', () => {
  test('whoever is next is told', async () => {
    const service = await startRedis();
    const { client, end } = await ioRedis(service.port, 'app:');
    const share = redis(client, { fair: true });
    const api = limiter({ name: 'api', limit: { spacing: { every: 20 } }, share });
    try {
      await api.acquire('token');
      const since = performance.now();
      await Promise.all(Array.from({ length: 10 }, () => api.acquire('token')));
      expect(performance.now() - since).toBeLessThan(900); // a beat is a second
    } finally {
      await api.close();
      end();
      await service.stop();
    }
  });
});
