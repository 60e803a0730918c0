import { describe, expect, test, vi } from 'vitest';
import { whilePaused } from '../../../test/support/paused.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import { requestLimiter } from '../../adapters/http/request-limiter.ts';
import { prometheus } from '../../adapters/metrics/prometheus.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import type { Limit } from '../../policies/limit.ts';
import { HEARTBEAT_MS } from './fair-queue.ts';
import { type RedisOptions, redis } from './options.ts';

const perSecond = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('redis backend by %s', (_name, connect) => {
  const fixture = redisFixture(connect);

  function shared(
    limit: Limit,
    options: RedisOptions = {},
    from = fixture.firstClient,
  ): RemoteLimiter {
    const backend = redis(from.client, { deadline: '5s', ...options });
    const api = limiter({ name: 'api', limit, backend });
    fixture.limiters.push(api);
    return api;
  }

  const calls = (): number => {
    const stats = fixture.cli('INFO', 'commandstats');
    const counts = [...stats.matchAll(/cmdstat_eval(?:sha)?:calls=(\d+)/g)];
    return counts.reduce((sum, [, count]) => sum + Number(count), 0);
  };

  /** The number of heartbeats that two processes send. */
  const heartbeatsSince = (since: number): number =>
    2 * Math.ceil((performance.now() - since) / HEARTBEAT_MS);

  test('fair queue: grants across processes in order of arrival, with one call for each permit', async () => {
    const limit = { spacing: { every: 20 } } as const;
    const pair = [fixture.firstClient, fixture.secondClient].map((from) =>
      shared(limit, { fairQueue: true }, from),
    );
    const permits: { readonly n: number; readonly dueAt: number }[] = [];
    const acquire = async (n: number): Promise<void> => {
      const result = await pair[n % 2].acquire('token');
      if (result.verdict === 'allow') permits.push({ n, dueAt: result.dueAt });
    };
    await acquire(0); // both are subscribed from here on
    await acquire(1);
    const waiting: Promise<void>[] = [];
    const [before, since] = [calls(), performance.now()];
    for (let n = 2; n < 82; n++) {
      waiting.push(acquire(n));
      await pair[n % 2].inspect('another'); // a barrier: earlier commands have arrived
    }
    await Promise.all(waiting);
    const order = permits.toSorted((a, b) => a.dueAt - b.dueAt).map(({ n }) => n);
    expect(order).toEqual(Array.from({ length: 82 }, (_, n) => n));
    // One call to join and one as a barrier; one for the grant; and up to twice in all if a message is late.
    expect(calls() - before).toBeLessThanOrEqual(2 * 80 + 2 * 80 + 20 + heartbeatsSince(since));
    expect(pair.map((api) => api.stats().waiting)).toEqual([0, 0]);
  });

  test('fair queue: a waiter that aborts or times out leaves, and a crashed process is skipped', async () => {
    const limit = { spacing: { every: 400 } } as const;
    const [a, b] = [fixture.firstClient, fixture.secondClient].map((from) =>
      shared(limit, { fairQueue: true }, from),
    );
    await Promise.all([a.acquire('token'), b.acquire('token')]);
    // The head belongs to a process without heartbeats.
    fixture.cli('RPUSH', 'sluice:{api:token}:spacing:queue', 'ghost/1/1');
    const controller = new AbortController();
    const leaving = a.acquire('token', 1, { signal: controller.signal });
    const expiring = a.acquire('token', 1, { wait: 20 });
    const remaining = b.acquire('token');
    controller.abort(new Error('aborted'));
    await expect(leaving).rejects.toThrow('aborted');
    expect(await expiring).toMatchObject({ verdict: 'deny', reason: 'too-long' });
    expect((await remaining).verdict).toBe('allow');
    expect(fixture.cli('LLEN', 'sluice:{api:token}:spacing:queue')).toBe('0');
  });

  test('concurrency limit with fair queue: grants in order of arrival, without polling', async () => {
    const limit = { concurrency: 2 } as const;
    const pair = [fixture.firstClient, fixture.secondClient].map((from) =>
      shared(limit, { fairQueue: true }, from),
    );
    const held = await Promise.all(pair.map((api) => api.acquire('sink')));
    const order: number[] = [];
    const acquire = async (n: number): Promise<void> => {
      const result = await pair[n % 2].acquire('sink');
      order.push(n);
      await new Promise((resolve) => setTimeout(resolve, 5));
      if (result.verdict === 'allow') result.settle();
    };
    const waiting: Promise<void>[] = [];
    for (let n = 0; n < 40; n++) {
      waiting.push(acquire(n));
      await pair[n % 2].inspect('another'); // a barrier: earlier commands have arrived
    }
    const since = performance.now();
    const quiet = calls();
    await new Promise((resolve) => setTimeout(resolve, 400));
    const sent = calls() - quiet;
    expect(sent).toBeLessThanOrEqual(heartbeatsSince(since));
    for (const permit of held) if (permit.verdict === 'allow') permit.settle();
    await Promise.all(waiting);
    expect(order).toEqual(Array.from({ length: 40 }, (_, n) => n));
    expect(calls() - quiet).toBeLessThan(2.5 * 40 + heartbeatsSince(since)); // request and settle
    expect(pair.map((api) => api.stats().waiting)).toEqual([0, 0]);
    await vi.waitFor(async () => expect((await pair[0].inspect('sink'))?.inFlight).toBe(0));
  });

  test('concurrency limit with fair queue: skips crashed processes, and refuses a cost above the limit for good', async () => {
    const api = shared({ concurrency: 2 }, { fairQueue: true });
    const [seconds, micros] = fixture.cli('TIME').split('\n').map(Number);
    const endsAt = seconds * 1000 + micros / 1000 + 300;
    fixture.cli('ZADD', 'sluice:{api:sink}:concurrency', String(endsAt), 'ghost/1#1');
    fixture.cli('RPUSH', 'sluice:{api:sink}:concurrency:queue', 'ghost/2/1');
    const permit = await api.acquire('sink', 2, { wait: '30s' });
    expect(permit.verdict).toBe('allow');
    expect((await api.inspect('sink'))?.inFlight).toBe(2);
    if (permit.verdict === 'allow') permit.settle();
    expect(await api.acquire('sink', 3)).toMatchObject({ verdict: 'deny', reason: 'never' });
    await vi.waitFor(async () => expect((await api.inspect('sink'))?.inFlight).toBe(0));
    expect(fixture.cli('EXISTS', 'sluice:{api:sink}:concurrency:queue')).toBe('0');
  });

  test('concurrency limit: capacity of a crashed process is free when its lease expires', async () => {
    const api = shared({ concurrency: 1 });
    const leaseFor = (ms: number): unknown => {
      const [seconds, micros] = fixture.cli('TIME').split('\n').map(Number);
      const endsAt = seconds * 1000 + micros / 1000 + ms;
      return fixture.cli('ZADD', 'sluice:{api:sink}:concurrency', String(endsAt), 'ghost/1#1');
    };
    leaseFor(60_000);
    expect((await api.tryAcquire('sink')).verdict).toBe('deny');
    leaseFor(200);
    expect((await api.acquire('sink', 1, { wait: '1m' })).verdict).toBe('allow');
  });

  test('concurrency limit: during an outage, calls in flight are counted and settled locally', async () => {
    const whole = shared({ concurrency: 2 }, { deadline: OUTAGE_DEADLINE_MS });
    const half = shared({ concurrency: 4 }, { deadline: OUTAGE_DEADLINE_MS, processes: 2 });
    const few = shared({ concurrency: 2 }, { deadline: OUTAGE_DEADLINE_MS, processes: 8 });
    await Promise.all([whole, half, few].map((api) => api.inspect('sink')));
    const running: (Permit | Refusal)[] = [];
    await whilePaused(fixture.service, async () => {
      for (const api of [whole, half, few]) {
        for (let n = 0; n < 3; n++) {
          const held = [await api.tryAcquire('sink'), await api.tryAcquire('sink')];
          expect(held.map(({ verdict }) => verdict)).toEqual(['allow', 'allow']);
          expect((await api.tryAcquire('sink')).verdict).toBe('deny');
          for (const permit of held) if (permit.verdict === 'allow') permit.settle();
        }
        expect((await api.check('sink', 1, { willSettle: true })).verdict).toBe('allow');
        expect(await api.takeUpTo('sink', 5)).toBe(1);
        await api.settle('sink');
        await api.giveBack('sink', 1);
        expect(await api.takeUpTo('sink', 0)).toBe(0);
        running.push(await api.acquire('sink', 2));
      }
      expect(running.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow']);
      await new Promise((resolve) => setTimeout(resolve, 100)); // commands sent before are late by now
    });
    const inFlight = async () => (await whole.inspect('sink'))?.inFlight;
    await vi.waitFor(async () => expect(await inFlight()).toBe(2)); // all of the limit
    const areBack = () => [whole, half, few].every((api) => api.stats().isAvailable);
    await vi.waitFor(() => expect(areBack()).toBe(true));
    for (const permit of running) if (permit.verdict === 'allow') permit.settle();
    await vi.waitFor(async () => expect(await inFlight()).toBe(0));
  });

  test('prefetch: tokens are spent locally, and close returns the rest', async () => {
    const [a, b] = [50, 50].map((prefetch, n) =>
      shared(perSecond(0.01, 200), { prefetch }, n ? fixture.secondClient : fixture.firstClient),
    );
    await a.inspect('x'); // Redis's clock is known from here on
    const before = calls();
    for (let n = 0; n < 45; n++) expect((await a.check('x')).verdict).toBe('allow');
    expect(calls() - before).toBe(1);
    await b.check('x', 10);
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBe(100);
    await a.close();
    await b.close();
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBe(145);
  });

  test('prefetch: takes no tokens from the fallback during an outage', async () => {
    const api = shared(perSecond(0.01, 4), { deadline: OUTAGE_DEADLINE_MS, prefetch: 2 });
    await api.tryAcquire('y', 4);
    await whilePaused(fixture.service, async () => {
      const verdicts = [];
      for (let n = 0; n < 5; n++) verdicts.push((await api.check('x')).verdict);
      expect(verdicts).toEqual(['allow', 'allow', 'allow', 'allow', 'deny']);
      expect(api.stats().fallback).toBe(5);
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true));
  });

  test('prefetch: close returns the tokens of a refill in flight', async () => {
    const api = shared(perSecond(0.01, 200), { prefetch: 50 });
    await api.inspect('x');
    const checking = api.check('x');
    await api.close();
    await checking;
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBeGreaterThanOrEqual(
      199,
    );
  });

  test('prefetch: a permit carries its dueAt', async () => {
    const api = shared(perSecond(0.01, 200), { prefetch: 50 });
    const since = Date.now();
    const permit = await api.tryAcquire('x');
    expect(permit.verdict === 'allow' && permit.dueAt).toBeGreaterThan(since - 1000);
  });

  test('prefetch: concurrent processes never take more than the burst', async () => {
    const pair = [fixture.firstClient, fixture.secondClient].map((from) =>
      shared(perSecond(0.01, 100), { prefetch: 30 }, from),
    );
    const decisions = await Promise.all(
      Array.from({ length: 300 }, (_, n) => pair[n % 2].check('x', 1 + (n % 3))),
    );
    const served = decisions
      .map(({ verdict }, n) => (verdict === 'allow' ? 1 + (n % 3) : 0))
      .reduce((sum: number, cost) => sum + cost, 0);
    expect(served).toBeLessThanOrEqual(100);
    expect(served).toBeGreaterThan(90);
  });

  test('request limiter: one call for each request, and RateLimit headers', async () => {
    const api = shared(perSecond(0.1, 2));
    await api.check('warm');
    const server = requestLimiter({ limiter: api, key: () => 'alice' });
    const before = calls();
    const check = async () => {
      const response = await server.check({ headers: {} });
      return [response.isAllowed, JSON.stringify(response.headers)];
    };
    expect(await check()).toEqual([true, expect.stringContaining('r=1;t=10')]);
    expect(calls() - before).toBe(1);
    expect(await check()).toEqual([true, expect.stringMatching(/r=0;t=(10|[5-9])\b/)]);
    const refused = await server.check({ headers: {} });
    expect(refused).toMatchObject({ isAllowed: false, status: 429 });
  });

  test('prometheus: exports decisions and availability', async () => {
    const api = shared(perSecond(0.1, 1));
    await api.check('x');
    await api.check('x');
    const text = prometheus(api).text();
    expect(text).toContain('sluice_decisions_total{limit="api",verdict="deny"} 1');
    expect(text).toContain('sluice_backend_available{limit="api"} 1');
    expect(text).not.toContain('sluice_keys{');
  });

  test('options that exclude each other are refused by name', () => {
    expect(() => shared({ spacing: { every: 1 } }, { prefetch: 5 })).toThrow('backend.prefetch');
    expect(() => shared(perSecond(1, 1), { prefetch: 5, fairQueue: true })).toThrow(
      'backend.prefetch',
    );
    const reserving = { spacing: { every: 1, reserve: 2 } };
    expect(() => shared(reserving, { fairQueue: true })).toThrow(
      '`backend.fairQueue` to be false with `reserve`',
    );
  });
});
