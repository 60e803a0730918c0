import { describe, expect, test } from 'vitest';
import { startLossyProxy } from '../../../test/support/lossy-proxy.ts';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './options.ts';

describe.skipIf(!redisServer())('ids of calls in Redis', () => {
  const fixture = redisFixture(nodeRedis);

  function shared(limit: Limit, client = fixture.firstClient, more = {}) {
    const backend = redis(client.client, { deadline: 10_000 });
    const api = limiter({ name: 'api', limit, backend, ...more });
    fixture.limiters.push(api);
    return api;
  }

  test('id: two processes are charged once, and get the same decision', async () => {
    const limit = { bucket: { rate: 0.001, burst: 20 } };
    const [a, b] = [shared(limit), shared(limit, fixture.secondClient)];
    expect(await a.check('k', 4, { id: 'x' })).toEqual({ verdict: 'allow', remaining: 16 });
    await a.check('k', 1);
    expect(await b.check('k', 4, { id: 'x' })).toEqual({ verdict: 'allow', remaining: 16 });
    expect((await b.tryAcquire('k', 4, { id: 'x' })).verdict).toBe('allow');
    expect((await a.inspect('k'))?.remaining).toBe(15);
    const ttl = Number(fixture.cli('PTTL', 'sluice:{api:k}:bucket:id:x'));
    expect(ttl).toBeGreaterThan(30_000);
    expect(ttl).toBeLessThanOrEqual(60_000);
  });

  test('id: takeUpTo refuses one, alone and in `all`, and takes nothing', async () => {
    const api = shared({ bucket: { rate: 0.001, burst: 20 } });
    for (const each of [api, all([api])]) {
      const takeUpTo: (...args: unknown[]) => Promise<number> = each.takeUpTo.bind(each) as never;
      await expect(takeUpTo('k', 4, { id: 'x' })).rejects.toThrow('no options and no id');
    }
    expect(await api.takeUpTo('k', Infinity)).toBe(20);
  });

  test('id: a check with one is told that its key is locked, as a check without', async () => {
    const api = shared({ lockout: { after: 1, lock: '1h' } });
    await api.report('k', 'failure');
    const locked = { verdict: 'deny', reason: 'locked' };
    expect(await api.check('k', 1)).toMatchObject(locked);
    expect(await api.check('k', 1, { id: 'x' })).toMatchObject(locked);
    expect(await api.tryAcquire('k', 1, { id: 'x' })).toMatchObject(locked);
  });

  test('id: a reserved slot keeps its due time for a repeated check', async () => {
    const limit = { spacing: { every: '1h', reserve: 2 } } as const;
    const [a, b] = [shared(limit), shared(limit, fixture.secondClient)];
    await a.check('k');
    const first = await a.check('k', 1, { id: 'x' });
    const second = await b.check('k', 1, { id: 'x' });
    if (first.verdict !== 'wait' || second.verdict !== 'wait') return expect.unreachable();
    expect(Math.abs(Number(first.dueAt) - Number(second.dueAt))).toBeLessThan(1);
    expect((await a.inspect('k'))?.reserved).toBe(1);
  });

  test('id: a check whose reply was lost is charged once', async () => {
    const proxy = await startLossyProxy(fixture.service.port);
    const connection = await nodeRedis(proxy.port);
    try {
      const limit = { bucket: { rate: 0.001, burst: 20 } };
      const backend = redis(connection.client, { deadline: 10_000, onUnavailable: 'deny' });
      const api = limiter({ name: 'api', limit, backend });
      fixture.limiters.push(api);
      await api.check('k', 1);
      proxy.loseReplyTo('order 17');
      expect((await api.check('k', 4, { id: 'order 17' })).verdict).toBe('deny'); // by onUnavailable
      await expect.poll(() => api.stats().isAvailable).toBe(true);
      expect((await shared(limit).inspect('k'))?.remaining).toBe(15); // Redis has charged it
      const again = await api.check('k', 4, { id: 'order 17' });
      expect(again).toEqual({ verdict: 'allow', remaining: 15 });
      expect((await api.inspect('k'))?.remaining).toBe(15);
    } finally {
      connection.disconnect();
      await proxy.stop();
    }
  });

  test('id: a permit settled as ignored is forgotten, and its repeat is charged in every process', async () => {
    const limit = { bucket: { rate: 0.001, burst: 20 } };
    const [a, b] = [shared(limit), shared(limit, fixture.secondClient)];
    const id = 'order 17\nof bob';
    const permits = [await a.tryAcquire('k', 4, { id }), await b.tryAcquire('k', 4, { id })];
    expect((await a.inspect('k'))?.remaining).toBe(16);
    for (const permit of permits)
      if (permit.verdict === 'allow') permit.settle({ outcome: 'ignored' });
    await expect.poll(async () => (await a.inspect('k'))?.remaining).toBe(20);
    expect((await b.tryAcquire('k', 4, { id })).verdict).toBe('allow');
    expect((await a.inspect('k'))?.remaining).toBe(16); // charged again
    expect(await a.check('k', 4, { id })).toEqual({ verdict: 'allow', remaining: 16 });
    expect((await a.inspect('k'))?.remaining).toBe(16);
  });

  test('id: two processes with the permit of one call return what it did not use once', async () => {
    const limit = { bucket: { rate: 0.001, burst: 20 } };
    const [a, b] = [shared(limit), shared(limit, fixture.secondClient)];
    await a.check('k', 6);
    for (const api of [a, b]) {
      const permit = await api.tryAcquire('k', 8, { id: 'x' });
      if (permit.verdict === 'allow') permit.settle({ used: 3 });
    }
    await expect.poll(async () => (await a.inspect('k'))?.remaining).toBe(11);
    await b.check('k', 1); // behind the second settlement
    expect((await a.inspect('k'))?.remaining).toBe(10);
  });

  test('id: Redis forgets it after idFor', async () => {
    const limit = { bucket: { rate: 0.001, burst: 20 } };
    const [a, b] = [
      shared(limit, fixture.firstClient, { idFor: 30 }),
      shared(limit, fixture.secondClient),
    ];
    await a.check('k', 1, { id: 'x' });
    await expect.poll(() => fixture.cli('EXISTS', 'sluice:{api:k}:bucket:id:x')).toMatch(/^0/);
    await b.check('k', 1, { id: 'x' });
    expect((await b.inspect('k'))?.remaining).toBe(18);
  });
});
