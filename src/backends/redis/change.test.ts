import { describe, expect, test, vi } from 'vitest';
import { whilePaused } from '../../../test/support/paused.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { type RedisOptions, redis } from './options.ts';

const bucket = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

describe.skipIf(!redisServer())('change of a limit in Redis', () => {
  const fixture = redisFixture(nodeRedis);

  /** A deadline that holds on a loaded machine, unless the test is about one. */
  function shared(
    limit: Limit,
    options: RedisOptions = { deadline: 10_000 },
    client = fixture.firstClient,
  ) {
    const api = limiter({ name: 'api', limit, backend: redis(client.client, options) });
    fixture.limiters.push(api);
    return api;
  }

  const leftOf = async (api: RemoteLimiter, key = 'k'): Promise<number | undefined> =>
    (await api.inspect(key))?.remaining;

  test('change: 3,000 keys keep their counts, those of other limits are not touched', async () => {
    const api = shared(bucket(0.001, 10), { deadline: 10_000 });
    const other = limiter({
      name: 'api2',
      limit: bucket(0.001, 10),
      backend: redis(fixture.firstClient.client, { deadline: 10_000 }),
    });
    fixture.limiters.push(other);
    const keys = Array.from({ length: 3000 }, (_, n) => `key ${n}`);
    await Promise.all(keys.map((key, n) => api.check(key, 1 + (n % 9))));
    await other.check('key 1', 4);
    await api.check('x'.repeat(2000), 3); // is named by its digest
    const before = fixture.cli('GET', 'sluice:{api2:key 1}:bucket');
    await api.change(bucket(0.001, 30));
    const left = await Promise.all(keys.map((key) => leftOf(api, key)));
    expect(left).toEqual(keys.map((_, n) => 29 - (n % 9)));
    expect(await leftOf(api, 'x'.repeat(2000))).toBe(27);
    expect(fixture.cli('GET', 'sluice:{api2:key 1}:bucket')).toBe(before);
  });

  test('change: continues a change whose process has died, and keys get no fresh burst', async () => {
    const api = shared(bucket(0.001, 10));
    await api.check('k', 10);
    const marker = 'sluice:{api}:bucket:changed';
    const [seconds] = fixture.cli('TIME').split('\n').map(Number);
    const begun = (at: number): string => `begun 1 other ${at} another change`;
    fixture.cli('SET', marker, begun(seconds * 1000));
    const change = api.change(bucket(0.001, 40));
    await new Promise((later) => setTimeout(later, 200));
    expect(fixture.cli('GET', marker).trim()).toBe(begun(seconds * 1000));
    fixture.cli('SET', marker, begun(seconds * 1000 - 15_000)); // it is taken for dead
    await change;
    expect(await leftOf(api)).toBe(30);
    expect(fixture.cli('GET', marker)).toMatch(/^done /);
  });

  const KINDS: Record<string, [from: Limit, to: Limit]> = {
    window: [{ window: { limit: 10, per: '1h' } }, { window: { limit: 20, per: '1h' } }],
    quota: [{ quota: { limit: 10, per: 'month' } }, { quota: { limit: 20, per: 'month' } }],
    lockout: [{ lockout: { after: 10 } }, { lockout: { after: 20 } }],
  };

  test.each(Object.entries(KINDS))(
    'change: %s keeps what was counted',
    async (_kind, [from, to]) => {
      const api = shared(from);
      await api.check('k', 4);
      expect(await leftOf(api)).toBe(6);
      await api.change(to);
      expect(await leftOf(api)).toBe(16);
      expect(await leftOf(api, 'other')).toBe(20);
    },
  );

  test('change: a window with a fair queue refuses other steps, and keeps its count', async () => {
    const window = (steps: number): Limit => ({ window: { limit: 10, per: '1h', steps } });
    const api = shared(window(10), { fairQueue: true, deadline: 10_000 });
    await api.check('k', 4);
    await expect(api.change(window(20))).rejects.toThrow('`per` and `steps` of a window');
    expect(await leftOf(api)).toBe(6);
  });

  test('change: a window with more steps than a script can read is refused', async () => {
    const windows = (steps: number): Limit => ({
      all: Array.from({ length: 5 }, () => ({ window: { limit: 10, per: '1h', steps } })),
    });
    const api = shared(windows(10));
    await expect(api.change(windows(1000))).rejects.toThrow('windows of fewer `steps`');
  });

  test('change: checks during the change are neither lost nor counted twice', async () => {
    const [a, b] = [
      shared(bucket(0.001, 1000)),
      shared(bucket(0.001, 1000), undefined, fixture.secondClient),
    ];
    await Promise.all(Array.from({ length: 2000 }, (_, n) => a.check(`key ${n}`)));
    let isDone = false;
    let taken = 0;
    const traffic = (async () => {
      while (!isDone) if ((await b.check('busy')).verdict === 'allow') taken++;
    })();
    await a.change(bucket(0.001, 2000));
    isDone = true;
    await traffic;
    expect(taken).toBeGreaterThan(0);
    expect(await leftOf(a, 'busy')).toBe(2000 - taken);
  });

  test('change: a ramp keeps its level and what was taken; each rule of `all` what was spent of it', async () => {
    const ramp = (min: number, max: number): Limit => ({ ramp: { min, max, over: '1h' } });
    const pair = (burst: number, min: number): Limit => ({
      all: [bucket(0.001, burst), ramp(min, 100)],
    });
    const api = limiter({
      name: 'ramp',
      limit: pair(50, 40),
      backend: redis(fixture.firstClient.client, { deadline: 10_000 }),
    });
    fixture.limiters.push(api);
    let attempt = 0;
    await vi.waitFor(async () => {
      const key = `key ${attempt++}`;
      const second = Math.floor(Date.now() / 1000);
      await api.change(pair(50, 40));
      await api.check(key, 5);
      await api.change(pair(80, 20));
      const rules = (await api.inspect(key))?.rules.map(({ remaining }) => remaining);
      if (Math.floor(Date.now() / 1000) !== second) throw new Error('the second is over');
      expect(rules).toEqual([75, 35]);
    }, 30_000);
  });

  test('change: prefetched tokens are returned first', async () => {
    const api = shared(bucket(0.001, 100), { prefetch: 50, deadline: 10_000 });
    await api.check('k');
    await api.change(bucket(0.001, 200));
    expect(await leftOf(api)).toBe(199);
  });

  test('change: waiters of a fair queue are granted at once by a faster limit', async () => {
    const api = shared({ spacing: { every: '1h' } }, { fairQueue: true, deadline: 10_000 });
    await api.acquire('k');
    const waiting = [api.acquire('k', 1, { wait: '2h' }), api.acquire('k', 1, { wait: '2h' })];
    await vi.waitFor(() => expect(api.stats().waiting).toBe(2));
    await api.change({ spacing: { every: 20 } });
    const ends = await Promise.all(waiting); // not after an hour
    expect(ends.map(({ verdict }) => verdict)).toEqual(['allow', 'allow']);
  });

  test('change: the local fallback has the new numbers, and what was spent of the old ones', async () => {
    const api = shared(bucket(0.001, 10), { deadline: OUTAGE_DEADLINE_MS });
    await api.check('k', 6);
    await api.change(bucket(0.001, 12));
    await whilePaused(fixture.service, async () => {
      expect(await api.check('k', 6)).toMatchObject({ verdict: 'allow', remaining: 0 });
      expect((await api.check('k')).verdict).toBe('deny');
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true));
  });

  test('change: a limit without a name is refused, as its numbers are its name', async () => {
    const api = limiter({ limit: bucket(1, 10), backend: redis(fixture.firstClient.client) });
    fixture.limiters.push(api);
    await expect(api.change(bucket(1, 20))).rejects.toThrow(/`name`/);
  });
});

describe.skipIf(!redisServer())('change through an ioredis client with a key prefix', () => {
  const fixture = redisFixture((port) => ioRedis(port, 'app[1]:'));

  test('change: keys are found under the prefix of the client', async () => {
    const backend = redis(fixture.firstClient.client, { deadline: 10_000 });
    const api = limiter({ name: 'api', limit: bucket(0.5, 10), backend });
    fixture.limiters.push(api);
    await api.check('k', 10); // its key lasts 20 s
    await api.change(bucket(0.001, 10));
    expect(Number(fixture.cli('PTTL', 'app[1]:sluice:{api:k}:bucket'))).toBeGreaterThan(1_000_000);
  });
});
