import { describe, expect, test } from 'vitest';
import { prometheus } from '../../adapters/metrics/prometheus.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { memoryStore } from './memory-store.ts';
import { type PoolOptions, pool } from './options.ts';
import { fixedPool } from './static-size.ts';
import type { PoolStore } from './store.ts';

/** Members on virtual time that take everything available, ten times a second. */
function world(limit: Limit, setting: PoolOptions = {}) {
  const clock = new VirtualClock(1_000_000);
  const all = memoryStore(clock);
  /** Crashed members: their calls get no reply. */
  const dead = new Set<string>();
  const store: PoolStore = {
    ...all,
    sync: (name, request, options) =>
      dead.has(request.id.replace(/#.*/, ''))
        ? new Promise(() => {})
        : all.sync(name, request, options),
  };
  let born = 0;
  const start = () => {
    const id = `pod${++born}`;
    const membership = pool(store, { random: () => 0.5, ...setting, id, clock }); // syncs fall on the steps of `pass`
    const limited = limiter({ limit, backend: membership, clock });
    const stop = (): void => {
      pod.isRunning = false;
    };
    const crash = (): void => {
      stop();
      dead.add(id);
    };
    const pod = {
      membership,
      limited,
      taken: new Map<number, number>(),
      isRunning: true,
      stop,
      crash,
    };
    return pod;
  };
  const pods: ReturnType<typeof start>[] = [];
  const add = () => {
    const pod = start();
    pods.push(pod);
    return pod;
  };
  const pass = async (ms: number): Promise<void> => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      clock.advance(10);
      for (let n = 0; n < 8; n++) await Promise.resolve();
      const second = Math.floor(clock.now() / 1000);
      for (const pod of pods) {
        if (!pod.isRunning) continue;
        const got = pod.limited.takeUpTo('', Infinity);
        pod.taken.set(second, (pod.taken.get(second) ?? 0) + got);
      }
    }
  };
  const sums = (): number[] => {
    const seconds = [...new Set(pods.flatMap(({ taken }) => [...taken.keys()]))].sort();
    return seconds.map((s) => pods.reduce((sum, { taken }) => sum + (taken.get(s) ?? 0), 0));
  };
  return { clock, pods, add, pass, sums };
}

const RAMP: Limit = { ramp: { min: 100, max: 100, over: '1s' } };

describe('pool members', () => {
  test('pool: a single member has the whole limit after the quiet period', async () => {
    const { add, pass, sums, pods } = world(RAMP);
    add();
    await pass(6000);
    expect(sums().slice(0, 2)).toEqual([0, 0]);
    expect(sums().slice(3, 6)).toEqual([100, 100, 100]);
    expect(pods[0].membership.view()).toMatchObject({
      size: 1,
      rank: 0,
      active: 1,
      isAgreed: true,
    });
  });

  test('pool: seven members use every token exactly once as they join and leave', async () => {
    const { add, pass, sums, pods } = world(RAMP);
    add();
    await pass(4000);
    for (let n = 0; n < 6; n++) {
      add();
      await pass(700);
    }
    await pass(4000);
    expect(pods.map(({ membership }) => membership.view().size)).toEqual(pods.map(() => 7));
    expect(sums().at(-2)).toBe(100);
    await pods[0].membership.close();
    pods[0].stop();
    await pass(3000);
    expect(sums().at(-2)).toBe(100);
    expect(Math.max(...sums())).toBe(100);
  });

  test('pool: a quota is never exceeded as members join, and used in full afterwards', async () => {
    const { add, pass, sums, pods } = world({ quota: { limit: 100, per: 'second' } });
    add();
    await pass(4000);
    for (let n = 0; n < 6; n++) {
      add();
      await pass(700);
    }
    await pass(4000);
    expect(sums().slice(-4, -1)).toEqual([100, 100, 100]);
    expect(Math.max(...sums())).toBe(100);
    await pods[0].membership.close();
    pods[0].stop();
    await pass(3000);
    expect(sums().at(-2)).toBe(100);
    expect(Math.max(...sums())).toBeLessThanOrEqual(100 + Math.ceil(100 / 7)); // what the leaver had used
  });

  test('pool: a quota of a day is refused, and the error names what can be divided', () => {
    const { add } = world({ quota: { limit: 100, per: 'day' } });
    expect(add).toThrow('or a window or quota of at most an hour in a pool, got "quota"');
  });

  test('pool: five tokens over eight members serve some member every second', async () => {
    const { add, pass, sums, pods } = world({ ramp: { min: 5, max: 5, over: '1s' } });
    for (let n = 0; n < 8; n++) add();
    await pass(12_000);
    expect(sums().slice(-6, -1)).toEqual([5, 5, 5, 5, 5]);
    expect(pods.every(({ taken }) => [...taken.values()].some((count) => count > 0))).toBe(true);
  });

  test('pool: a crashed member is dropped after two seconds and its part is used', async () => {
    const { add, pass, sums, pods, clock } = world(RAMP);
    for (let n = 0; n < 3; n++) add();
    await pass(5000);
    expect(sums().at(-2)).toBe(100);
    pods[1].crash();
    const at = clock.now();
    await pass(3000);
    expect(pods[0].membership.view()).toMatchObject({ size: 2, isAgreed: true });
    await pass(2000);
    expect(clock.now() - at).toBe(5000);
    expect(sums().at(-2)).toBe(100);
    expect(Math.max(...sums())).toBe(100);
  });
});

test('pool: metrics report the pool size, and 0 without a part', async () => {
  const clock = new VirtualClock(0);
  const pods = pool(fixedPool(3, 0, clock), { clock });
  const alone = limiter({ name: 'alone', limit: { bucket: { rate: 1 } }, clock });
  const api = limiter({ name: 'api', limit: { bucket: { rate: 1 } }, backend: pods, clock });
  const shown = (): string[] =>
    prometheus([api, alone])
      .text()
      .match(/^sluice_pool_divisor.*$/gm) ?? [];
  await clock.advanceAsync(10);
  expect(shown()).toEqual(['sluice_pool_divisor{limit="api"} 3']);
  await pods.close();
  expect(shown()).toEqual(['sluice_pool_divisor{limit="api"} 0']);
});

test('pool: metrics report the tokens of this member’s part, their use, and the saturation', async () => {
  const clock = new VirtualClock(0);
  const pods = pool(fixedPool(4, 0, clock), { clock });
  const limit = { ramp: { min: 100, max: 100, over: '1s' } } as const;
  const api = limiter({ name: 'api', limit, backend: pods, clock });
  const flights = limiter({ name: 'flights', limit: { concurrency: 8 }, backend: pods, clock });
  const shown = (): string[] =>
    prometheus([api, flights])
      .text()
      .match(/^sluice_pool_(tokens|used|saturation).*$/gm) ?? [];
  await clock.advanceAsync(500);
  for (let second = 0; second < 3; second++) {
    expect(api.takeUpTo('', 15)).toBe(15);
    api.giveBack('', 5);
    await clock.advanceAsync(1000);
  }
  const permit = flights.tryAcquire('');
  expect(permit.verdict).toBe('allow');
  expect(shown()).toEqual([
    'sluice_pool_tokens{limit="api"} 25',
    'sluice_pool_used_total{limit="api"} 30',
    'sluice_pool_saturation{limit="api"} 0.4',
    'sluice_pool_saturation{limit="flights"} 0.5',
  ]);
  await pods.close();
  expect(shown()[0]).toBe('sluice_pool_tokens{limit="api"} 0');
});

test('pool: the part of a crashed member is used in the second of the new agreement', async () => {
  const { add, pass, pods, clock } = world(RAMP);
  for (let n = 0; n < 5; n++) add();
  await pass(6500);
  pods[0].crash();
  const crashedIn = Math.floor(clock.now() / 1000);
  await pass(4000);
  const sumOf = (second: number): number =>
    pods.reduce((sum, { taken }) => sum + (taken.get(second) ?? 0), 0);
  expect([1, 2, 3].map((later) => sumOf(crashedIn + later))).toEqual([80, 100, 100]);
});

describe('pool: bucket', () => {
  test.each([
    [{ rate: '30/s', burst: 60 }, 3, 0.93],
    [{ rate: '100/s', burst: 7 }, 7, 0.93],
    [{ rate: '5/s', burst: 5 }, 8, 0.75], // turns lose some tokens where members outnumber them
  ] as const)(
    'pool: %j over %i members never exceeds the undivided bucket, and reaches at least %f of it',
    async (bucket, count, least) => {
      const { add, pass, pods } = world({ bucket });
      for (let n = 0; n < count; n++) add();
      await pass(30_000);
      const perSecond = Number.parseInt(bucket.rate, 10);
      const times = pods.flatMap(({ taken }) => [...taken]);
      const of = (from: number, to: number): number =>
        times.reduce((sum, [second, got]) => (second >= from && second < to ? sum + got : sum), 0);
      const first = Math.min(...times.map(([second]) => second));
      for (let s = first; s < first + 30; s++) {
        for (const seconds of [1, 2, 5]) {
          expect(of(s, s + seconds)).toBeLessThanOrEqual(bucket.burst + perSecond * seconds + 1e-9);
        }
      }
      expect(of(first + 15, first + 30)).toBeGreaterThan(15 * perSecond * least);
    },
  );

  test('pool: a member that lost its claim for a moment gets no fresh burst', async () => {
    const { add, pass, pods } = world({ bucket: { rate: '1/s', burst: 100 } });
    const [idle] = [add(), add()];
    await pass(5000);
    idle.stop(); // without checks its part refills
    await pass(120_000);
    void idle.membership.pause(); // the other member has the whole limit now, and spends it
    await pass(120_000);
    expect(pods[1].membership.view().size).toBe(1);
    idle.membership.resume();
    await pass(4000);
    expect(idle.membership.view().size).toBe(2);
    expect(idle.limited.takeUpTo('', Infinity)).toBeLessThanOrEqual(3);
  });

  test('pool: a new limit refills from its creation, not from its first check', async () => {
    const clock = new VirtualClock(0);
    const pods = pool(fixedPool(2, 0, clock), { clock });
    await clock.advanceAsync(1000);
    const limited = limiter({
      limit: { bucket: { rate: '10/s', burst: 10 } },
      backend: pods,
      clock,
    });
    await clock.advanceAsync(600);
    expect(limited.takeUpTo('', Infinity)).toBe(3); // of five a second
  });

  test('pool: a joining member brings no burst', async () => {
    const { add, pass, pods } = world({ bucket: { rate: '10/s', burst: 100 } });
    add();
    await pass(16_000); // the burst is spent
    add();
    await pass(5000);
    const got = [...pods[1].taken.values()].reduce((sum, count) => sum + count, 0);
    expect(got).toBeLessThanOrEqual(25);
    expect(got).toBeGreaterThan(10);
  });
});

test('pool: a returning single member has not saved up tokens', async () => {
  const { add, pass, pods } = world({ bucket: { rate: '10/s', burst: 100 } });
  add();
  await pass(20_000); // spends its burst
  await pods[0].membership.pause();
  pods[0].taken.clear();
  await pass(20_000);
  pods[0].membership.resume();
  await pass(5000);
  const got = [...pods[0].taken.values()].reduce((sum, count) => sum + count, 0);
  expect(got).toBeLessThanOrEqual(50);
  expect(got).toBeGreaterThan(15);
});

test('pool: syncs at the given interval, with jitter', async () => {
  const clock = new VirtualClock(1_000_000);
  const store = memoryStore(clock);
  const syncedAt: number[] = [];
  const watched: PoolStore = {
    ...store,
    sync(...args) {
      syncedAt.push(clock.now());
      return store.sync(...args);
    },
  };
  let draw = 0;
  const random = (): number => draw;
  const membership = pool(watched, { id: 'a', clock, random, sync: 200, memberTimeout: 1000 });
  await clock.advanceAsync(5000);
  for (const [next, ms] of [
    [0, 180],
    [0.5, 200],
    [0.75, 210],
  ]) {
    draw = next;
    await clock.advanceAsync(250);
    syncedAt.splice(0);
    await clock.advanceAsync(500);
    expect([next, syncedAt[1] - syncedAt[0]]).toEqual([next, expect.closeTo(ms, 6)]);
  }
  await membership.close();
});

test.each([
  [
    'no store',
    undefined,
    {},
    '`store` to be a pool store such as redisStore(client), got undefined',
  ],
  ['a Redis client, which has a `sync` too', { sync() {} }, {}, '`store`'],
  ['no options', memoryStore(), null, 'an object, got null'],
  ['a store twice', memoryStore(), { store: 1 }, '`store` to be one of clock'],
  ['a sync that is too rare', memoryStore(), { sync: '1s' }, '`sync` to be at most a quarter'],
  [
    'a staleFor shorter than two syncs',
    memoryStore(),
    { staleFor: 150 },
    '`staleFor` to be at least twice `sync`',
  ],
])('pool: refuses %s', (_, store, setting, message) => {
  expect(() => pool(store as never, setting as never)).toThrow(message);
});

test.each([
  [5, 25],
  [60, 60],
  [1000, 100],
])('pool: without agreement, a member of %i syncs every %i ms', async (active, everyMs) => {
  const clock = new VirtualClock(1_000_000);
  const sentAt: number[] = [];
  const claim = { size: 0, rank: -1, round: 0 };
  const store: PoolStore = {
    ...memoryStore(clock),
    sync: async () => {
      sentAt.push(clock.now());
      return { claim, effectiveAt: 0, active, isAgreed: false, now: clock.now() };
    },
  };
  const membership = pool(store, { clock, random: () => 0.5 });
  await clock.advanceAsync(350);
  await membership.close();
  expect(sentAt.slice(0, 4).map((at) => at - 1_000_000)).toEqual(
    [0, 1, 2, 3].map((n) => n * everyMs),
  );
});
