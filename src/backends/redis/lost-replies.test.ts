import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { type LossyProxy, startLossyProxy } from '../../../test/support/lossy-proxy.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisCli, redisServer, type Service } from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { type RedisOptions, redis } from './options.ts';

const HOURLY: Limit = { spacing: { every: '1h' } };

const untilAvailable = (api: RemoteLimiter) =>
  vi.waitFor(() => expect(api.stats().isAvailable).toBe(true));

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('first call of a limiter by %s', (_name, connect) => {
  const fixture = redisFixture(connect);

  function shared(limit: Limit, options: RedisOptions = {}): RemoteLimiter {
    const backend = redis(fixture.firstClient.client, { deadline: 50, ...options });
    const api = limiter({ name: 'api', limit, backend });
    fixture.limiters.push(api);
    return api;
  }

  const FIRST_CALLS: Record<string, (api: RemoteLimiter) => Promise<unknown>> = {
    check: async (api) => (await api.check('token')).verdict,
    tryAcquire: async (api) => (await api.tryAcquire('token')).verdict,
    takeUpTo: async (api) => ((await api.takeUpTo('token', 1)) === 0 ? 'deny' : 'allow'),
  };

  test.each(Object.entries(FIRST_CALLS))(
    '%s: refused by its deadline while Redis is stopped, it takes nothing',
    async (_call, firstCall) => {
      const api = shared(HOURLY);
      fixture.service.pause();
      const first = await firstCall(api);
      fixture.service.resume();
      expect(first).toBe('deny');
      // On a busy machine a check may miss its deadline; it takes nothing then, either.
      await vi.waitFor(async () => expect((await api.check('token')).verdict).toBe('allow'));
    },
  );

  test('concurrency limit: refused while Redis is stopped, it takes no lease', async () => {
    const api = shared({ concurrency: 1 }, { onUnavailable: 'deny' });
    fixture.service.pause();
    const first = await api.tryAcquire('sink');
    fixture.service.resume();
    expect(first.verdict).toBe('deny');
    await vi.waitFor(async () => expect((await api.inspect('sink'))?.inFlight).toBe(0));
  });

  test.each([
    ['local queue', false],
    ['fair queue', true],
  ])('acquire (%s): gets its permit as soon as Redis continues', async (_queue, fairQueue) => {
    const api = shared(HOURLY, { fairQueue });
    fixture.service.pause();
    const waiting = api.acquire('token', 1, { wait: 7_200_000 });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(false));
    fixture.service.resume();
    expect(await waiting).toMatchObject({ verdict: 'allow' }); // a failure would wait for an hour
  });

  test('giveBack: as the first call of a limiter, it is executed', async () => {
    const limit = { bucket: { rate: 1e-6, burst: 10 } };
    const [taker, giver] = [shared(limit, { deadline: '2s' }), shared(limit, { deadline: '2s' })];
    expect(await taker.takeUpTo('x', 10)).toBe(10);
    await giver.giveBack('x', 4);
    expect(await taker.takeUpTo('x', 10)).toBe(4);
  });
});

describe.skipIf(redisServer() === undefined)('ioredis with its default options', () => {
  let service: Service;
  let proxy: LossyProxy;
  let client: Redis;
  let limitCount = 0;
  const limiters: RemoteLimiter[] = [];

  beforeAll(async () => {
    service = await borrowRedis();
    proxy = await startLossyProxy(service.port);
    client = new Redis(proxy.port, '127.0.0.1'); // sends a command without a reply again after a reconnect
    client.on('error', () => {});
    await client.ping(); // connected
  });
  afterEach(async () => {
    for (const api of limiters.splice(0)) await api.close();
  });
  afterAll(async () => {
    client.disconnect();
    await proxy.stop();
    await service.stop();
  });

  /** A bucket of 10 that does not refill. */
  function bucketNamed(name: string, options: RedisOptions): RemoteLimiter {
    const limit = { bucket: { rate: 1e-6, burst: 10 } };
    const backend = redis(client, { onUnavailable: 'deny', ...options });
    const api = limiter({ name, limit, backend });
    limiters.push(api);
    return api;
  }

  /** Takes all tokens, with a deadline that holds on a busy machine. */
  const takeAll = (name: string): Promise<number> =>
    bucketNamed(name, { deadline: '2s' }).takeUpTo('x', 10);

  /** Creates an empty bucket whose limiter knows Redis's clock. */
  async function emptied(options: RedisOptions): Promise<RemoteLimiter> {
    const api = bucketNamed(`limit-${++limitCount}`, options);
    expect(await takeAll(api.name)).toBe(10);
    await vi.waitFor(async () => expect((await api.inspect('x'))?.remaining).toBe(0));
    return api;
  }

  /** Runs `act`, whose command with this text is executed twice, and returns the number of tokens after that. */
  async function tokensAfterRepeat(
    api: RemoteLimiter,
    text: string,
    act: () => Promise<unknown>,
  ): Promise<number> {
    const before = proxy.countOf(text);
    proxy.loseReplyTo(text);
    await act();
    await vi.waitFor(() => expect(proxy.countOf(text)).toBeGreaterThan(before + 1));
    await untilAvailable(api);
    return takeAll(api.name);
  }

  const DEADLINES: RedisOptions[] = [{}, { deadline: '2s' }];

  test.each(DEADLINES)('giveBack: counts once if its reply is lost (%j)', async (options) => {
    const api = await emptied(options);
    expect(await tokensAfterRepeat(api, 'signored', () => api.giveBack('x', 4))).toBe(4);
  });

  test.each(DEADLINES)('settle: used less than charged, counts once (%j)', async (options) => {
    const api = await emptied(options);
    const settle = () => api.settle('x', { cost: 5, used: 2 });
    expect(await tokensAfterRepeat(api, 'sok', settle)).toBe(3);
  });

  test('update: hits served elsewhere count once', async () => {
    const api = await emptied({ deadline: '2s' });
    await api.giveBack('x', 9);
    expect(await tokensAfterRepeat(api, 'h4', () => api.update('x', { hits: 4 }))).toBe(5);
  });

  test('prefetch: close returns unused tokens once', async () => {
    const api = await emptied({ deadline: '2s' });
    const prefetching = bucketNamed(api.name, { prefetch: 3, deadline: '2s' });
    await api.giveBack('x', 5);
    expect((await prefetching.check('x')).verdict).toBe('allow'); // takes 3 and spends 1
    expect(await tokensAfterRepeat(api, 'signored', () => prefetching.close())).toBe(4);
  });

  test('giveBack: equal calls of one tick or several count each', async () => {
    const api = await emptied({ deadline: '2s' });
    await Promise.all([api.giveBack('x', 2), api.giveBack('x', 2), api.check('y')]);
    await api.giveBack('x', 2);
    const act = () => Promise.all([api.giveBack('x', 1), api.giveBack('x', 1), api.check('y')]);
    expect(await tokensAfterRepeat(api, 'signored', act)).toBe(8);
  });

  test('tryAcquire of a concurrency limit: sent again, it gets its own place', async () => {
    const backend = redis(client, { onUnavailable: 'deny', deadline: '2s' });
    const api = limiter({ name: `limit-${++limitCount}`, limit: { concurrency: 1 }, backend });
    limiters.push(api);
    await api.inspect('x');
    proxy.loseReplyTo(`{${api.name}:x}`);
    const permit = await api.tryAcquire('x');
    expect(proxy.countOf(`{${api.name}:x}`)).toBe(4); // the first call twice, the second twice
    expect(permit.verdict).toBe('allow');
    if (permit.verdict === 'allow') permit.settle();
    expect((await api.tryAcquire('x')).verdict).toBe('allow');
  });

  test('giveBack: Redis forgets the call soon after its deadline', async () => {
    const api = await emptied({ deadline: '2s' });
    await api.giveBack('x', 4);
    const call = redisCli(service.port, 'KEYS', `sluice:{${api.name}:x}:bucket:call:*`);
    const ttl = Number(redisCli(service.port, 'PTTL', call));
    expect(ttl).toBeGreaterThan(0);
    expect(ttl).toBeLessThanOrEqual(12_000 + 2);
  });
});
