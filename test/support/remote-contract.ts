/**
 * What holds for a limit shared through Redis, whichever client is used, for one server and for many.
 *
 * A stage is the servers and the way to them; the stories are the same on all of them.
 */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { all } from '../../src/all-of.ts';
import type { ReachEvent } from '../../src/events.ts';
import { limiter } from '../../src/limiter.ts';
import type { Limit } from '../../src/policy/limit.ts';
import type { RemoteLimiter } from '../../src/remote-limiter.ts';
import { type RedisOptions, redis } from '../../src/share/redis/redis.ts';
import { throttle } from '../../src/throttle.ts';
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

export const perSecond = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

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

  function shared(limit: Limit, options: RedisOptions = {}, from = own): RemoteLimiter {
    const api = limiter({ name: 'api', limit, share: redis(from.client, options) });
    made.push(api);
    return api;
  }

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
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(0));
  });

  test('no more wait than there is room for, over all keys; whoever gets in at once needs none', async () => {
    for (const limit of [{ every: '1h' }, { every: 3000, reserve: 1 }]) {
      const share = redis(own.client);
      const roomy = { name: 'api', limit: { spacing: limit }, share, queue: { max: 2 } };
      const api = limiter(roomy);
      made.push(api);
      const keys = ['a', 'b', 'c', 'd'].map((key) => `${key} ${limit.every}`);
      const first = await Promise.all(keys.map((key) => api.acquire(key)));
      expect(first.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow', 'allow']);
      const giveUp = new AbortController();
      const rest = keys.map((key) => api.acquire(key, 1, { signal: giveUp.signal }));
      const ends = Promise.allSettled(rest);
      await vi.waitFor(() => expect(api.stats()).toMatchObject({ waiting: 2, denied: 2 }));
      expect(await api.acquire(keys[0])).toMatchObject({ verdict: 'deny', reason: 'queue-full' });
      giveUp.abort(new Error('enough'));
      await ends;
      expect(api.stats().waiting).toBe(0);
    }
  });

  test('who cannot wait at all is told so at once, even behind a line', async () => {
    const api = shared({ spacing: { every: 2000 } });
    await api.acquire('token');
    const waiting = api.acquire('token');
    await api.inspect('token');
    const since = performance.now();
    expect(await api.acquire('token', 1, { maxWaitMs: 0 })).toMatchObject({
      verdict: 'deny',
      reason: 'too-long',
    });
    expect(performance.now() - since).toBeLessThan(500);
    expect((await waiting).verdict).toBe('allow');
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

  test('those in line are back as soon as Redis is', async () => {
    const api = shared({ spacing: { every: 1 } }, { deadline: 50 });
    await api.ask('token');
    let waiting: Promise<unknown> = Promise.resolve();
    await inSilence(async () => {
      waiting = api.acquire('token');
      await vi.waitFor(() => expect(api.stats().isReachable).toBe(false));
    });
    await vi.waitFor(() => expect(api.stats().isReachable).toBe(true), { interval: 1 });
    const back = performance.now();
    expect(await waiting).toMatchObject({ verdict: 'allow' });
    expect(performance.now() - back).toBeLessThan(200);
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

  test('a Redis that stands still costs one deadline, and is taken back when it goes on', async () => {
    const api = shared(perSecond(0.1, 5), { deadline: 80, onUnavailable: 'deny' });
    const reached: boolean[] = [];
    api.on((event) => event.type === 'reach' && reached.push((event as ReachEvent).isReachable));
    await api.ask('x');
    await inSilence(async () => {
      const first = performance.now();
      expect((await api.ask('x')).verdict).toBe('deny');
      expect(performance.now() - first).toBeGreaterThanOrEqual(75);
      const then = performance.now();
      for (let n = 0; n < 100; n++) expect((await api.ask('x')).verdict).toBe('deny');
      expect(performance.now() - then).toBeLessThan(75);
    });
    const back = performance.now();
    await vi.waitFor(() => expect(api.stats().isReachable).toBe(true), { timeout: 3000 });
    expect(performance.now() - back).toBeLessThan(1500);
    expect((await api.ask('x')).verdict).toBe('allow');
    expect(reached).toEqual([false, true]);
    expect(api.stats().makeshift).toBe(101);
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
    });
    await vi.waitFor(() => expect(strict.stats().isReachable).toBe(true), { timeout: 3000 });
  });

  test('nonsense is named', () => {
    expect(() => redis({} as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(null as never)).toThrow('a client of node-redis or ioredis');
    expect(() => redis(own.client, { deadlin: 5 } as never)).toThrow('share.deadlin');
    expect(() => shared({ adaptive: {} })).toThrow('made of bucket, spacing, ramp');
    expect(() => all([shared(perSecond(1, 1)) as never])).toThrow('decides in this process');
  });
}
