/**
 * What holds for a limit shared through Redis, whichever client is used, for one server and for many.
 *
 * A stage is the servers and the way to them; the stories are the same on all of them.
 */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { type RedisOptions, redis } from '../../src/backends/redis/options.ts';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import { all } from '../../src/limiter/composite-limiter.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import type { Limit } from '../../src/policies/limit.ts';
import { throttle } from '../../src/throttle/throttle.ts';
import { bucketLimit, remoteLimiterContract } from './decider-contract.ts';
import type { RedisConnection } from './redis-clients.ts';
import { redisCli, type Service } from './services.ts';

export interface RedisHarness {
  /** The servers that have keys: the one, or the masters of a cluster. */
  servers(): readonly Service[];
  connect(): Promise<RedisConnection>;
  /** How many calls it takes to ask for all these keys at once. */
  expectedRoundTrips(keys: readonly string[]): number;
  stop(): Promise<void>;
}

export { bucketLimit };

/** What a key of a limit of this kind is called in Redis, with the name and the prefix the stories use. */
export const redisKeyOf = (key: string, kind = 'bucket'): string => `sluice:{api:${key}}:${kind}`;

/** How long a stage may take to stand: a cluster has to agree first. */
const MAX_HARNESS_START_MS = 60_000;

export function remoteContract(name: string, start: () => Promise<RedisHarness>): void {
  describe(`shared through ${name}`, () => contractTests(start));
}

function contractTests(start: () => Promise<RedisHarness>): void {
  let harness: RedisHarness;
  let own: RedisConnection;
  let other: RedisConnection;
  const made: RemoteLimiter[] = [];

  beforeAll(async () => {
    harness = await start();
    own = await harness.connect();
    other = await harness.connect();
  }, MAX_HARNESS_START_MS);
  afterAll(async () => {
    own?.disconnect();
    other?.disconnect();
    await harness?.stop();
  });
  beforeEach(() => {
    everywhere('FLUSHALL');
  });
  afterEach(async () => {
    for (const api of made.splice(0)) await api.close();
  });

  const everywhere = (...words: string[]): string[] =>
    harness.servers().map(({ port }) => redisCli(port, ...words));

  const sumOf = (pattern: RegExp, ...words: string[]): number =>
    everywhere(...words).reduce((sum, text) => sum + Number(pattern.exec(text)?.[1] ?? 0), 0);

  const calls = (): number => sumOf(/cmdstat_evalsha:calls=(\d+)/, 'INFO', 'commandstats');

  /** Nobody answers while this runs. */
  async function inSilence(act: () => Promise<void>): Promise<void> {
    const servers = harness.servers();
    for (const server of servers) server.pause();
    try {
      await act();
    } finally {
      for (const server of servers) server.resume();
    }
  }

  function shared(limit: Limit, options: RedisOptions = {}, from = own, queue = {}): RemoteLimiter {
    const api = limiter({ name: 'api', limit, backend: redis(from.client, options), queue });
    made.push(api);
    return api;
  }

  remoteLimiterContract({
    createShared: (limit, { isSecondProcess = false, deadlineMs, queue, ...options } = {}) => {
      const deadline = deadlineMs === undefined ? {} : { deadline: deadlineMs };
      return shared(limit, { ...options, ...deadline }, isSecondProcess ? other : own, queue);
    },
    whileUnavailable: inSilence,
    deadlineMs: 80,
  });

  test('whatever is asked in one tick travels together', async () => {
    const api = shared(bucketLimit(1000, 100));
    const keys = Array.from({ length: 20 }, (_, n) => `key ${n}`);
    for (const key of keys) await api.check(key); // the script is known everywhere from here on
    const before = calls();
    const asks = Array.from({ length: 200 }, (_, n) => api.check(keys[n % keys.length]));
    const answers = await Promise.all(asks);
    expect(answers.filter(({ verdict }) => verdict === 'allow').length).toBe(200);
    expect(calls() - before).toBe(harness.expectedRoundTrips(keys));
  });

  test('several rules at once: all or nothing, in one trip', async () => {
    const limit = { all: [bucketLimit(0.1, 2), { spacing: { every: 1 } }] };
    const api = shared(limit);
    expect((await api.check('x')).verdict).toBe('allow');
    await new Promise((later) => setTimeout(later, 5));
    expect((await api.check('x')).verdict).toBe('allow');
    await new Promise((later) => setTimeout(later, 5));
    expect((await api.check('x')).verdict).toBe('deny');
    expect((await api.inspect('x'))?.rules).toHaveLength(2);
  });

  test('a line has the next place a moment before it opens, and uses it when it does', async () => {
    const api = shared({ spacing: { every: 40 } });
    const late: number[] = [];
    const dueAt: number[] = [];
    for (let n = 0; n < 8; n++) {
      const entry = await api.acquire('token');
      if (entry.verdict !== 'allow') continue;
      dueAt.push(entry.dueAt);
      late.push(performance.timeOrigin + performance.now() - entry.dueAt);
    }
    const gaps = dueAt.slice(1).map((at, n) => at - dueAt[n]);
    expect(Math.min(...gaps)).toBeGreaterThanOrEqual(40 - 1e-3);
    // Not lost by a timer or the way: those that had a place ahead are exactly as far apart as can be.
    expect(gaps.filter((gap) => gap < 40.01).length).toBeGreaterThan(gaps.length / 2);
    expect(Math.min(...late)).toBeGreaterThan(-1); // the clocks of one machine, read apart
  });

  test('what reaches Redis too late for anybody takes nothing', async () => {
    const api = shared({ spacing: { every: '10s', reserve: 20 } }, { deadline: 50 });
    await api.check('token');
    await inSilence(async () => {
      const asks = Array.from({ length: 10 }, () => api.check('token'));
      const answers = await Promise.all(asks);
      expect(answers.every(({ verdict }) => verdict === 'deny')).toBe(true);
      await new Promise((later) => setTimeout(later, 100)); // a trip more than they had, and then some
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(0));
  });

  test('a wrapped function asks Redis', async () => {
    const call = throttle(async (n: number) => n * 2, {
      limit: bucketLimit(0.1, 1),
      backend: redis(own.client),
    });
    expect(await call(4)).toBe(8);
    await expect(call(5)).rejects.toMatchObject({ code: 'DENIED' });
  });

  test('keys expire by themselves', async () => {
    const api = shared(bucketLimit(2, 2));
    await api.check('x');
    const { port } = harness.servers()[0];
    const ttl = Number(redisCli(port, '-c', 'PTTL', redisKeyOf('x')));
    expect(ttl).toBeGreaterThan(0);
    expect(ttl).toBeLessThanOrEqual(502);
    await vi.waitFor(() => expect(sumOf(/(\d+)/, 'DBSIZE')).toBe(0), { timeout: 3000 });
  });

  test('a Redis that forgot the script, or everything, goes on', async () => {
    const api = shared(bucketLimit(0.1, 5));
    await api.check('x');
    everywhere('SCRIPT', 'FLUSH');
    expect(await api.check('x')).toEqual({ verdict: 'allow', remaining: 3 });
    everywhere('FLUSHALL');
    expect(await api.check('x')).toEqual({ verdict: 'allow', remaining: 4 });
    expect(api.stats().fallback).toBe(0);
  });

  test('a process that was busy for longer than the deadline still has its answer', async () => {
    const api = shared(bucketLimit(0.1, 5), { deadline: 50, onUnavailable: 'deny' });
    await api.check('x'); // whoever has this key knows the script from here on
    const asking = api.check('x');
    for (let n = 0; n < 3; n++) await new Promise<void>((later) => process.nextTick(later));
    await new Promise<void>((later) => setImmediate(later)); // it is on its way: node-redis writes only now
    const since = performance.now();
    while (performance.now() - since < 120); // nobody reads what comes
    expect((await asking).verdict).toBe('allow');
    expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
  });

  test('what stands in while Redis is away is what was asked for', async () => {
    const local = shared(bucketLimit(0.1, 4), { deadline: 50, processes: 2 });
    const open = shared(bucketLimit(0.1, 1), { deadline: 50, onUnavailable: 'allow' });
    const strict = shared({ spacing: { every: '1s' } }, { deadline: 50 });
    await Promise.all([local.check('x'), open.check('y'), strict.check('z')]);
    await inSilence(async () => {
      const verdicts = async (api: RemoteLimiter) => {
        const answers = [await api.check('x'), await api.check('x'), await api.check('x')];
        return answers.map(({ verdict }) => verdict).join(' ');
      };
      expect(await verdicts(local)).toBe('allow allow deny'); // half of four
      expect(await verdicts(open)).toBe('allow allow allow');
      expect(await verdicts(strict)).toBe('deny deny deny');
      expect(await open.takeUpTo('x', 5)).toBe(1); // a batch gets on, and no more than that
      expect(await strict.takeUpTo('x', 5)).toBe(0);
    });
    await vi.waitFor(() => expect(strict.stats().isAvailable).toBe(true), { timeout: 3000 });
  });

  test('nonsense is named', () => {
    expect(() => redis({} as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(null as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(own.client, { deadlin: 5 } as never)).toThrow('backend.deadlin');
    expect(() => redis(own.client, { prefix: 'a{b}' })).toThrow('backend.prefix');
    expect(() => redis(own.client, { prefix: 5 as never })).toThrow('backend.prefix');
    expect(() => shared({ adaptive: {} })).toThrow('made of bucket, spacing, ramp');
    expect(() => all([shared(bucketLimit(1, 1)) as never])).toThrow('decides in this process');
  });
}
