/**
 * What holds for a limit shared through Redis, whichever client is used, for one server and for many.
 *
 * A stage is the servers and the way to them; the stories are the same on all of them.
 */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { type RedisOptions, redis } from '../../src/backends/redis/backend.ts';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import { all } from '../../src/limiter/composite-limiter.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import type { Limit } from '../../src/policies/limit.ts';
import { throttle } from '../../src/throttle/throttle.ts';
import { deciderStories, perSecond } from './decider-contract.ts';
import type { Client } from './redis-clients.ts';
import { redisCli, type Service } from './services.ts';

export interface Stage {
  /** The servers that have keys: the one, or the masters of a cluster. */
  servers(): readonly Service[];
  connect(): Promise<Client>;
  /** How many calls it takes to ask for all these keys at once. */
  trips(keys: readonly string[]): number;
  stop(): Promise<void>;
}

export { perSecond };

/** What a key of a limit of this kind is called in Redis, with the name and the prefix the stories use. */
export const nameOf = (key: string, kind = 'bucket'): string => `sluice:{api:${key}}:${kind}`;

/** How long a stage may take to stand: a cluster has to agree first. */
const STAGE_MS_MAX = 60_000;

export function remoteContract(name: string, start: () => Promise<Stage>): void {
  describe(`shared through ${name}`, () => stories(start));
}

function stories(start: () => Promise<Stage>): void {
  let stage: Stage;
  let own: Client;
  let other: Client;
  const made: RemoteLimiter[] = [];

  beforeAll(async () => {
    stage = await start();
    own = await stage.connect();
    other = await stage.connect();
  }, STAGE_MS_MAX);
  afterAll(async () => {
    own?.end();
    other?.end();
    await stage?.stop();
  });
  beforeEach(() => {
    everywhere('FLUSHALL');
  });
  afterEach(async () => {
    for (const api of made.splice(0)) await api.close();
  });

  const everywhere = (...words: string[]): string[] =>
    stage.servers().map(({ port }) => redisCli(port, ...words));

  const sumOf = (pattern: RegExp, ...words: string[]): number =>
    everywhere(...words).reduce((sum, text) => sum + Number(pattern.exec(text)?.[1] ?? 0), 0);

  const calls = (): number => sumOf(/cmdstat_evalsha:calls=(\d+)/, 'INFO', 'commandstats');

  /** Nobody answers while this runs. */
  async function inSilence(act: () => Promise<void>): Promise<void> {
    const servers = stage.servers();
    for (const server of servers) server.pause();
    try {
      await act();
    } finally {
      for (const server of servers) server.resume();
    }
  }

  function shared(limit: Limit, options: RedisOptions = {}, from = own, queue = {}): RemoteLimiter {
    const api = limiter({ name: 'api', limit, share: redis(from.client, options), queue });
    made.push(api);
    return api;
  }

  deciderStories({
    shared: (limit, { isOther = false, deadlineMs, queue, ...options } = {}) => {
      const deadline = deadlineMs === undefined ? {} : { deadline: deadlineMs };
      return shared(limit, { ...options, ...deadline }, isOther ? other : own, queue);
    },
    inSilence,
    deadlineMs: 80,
  });

  test('whatever is asked in one tick travels together', async () => {
    const api = shared(perSecond(1000, 100));
    const keys = Array.from({ length: 20 }, (_, n) => `key ${n}`);
    for (const key of keys) await api.ask(key); // the script is known everywhere from here on
    const before = calls();
    const asks = Array.from({ length: 200 }, (_, n) => api.ask(keys[n % keys.length]));
    const answers = await Promise.all(asks);
    expect(answers.filter(({ verdict }) => verdict === 'allow').length).toBe(200);
    expect(calls() - before).toBe(stage.trips(keys));
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
    await api.ask('token');
    await inSilence(async () => {
      const asks = Array.from({ length: 10 }, () => api.ask('token'));
      const answers = await Promise.all(asks);
      expect(answers.every(({ verdict }) => verdict === 'deny')).toBe(true);
      await new Promise((later) => setTimeout(later, 100)); // a trip more than they had, and then some
    });
    await vi.waitFor(() => expect(api.stats().isReachable).toBe(true), { timeout: 3000 });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(0));
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
    const api = shared(perSecond(2, 2));
    await api.ask('x');
    const { port } = stage.servers()[0];
    const ttl = Number(redisCli(port, '-c', 'PTTL', nameOf('x')));
    expect(ttl).toBeGreaterThan(0);
    expect(ttl).toBeLessThanOrEqual(502);
    await vi.waitFor(() => expect(sumOf(/(\d+)/, 'DBSIZE')).toBe(0), { timeout: 3000 });
  });

  test('a Redis that forgot the script, or everything, goes on', async () => {
    const api = shared(perSecond(0.1, 5));
    await api.ask('x');
    everywhere('SCRIPT', 'FLUSH');
    expect(await api.ask('x')).toEqual({ verdict: 'allow', remaining: 3 });
    everywhere('FLUSHALL');
    expect(await api.ask('x')).toEqual({ verdict: 'allow', remaining: 4 });
    expect(api.stats().makeshift).toBe(0);
  });

  test('a process that was busy for longer than the deadline still has its answer', async () => {
    const api = shared(perSecond(0.1, 5), { deadline: 50, onUnavailable: 'deny' });
    await api.ask('x'); // whoever has this key knows the script from here on
    const asking = api.ask('x');
    for (let n = 0; n < 3; n++) await new Promise<void>((later) => process.nextTick(later));
    await new Promise<void>((later) => setImmediate(later)); // it is on its way: node-redis writes only now
    const since = performance.now();
    while (performance.now() - since < 120); // nobody reads what comes
    expect((await asking).verdict).toBe('allow');
    expect(api.stats()).toMatchObject({ isReachable: true, makeshift: 0 });
  });

  test('what stands in while Redis is away is what was asked for', async () => {
    const local = shared(perSecond(0.1, 4), { deadline: 50, processes: 2 });
    const open = shared(perSecond(0.1, 1), { deadline: 50, onUnavailable: 'allow' });
    const strict = shared({ spacing: { every: '1s' } }, { deadline: 50 });
    await Promise.all([local.ask('x'), open.ask('y'), strict.ask('z')]);
    await inSilence(async () => {
      const verdicts = async (api: RemoteLimiter) => {
        const answers = [await api.ask('x'), await api.ask('x'), await api.ask('x')];
        return answers.map(({ verdict }) => verdict).join(' ');
      };
      expect(await verdicts(local)).toBe('allow allow deny'); // half of four
      expect(await verdicts(open)).toBe('allow allow allow');
      expect(await verdicts(strict)).toBe('deny deny deny');
      expect(await open.take('x', 5)).toBe(1); // a batch gets on, and no more than that
      expect(await strict.take('x', 5)).toBe(0);
    });
    await vi.waitFor(() => expect(strict.stats().isReachable).toBe(true), { timeout: 3000 });
  });

  test('nonsense is named', () => {
    expect(() => redis({} as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(null as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(own.client, { deadlin: 5 } as never)).toThrow('share.deadlin');
    expect(() => redis(own.client, { prefix: 'a{b}' })).toThrow('share.prefix');
    expect(() => redis(own.client, { prefix: 5 as never })).toThrow('share.prefix');
    expect(() => shared({ adaptive: {} })).toThrow('made of bucket, spacing, ramp');
    expect(() => all([shared(perSecond(1, 1)) as never])).toThrow('decides in this process');
  });
}
