import { describe, expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { createHasher } from '../core/hash.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { createLimiter, limiter } from './limiter.ts';
import type { SyncLimiter } from './sync-limiter.ts';

const bucketLimit = { bucket: { rate: '10/s', burst: 3 } } as const;

describe('limiter', () => {
  test('a day of traffic passes in no time', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { bucket: { rate: 2, burst: 1 } }, clock });
    let served = 0;
    for (let second = 0; second < 86_400; second++) {
      if (api.check('alice').verdict === 'allow') served++;
      clock.advance(1000);
    }
    expect(served).toBe(86_400);
  });

  test('works with nothing but a limit, on the real clock', () => {
    const api = limiter({ limit: bucketLimit });
    expect(api.check('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(api.check('alice').verdict).toBe('deny');
    expect(api.stats()).toMatchObject({ keys: 1, evicted: 0 });
  });

  test('a batch reader takes what there is and gives back what it did not need', () => {
    const clock = new VirtualClock(5_000);
    const limit = { ramp: { min: 10, max: 110, over: '10s', mode: 'only-if-used' } } as const;
    const api = limiter({ limit, clock });
    expect(api.takeUpTo('reader', 7)).toBe(7);
    api.giveBack('reader', 2);
    expect(api.takeUpTo('reader', Infinity)).toBe(5);
  });

  test('what was taken a second ago is given back to that second, which is over', () => {
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

  test('a call in flight is settled when it is over', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    expect(api.check('sink').verdict).toBe('allow');
    expect(api.check('sink').verdict).toBe('deny');
    api.settle('sink', { rttMs: 5 });
    expect(api.check('sink').verdict).toBe('allow');
  });

  test('any clock will do that has now()', () => {
    const api = limiter({ limit: bucketLimit, clock: Date });
    expect(api.check('alice', 3).verdict).toBe('allow');
  });

  test('a permit that was overslept has expired', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '6s', expire: '1s' } }, clock });
    api.check('worker');
    clock.advance(1000);
    expect(api.isExpired(0)).toBe(false);
    clock.advance(1);
    expect(api.isExpired(0)).toBe(true);
  });

  test.each([
    ['no options', undefined, /^expected an object with a limit, got nothing$/],
    ['no limit', {}, /expected `limit` to be an object with one key out of bucket, /],
    ['no keys', { limit: bucketLimit, maxKeys: 0 }, /`maxKeys` to be a whole number of at least 1/],
    ['too many keys', { limit: bucketLimit, maxKeys: 1e9 }, /at most 100000000, got 1000000000/],
    ['half a key', { limit: bucketLimit, maxKeys: 1.5 }, /`maxKeys`.* got 1.5/],
    [
      'a misspelt option',
      { limit: bucketLimit, maxKey: 5 },
      /`maxKey` to be one of limit, queue, maxKeys/,
    ],
    ['a clock that is none', { limit: bucketLimit, clock: 5 }, /`clock` to be .*now\(\)/],
    ['chance that is none', { limit: bucketLimit, random: 5 }, /`random` to be a function/],
  ])('refuses %s', (_what, options, message) => {
    expect(() => limiter(options as never)).toThrow(ConfigError);
    expect(() => limiter(options as never)).toThrow(message);
  });

  test.each([
    ['a cost that is no number', (api: Api) => api.check('a', Number.NaN), /`cost`/],
    ['a negative cost', (api: Api) => api.check('a', -1), /`cost`.* got -1/],
    ['a cost that is a text', (api: Api) => api.check('a', '5' as never), /`cost`.* got "5"/],
    ['a cost that is nothing', (api: Api) => api.check('a', null as never), /`cost`.* got null/],
    ['a result that is none', (api: Api) => api.settle('a', null as never), /`result`/],
    [
      'a misspelt result',
      (api: Api) => api.settle('a', { outcom: 'busy' } as never),
      /`outcom` to be one of outcome/,
    ],
    ['news that are none', (api: Api) => api.update('a', null as never), /`feedback`/],
    ['a key that is no text', (api: Api) => api.check(5 as never), /`key` to be a text, got 5/],
    ['half a token to take', (api: Api) => api.takeUpTo('a', 0.5), /`most`/],
    ['a negative deposit', (api: Api) => api.giveBack('a', -1), /`unused`/],
    ['hits that are no number', (api: Api) => api.update('a', { hits: Number.NaN }), /`hits`/],
    ['negative hits', (api: Api) => api.update('a', { hits: -5 }), /`hits`/],
    ['an empty pool', (api: Api) => api.update('a', { poolSize: 0 }), /`poolSize`/],
    ['a rank outside', (api: Api) => api.update('a', { poolSize: 2, rank: 2 }), /`rank`/],
    [
      'an unknown outcome',
      (api: Api) => api.settle('a', { outcome: 'fine' as never }),
      /`outcome`/,
    ],
    ['a time that is none', (api: Api) => api.settle('a', { rttMs: Number.NaN }), /`rttMs`/],
    ['a negative use', (api: Api) => api.settle('a', { used: -1 }), /`used`/],
  ])('refuses %s and loses nothing', (_what, act, message) => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock() });
    api.check('a');
    expect(() => act(api)).toThrow(ConfigError);
    expect(() => act(api)).toThrow(message);
    expect(api.inspect('a').remaining).toBe(2);
  });
});

type Api = ReturnType<typeof limiter>;

describe('what a limiter tells', () => {
  const clockAt = (now = 0) => new VirtualClock(now);

  test('inspect says which rule says no, how much each has left, and until when', () => {
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
    ['a spacing', { spacing: { every: '6s' } }, { quota: 1, windowMs: 6000, opensInMs: 6000 }],
    [
      'a ramp',
      { ramp: { min: 1, max: 2, over: '9s' } },
      { quota: 1, windowMs: 1000, opensInMs: 1000 },
    ],
    ['busy', { busy: { max: 1 } }, { quota: 1, windowMs: 1000, opensInMs: 1000 }],
    ['a slow bucket', { bucket: { rate: '1/6s' } }, { quota: 1, windowMs: 6000, opensInMs: 6000 }],
    [
      'a bucket larger than its rate',
      { bucket: { rate: 1, burst: 1 } },
      { quota: 1, windowMs: 1000 },
    ],
  ] as const)('%s that is used up says when it opens', (_name, limit, expected) => {
    const api = limiter({ limit, clock: clockAt() });
    api.check('x');
    expect(api.inspect('x').rules[0]).toMatchObject({ remaining: 0, ...expected });
    expect(api.inspect('x').by).toBe(Object.keys(limit)[0]);
  });

  test('calls in flight have no time at which they open', () => {
    const api = limiter({ limit: { concurrency: 1 }, clock: clockAt() });
    api.check('x');
    const { by, opensInMs, rules } = api.inspect('x');
    expect({ by, opensInMs, rules }).toEqual({
      by: 'concurrency',
      opensInMs: undefined,
      rules: [
        { name: 'concurrency', kind: 'concurrency', quota: 1, remaining: 0, isCapacity: true },
      ],
    });
  });

  test('listeners hear of every decision and every call settled, once', async () => {
    const clock = clockAt();
    const limit = { spacing: { every: '1s', reserve: 1 } } as const;
    const api = limiter({ name: 'jobs', limit, clock });
    const heard: unknown[] = [];
    const stop = api.on(({ limit: _limit, key: _key, cost: _cost, ...event }) => heard.push(event));
    api.check('x');
    api.check('x');
    api.check('x');
    const waiting = api.acquire('x');
    const giveUp = new AbortController();
    const leaving = api.acquire('x', 1, { signal: giveUp.signal }).catch(() => {});
    await clock.advanceAsync(2000);
    giveUp.abort();
    await leaving;
    const permit = await waiting;
    clock.advance(30);
    if (permit.verdict === 'allow') permit.settle();
    stop();
    api.check('x');
    expect(heard).toEqual([
      { type: 'decision', at: 0, decision: { verdict: 'allow', remaining: 0 }, waitedMs: 0 },
      { type: 'decision', at: 0, decision: { verdict: 'wait', waitMs: 1000 }, waitedMs: 0 },
      { type: 'decision', at: 0, decision: { verdict: 'deny', retryAfterMs: 1000 }, waitedMs: 0 },
      { type: 'decision', at: 2000, decision: { verdict: 'allow', remaining: 0 }, waitedMs: 2000 },
      { type: 'cancelled', at: 2000, waitedMs: 2000 },
      { type: 'settled', at: 2030, outcome: 'ok', rttMs: 30 },
    ]);
  });

  test.each([
    ['an error', new Error('oops')],
    ['a symbol', Symbol('oops')],
    ['something without words', Object.create(null)],
    [
      'a trap',
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
    'a listener that fails with %s, at once or later, is its own problem',
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

  test('a misspelt option is a mistake, and changes nothing', async () => {
    const api = limiter({ limit: bucketLimit, clock: clockAt() });
    expect(() => api.check('alice', 1, { partitoin: 'live' } as never)).toThrow('partitoin');
    await expect(api.acquire('alice', 1, { partition: 'live' })).rejects.toThrow('partition');
    expect(api.stats()).toMatchObject({ cancelled: 0, allowed: 0 });
  });

  test('counts what it does, whoever listens', async () => {
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
    const { waitMs, rttMs, ...stats } = api.stats();
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
  });

  test('peek says what would be, changes nothing and is not counted', () => {
    const api = limiter({ limit: bucketLimit, clock: clockAt() });
    expect(api.peek('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(api.peek('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    api.check('alice', 3);
    expect(api.peek('alice')).toEqual({ verdict: 'deny', retryAfterMs: 100 });
    expect(api.stats()).toMatchObject({ allowed: 1, denied: 0 });
  });

  test('pass lets through who may go at once, and never past somebody who waits', async () => {
    const clock = clockAt();
    const api = limiter({ limit: { bucket: { rate: 1, burst: 1 } }, clock });
    expect([api.tryPass('x'), api.tryPass('x')]).toEqual([true, false]);
    const waiting = api.acquire('x', 1);
    clock.advance(999.5);
    expect(api.tryPass('x')).toBe(false);
    await clock.advanceAsync(1);
    expect((await waiting).verdict).toBe('allow');
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 0 });
  });
});

describe('a permit that is never settled', () => {
  test('is found, told of, and its place given back', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock, permitTimeout: '1m' });
    const heard: unknown[] = [];
    api.on((event) => event.type === 'expired' && heard.push(event));
    const lost = api.tryAcquire('sink');
    const next = api.acquire('sink');
    await clock.advanceAsync(59_999);
    expect(heard).toEqual([]);
    await clock.advanceAsync(1);
    const event = {
      type: 'expired',
      limit: 'concurrency',
      key: 'sink',
      cost: 1,
      at: 60_000,
      heldMs: 60_000,
    };
    expect(heard).toEqual([event]);
    expect((await next).verdict).toBe('allow');
    if (lost.verdict === 'allow') lost.settle(); // too late: counts no more
    expect(api.inspect('sink').inFlight).toBe(1);
    expect(api.stats()).toMatchObject({ expiredPermits: 1, held: 1 });
  });

  test('one alarm watches them, whatever those who hear of it do', async () => {
    const clock = new VirtualClock();
    let alarms = 0;
    const counting = {
      now: () => clock.now(),
      wakeAt: (at: number, act: () => void) => {
        alarms++;
        return clock.wakeAt(at, () => {
          alarms--;
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
    expect(alarms).toBe(1);
  });

  test('those that are settled in time are not', async () => {
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

describe('a pause', () => {
  test('keeps everybody out for as long as the other side said, whatever the rule', async () => {
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

  test('comes with a settled call, and never ends before the longest of them', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { busy: {} }, clock });
    api.check('sink');
    api.settle('sink', { outcome: 'busy', retryAfterMs: 5000 });
    api.settle('sink', { outcome: 'busy', retryAfterMs: 1000 });
    expect(api.check('sink')).toEqual({ verdict: 'deny', retryAfterMs: 5000 });
  });

  test('has a bound, so that nobody can be sent away for ever', () => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock(), maxCooldown: '10s' });
    api.update('sink', { retryAfterMs: 1e12 });
    expect(api.check('sink')).toEqual({ verdict: 'deny', retryAfterMs: 10_000 });
  });

  test('what is left on the other side counts, and nothing left is a pause', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { bucket: { rate: 1, burst: 100 } }, clock });
    api.update('llm', { remaining: 7, resetMs: 60_000 });
    expect(api.inspect('llm').remaining).toBe(7);
    api.update('llm', { remaining: 50 }); // never more than is known here
    expect(api.inspect('llm').remaining).toBe(7);
    api.update('llm', { remaining: 0, resetMs: 2500 });
    expect(api.check('llm')).toEqual({ verdict: 'deny', retryAfterMs: 2500 });
  });

  test('only so many keys are paused at once', () => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock() });
    for (let n = 0; n <= 10_000; n++) api.update(`k${n}`, { retryAfterMs: 1000 });
    expect(api.check('k0').verdict).toBe('allow'); // the oldest was forgotten
    expect(api.check('k1').verdict).toBe('deny');
  });

  test("that is over stands in nobody's way, also if its key is never seen again", () => {
    const clock = new VirtualClock();
    const hash = createHasher([1, 2]);
    const api = createLimiter({ limit: bucketLimit, clock }, { hasher: hash }) as SyncLimiter;
    hash.hash('alice');
    expect(api.checkHashed(hash, 1)?.verdict).toBe('allow');
    api.update('gone', { retryAfterMs: 1000 });
    expect(api.checkHashed(hash, 1)).toBeUndefined(); // by name only, as long as some name is paused
    clock.advance(1000);
    expect(api.check('alice').verdict).toBe('allow');
    hash.hash('alice');
    expect(api.checkHashed(hash, 1)?.verdict).toBe('allow');
  });
});
