import { describe, expect, expectTypeOf, test } from 'vitest';
import type { BackendFactory } from '../backends/backend.ts';
import { LocalBackend } from '../backends/local/backend.ts';
import { ConfigError } from '../core/errors.ts';
import { createHasher } from '../core/hash.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import type { RemoteLimiter } from './async-limiter.ts';
import { internalsOf } from './internals.ts';
import { createLimiter, limiter } from './limiter.ts';
import type { Limiter } from './limiter-interface.ts';
import type { SyncLimiter } from './sync-limiter.ts';

const bucketLimit = { bucket: { rate: '10/s', burst: 3 } } as const;

describe('limiter', () => {
  test('check: a day of traffic on a virtual clock', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { bucket: { rate: 2, burst: 1 } }, clock });
    let served = 0;
    for (let second = 0; second < 86_400; second++) {
      if (api.check('alice').verdict === 'allow') served++;
      clock.advance(1000);
    }
    expect(served).toBe(86_400);
  });

  test('check: with only a limit given, decides on the real clock', () => {
    const api = limiter({ limit: bucketLimit });
    expect(api.check('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(api.check('alice').verdict).toBe('deny');
    expect(api.stats()).toMatchObject({ keys: 1, evicted: 0 });
  });

  test('takeUpTo takes what there is, giveBack returns the unused part', () => {
    const clock = new VirtualClock(5_000);
    const limit = { ramp: { min: 10, max: 110, over: '10s', mode: 'only-if-used' } } as const;
    const api = limiter({ limit, clock });
    expect(api.takeUpTo('reader', 7)).toBe(7);
    api.giveBack('reader', 2);
    expect(api.takeUpTo('reader', Infinity)).toBe(5);
  });

  test('giveBack: a ramp drops what was taken in a second that is over', () => {
    const clock = new VirtualClock();
    const limit = { ramp: { min: 10, max: 20, over: '1s' } } as const;
    const api = limiter({ limit, clock });
    expect(api.takeUpTo('reader', Infinity)).toBe(10);
    const takenAt = clock.now();
    clock.advance(1000);
    expect(api.takeUpTo('reader', Infinity)).toBe(20);
    api.giveBack('reader', 10, takenAt);
    expect(api.takeUpTo('reader', Infinity)).toBe(0);
  });

  test('settle: frees the place of a call in flight', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    expect(api.check('sink', 1, { willSettle: true }).verdict).toBe('allow');
    expect(api.check('sink', 1, { willSettle: true }).verdict).toBe('deny');
    api.settle('sink', { rttMs: 5 });
    expect(api.check('sink', 1, { willSettle: true }).verdict).toBe('allow');
  });

  test('clock: any object with now()', () => {
    const api = limiter({ limit: bucketLimit, clock: Date });
    expect(api.check('alice', 3).verdict).toBe('allow');
  });

  test('check: a wait decision carries its due time and its expiry', () => {
    const clock = new VirtualClock(500);
    const spacing = { every: '6s', reserve: 2 } as const;
    const api = limiter({ limit: { spacing: { ...spacing, expire: '1s' } }, clock });
    api.check('worker');
    clock.advance(1000);
    const reserved = { verdict: 'wait', waitMs: 5000, dueAt: 6500 };
    expect(api.check('worker')).toEqual({ ...reserved, expiresAt: 7500 });
    const endless = limiter({ limit: { spacing }, clock: new VirtualClock(500) });
    endless.check('worker');
    expect(endless.check('worker')).toEqual({ verdict: 'wait', waitMs: 6000, dueAt: 6500 });
  });

  test('check: on the real clock, the due time of a wait decision gives its place back', () => {
    const api = limiter({ limit: { spacing: { every: '1h', reserve: 3 } } });
    api.check('worker');
    for (let n = 0; n < 100; n++) {
      const decision = api.check('worker');
      if (decision.verdict !== 'wait' || decision.dueAt === undefined) return expect.unreachable();
      api.settle('worker', { outcome: 'ignored', dueAt: decision.dueAt });
      expect(api.inspect('worker').reserved).toBe(0);
    }
  });

  test.each([
    ['missing options', undefined, /^expected an object with a limit, got undefined$/],
    ['a missing limit', {}, /expected `limit` to be an object with one key out of bucket, /],
    [
      'a rule outside of limit',
      { bucket: { rate: 1 } },
      /`bucket` to be inside `limit` \(did you mean `\{ limit: \{ bucket: … \} \}`\?\)/,
    ],
    [
      'maxKeys 0',
      { limit: bucketLimit, maxKeys: 0 },
      /`maxKeys` to be a whole number of at least 1/,
    ],
    [
      'maxKeys above its bound',
      { limit: bucketLimit, maxKeys: 1e9 },
      /at most 100000000, got 1000000000/,
    ],
    ['a fractional maxKeys', { limit: bucketLimit, maxKeys: 1.5 }, /`maxKeys`.* got 1.5/],
    [
      'a misspelt option',
      { limit: bucketLimit, maxKey: 5 },
      /`maxKey` to be one of limit, queue, maxKeys/,
    ],
    ['an invalid clock', { limit: bucketLimit, clock: 5 }, /`clock` to be .*now\(\)/],
    ['an invalid random', { limit: bucketLimit, random: 5 }, /`random` to be a function/],
  ])('refuses %s', (_what, options, message) => {
    expect(() => limiter(options as never)).toThrow(ConfigError);
    expect(() => limiter(options as never)).toThrow(message);
  });

  test.each([
    ['a cost of NaN', (api: Api) => api.check('a', Number.NaN), /`cost`/],
    ['a negative cost', (api: Api) => api.check('a', -1), /`cost`.* got -1/],
    ['a string as cost', (api: Api) => api.check('a', '5' as never), /`cost`.* got "5"/],
    ['a cost of null', (api: Api) => api.check('a', null as never), /`cost`.* got null/],
    ['a result of null', (api: Api) => api.settle('a', null as never), /`result`/],
    [
      'a misspelt field of a result',
      (api: Api) => api.settle('a', { outcom: 'busy' } as never),
      /`outcom` to be one of outcome/,
    ],
    ['feedback of null', (api: Api) => api.update('a', null as never), /`feedback`/],
    ['a key that is no string', (api: Api) => api.check(5 as never), /`key` to be a string, got 5/],
    ['a fractional takeUpTo', (api: Api) => api.takeUpTo('a', 0.5), /`max`/],
    ['a negative giveBack', (api: Api) => api.giveBack('a', -1), /`unused`/],
    ['hits of NaN', (api: Api) => api.update('a', { hits: Number.NaN }), /`hits`/],
    ['negative hits', (api: Api) => api.update('a', { hits: -5 }), /`hits`/],
    ['a pool size of 0', (api: Api) => api.update('a', { poolSize: 0 }), /`poolSize`/],
    [
      'a rank beyond the pool size',
      (api: Api) => api.update('a', { poolSize: 2, rank: 2 }),
      /`rank`/,
    ],
    [
      'an unknown outcome',
      (api: Api) => api.settle('a', { outcome: 'fine' as never }),
      /`outcome`/,
    ],
    ['a round-trip time of NaN', (api: Api) => api.settle('a', { rttMs: Number.NaN }), /`rttMs`/],
    ['a negative used', (api: Api) => api.settle('a', { used: -1 }), /`used`/],
  ])('refuses %s and changes nothing', (_what, act, message) => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock() });
    api.check('a');
    expect(() => act(api)).toThrow(ConfigError);
    expect(() => act(api)).toThrow(message);
    expect(api.inspect('a').remaining).toBe(2);
  });
});

type Api = ReturnType<typeof limiter>;

describe('limiter: status, events and counters', () => {
  const clockAt = (now = 0) => new VirtualClock(now);

  test('inspect: names the rule that refuses, what each has left, and until when', () => {
    const clock = clockAt();
    const limit = {
      all: [{ bucket: { rate: '10/s', burst: 3 } }, { bucket: { rate: '5/m', burst: 5 } }],
    } as const;
    const api = limiter({ name: 'search', limit, clock });
    expect(api.inspect('alice')).toEqual({
      name: 'search',
      remaining: 3,
      opensInMs: 0,
      rules: [
        {
          ...{ name: 'search.bucket', kind: 'bucket', quota: 10, windowMs: 1000 },
          ...{ remaining: 3, opensInMs: 0, freshInMs: 0 },
        },
        {
          ...{ name: 'search.bucket-2', kind: 'bucket', quota: 5, windowMs: 60_000 },
          ...{ remaining: 5, opensInMs: 0, freshInMs: 0 },
        },
      ],
    });
    for (let n = 0; n < 5; n++) {
      api.check('alice');
      clock.advance(100);
    }
    expect(api.inspect('alice')).toMatchObject({ by: 'search.bucket-2', opensInMs: 11_500 });
    expect(api.inspect('alice').rules[1]).toMatchObject({ remaining: 0, freshInMs: 59_500 });
  });

  test.each([
    ['spacing', { spacing: { every: '6s' } }, { quota: 1, windowMs: 6000, opensInMs: 6000 }],
    [
      'ramp',
      { ramp: { min: 1, max: 2, over: '9s' } },
      { quota: 1, windowMs: 1000, opensInMs: 1000 },
    ],
    ['busy', { busy: { max: 1 } }, { quota: 1, windowMs: 1000, opensInMs: 1000 }],
    ['slow bucket', { bucket: { rate: '1/6s' } }, { quota: 1, windowMs: 6000, opensInMs: 6000 }],
    [
      'bucket with a burst of its rate',
      { bucket: { rate: 1, burst: 1 } },
      { quota: 1, windowMs: 1000 },
    ],
  ] as const)('inspect: an exhausted %s reports when it opens', (_name, limit, expected) => {
    const api = limiter({ limit, clock: clockAt() });
    api.check('x', 1, { willSettle: true });
    expect(api.inspect('x').rules[0]).toMatchObject({ remaining: 0, ...expected });
    expect(api.inspect('x').by).toBe(Object.keys(limit)[0]);
  });

  test('inspect: a concurrency limit reports no opening time', () => {
    const api = limiter({ limit: { concurrency: 1 }, clock: clockAt() });
    api.check('x', 1, { willSettle: true });
    const { by, opensInMs, rules } = api.inspect('x');
    expect({ by, opensInMs, rules }).toEqual({
      by: 'concurrency',
      opensInMs: undefined,
      rules: [
        { name: 'concurrency', kind: 'concurrency', quota: 1, remaining: 0, isCapacity: true },
      ],
    });
  });

  test('on: reports every decision and every settled call once', async () => {
    const clock = clockAt();
    const limit = { spacing: { every: '1s', reserve: 1 } } as const;
    const api = limiter({ name: 'jobs', limit, clock });
    const events: unknown[] = [];
    const stop = api.on(({ limit: _limit, key: _key, cost: _cost, ...event }) =>
      events.push(event),
    );
    api.check('x');
    api.check('x');
    api.check('x');
    const waiting = api.acquire('x');
    const abort = new AbortController();
    const leaving = api.acquire('x', 1, { signal: abort.signal }).catch(() => {});
    await clock.advanceAsync(2000);
    abort.abort();
    await leaving;
    const permit = await waiting;
    clock.advance(30);
    if (permit.verdict === 'allow') permit.settle();
    stop();
    api.check('x');
    expect(events).toEqual([
      { type: 'decision', at: 0, decision: { verdict: 'allow', remaining: 0 }, waitedMs: 0 },
      {
        ...{ type: 'decision', at: 0, waitedMs: 0 },
        decision: { verdict: 'wait', waitMs: 1000, dueAt: 1000 },
      },
      { type: 'decision', at: 0, decision: { verdict: 'deny', retryAfterMs: 1000 }, waitedMs: 0 },
      { type: 'decision', at: 2000, decision: { verdict: 'allow', remaining: 0 }, waitedMs: 2000 },
      { type: 'cancelled', at: 2000, waitedMs: 2000 },
      { type: 'settled', at: 2030, outcome: 'ok', rttMs: 30 },
    ]);
  });

  test.each([
    ['an error', new Error('oops')],
    ['a symbol', Symbol('oops')],
    ['an object without a prototype', Object.create(null)],
    [
      'an object that throws when printed',
      {
        toString: () => {
          throw new Error('again');
        },
        toJSON: () => {
          throw new Error('again');
        },
      },
    ],
  ])(
    'on: a listener that throws %s, at once or later, does not affect the decision',
    async (_name, thrown) => {
      const api = limiter({ limit: bucketLimit, clock: clockAt() });
      api.on(() => {
        throw thrown;
      });
      api.on(async () => {
        throw thrown;
      });
      expect(api.check('alice').verdict).toBe('allow');
      await new Promise((later) => setImmediate(later));
    },
  );

  test('check and acquire: refuse a misspelt option and change nothing', async () => {
    const api = limiter({ limit: bucketLimit, clock: clockAt() });
    expect(() => api.check('alice', 1, { partitoin: 'live' } as never)).toThrow('partitoin');
    await expect(api.acquire('alice', 1, { partition: 'live' })).rejects.toThrow('partition');
    expect(api.stats()).toMatchObject({ cancelled: 0, allowed: 0 });
  });

  test('stats: counts without listeners', async () => {
    const clock = clockAt();
    const api = limiter({ limit: { bucket: { rate: 1, burst: 1 } }, clock });
    api.check('x');
    api.check('x');
    const waiting = api.acquire('x');
    await clock.advanceAsync(1000);
    const permit = await waiting;
    clock.advance(7);
    if (permit.verdict === 'allow') permit.settle();
    api.tryAcquire('x');
    api.takeUpTo('x', 5);
    api.settle('x', { outcome: 'timeout', rttMs: 2000 });
    const { waitMs, rttMs, unsuccessfulRttMs, ...stats } = api.stats();
    expect(stats).toMatchObject({
      allowed: 2,
      waited: 1,
      denied: 3,
      cancelled: 0,
      expiredPermits: 0,
      held: 0,
    });
    expect(waitMs).toMatchObject({ count: 1, sumMs: 1000 });
    expect(waitMs.counts[waitMs.boundsMs.indexOf(1000)]).toBe(1);
    expect(rttMs.counts[rttMs.boundsMs.indexOf(10)]).toBe(1);
    expect(unsuccessfulRttMs).toMatchObject({
      busy: { count: 0 },
      timeout: { count: 1, sumMs: 2000 },
      failed: { count: 0 },
      ignored: { count: 0 },
    });
  });

  test('peek: returns the decision, changes nothing and is not counted', () => {
    const api = limiter({ limit: bucketLimit, clock: clockAt() });
    expect(api.peek('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(api.peek('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    api.check('alice', 3);
    expect(api.peek('alice')).toEqual({ verdict: 'deny', retryAfterMs: 100 });
    expect(api.stats()).toMatchObject({ allowed: 1, denied: 0 });
  });

  test('tryPass: passes a call at once, and never ahead of a waiter', async () => {
    const clock = clockAt();
    const api = limiter({ limit: { bucket: { rate: 1, burst: 1 } }, clock });
    const pass = (key: string): boolean => internalsOf(api).tryPass(key);
    expect([pass('x'), pass('x')]).toEqual([true, false]);
    const waiting = api.acquire('x', 1);
    clock.advance(999.5);
    expect(pass('x')).toBe(false);
    await clock.advanceAsync(1);
    expect((await waiting).verdict).toBe('allow');
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 0 });
  });
});

describe('limiter: a permit that is never settled', () => {
  test('expires, is reported, and gives its place back', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock, permitTimeout: '1m' });
    const events: unknown[] = [];
    api.on((event) => event.type === 'expired' && events.push(event));
    const lost = api.tryAcquire('sink');
    const next = api.acquire('sink');
    await clock.advanceAsync(59_999);
    expect(events).toEqual([]);
    await clock.advanceAsync(1);
    const event = {
      type: 'expired',
      limit: 'concurrency',
      key: 'sink',
      cost: 1,
      at: 60_000,
      heldMs: 60_000,
    };
    expect(events).toEqual([event]);
    expect((await next).verdict).toBe('allow');
    if (lost.verdict === 'allow') lost.settle(); // too late: no effect
    expect(api.inspect('sink').inFlight).toBe(1);
    expect(api.stats()).toMatchObject({ expiredPermits: 1, held: 1 });
  });

  test('uses one timer, even if listeners take new permits', async () => {
    const clock = new VirtualClock();
    let timers = 0;
    const counting = {
      now: () => clock.now(),
      wakeAt: (at: number, act: () => void) => {
        timers++;
        return clock.wakeAt(at, () => {
          timers--;
          act();
        });
      },
    };
    const api = limiter({
      limit: { concurrency: 99 },
      clock: counting,
      permitTimeout: 100,
    });
    api.on((event) => event.type === 'expired' && api.tryAcquire('sink'));
    for (let n = 0; n < 5; n++) api.tryAcquire('sink');
    await clock.advanceAsync(1050);
    expect(timers).toBe(1);
  });

  test('does not expire if settled in time', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 10 }, clock, permitTimeout: '1m' });
    for (let n = 0; n < 1000; n++) {
      const permit = api.tryAcquire('sink');
      await clock.advanceAsync(500);
      if (permit.verdict === 'allow') permit.settle();
    }
    expect(api.stats()).toMatchObject({ expiredPermits: 0, held: 0, allowed: 1000 });
  });
});

describe('limiter: Retry-After cool-down', () => {
  test('update: refuses the key for the given time, whatever the rule', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: bucketLimit, clock });
    expect(api.update('sink', { retryAfterMs: 3000 })).toBe(true);
    expect(api.check('sink')).toEqual({ verdict: 'deny', retryAfterMs: 3000 });
    expect(api.check('other').verdict).toBe('allow');
    expect(api.takeUpTo('sink', 5)).toBe(0);
    expect(api.peek('sink').verdict).toBe('deny');
    expect(api.inspect('sink')).toMatchObject({ by: 'cooldown', opensInMs: 3000, remaining: 3 });
    const waiting = api.acquire('sink').then(() => clock.now());
    await clock.advanceAsync(5000);
    expect(await waiting).toBe(3000);
    expect(api.check('sink').verdict).toBe('allow');
  });

  test('settle: starts a cool-down; the longest one counts', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { busy: {} }, clock });
    api.check('sink', 1, { willSettle: true });
    api.settle('sink', { outcome: 'busy', retryAfterMs: 5000 });
    api.settle('sink', { outcome: 'busy', retryAfterMs: 1000 });
    const refused = { verdict: 'deny', retryAfterMs: 5000 };
    expect(api.check('sink', 1, { willSettle: true })).toEqual(refused);
  });

  test('maxCooldown bounds it', () => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock(), maxCooldown: '10s' });
    api.update('sink', { retryAfterMs: 1e12 });
    expect(api.check('sink')).toEqual({ verdict: 'deny', retryAfterMs: 10_000 });
  });

  test('update: takes the remaining quota of the server; 0 starts a cool-down', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { bucket: { rate: 1, burst: 100 } }, clock });
    api.update('llm', { remaining: 7, resetMs: 60_000 });
    expect(api.inspect('llm').remaining).toBe(7);
    api.update('llm', { remaining: 50 }); // never raises the level
    expect(api.inspect('llm').remaining).toBe(7);
    api.update('llm', { remaining: 0, resetMs: 2500 });
    expect(api.check('llm')).toEqual({ verdict: 'deny', retryAfterMs: 2500 });
  });

  test('evicts the oldest beyond 10,000 keys', () => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock() });
    for (let n = 0; n <= 10_000; n++) api.update(`k${n}`, { retryAfterMs: 1000 });
    expect(api.check('k0').verdict).toBe('allow'); // the oldest was evicted
    expect(api.check('k1').verdict).toBe('deny');
  });

  test('checkHashed: works again once all cool-downs are over', () => {
    const clock = new VirtualClock();
    const hash = createHasher([1, 2]);
    const api = createLimiter({ limit: bucketLimit, clock }, { hasher: hash }) as SyncLimiter;
    hash.hash('alice');
    expect(api.checkHashed(hash, 1)?.verdict).toBe('allow');
    api.update('gone', { retryAfterMs: 1000 });
    expect(api.checkHashed(hash, 1)).toBeUndefined(); // by key only, while any key is in cool-down
    clock.advance(1000);
    expect(api.check('alice').verdict).toBe('allow');
    hash.hash('alice');
    expect(api.checkHashed(hash, 1)?.verdict).toBe('allow');
  });
});

describe('limiter: public interface', () => {
  const methods = [
    ...['name', 'check', 'peek', 'tryAcquire', 'acquire', 'takeUpTo', 'giveBack', 'settle'],
    ...['update', 'inspect', 'on', 'stats', 'change', 'close', 'report'],
  ] as const;

  test('Limiter and RemoteLimiter have the same 15 members', () => {
    expect(methods.length).toBe(15);
    expectTypeOf<keyof Limiter>().toEqualTypeOf<(typeof methods)[number]>();
    expectTypeOf<keyof RemoteLimiter>().toEqualTypeOf<(typeof methods)[number]>();
  });

  test('internalsOf: refuses an object that is not a limiter', () => {
    const message = /`limiter` to be a limiter made by limiter\(\) or all\(\)/;
    for (const value of [undefined, null, 5, {}, { check() {}, acquire() {} }])
      expect(() => internalsOf(value as never)).toThrow(message);
    const api = limiter({ limit: bucketLimit });
    expect(internalsOf(api)).toBe(api);
  });
});

describe('limiter: close', () => {
  test('refuses waiting calls, releases their timers and leaves the backend', async () => {
    const clock = new VirtualClock();
    let timers = 0;
    const counting = {
      now: () => clock.now(),
      wakeAt: (at: number, act: () => void) => {
        timers++;
        const cancel = clock.wakeAt(at, act);
        return () => {
          timers--;
          cancel();
        };
      },
    };
    let detached = 0;
    const backend: BackendFactory = {
      isRemote: false,
      create: (policy, context) => {
        const local = new LocalBackend(policy, context);
        return Object.assign(local, { detach: () => detached++ });
      },
    };
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const api = limiter({ limit, clock: counting, backend });
    api.check('x');
    const waiting = ['a', 'b'].map(() => api.acquire('x', 1, { wait: '1m' }));
    expect([api.stats().waiting, timers]).toEqual([2, 1]);
    api.close();
    api.close();
    expect([api.stats().waiting, timers, detached]).toEqual([0, 0, 1]);
    for (const entry of await Promise.all(waiting))
      expect(entry).toMatchObject({ verdict: 'deny', reason: 'closed' });
  });

  test('refuses later calls by every method; a permit can still be settled', async () => {
    const hash = createHasher([1, 2]);
    const options = { limit: { concurrency: 2 }, clock: new VirtualClock() } as const;
    const api = createLimiter(options, { hasher: hash }) as SyncLimiter;
    const permit = api.tryAcquire('x');
    api.close();
    const closed = { verdict: 'deny', retryAfterMs: Infinity, reason: 'closed' };
    hash.hash('x');
    expect([api.check('x', 1, { willSettle: true }), api.peek('x')]).toEqual([closed, closed]);
    expect([api.checkHashed(hash, 1), api.tryPass('x')]).toEqual([undefined, false]);
    expect(api.tryAcquire('x')).toMatchObject(closed);
    expect(await api.acquire('x')).toMatchObject(closed);
    expect(api.inspect('x')).toMatchObject({ by: 'closed', opensInMs: Infinity });
    expect(api.takeUpTo('x', 5)).toBe(0);
    // Also a cost of 0, which every open limiter allows.
    expect([api.check('x', 0), api.peek('x', 0)]).toEqual([closed, closed]);
    expect(api.tryAcquire('x', 0)).toMatchObject(closed);
    expect(await api.acquire('x', 0)).toMatchObject(closed);
    if (permit.verdict === 'allow') permit.settle();
    expect(api.inspect('x').inFlight).toBe(0);
  });
});

describe('limiter: arguments', () => {
  const api = limiter({ limit: bucketLimit, clock: new VirtualClock() });
  const message = (call: () => unknown): string => {
    try {
      call();
    } catch (error) {
      if (error instanceof ConfigError) return error.message;
      throw error;
    }
    return 'accepted';
  };

  test.each([
    [{}, '`feedback` to be one of hits, poolSize, resume, remaining, retryAfterMs, report, got {}'],
    [{ hits: 1, remaining: 'x' }, '`remaining` to be left out beside `hits`, got "x"'],
    [{ hits: 1, resetMs: 5 }, '`resetMs` to be left out beside `hits`, got 5'],
    [{ hit: 1 }, 'got "hit"; did you mean `hits`?'],
    [
      { hits: 1e300 },
      '`hits` to be a number of at least 0 and at most 1000000000000000, got 1e+300',
    ],
    [{ remaining: 1, resetMs: 'x' }, '`resetMs` to be a number of at least 0, got "x"'],
    [{ poolSize: 2, rank: 2 }, '`rank` to be a whole number of at least 0 and at most 1, got 2'],
    [{ resume: 5 }, '`reachedAt` to be a number, got undefined'],
  ])('update: refuses the feedback %j', (feedback, expected) => {
    expect(message(() => api.update('a', feedback as never))).toContain(expected);
    expect(api.check('a', 0)).toEqual({ verdict: 'allow', remaining: 3 });
  });

  test('check: refuses the options of acquire, and suggests the name that was meant', () => {
    expect(message(() => api.check('a', 1, { wait: true } as never))).toBe(
      'expected `wait` to be one of partition, level, id, willSettle, got "wait"',
    );
    expect(message(() => api.check('a', 1, { partiton: 'x' } as never))).toContain(
      'did you mean `partition`?',
    );
    expect(message(() => api.settle('a', { usd: 1 } as never))).toContain('did you mean `used`?');
  });
});

describe('limiter: options', () => {
  test.each([undefined, Number.NaN, 'soon'])('refuses a clock whose now() returns %s', (now) => {
    const clock = { now: () => now } as never;
    expect(() => limiter({ limit: bucketLimit, clock })).toThrow(
      '`clock` to be a clock: an object whose now() returns a number',
    );
  });

  test('accepts Infinity where it is the default or means no bound', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: bucketLimit, maxCooldown: Infinity, clock });
    api.update('a', { retryAfterMs: 86_400_000 });
    expect(api.check('a')).toEqual({ verdict: 'deny', retryAfterMs: 86_400_000 });
  });

  test('refuses null as queue', () => {
    expect(() => limiter({ limit: bucketLimit, queue: null as never })).toThrow(
      'expected `queue` to be an object, got null',
    );
  });
});

test('tryAcquire: a cost above the maximum of a ramp is refused with that maximum', () => {
  const limit = { ramp: { min: 1, max: 5, over: '1m' } } as const;
  const api = limiter({ limit, clock: new VirtualClock() });
  expect(api.tryAcquire('a', 6)).toMatchObject({ detail: 'cost 6 exceeds the limit 5 of `ramp`' });
  expect(api.tryAcquire('a', Infinity)).toMatchObject({
    detail: 'cost Infinity exceeds the limit 5 of `ramp`',
  });
});
