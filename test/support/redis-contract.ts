/** The contract of a limit shared through Redis, for every supported client, one server or a cluster. */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { type RedisOptions, redis } from '../../src/backends/redis/options.ts';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import { all } from '../../src/limiter/composite-limiter.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import { Permit } from '../../src/limiter/permit.ts';
import type { Limit } from '../../src/policies/limit.ts';
import { throttle } from '../../src/throttle/throttle.ts';
import { whilePaused } from './paused.ts';
import type { RedisConnection } from './redis-clients.ts';
import { bucketLimit, remoteLimiterContract, UNHURRIED } from './remote-limiter-contract.ts';
import { redisCli, type Service } from './services.ts';
import { OUTAGE_DEADLINE_MS } from './wait-timeout.ts';

export interface RedisHarness {
  /** The servers that store keys: the single one, or the masters of a cluster. */
  servers(): readonly Service[];
  connect(): Promise<RedisConnection>;
  /** Script calls needed to check all these keys in one tick. */
  expectedRoundTrips(keys: readonly string[]): number;
  stop(): Promise<void>;
}

export { bucketLimit };

/** The name of a key in Redis, for the limit name and prefix that these tests use. */
export const redisKeyOf = (key: string, kind = 'bucket'): string => `sluice:{api:${key}}:${kind}`;

/** A cluster needs time to form. */
const MAX_HARNESS_START_MS = 60_000;

/**
 * `full` adds the contract of all remote limiters: it tests scripts and limiter, which are the same for every client, so
 * one client on one server runs it.
 */
export function redisContract(
  name: string,
  start: () => Promise<RedisHarness>,
  scope: 'full' | 'client' = 'client',
): void {
  describe(`contract with ${name}`, () => contractTests(start, scope === 'full'));
}

function contractTests(start: () => Promise<RedisHarness>, isFull: boolean): void {
  let harness: RedisHarness;
  let first: RedisConnection;
  let second: RedisConnection;
  const limiters: RemoteLimiter[] = [];

  beforeAll(async () => {
    harness = await start();
    first = await harness.connect();
    second = await harness.connect();
  }, MAX_HARNESS_START_MS);
  afterAll(async () => {
    first?.disconnect();
    second?.disconnect();
    await harness?.stop();
  });
  beforeEach(() => {
    onAllServers('FLUSHALL');
  });
  afterEach(async () => {
    for (const api of limiters.splice(0)) await api.close();
    await Promise.all([first, second].map((connection) => connection.drained?.()));
  });

  const onAllServers = (...words: string[]): string[] =>
    harness.servers().map(({ port }) => redisCli(port, ...words));

  const sumOf = (pattern: RegExp, ...words: string[]): number =>
    onAllServers(...words).reduce((sum, text) => sum + Number(pattern.exec(text)?.[1] ?? 0), 0);

  const calls = (): number => sumOf(/cmdstat_evalsha:calls=(\d+)/, 'INFO', 'commandstats');

  const whileUnavailable = (act: () => Promise<void>): Promise<void> =>
    whilePaused(harness.servers(), act);

  function shared(
    limit: Limit,
    options: RedisOptions = {},
    from = first,
    queue = {},
  ): RemoteLimiter {
    const backend = redis(from.client, { deadline: UNHURRIED.deadlineMs, ...options });
    const api = limiter({ name: 'api', limit, backend, queue });
    limiters.push(api);
    return api;
  }

  if (isFull) {
    remoteLimiterContract({
      createShared: (limit, { isSecondProcess = false, deadlineMs, queue, ...options } = {}) => {
        const deadline = deadlineMs === undefined ? {} : { deadline: deadlineMs };
        return shared(limit, { ...options, ...deadline }, isSecondProcess ? second : first, queue);
      },
      whileUnavailable,
    });
  }

  test('all checks of one tick travel as one call', async () => {
    const api = shared(bucketLimit(1000, 100));
    const keys = Array.from({ length: 20 }, (_, n) => `key ${n}`);
    for (const key of keys) await api.check(key); // every server has the script from here on
    const before = calls();
    const checks = Array.from({ length: 200 }, (_, n) => api.check(keys[n % keys.length]));
    const decisions = await Promise.all(checks);
    expect(decisions.filter(({ verdict }) => verdict === 'allow').length).toBe(200);
    expect(calls() - before).toBe(harness.expectedRoundTrips(keys));
  });

  test('a composite limit is decided all or nothing, in one round trip', async () => {
    const limit = { all: [bucketLimit(0.1, 2), { spacing: { every: 1 } }] };
    const api = shared(limit);
    expect((await api.check('x')).verdict).toBe('allow');
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect((await api.check('x')).verdict).toBe('allow');
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect((await api.check('x')).verdict).toBe('deny');
    expect((await api.inspect('x'))?.rules).toHaveLength(2);
  });

  test('spacing: a waiter is granted the next permit ahead and starts when it is due', async () => {
    const api = shared({ spacing: { every: 40 } });
    const lateness: number[] = [];
    const dueAt: number[] = [];
    const gaps = () => dueAt.slice(1).map((at, n) => at - dueAt[n]);
    // Permits granted ahead lose no time to timers or the round trip: they are exactly one interval apart, where the
    // machine does not delay the request. None would be by chance.
    while (dueAt.length < 8 || Math.min(...gaps()) >= 40.01) {
      const result = await api.acquire('token');
      if (result.verdict !== 'allow') continue;
      dueAt.push(result.dueAt);
      lateness.push(performance.timeOrigin + performance.now() - result.dueAt);
    }
    expect(Math.min(...gaps())).toBeGreaterThanOrEqual(40 - 1e-3);
    expect(Math.min(...lateness)).toBeGreaterThan(-1); // two readings of one clock
  });

  test('checks that reach Redis after their deadline take nothing', async () => {
    const api = shared({ spacing: { every: '10s', reserve: 20 } }, { deadline: 50 });
    await api.check('token');
    await whileUnavailable(async () => {
      const checks = Array.from({ length: 10 }, () => api.check('token'));
      const decisions = await Promise.all(checks);
      expect(decisions.every(({ verdict }) => verdict === 'deny')).toBe(true);
      await new Promise((resolve) => setTimeout(resolve, 100)); // longer than deadline and round trip
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true));
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(0));
  });

  test('throttle decides through Redis', async () => {
    const call = throttle(async (n: number) => n * 2, {
      limit: bucketLimit(0.1, 1),
      backend: redis(first.client, { deadline: UNHURRIED.deadlineMs }),
    });
    expect(await call(4)).toBe(8);
    await expect(call(5)).rejects.toMatchObject({ code: 'DENIED' });
  });

  test('keys expire when they are removable', async () => {
    await shared(bucketLimit(0.02, 2)).check('slow');
    await shared(bucketLimit(20, 2)).check('x');
    const { port } = harness.servers()[0];
    const ttl = Number(redisCli(port, '-c', 'PTTL', redisKeyOf('slow')));
    expect(ttl).toBeGreaterThan(40_000);
    expect(ttl).toBeLessThanOrEqual(50_002);
    const isStored = (key: string) =>
      redisCli(port, '-c', 'EXISTS', redisKeyOf(key)).trim() === '1';
    await vi.waitFor(() => expect([isStored('slow'), isStored('x')]).toEqual([true, false])); // after 50 ms
  });

  test('SCRIPT FLUSH and FLUSHALL cause no outage', async () => {
    const api = shared(bucketLimit(0.1, 5));
    await api.check('x');
    onAllServers('SCRIPT', 'FLUSH');
    expect(await api.check('x')).toEqual({ verdict: 'allow', remaining: 3 });
    onAllServers('FLUSHALL');
    expect(await api.check('x')).toEqual({ verdict: 'allow', remaining: 4 });
    expect(api.stats().fallback).toBe(0);
  });

  test('a process busy for longer than the deadline still reads its reply', async () => {
    const deadline = OUTAGE_DEADLINE_MS; // Redis replies before it, also on a loaded machine
    const api = shared(bucketLimit(0.1, 5), { deadline, onUnavailable: 'deny' });
    await api.check('x'); // the server of this key has the script from here on
    const before = calls();
    const checking = api.check('x');
    for (let n = 0; n < 3; n++) await new Promise<void>((resolve) => process.nextTick(resolve));
    await new Promise<void>((resolve) => setImmediate(resolve)); // sent: node-redis writes only now
    const since = performance.now();
    while (calls() === before || performance.now() - since < deadline + 50); // blocks the event loop
    expect((await checking).verdict).toBe('allow');
    expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
  });

  test('onUnavailable: deny, allow and local decide during an outage', async () => {
    const deadline = OUTAGE_DEADLINE_MS;
    const local = shared(bucketLimit(0.001, 4), { deadline, processes: 2 });
    const open = shared(bucketLimit(0.001, 1), { deadline, onUnavailable: 'allow' });
    const strict = shared({ spacing: { every: '1s' } }, { deadline });
    const key = 'key';
    for (const api of [local, open, strict]) {
      await api.check(key);
      expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
    }
    await whileUnavailable(async () => {
      const verdicts = async (api: RemoteLimiter) => {
        const decisions = [await api.check(key), await api.check(key), await api.check(key)];
        return decisions.map(({ verdict }) => verdict).join(' ');
      };
      expect(await verdicts(local)).toBe('allow deny deny'); // half of the three that are left
      expect(await verdicts(open)).toBe('allow allow allow');
      expect(await verdicts(strict)).toBe('deny deny deny');
      expect(await open.takeUpTo('x', 5)).toBe(1); // the fallback grants one at a time
      expect(await strict.takeUpTo('x', 5)).toBe(0);
    });
    await vi.waitFor(() => expect(strict.stats().isAvailable).toBe(true));
  });

  test('all: limits with other keys and costs are charged together, and a refusal charges none', async () => {
    const connections = [first, second];
    const make = (connection: RedisConnection) => {
      const backend = redis(connection.client, { deadline: 5000 });
      const user = limiter({ name: 'user', limit: bucketLimit(0.001, 3), backend });
      const total = limiter({ name: 'total', limit: bucketLimit(0.001, 10), backend });
      const flights = limiter({ name: 'flights', limit: { concurrency: 6 }, backend });
      limiters.push(user, total, flights);
      const tripled = { limiter: total, key: '*', cost: (cost: number) => 3 * cost };
      return { user, total, flights, api: all([user, tripled, { limiter: flights, cost: 2 }]) };
    };
    const [a, b] = connections.map(make);
    const permit = await a.api.tryAcquire('x');
    expect(permit).toMatchObject({ verdict: 'allow', remaining: 2 });
    expect((await b.api.check('x', 1, { willSettle: true })).verdict).toBe('allow');
    expect((await b.api.check('y', 1, { willSettle: true })).verdict).toBe('allow');
    expect(await a.api.tryAcquire('x')).toMatchObject({ verdict: 'deny', limit: 'total' });
    const left = async () => {
      const inspected = [b.user.inspect('x'), b.total.inspect('*'), b.flights.inspect('x')];
      return (await Promise.all(inspected)).map((one) => one?.remaining);
    };
    expect(await left()).toEqual([1, 1, 2]);
    if (permit instanceof Permit) permit.settle({ outcome: 'ignored' });
    await vi.waitFor(async () => expect(await left()).toEqual([2, 4, 4]));
  });

  test('invalid options are refused by name', () => {
    expect(() => redis({} as never)).toThrow('a client of node-redis, ioredis or @upstash/redis');
    expect(() => redis(null as never)).toThrow('a client of node-redis, ioredis or @upstash/redis');
    expect(() => redis(first.client, { deadlin: 5 } as never)).toThrow('backend.deadlin');
    expect(() => redis(first.client, { prefix: 'a{b}' })).toThrow('backend.prefix');
    expect(() => redis(first.client, { prefix: 5 as never })).toThrow('backend.prefix');
    expect(() => shared({ adaptive: {} })).toThrow('made of bucket, spacing, ramp');
    const window = { limit: 5, per: '1m', steps: 1000 } as const;
    expect(() => shared({ window }, { prefetch: 5 })).toThrow('backend.prefetch');
    expect(() => shared({ all: Array(4).fill({ window }) })).toThrow('windows of fewer `steps`');
  });
}
