/** Other ways to share through Redis: one line for all, permits taken ahead, calls in flight. */

import { describe, expect, test, vi } from 'vitest';
import { redisFixture } from '../../../test/support/own-redis.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisServer } from '../../../test/support/services.ts';
import { guard } from '../../adapters/http/guard.ts';
import { prometheus } from '../../adapters/metrics/prometheus.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { type RedisOptions, redis } from './backend.ts';

const perSecond = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('shared through Redis by %s', (_name, connect) => {
  const stage = redisFixture(connect);

  function shared(
    limit: Limit,
    options: RedisOptions = {},
    from = stage.firstClient,
  ): RemoteLimiter {
    const api = limiter({ name: 'api', limit, backend: redis(from.client, options) });
    stage.limiters.push(api);
    return api;
  }

  const calls = (): number => {
    const stats = stage.cli('INFO', 'commandstats');
    return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0);
  };

  test('one backend serves several limits, each by its own rule', async () => {
    const backend = redis(stage.firstClient.client);
    const small = limiter({ name: 'small', limit: perSecond(0.1, 1), backend });
    const large = limiter({ name: 'large', limit: perSecond(0.1, 9), backend });
    stage.limiters.push(small, large);
    expect(await small.check('x')).toEqual({ verdict: 'allow', remaining: 0 });
    expect(await large.check('x')).toEqual({ verdict: 'allow', remaining: 8 });
    expect((await small.check('x')).verdict).toBe('deny');
  });

  test('waiting fairly: one line for all, in the order of arrival, a call for a permit', async () => {
    const limit = { spacing: { every: 20 } } as const;
    const pair = [stage.firstClient, stage.secondClient].map((from) =>
      shared(limit, { fairQueue: true }, from),
    );
    const order: number[] = [];
    const enter = async (n: number): Promise<void> => {
      const entry = await pair[n % 2].acquire('token');
      if (entry.verdict === 'allow') order.push(n);
    };
    await enter(0); // both listen from here on
    await enter(1);
    const waiting: Promise<void>[] = [];
    const before = calls();
    for (let n = 2; n < 82; n++) {
      waiting.push(enter(n));
      await pair[n % 2].inspect('another'); // what was sent before has arrived
    }
    const joined = calls();
    await Promise.all(waiting);
    expect(order).toEqual(Array.from({ length: 82 }, (_, n) => n));
    expect(joined - before).toBeLessThanOrEqual(2 * 80 + 20);
    expect((calls() - joined) / 80).toBeLessThan(2);
    expect(pair.map((api) => api.stats().waiting)).toEqual([0, 0]);
  }, 20_000);

  test('who gives up leaves the line, and who crashed is skipped', async () => {
    const limit = { spacing: { every: 400 } } as const;
    const [a, b] = [stage.firstClient, stage.secondClient].map((from) =>
      shared(limit, { fairQueue: true }, from),
    );
    await Promise.all([a.acquire('token'), b.acquire('token')]);
    // Somebody whose process is gone stands first, and is heard of no more.
    stage.cli('RPUSH', 'sluice:{api:token}:spacing:line', 'ghost/1/1');
    const giveUp = new AbortController();
    const leaving = a.acquire('token', 1, { signal: giveUp.signal });
    const impatient = a.acquire('token', 1, { wait: 20 });
    const staying = b.acquire('token');
    giveUp.abort(new Error('enough'));
    await expect(leaving).rejects.toThrow('enough');
    expect(await impatient).toMatchObject({ verdict: 'deny', reason: 'too-long' });
    expect((await staying).verdict).toBe('allow');
    expect(stage.cli('LLEN', 'sluice:{api:token}:spacing:line')).toBe('0');
  }, 20_000);

  test('calls in flight are counted over all processes, and waited for', async () => {
    const limit = { concurrency: 3 } as const;
    const [a, b] = [stage.firstClient, stage.secondClient].map((from) => shared(limit, {}, from));
    const held = [await a.acquire('sink'), await b.acquire('sink', 2)];
    expect((await a.tryAcquire('sink')).verdict).toBe('deny');
    expect(await b.inspect('sink')).toMatchObject({ inFlight: 3, limit: 3, remaining: 0 });
    expect((await a.tryAcquire('sink', 4)).verdict).toBe('deny');
    const waiting = a.acquire('sink');
    for (const permit of held) if (permit.verdict === 'allow') permit.settle();
    const permit = await waiting;
    expect(permit.verdict).toBe('allow');
    if (permit.verdict === 'allow') permit.settle();
    await vi.waitFor(async () => expect((await b.inspect('sink'))?.inFlight).toBe(0));
  });

  test('who waits for a call far away looks less and less often, and hears of one here at once', async () => {
    const api = shared({ concurrency: 1 });
    const held = await api.acquire('sink');
    const before = calls();
    const waiting = api.acquire('sink');
    await new Promise((later) => setTimeout(later, 1000));
    expect(calls() - before).toBeGreaterThan(3);
    expect(calls() - before).toBeLessThan(15);
    const looked = calls();
    await vi.waitFor(() => expect(calls()).toBeGreaterThan(looked), { interval: 5 });
    await api.inspect('another'); // it has its answer, and looks again in 125 to 250 ms
    const asked = calls();
    const since = performance.now();
    if (held.verdict === 'allow') held.settle();
    expect((await waiting).verdict).toBe('allow');
    expect(performance.now() - since).toBeLessThan(100); // before the next look
    expect(calls() - asked).toBeLessThanOrEqual(2);
  });

  test('calls in flight, waited for fairly: in the order of arrival, and nobody looks', async () => {
    const limit = { concurrency: 2 } as const;
    const pair = [stage.firstClient, stage.secondClient].map((from) =>
      shared(limit, { fairQueue: true }, from),
    );
    const held = await Promise.all(pair.map((api) => api.acquire('sink')));
    const order: number[] = [];
    const enter = async (n: number): Promise<void> => {
      const entry = await pair[n % 2].acquire('sink');
      order.push(n);
      await new Promise((later) => setTimeout(later, 5));
      if (entry.verdict === 'allow') entry.settle();
    };
    const waiting: Promise<void>[] = [];
    for (let n = 0; n < 40; n++) {
      waiting.push(enter(n));
      await pair[n % 2].inspect('another'); // what was sent before has arrived
    }
    const quiet = calls();
    await new Promise((later) => setTimeout(later, 500));
    expect(calls() - quiet).toBeLessThanOrEqual(2); // a beat, at most
    const since = performance.now();
    for (const permit of held) if (permit.verdict === 'allow') permit.settle();
    await Promise.all(waiting);
    expect(order).toEqual(Array.from({ length: 40 }, (_, n) => n));
    expect((calls() - quiet) / 40).toBeLessThan(3); // to ask, to settle, and a beat now and then
    expect(performance.now() - since).toBeLessThan(1000); // no place waited for a beat
    expect(pair.map((api) => api.stats().waiting)).toEqual([0, 0]);
    await vi.waitFor(async () => expect((await pair[0].inspect('sink'))?.inFlight).toBe(0));
  }, 20_000);

  test('waiting fairly for calls in flight: who crashed holds nobody up, and who asks too much is told', async () => {
    const api = shared({ concurrency: 2 }, { fairQueue: true });
    const [seconds, micros] = stage.cli('TIME').split('\n').map(Number);
    const endsAt = seconds * 1000 + micros / 1000 + 300;
    stage.cli('ZADD', 'sluice:{api:sink}:concurrency', String(endsAt), 'ghost/1#1');
    stage.cli('RPUSH', 'sluice:{api:sink}:concurrency:line', 'ghost/2/1');
    const permit = await api.acquire('sink', 2, { wait: 8000 });
    expect(permit.verdict).toBe('allow');
    expect((await api.inspect('sink'))?.inFlight).toBe(2);
    if (permit.verdict === 'allow') permit.settle();
    expect(await api.acquire('sink', 3)).toMatchObject({ verdict: 'deny', reason: 'never' });
    await vi.waitFor(async () => expect((await api.inspect('sink'))?.inFlight).toBe(0));
    expect(stage.cli('EXISTS', 'sluice:{api:sink}:concurrency:line')).toBe('0');
  }, 20_000);

  test('a holder that crashed keeps its place only until its lease ends', async () => {
    const api = shared({ concurrency: 1 });
    const [seconds, micros] = stage.cli('TIME').split('\n').map(Number);
    const endsAt = seconds * 1000 + micros / 1000 + 300;
    stage.cli('ZADD', 'sluice:{api:sink}:concurrency', String(endsAt), 'ghost/1#1');
    expect((await api.tryAcquire('sink')).verdict).toBe('deny');
    expect((await api.acquire('sink', 1, { wait: 5000 })).verdict).toBe('allow');
  });

  test('while Redis is away, calls in flight are counted here, and settled here', async () => {
    const whole = shared({ concurrency: 2 }, { deadline: 50 });
    const half = shared({ concurrency: 4 }, { deadline: 50, processes: 2 });
    const few = shared({ concurrency: 2 }, { deadline: 50, processes: 8 });
    await Promise.all([whole, half, few].map((api) => api.inspect('sink')));
    stage.service.pause();
    try {
      for (const api of [whole, half, few]) {
        for (let n = 0; n < 3; n++) {
          const held = [await api.tryAcquire('sink'), await api.tryAcquire('sink')];
          expect(held.map(({ verdict }) => verdict)).toEqual(['allow', 'allow']);
          expect((await api.tryAcquire('sink')).verdict).toBe('deny');
          for (const permit of held) if (permit.verdict === 'allow') permit.settle();
        }
        expect((await api.check('sink')).verdict).toBe('allow');
        expect(await api.takeUpTo('sink', 5)).toBe(1);
        await api.settle('sink');
        await api.giveBack('sink', 1);
        expect(await api.takeUpTo('sink', 0)).toBe(0);
        expect((await api.acquire('sink', 2)).verdict).toBe('allow');
      }
      await new Promise((later) => setTimeout(later, 100)); // what was sent before is late by now
    } finally {
      stage.service.resume();
    }
    await vi.waitFor(() => expect(whole.stats().isAvailable).toBe(true), { timeout: 3000 });
    expect((await whole.inspect('sink'))?.inFlight).toBe(0);
  });

  test('permits taken ahead are spent here, and the rest is given back', async () => {
    const [a, b] = [50, 50].map((prefetch, n) =>
      shared(perSecond(0.01, 200), { prefetch }, n ? stage.secondClient : stage.firstClient),
    );
    const before = calls();
    for (let n = 0; n < 45; n++) expect((await a.check('x')).verdict).toBe('allow');
    expect(calls() - before).toBe(1);
    await b.check('x', 10);
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBe(100);
    await a.close();
    await b.close();
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBe(145);
  });

  test('permits taken ahead are never those of whoever stands in while Redis is away', async () => {
    const api = shared(perSecond(0.01, 4), { deadline: 50, prefetch: 2 });
    await api.tryAcquire('y', 4);
    stage.service.pause();
    try {
      const answers = [];
      for (let n = 0; n < 5; n++) answers.push((await api.check('x')).verdict);
      expect(answers).toEqual(['allow', 'allow', 'allow', 'allow', 'deny']);
      expect(api.stats().fallback).toBe(5);
    } finally {
      stage.service.resume();
    }
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
  });

  test('permits on their way when the limiter is closed are given back', async () => {
    const api = shared(perSecond(0.01, 200), { prefetch: 50 });
    await api.inspect('x');
    const asking = api.check('x');
    await api.close();
    await asking;
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBeGreaterThanOrEqual(
      199,
    );
  });

  test('a permit that was taken ahead says when it was good', async () => {
    const api = shared(perSecond(0.01, 200), { prefetch: 50 });
    const since = Date.now();
    const permit = await api.tryAcquire('x');
    expect(permit.verdict === 'allow' && permit.dueAt).toBeGreaterThan(since - 1000);
  });

  test('permits taken ahead never add up to more than there are', async () => {
    const pair = [stage.firstClient, stage.secondClient].map((from) =>
      shared(perSecond(0.01, 100), { prefetch: 30 }, from),
    );
    const answers = await Promise.all(
      Array.from({ length: 300 }, (_, n) => pair[n % 2].check('x', 1 + (n % 3))),
    );
    const served = answers
      .map(({ verdict }, n) => (verdict === 'allow' ? 1 + (n % 3) : 0))
      .reduce((sum: number, cost) => sum + cost, 0);
    expect(served).toBeLessThanOrEqual(100);
    expect(served).toBeGreaterThan(90);
  });

  test('a server asks it for every request, and tells clients how they stand', async () => {
    const api = shared(perSecond(0.1, 2));
    await api.check('warm');
    const own = guard({ limiter: api, key: () => 'alice' });
    const before = calls();
    const check = async () => {
      const answer = await own.check({ headers: {} });
      return [answer.isAllowed, JSON.stringify(answer.headers)];
    };
    expect(await check()).toEqual([true, expect.stringContaining('r=1;t=10')]);
    expect(calls() - before).toBe(1);
    expect(await check()).toEqual([true, expect.stringMatching(/r=0;t=(10|9)/)]);
    const refused = await own.check({ headers: {} });
    expect(refused).toMatchObject({ isAllowed: false, status: 429 });
  });

  test('its figures are shown like any other', async () => {
    const api = shared(perSecond(0.1, 1));
    await api.check('x');
    await api.check('x');
    const text = prometheus(api).text();
    expect(text).toContain('sluice_decisions_total{limit="api",verdict="deny"} 1');
    expect(text).toContain('sluice_backend_available{limit="api"} 1');
    expect(text).not.toContain('sluice_keys{');
  });

  test('what does not go together is named', () => {
    expect(() => shared({ spacing: { every: 1 } }, { prefetch: 5 })).toThrow('backend.prefetch');
    expect(() => shared(perSecond(1, 1), { prefetch: 5, fairQueue: true })).toThrow(
      'backend.prefetch',
    );
    expect(() => shared({ all: [{ concurrency: 1 }, perSecond(1, 1)] })).toThrow('alone');
  });
});
