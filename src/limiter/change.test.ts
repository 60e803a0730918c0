import { expect, test } from 'vitest';
import type { Rate } from '../core/duration.ts';
import { seededRandom } from '../core/random.ts';
import { VirtualClock } from '../testing/index.ts';
import { throttle } from '../throttle/throttle.ts';
import { all } from './composite-limiter.ts';
import { createLimiter, type LimiterOptions } from './limiter.ts';
import { SyncLimiter } from './sync-limiter.ts';

type Limit = LimiterOptions['limit'];

function setUp(limit: Limit, options: Partial<LimiterOptions> = {}) {
  const clock = new VirtualClock(1_000_000_000);
  const limiter = createLimiter({ limit, clock, random: seededRandom(1), ...options });
  if (!(limiter instanceof SyncLimiter)) throw new Error('not a local limiter');
  const change = (to: Limit): boolean => {
    const apply = limiter.prepareChange(to);
    apply?.();
    return apply !== undefined;
  };
  const take = (count: number, key = 'alice'): number => {
    let allowed = 0;
    for (let n = 0; n < count; n++) if (limiter.check(key).verdict === 'allow') allowed++;
    return allowed;
  };
  const left = (key = 'alice'): number => limiter.inspect(key).remaining;
  return { clock, limiter, change, take, left };
}

const bucket = (rate: Rate, burst: number): Limit => ({ bucket: { rate, burst } });

test('change: half of a burst of 20 used, 30 of a new burst of 40 are left', () => {
  const { change, take, left } = setUp(bucket('1/s', 20));
  take(10);
  expect(change(bucket('2/s', 40))).toBe(true);
  expect(left()).toBe(30);
  expect(left('bob')).toBe(40);
});

test('change: what was refilled until then was refilled at the old rate, then at the new one', () => {
  const { clock, change, take, left } = setUp(bucket('1/s', 20));
  take(20);
  clock.advance(5000);
  change(bucket('3/s', 20));
  expect(left()).toBe(5);
  clock.advance(2000);
  expect(left()).toBe(11);
});

test('change: a smaller burst and the old one again grant nothing twice', () => {
  const { change, take, left } = setUp(bucket('1/s', 20));
  take(20);
  change(bucket('1/s', 5));
  expect(left()).toBe(-15);
  change(bucket('1/s', 20));
  expect(left()).toBe(0);
});

test('change: a bucket in debt stays in debt, up to a maxDebt of the new rule', () => {
  const { change, limiter, left } = setUp(bucket('1/s', 20));
  limiter.update('bob', { hits: 27 });
  change(bucket('1/s', 22));
  expect(left('bob')).toBe(-5);
  change({ bucket: { rate: '1/s', burst: 20, maxDebt: 3 } });
  expect(left('bob')).toBe(-3);
});

test('change: a window keeps its counts, also with other steps and another length', () => {
  const { clock, change, take, left } = setUp({ window: { limit: 10, per: '60s' } });
  take(4);
  clock.advance(30_000);
  take(2);
  change({ window: { limit: 8, per: '60s' } });
  expect(left()).toBe(2);
  change({ window: { limit: 8, per: '60s', steps: 7 } });
  expect(left()).toBe(2);
  change({ window: { limit: 8, per: '20s', steps: 4 } });
  expect(left()).toBe(6); // the first four have left a window of 20 s
  clock.advance(40_000);
  expect(left()).toBe(8);
});

test('change: the next call is due the new interval after the last one', () => {
  const { clock, change, limiter, take } = setUp({ spacing: { every: '6s' } });
  take(1);
  clock.advance(1000);
  change({ spacing: { every: '10s' } });
  expect(limiter.check('alice')).toEqual({ verdict: 'deny', retryAfterMs: 9000 });
  change({ spacing: { every: '2s' } });
  expect(limiter.check('alice')).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
});

test('change: a ramp keeps its level within the new bounds, and what was taken in this second', () => {
  const { clock, change, take, left } = setUp({ ramp: { min: 10, max: 50, over: '40s' } });
  for (let second = 0; second < 20; second++) {
    take(1);
    clock.advance(1000);
  }
  take(10);
  expect(left()).toBe(20);
  change({ ramp: { min: 10, max: 25, over: '40s' } });
  expect(left()).toBe(15);
  change({ ramp: { min: 30, max: 60, over: '40s' } });
  expect(left()).toBe(20);
});

test('change: calls stay in flight, and their permits settle with the new limit', () => {
  const { change, limiter, left } = setUp({ concurrency: 2 });
  const permits = [limiter.tryAcquire('alice'), limiter.tryAcquire('alice')];
  change({ concurrency: 3 });
  expect(left()).toBe(1);
  for (const permit of permits) if (permit.verdict === 'allow') permit.settle();
  expect(left()).toBe(3);
  const { held } = limiter.stats();
  expect(held).toBe(0);
});

test('change: partitions keep their calls in flight', () => {
  const parts = (limit: number): Limit => ({
    concurrency: { limit, partitions: { live: 0.5, batch: 0.5 } },
  });
  const { change, limiter } = setUp(parts(4));
  limiter.tryAcquire('alice', 1, { partition: 'live' });
  change(parts(8));
  expect(limiter.inspect('alice')).toMatchObject({
    inFlight: 1,
    partitions: { live: 1, batch: 0 },
  });
  expect(change({ concurrency: 8 })).toBe(false);
});

test('change: what an adaptive limit has learnt is kept up to the new bound', () => {
  const { clock, change, limiter } = setUp({
    adaptive: { rule: 'aimd', initial: 20, max: 40 },
  });
  const permit = limiter.tryAcquire('alice');
  clock.advance(10);
  if (permit.verdict === 'allow') permit.settle();
  change({ adaptive: { rule: 'aimd', initial: 1, max: 30 } });
  expect(limiter.inspect('alice').limit).toBe(20);
  change({ adaptive: { rule: 'aimd', initial: 1, max: 12 } });
  expect(limiter.inspect('alice').limit).toBe(12);
  expect(change({ adaptive: { max: 12 } })).toBe(false);
});

test('change: each rule of `all` keeps what was spent of it', () => {
  const both = (rate: Rate, burst: number, limit: number): Limit => ({
    all: [bucket(rate, burst), { window: { limit, per: '60s' } }],
  });
  const { change, limiter, take } = setUp(both('1/s', 10, 100));
  take(6);
  change(both('1/s', 20, 50));
  const remaining = limiter.inspect('alice').rules.map((rule) => rule.remaining);
  expect(remaining).toEqual([14, 44]);
  expect(change({ all: [bucket('1/s', 10)] })).toBe(false);
});

test('change: a rule of another kind is refused and nothing changes', () => {
  const { change, take, left } = setUp(bucket('1/s', 20));
  take(5);
  expect(change({ window: { limit: 20, per: '20s' } })).toBe(false);
  expect(left()).toBe(15);
});

test('change: a waiting call gets its permit as soon as the new limit allows it', async () => {
  const { clock, change, limiter } = setUp(bucket('1/h', 1));
  limiter.check('alice');
  const waiting = limiter.acquire('alice', 1, { wait: '2h' });
  await Promise.resolve();
  change(bucket('1/s', 1));
  clock.advance(1000);
  expect(await waiting).toMatchObject({ verdict: 'allow' });
});

test('change: a key that was evicted in use gets no fresh burst', () => {
  const { change, take, left } = setUp(bucket('1/m', 10), { maxKeys: 100 });
  take(10);
  for (let n = 0; n < 5000; n++) take(10, `other ${n}`);
  change(bucket('1/m', 8));
  expect(left()).toBeLessThanOrEqual(0);
});

const RULES: Record<string, [Limit, Limit]> = {
  bucket: [bucket('5/s', 20), bucket('9/s', 7)],
  window: [{ window: { limit: 30, per: '5s' } }, { window: { limit: 50, per: '9s', steps: 5 } }],
  spacing: [{ spacing: { every: '150ms' } }, { spacing: { every: '90ms' } }],
  ramp: [{ ramp: { min: 3, max: 9, over: '10s' } }, { ramp: { min: 5, max: 20, over: '10s' } }],
  concurrency: [{ concurrency: 3 }, { concurrency: 5 }],
  adaptive: [{ adaptive: { initial: 4 } }, { adaptive: { initial: 4, max: 9 } }],
  busy: [{ busy: { max: 8 } }, { busy: { max: 5 } }],
};

/** Random calls of a few keys, with outcomes; the verdicts. `onStep` runs before each call. */
function runTraffic(limit: Limit, seed: number, onStep: (n: number, to: SyncLimiter) => void) {
  const { clock, limiter } = setUp(limit);
  const random = seededRandom(seed);
  const verdicts: string[] = [];
  const held: { settle(result?: object): void }[] = [];
  for (let n = 0; n < 400; n++) {
    clock.advance(Math.floor(random() * 80));
    onStep(n, limiter);
    const permit = limiter.tryAcquire(`key ${Math.floor(random() * 3)}`);
    verdicts.push(`${permit.verdict} ${permit.verdict === 'deny' ? permit.retryAfterMs : ''}`);
    if (permit.verdict === 'allow') held.push(permit);
    const outcome = random() < 0.2 ? 'busy' : 'ok';
    if (random() < 0.8) held.shift()?.settle({ outcome });
  }
  return verdicts;
}

for (const [kind, [limit]] of Object.entries(RULES))
  test(`change: ${kind}, to the same numbers again and again, decides as without a change`, () => {
    for (let seed = 1; seed <= 5; seed++) {
      const changed = runTraffic(limit, seed, (n, limiter) => {
        if (n % 37 === 0) limiter.prepareChange(limit)?.();
      });
      expect(changed).toEqual(runTraffic(limit, seed, () => {}));
    }
  });

test('change: over random changes of a bucket, no span admits more than burst and rates allow', () => {
  for (let seed = 1; seed <= 20; seed++) {
    const random = seededRandom(seed);
    const { clock, limiter } = setUp(bucket('5/s', 20));
    let rate = 5;
    let maxBurst = 20;
    let earned = 0;
    let lowest = 0; // of admitted - earned, at any instant before
    let admitted = 0;
    for (let n = 0; n < 2000; n++) {
      const ms = Math.floor(random() * 100);
      clock.advance(ms);
      earned += (ms * rate) / 1000;
      lowest = Math.min(lowest, admitted - earned);
      if (n % 100 === 99) {
        rate = 1 + Math.floor(random() * 20);
        const burst = 1 + Math.floor(random() * 40);
        maxBurst = Math.max(maxBurst, burst);
        limiter.prepareChange(bucket(`${rate}/s`, burst))?.();
      }
      if (limiter.check('alice').verdict === 'allow') admitted++;
      expect(admitted - earned - lowest).toBeLessThanOrEqual(maxBurst + 1e-6);
    }
  }
});

test('change: 200,000 keys keep their counts, and no step takes long', async () => {
  const { change, take, limiter, left } = setUp(bucket('1/m', 10));
  for (let n = 0; n < 200_000; n++) take(1 + (n % 9), `key ${n}`);
  change(bucket('2/m', 20));
  expect(left('key 7')).toBe(12);
  expect(limiter.stats().keys).toBe(200_000);
  // Keys move on timers meanwhile; a lookup finds each of them before and after it has moved.
  for (let turn = 0; turn < 100; turn++) {
    const n = turn * 1999;
    expect(left(`key ${n}`)).toBe(20 - 1 - (n % 9));
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  expect(limiter.stats().keys).toBe(200_000);
});

test('change: a limit of another kind is a ConfigError that says so, and nothing changes', () => {
  const { limiter, take, left } = setUp(bucket('1/s', 20));
  take(5);
  expect(() => limiter.change({ window: { limit: 20, per: '20s' } })).toThrow(
    'expected `limit` to be a bucket, as the limit is now',
  );
  expect(() => limiter.change({ bucket: { rate: '1/s', burst: -1 } })).toThrow(
    'limit.bucket.burst',
  );
  expect(left()).toBe(15);
  const { limiter: inFlight } = setUp({ concurrency: 2 });
  const partitions = { live: 0.5, batch: 0.5 };
  expect(() => inFlight.change({ concurrency: { limit: 4, partitions } })).toThrow(
    'with other numbers only',
  );
});

test('change: listeners get one event with the new limit', () => {
  const { limiter } = setUp(bucket('1/s', 20));
  const events: unknown[] = [];
  limiter.on((event) => events.push(event));
  limiter.change(bucket('2/s', 40));
  expect(events).toMatchObject([
    { type: 'reconfigured', limit: 'bucket', key: '', to: bucket('2/s', 40) },
  ]);
});

test('change: a waiter that never fits now is refused, one that fits is granted at once', async () => {
  const { limiter } = setUp(bucket('1/h', 10));
  limiter.check('a', 10);
  limiter.check('b', 10);
  const waiting = [
    limiter.acquire('a', 9, { wait: '1d' }),
    limiter.acquire('b', 2, { wait: '1d' }),
  ];
  await Promise.resolve();
  limiter.change(bucket('1/h', 8));
  expect(await waiting[0]).toMatchObject({ verdict: 'deny', reason: 'never' });
  limiter.change(bucket('1/h', 12));
  expect(await waiting[1]).toMatchObject({ verdict: 'allow' });
});

test('change: `all` changes its parts by name, all of them or none', () => {
  const clock = new VirtualClock(1_000_000_000);
  const user = createLimiter({ name: 'user', limit: bucket('1/s', 10), clock }) as SyncLimiter;
  const total = createLimiter({ name: 'total', limit: bucket('1/s', 100), clock }) as SyncLimiter;
  const both = all([user, { limiter: total, key: '*' }]);
  both.check('alice', 4);
  const left = () => [user.inspect('alice').remaining, total.inspect('*').remaining];
  const other = { window: { limit: 5, per: '1s' } } as const;
  expect(() => both.change({ user: bucket('1/s', 20), total: other })).toThrow(
    'expected `limit.total` to be a bucket',
  );
  expect(() => both.change({ users: bucket('1/s', 20) })).toThrow('did you mean `user`');
  expect(left()).toEqual([6, 96]);
  both.change({ user: bucket('1/s', 20), total: bucket('1/s', 50) });
  expect(left()).toEqual([16, 46]);
  expect(() =>
    all([user, setUp(bucket('1/s', 1), { name: 'user' }).limiter]).change({ user: other }),
  ).toThrow('give parts names');
});

test('change: `fn.limiter` of throttle changes the limit of the function', async () => {
  const call = throttle(async () => 'ok', { limit: bucket('1/h', 1), wait: 0 });
  await call();
  await expect(call()).rejects.toMatchObject({ code: 'DENIED' });
  await call.limiter.change(bucket('1/h', 2));
  expect(await call()).toBe('ok');
  await expect(call()).rejects.toMatchObject({ code: 'DENIED' });
});
