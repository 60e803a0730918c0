import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { cCompiler, redisCli, redisServer } from '../../../test/support/services.ts';
import { type SteppedRedis, startSteppedRedis } from '../../../test/support/stepped-redis.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { LEASE_TTL_MS } from './lua-semaphore.ts';
import { redis } from './options.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

/** Each allows 5 calls in 10 minutes, or one. */
const LIMITS: readonly [kind: string, limit: Limit, most: number][] = [
  ['bucket', { bucket: { rate: '5/10m', burst: 5 } }, 5],
  ['spacing', { spacing: { every: '10m' } }, 1],
  ['window', { window: { limit: 5, per: '10m' } }, 5],
  ['quota', { quota: { limit: 5, per: 'hour' } }, 5],
  ['all', { all: [{ bucket: { rate: '5/10m', burst: 5 } }, { concurrency: 100 }] }, 5],
];

const canRun = redisServer() !== undefined && cCompiler() !== undefined;

describe.skipIf(!canRun)("Redis's clock is stepped", () => {
  let service: SteppedRedis;
  let connection: RedisConnection;
  const limiters: RemoteLimiter[] = [];

  beforeAll(async () => {
    service = await startSteppedRedis();
    connection = await nodeRedis(service.port);
  });
  afterAll(async () => {
    connection.disconnect();
    await service.stop();
  });
  beforeEach(() => {
    service.setAhead(0);
    redisCli(service.port, 'FLUSHALL');
  });
  afterEach(async () => {
    for (const api of limiters.splice(0)) await api.close();
  });

  function shared(limit: Limit): RemoteLimiter {
    const backend = redis(connection.client, { deadline: '5s', onUnavailable: 'deny' });
    const made = limiter({ name: 'api', limit, backend });
    limiters.push(made);
    return made;
  }

  /** Calls until one is refused; returns the number of allowed calls. */
  async function exhaust(api: RemoteLimiter, key = 'k'): Promise<number> {
    for (let n = 0; n <= 100; n++)
      if ((await api.check(key, 1, { willSettle: true })).verdict === 'deny') return n;
    throw new Error('nothing is refused');
  }

  test('the shim: TIME and scripts show the stepped clock', () => {
    const at = Date.now();
    service.setAhead(-3 * HOUR - 250);
    const [seconds] = redisCli(service.port, 'TIME').split('\n').map(Number);
    expect(Math.abs(seconds * 1000 - (at - 3 * HOUR))).toBeLessThan(MINUTE);
  });

  test.each(LIMITS)(
    '%s, set forward by an hour: one burst comes early, once',
    async (_kind, limit, most) => {
      const api = shared(limit);
      expect(await exhaust(api)).toBe(most);
      service.setAhead(HOUR);
      expect(await exhaust(api)).toBe(most);
      expect(await exhaust(api)).toBe(0);
      expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
    },
  );

  test.each(LIMITS)(
    '%s, set back by an hour: nothing is granted twice, and what is told is the time until it opens',
    async (kind, limit, most) => {
      const api = shared(limit);
      expect(await exhaust(api)).toBe(most);
      service.setAhead(-HOUR);
      const refused = await api.check('k', 1, { willSettle: true });
      expect(refused.verdict).toBe('deny');
      const ms = refused.verdict === 'deny' ? refused.retryAfterMs : 0;
      // A restarted calendar period ends 1 h later; other limits continue to refill from their level.
      expect(ms).toBeGreaterThan(kind === 'quota' ? 0 : HOUR - MINUTE);
      expect(ms).toBeLessThanOrEqual(2 * HOUR);
      expect(await exhaust(api, 'new')).toBe(most);
      service.setAhead(0);
      expect(await exhaust(api)).toBe(0);
      expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
    },
  );

  test('bucket, set back by an hour: keeps what is left, and gains nothing meanwhile', async () => {
    const api = shared({ bucket: { rate: '1/s', burst: 5 } });
    await api.check('k', 3);
    service.setAhead(-HOUR);
    expect(await exhaust(api)).toBe(2);
  });

  test('concurrency, set forward: calls that run are registered again within a third of a lease', async () => {
    const api = shared({ concurrency: 3 });
    const permits = [await api.tryAcquire('k'), await api.tryAcquire('k')];
    service.setAhead(HOUR);
    expect((await api.inspect('k'))?.inFlight).toBe(0); // the leases have ended there
    await vi.waitFor(async () => expect((await api.inspect('k'))?.inFlight).toBe(2), {
      timeout: LEASE_TTL_MS,
      interval: 100,
    });
    expect((await api.check('k', 2, { willSettle: true })).verdict).toBe('deny');
    for (const permit of permits) if (permit.verdict === 'allow') permit.settle();
    await vi.waitFor(async () => expect((await api.inspect('k'))?.inFlight).toBe(0));
  }, 20_000);

  test('concurrency, set back: fencing tokens still grow, and calls in flight still count', async () => {
    const api = shared({ concurrency: 2 });
    const first = await api.tryAcquire('k');
    service.setAhead(-HOUR);
    const second = await api.tryAcquire('k');
    const tokens = [first, second].map((one) => (one.verdict === 'allow' && one.fencingToken) || 0);
    expect(tokens[1]).toBeGreaterThan(tokens[0]);
    expect((await api.check('k', 1, { willSettle: true })).verdict).toBe('deny');
  });
});
