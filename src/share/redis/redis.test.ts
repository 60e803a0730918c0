/** A limit shared through a real Redis, by both clients people use. */

import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { redisCli, redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import { guard } from '../../adapters/http/guard.ts';
import { prometheus } from '../../adapters/metrics/prometheus.ts';
import type { ReachEvent } from '../../events.ts';
import { limiter } from '../../limiter.ts';
import type { Limit } from '../../policy/limit.ts';
import type { RemoteLimiter } from '../../remote-limiter.ts';
import { throttle } from '../../throttle.ts';
import type { RedisClient } from './client.ts';
import { type RedisOptions, redis } from './redis.ts';

interface Client {
  readonly client: RedisClient;
  end(): void;
}

async function nodeRedis(port: number): Promise<Client> {
  const client = createClient({
    socket: { port, host: '127.0.0.1', reconnectStrategy: 50 },
    disableOfflineQueue: true,
  });
  client.on('error', () => {}); // an outage is told by the limiter
  await client.connect();
  return { client, end: () => client.destroy() };
}

async function ioRedis(port: number): Promise<Client> {
  const client = new Redis(port, '127.0.0.1', {
    retryStrategy: () => 50,
    maxRetriesPerRequest: 1,
    lazyConnect: true,
  });
  client.on('error', () => {});
  await client.connect();
  return { client, end: () => client.disconnect() };
}

const perSecond = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('shared through Redis by %s', (_name, connect) => {
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

  function shared(limit: Limit, options: RedisOptions = {}, from = own): RemoteLimiter {
    const api = limiter({ name: 'api', limit, share: redis(from.client, options) });
    made.push(api);
    return api;
  }

  const calls = (): number => {
    const stats = redisCli(service.port, 'INFO', 'commandstats');
    return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0);
  };

  test('two processes have one count', async () => {
    const [a, b] = [shared(perSecond(0.1, 3)), shared(perSecond(0.1, 3), {}, other)];
    expect(await a.ask('alice', 2)).toEqual({ verdict: 'allow', remaining: 1 });
    expect(await b.ask('alice')).toEqual({ verdict: 'allow', remaining: 0 });
    const refused = await a.ask('alice');
    expect(refused).toMatchObject({ verdict: 'deny' });
    expect(await b.ask('bob')).toEqual({ verdict: 'allow', remaining: 2 });
    expect(await a.ask('alice', 4)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    expect(a.stats()).toMatchObject({ allowed: 1, denied: 2, isReachable: true, makeshift: 0 });
  });

  test('one share serves several limits, each by its own rule', async () => {
    const share = redis(own.client);
    const small = limiter({ name: 'small', limit: perSecond(0.1, 1), share });
    const large = limiter({ name: 'large', limit: perSecond(0.1, 9), share });
    made.push(small, large);
    expect(await small.ask('x')).toEqual({ verdict: 'allow', remaining: 0 });
    expect(await large.ask('x')).toEqual({ verdict: 'allow', remaining: 8 });
    expect((await small.ask('x')).verdict).toBe('deny');
  });

  test('whatever is asked in one tick travels together', async () => {
    const api = shared(perSecond(1000, 100));
    await api.ask('warm'); // the script is known from here on
    const before = calls();
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, n) => api.ask(`key ${n % 20}`)),
    );
    expect(answers.filter(({ verdict }) => verdict === 'allow').length).toBe(200);
    expect(calls() - before).toBe(1);
  });

  test('what was not used comes back; a batch takes what there is', async () => {
    const api = shared(perSecond(0.1, 10));
    const permit = await api.tryAcquire('llm', 8);
    if (permit.verdict === 'allow') permit.settle({ used: 3 });
    await vi.waitFor(async () => expect((await api.inspect('llm'))?.remaining).toBe(7));
    expect(await api.take('llm', Infinity)).toBe(7);
    await api.give('llm', 4);
    expect((await api.inspect('llm'))?.remaining).toBe(4);
    await api.hear('llm', { hits: 5 });
    expect(await api.inspect('llm')).toMatchObject({ remaining: -1, by: 'api' });
  });

  test('several rules at once: all or nothing, in one trip', async () => {
    const limit = { all: [perSecond(0.1, 2), { spacing: { every: 1 } }] };
    const api = shared(limit);
    expect((await api.ask('x')).verdict).toBe('allow');
    await new Promise((later) => setTimeout(later, 5));
    expect((await api.ask('x')).verdict).toBe('allow');
    await new Promise((later) => setTimeout(later, 5));
    expect((await api.ask('x')).verdict).toBe('deny');
    expect((await api.inspect('x'))?.rules).toHaveLength(2);
  });

  test('places are reserved ahead, counted, and given back', async () => {
    const api = shared({ spacing: { every: '10s', reserve: 2 } });
    expect((await api.ask('token')).verdict).toBe('allow');
    const first = await api.ask('token');
    const second = await api.ask('token');
    expect([first.verdict, second.verdict]).toEqual(['wait', 'wait']);
    expect((await api.inspect('token'))?.reserved).toBe(2);
    expect((await api.ask('token')).verdict).toBe('deny');
  });

  test('those who wait have their turn, in both processes, and never too close', async () => {
    const limit = { spacing: { every: 20 } } as const;
    const [a, b] = [shared(limit), shared(limit, {}, other)];
    const entries = await Promise.all(
      Array.from({ length: 20 }, (_, n) => (n % 2 ? a : b).acquire('token')),
    );
    const times = entries
      .map((entry) => (entry.verdict === 'allow' ? entry.dueAt : Number.NaN))
      .sort((x, y) => x - y);
    const gaps = times.slice(1).map((at, n) => at - times[n]);
    expect(Math.min(...gaps)).toBeGreaterThanOrEqual(20 - 1e-6);
    expect([a.stats().waiting, b.stats().waiting]).toEqual([0, 0]);
  });

  test('those who reserved ahead have their turn, too', async () => {
    const api = shared({ spacing: { every: 20, reserve: 50 } });
    const since = performance.now();
    const entries = await Promise.all(Array.from({ length: 10 }, () => api.acquire('token')));
    expect(entries.every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(performance.now() - since).toBeGreaterThanOrEqual(9 * 20);
  });

  test('patience ends, and an abort gives the place back', async () => {
    const api = shared({ spacing: { every: '1h', reserve: 1 } });
    await api.ask('token');
    expect(await api.acquire('token', 1, { maxWaitMs: 1000 })).toMatchObject({
      verdict: 'deny',
      reason: 'too-long',
    });
    const giveUp = new AbortController();
    const waiting = api.acquire('token', 1, { signal: giveUp.signal });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(1));
    giveUp.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    expect(api.stats()).toMatchObject({ waiting: 0, left: 1 });
  });

  test('a wrapped function asks Redis', async () => {
    const call = throttle(async (n: number) => n * 2, {
      limit: perSecond(0.1, 1),
      share: redis(own.client),
    });
    expect(await call(4)).toBe(8);
    await expect(call(5)).rejects.toMatchObject({ code: 'DENIED' });
  });

  test('keys expire by themselves', async () => {
    const api = shared(perSecond(50, 2));
    await api.ask('x');
    const ttl = Number(redisCli(service.port, 'PTTL', 'sluice:{api:x}'));
    expect(ttl).toBeGreaterThan(0);
    expect(ttl).toBeLessThanOrEqual(22);
    await vi.waitFor(() => expect(redisCli(service.port, 'DBSIZE')).toBe('0'));
  });

  test('a Redis that forgot the script, or everything, goes on', async () => {
    const api = shared(perSecond(0.1, 5));
    await api.ask('x');
    redisCli(service.port, 'SCRIPT', 'FLUSH');
    expect(await api.ask('x')).toEqual({ verdict: 'allow', remaining: 3 });
    redisCli(service.port, 'FLUSHALL');
    expect(await api.ask('x')).toEqual({ verdict: 'allow', remaining: 4 });
    expect(api.stats().makeshift).toBe(0);
  });

  test('a Redis that stands still costs one deadline, and is taken back when it goes on', async () => {
    const api = shared(perSecond(0.1, 5), { deadline: 80, onUnavailable: 'deny' });
    const reached: boolean[] = [];
    api.on((event) => event.type === 'reach' && reached.push((event as ReachEvent).isReachable));
    await api.ask('x');
    service.pause();
    try {
      const first = performance.now();
      expect((await api.ask('x')).verdict).toBe('deny');
      expect(performance.now() - first).toBeGreaterThanOrEqual(75);
      const then = performance.now();
      for (let n = 0; n < 100; n++) expect((await api.ask('x')).verdict).toBe('deny');
      expect(performance.now() - then).toBeLessThan(75);
    } finally {
      service.resume();
    }
    const back = performance.now();
    await vi.waitFor(() => expect(api.stats().isReachable).toBe(true), { timeout: 3000 });
    expect(performance.now() - back).toBeLessThan(1500);
    expect((await api.ask('x')).verdict).toBe('allow');
    expect(reached).toEqual([false, true]);
    expect(api.stats().makeshift).toBe(101);
  });

  test('what stands in while Redis is away is what was asked for', async () => {
    const local = shared(perSecond(0.1, 4), { deadline: 50, processes: 2 });
    const open = shared(perSecond(0.1, 1), { deadline: 50, onUnavailable: 'allow' });
    const strict = shared({ spacing: { every: '1s' } }, { deadline: 50 });
    await Promise.all([local.ask('x'), open.ask('y'), strict.ask('z')]);
    service.pause();
    try {
      const verdicts = async (api: RemoteLimiter) => {
        const answers = [await api.ask('x'), await api.ask('x'), await api.ask('x')];
        return answers.map(({ verdict }) => verdict).join(' ');
      };
      expect(await verdicts(local)).toBe('allow allow deny'); // half of four
      expect(await verdicts(open)).toBe('allow allow allow');
      expect(await verdicts(strict)).toBe('deny deny deny');
    } finally {
      service.resume();
    }
    await vi.waitFor(() => expect(strict.stats().isReachable).toBe(true), { timeout: 3000 });
  });

  test('waiting fairly: one line for all, in the order of arrival, a call for a permit', async () => {
    const limit = { spacing: { every: 20 } } as const;
    const pair = [own, other].map((from) => shared(limit, { fair: true }, from));
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
    const [a, b] = [own, other].map((from) => shared(limit, { fair: true }, from));
    await Promise.all([a.acquire('token'), b.acquire('token')]);
    // Somebody whose process is gone stands first, and is heard of no more.
    redisCli(service.port, 'RPUSH', 'sluice:{api:token}:line', 'ghost/1/1');
    const giveUp = new AbortController();
    const leaving = a.acquire('token', 1, { signal: giveUp.signal });
    const impatient = a.acquire('token', 1, { maxWaitMs: 20 });
    const staying = b.acquire('token');
    giveUp.abort(new Error('enough'));
    await expect(leaving).rejects.toThrow('enough');
    expect(await impatient).toMatchObject({ verdict: 'deny', reason: 'too-long' });
    expect((await staying).verdict).toBe('allow');
    expect(redisCli(service.port, 'LLEN', 'sluice:{api:token}:line')).toBe('0');
  }, 20_000);

  test('calls in flight are counted over all processes, and waited for', async () => {
    const limit = { adaptive: { fixed: 3 } } as const;
    const [a, b] = [own, other].map((from) => shared(limit, {}, from));
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

  test('a holder that crashed keeps its place only until its lease ends', async () => {
    const api = shared({ adaptive: { fixed: 1 } });
    const [seconds, micros] = redisCli(service.port, 'TIME').split('\n').map(Number);
    const endsAt = seconds * 1000 + micros / 1000 + 300;
    redisCli(service.port, 'ZADD', 'sluice:{api:sink}', String(endsAt), 'ghost/1#1');
    expect((await api.tryAcquire('sink')).verdict).toBe('deny');
    expect((await api.acquire('sink', 1, { maxWaitMs: 5000 })).verdict).toBe('allow');
  });

  test('permits taken ahead are spent here, and the rest is given back', async () => {
    const [a, b] = [50, 50].map((lease, n) =>
      shared(perSecond(0.01, 200), { lease }, n ? other : own),
    );
    const before = calls();
    for (let n = 0; n < 45; n++) expect((await a.ask('x')).verdict).toBe('allow');
    expect(calls() - before).toBe(1);
    await b.ask('x', 10);
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBe(100);
    await a.close();
    await b.close();
    expect((await shared(perSecond(0.01, 200)).inspect('x'))?.remaining).toBe(145);
  });

  test('permits taken ahead never add up to more than there are', async () => {
    const pair = [own, other].map((from) => shared(perSecond(0.01, 100), { lease: 30 }, from));
    const answers = await Promise.all(
      Array.from({ length: 300 }, (_, n) => pair[n % 2].ask('x', 1 + (n % 3))),
    );
    const served = answers
      .map(({ verdict }, n) => (verdict === 'allow' ? 1 + (n % 3) : 0))
      .reduce((sum: number, cost) => sum + cost, 0);
    expect(served).toBeLessThanOrEqual(100);
    expect(served).toBeGreaterThan(90);
  });

  test('a server asks it for every request, and tells clients how they stand', async () => {
    const api = shared(perSecond(0.1, 2));
    await api.ask('warm');
    const own = guard({ limiter: api, key: () => 'alice' });
    const before = calls();
    const check = async () => {
      const answer = await own.check({ headers: {} });
      return [answer.go, JSON.stringify(answer.headers)];
    };
    expect(await check()).toEqual([true, expect.stringContaining('r=1;t=10')]);
    expect(calls() - before).toBe(1);
    expect(await check()).toEqual([true, expect.stringMatching(/r=0;t=(10|9)/)]);
    const refused = await own.check({ headers: {} });
    expect(refused).toMatchObject({ go: false, status: 429 });
  });

  test('its figures are shown like any other', async () => {
    const api = shared(perSecond(0.1, 1));
    await api.ask('x');
    await api.ask('x');
    const text = prometheus(api).text();
    expect(text).toContain('sluice_decisions_total{limit="api",verdict="deny"} 1');
    expect(text).toContain('sluice_reachable{limit="api"} 1');
    expect(text).not.toContain('sluice_keys{');
  });

  test('nonsense is named', () => {
    expect(() => shared({ spacing: { every: 1 } }, { lease: 5 })).toThrow('share.lease');
    expect(() => redis({} as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(own.client, { deadlin: 5 } as never)).toThrow('share.deadlin');
    expect(() => shared({ adaptive: {} })).toThrow('made of bucket, spacing, ramp');
  });
});
