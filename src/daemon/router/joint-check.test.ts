import { describe, expect, test } from 'vitest';
import { createRouter, unavailableBackend } from '../../../test/support/http-protocol.ts';

import { allow, deny } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { checkAll, type JointPart, remainingOfAll } from './joint-check.ts';
import type { CheckResult } from './request.ts';
import type { Router } from './router.ts';

type Item = readonly [limit: string, key: string, cost?: number];

const START = 1_700_000_000_000;

/** A router on a virtual clock, asked with lists of limit, key and cost. */
function setUp(limits: unknown, extra: Parameters<typeof createRouter>[0] = {}) {
  const clock = new VirtualClock(START);
  const router = createRouter({ limits, ...extra }, clock);
  const partsOf = (items: readonly Item[]): JointPart[] =>
    items.map(([name, key, cost = 1]) => {
      const limit = name === '*' ? undefined : name;
      const request = router.route({ limit, key, cost });
      if (!request) throw new Error(`unknown limit ${name}`);
      return { limit, key, request };
    });
  const ask = (...items: Item[]): CheckResult =>
    checkAll(router, partsOf(items), false) as CheckResult;
  const hold = (...items: Item[]): CheckResult =>
    checkAll(router, partsOf(items), true) as CheckResult;
  const left = (limit: string, key: string): number => remainingIn(router, limit, key);
  return { clock, router, ask, hold, left, partsOf };
}

/** `remaining` of one limit, whatever other limits apply to the key. */
function remainingIn(router: Router, limit: string, key: string): number {
  const request = router.route({ limit, key, cost: 0 });
  const statuses = router.inspect(request as NonNullable<typeof request>) as Inspection[];
  return statuses.find(({ name }) => name === limit)?.remaining ?? Number.NaN;
}

const LOGIN = {
  user: { bucket: { rate: '5/m', burst: 5 }, match: 'user:*' },
  ip: { bucket: { rate: '20/m', burst: 20 }, match: 'ip:*' },
};

describe('joint check', () => {
  test('5 per user and 20 per address: 5 of one user and 20 of one address pass', () => {
    const { ask } = setUp(LOGIN);
    const login = (user: number) => ask(['user', `user:${user}`], ['ip', 'ip:1']).decision.verdict;
    const passed = Array.from({ length: 100 }, (_, n) => login(Math.floor(n / 10)));
    expect(passed.filter((verdict) => verdict === 'allow')).toHaveLength(20);
    expect(passed.slice(0, 10).filter((verdict) => verdict === 'allow')).toHaveLength(5);
  });

  test('one limit refuses: names it, and no limit is charged', () => {
    const { ask, left } = setUp(LOGIN);
    expect(ask(['user', 'user:a', 5], ['ip', 'ip:1', 2]).decision).toEqual({
      verdict: 'allow',
      remaining: 0,
    });
    expect(ask(['user', 'user:a'], ['ip', 'ip:1'])).toEqual({
      decision: { verdict: 'deny', retryAfterMs: 12_000 },
      limit: 'user',
    });
    expect([left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([0, 18]);
  });

  test('two limits refuse: the retry time is the longest', () => {
    const { ask } = setUp(LOGIN);
    ask(['user', 'user:a', 5], ['ip', 'ip:1', 20]);
    for (const items of [
      [['user', 'user:a'] as const, ['ip', 'ip:1'] as const],
      [['ip', 'ip:1'] as const, ['user', 'user:a'] as const],
    ])
      expect(ask(...items)).toMatchObject({ decision: { retryAfterMs: 12_000 }, limit: 'user' });
  });

  test('a limit named twice with one key: is charged the sum, or nothing', () => {
    const { ask, left } = setUp(LOGIN);
    expect(ask(['user', 'user:a', 3], ['user', 'user:a', 3])).toMatchObject({
      decision: { verdict: 'deny' },
      limit: 'user',
    });
    expect(left('user', 'user:a')).toBe(5);
    expect(ask(['user', 'user:a', 3], ['user', 'user:a', 2]).decision.verdict).toBe('allow');
    expect(left('user', 'user:a')).toBe(0);
  });

  test('per: limit: checks that name it share one count; checks that match it are one call', () => {
    const { ask, left } = setUp({
      ...LOGIN,
      all: { bucket: { rate: '1/h', burst: 10 }, per: 'limit', always: true },
    });
    ask(['all', 'a', 2], ['all', 'b', 3]);
    expect(left('all', '')).toBe(5);
    ask(['*', 'user:a', 1], ['*', 'ip:1', 2]);
    expect([left('all', ''), left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([3, 4, 18]);
  });

  test('deny list: refuses all; allow list: leaves the other checks to their limits', () => {
    const { ask, left, router } = setUp(LOGIN, { deny: ['ip:bad'], allow: ['user:admin'] });
    expect(ask(['user', 'user:a'], ['ip', 'ip:bad'])).toMatchObject({
      decision: { verdict: 'deny', retryAfterMs: Infinity },
      staticVerdict: { reason: 'deny-list' },
    });
    expect(left('user', 'user:a')).toBe(5);
    expect(router.staticDenials['deny-list']).toBe(1);
    expect(ask(['user', 'user:admin', 9], ['ip', 'ip:1']).decision).toEqual({
      verdict: 'allow',
      remaining: 19,
    });
    expect(ask(['user', 'user:admin'], ['user', 'user:admin'])).toMatchObject({
      staticVerdict: { reason: 'allow-list' },
    });
  });

  test('shadow limit: counts what passes and never refuses', () => {
    const { ask, router } = setUp({
      ...LOGIN,
      trial: { bucket: { rate: '1/h', burst: 1 }, shadow: true },
    });
    const verdicts = [1, 2, 3].map(() => ask(['user', 'user:a'], ['trial', 'x']).decision.verdict);
    expect(verdicts).toEqual(['allow', 'allow', 'allow']);
    expect(router.registry.get('trial')?.limiter.stats()).toMatchObject({ allowed: 1, denied: 2 });
  });

  test('concurrency limit: without a permit it is peeked at, with one the call is in flight', () => {
    const { ask, hold, router, left } = setUp({ ...LOGIN, db: { concurrency: 2, match: 'db:*' } });
    const both = [['user', 'user:a'] as const, ['db', 'db:1'] as const];
    for (let n = 0; n < 3; n++) expect(ask(...both).decision.verdict).toBe('allow');
    const held = [hold(...both), hold(...both)];
    expect(held.map(({ decision }) => decision)).toEqual([
      { verdict: 'allow', remaining: 1 },
      { verdict: 'allow', remaining: 0 },
    ]);
    expect(left('user', 'user:a')).toBe(0);
    expect(ask(['ip', 'ip:1'], ['db', 'db:1'])).toMatchObject({ limit: 'db' });
    expect(left('ip', 'ip:1')).toBe(20);
    expect(router.permits.settle(held[0].permit as string, { outcome: 'ignored' })).toBe(true);
    expect(left('user', 'user:a')).toBe(1);
    expect(hold(...both).decision.verdict).toBe('allow');
  });

  test('concurrency limit and rate limit refuse: the retry time is that of the rate limit', () => {
    const { ask, hold } = setUp({ ...LOGIN, db: { concurrency: 1, match: 'db:*' } });
    hold(['user', 'user:a', 5], ['db', 'db:1', 1]);
    expect(ask(['db', 'db:1'], ['user', 'user:a'])).toMatchObject({
      decision: { retryAfterMs: 12_000 },
      limit: 'user',
    });
  });

  test('permit of equal costs: `used` counts in every limit; of different costs, it is refused', () => {
    const { hold, router, left } = setUp(LOGIN);
    const equal = hold(['user', 'user:a', 4], ['ip', 'ip:1', 4]).permit as string;
    router.permits.settle(equal, { used: 1 });
    expect([left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([4, 19]);
    const mixed = hold(['user', 'user:a', 1], ['ip', 'ip:1', 4]).permit as string;
    expect(() => router.permits.settle(mixed, { used: 1 })).toThrow(/`used` to be left out/);
    expect(router.permits.settle(mixed, {})).toBe(true);
    expect([left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([3, 15]);
  });

  test('cost 0: takes nothing, and gets no permit', () => {
    const { hold, left } = setUp(LOGIN);
    expect(hold(['user', 'user:a', 0], ['ip', 'ip:1', 0])).toEqual({
      decision: { verdict: 'allow', remaining: 5 },
    });
    expect(left('user', 'user:a')).toBe(5);
  });

  test('refusal: what is left is that of the tightest limit', () => {
    const { ask, partsOf, router } = setUp(LOGIN);
    const items = [['user', 'user:a', 9] as const, ['ip', 'ip:1', 2] as const];
    expect(ask(...items)).toMatchObject({ decision: { retryAfterMs: Infinity }, limit: 'user' });
    expect(remainingOfAll(router, partsOf(items))).toBe(5);
  });

  test('remote limit refuses: local limits get back what they were charged', async () => {
    const { router, partsOf, left } = setUp(
      { ...LOGIN, far: { bucket: { rate: '1/s', burst: 3 }, redis: 'redis://127.0.0.1:1' } },
      { backend: unavailableBackend(deny(500)) },
    );
    const parts = partsOf([
      ['user', 'user:a', 2],
      ['far', 'x'],
      ['ip', 'ip:1'],
    ]);
    for (const holds of [false, true]) {
      expect(await checkAll(router, parts, holds)).toEqual({
        decision: { verdict: 'deny', retryAfterMs: 500 },
        limit: 'far',
        reason: 'unavailable',
      });
      expect([left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([5, 20]);
    }
  });
});

/** Limits of several kinds, each with a capacity that does not refill within the test. */
const KINDS = [
  (most: number) => ({ bucket: { rate: '1/d', burst: most } }),
  (most: number) => ({ window: { limit: most, per: '1d' } }),
  (most: number) => ({
    all: [{ bucket: { rate: '1/d', burst: most } }, { window: { limit: most + 3, per: '1d' } }],
  }),
  (most: number) => ({ concurrency: most }),
];

test('remote limit that fails open: what it has left is unknown', async () => {
  const far = { bucket: { rate: '1/s', burst: 3 }, redis: 'redis://127.0.0.1:1' };
  const backend = unavailableBackend(allow(0), [], 'allow');
  const { router, partsOf } = setUp({ ...LOGIN, far }, { backend });
  const alone = await router.check({ limit: 'far', key: 'x', cost: 1 });
  expect(alone?.decision).toEqual({ verdict: 'allow', remaining: Number.MAX_SAFE_INTEGER });
  const parts = partsOf([
    ['far', 'x'],
    ['user', 'user:a'],
  ]);
  const both = await checkAll(router, parts, false);
  expect(both.decision).toEqual({ verdict: 'allow', remaining: 4 });
});

describe('joint check: random questions', () => {
  test.each(Array.from({ length: 40 }, (_, seed) => seed))(
    'seed %i: decides as a list of counters, and a refusal changes nothing',
    (seed) => {
      const random = seededRandom(seed);
      const pick = (most: number): number => Math.floor(random() * most);
      const capacities = Array.from({ length: 1 + pick(5) }, () => 1 + pick(12));
      const limits = capacities.map((most, n) => [
        `limit${n}`,
        { ...KINDS[pick(KINDS.length)](most), ...(pick(4) === 0 && { per: 'limit' }) },
      ]);
      const config = Object.fromEntries(limits);
      const { router, partsOf } = setUp(config);
      const taken = new Map<string, number>();
      const counterOf = (limit: string, key: string): string =>
        config[limit].per === 'limit' ? limit : `${limit} ${key}`;
      const expectLeft = (): void => {
        for (const [name, most] of capacities.map((most, n) => [`limit${n}`, most] as const))
          for (const key of ['a', 'b', 'c']) {
            const request = router.route({ limit: name, key, cost: 0 });
            const left = router.remaining(request as NonNullable<typeof request>);
            expect(left).toBe(most - (taken.get(counterOf(name, key)) ?? 0));
          }
      };
      for (let n = 0; n < 40; n++) {
        const items = Array.from(
          { length: 1 + pick(6) },
          (): Item => [`limit${pick(capacities.length)}`, 'abc'[pick(3)], pick(5)],
        );
        const sums = new Map<string, number>();
        for (const [limit, key, cost = 0] of items) {
          const counter = counterOf(limit, key);
          sums.set(counter, (sums.get(counter) ?? 0) + cost);
        }
        const fits = [...sums].every(([counter, cost]) => {
          const most = capacities[Number(/\d+/.exec(counter)?.[0])];
          return cost === 0 || (taken.get(counter) ?? 0) + cost <= most;
        });
        const { decision, permit } = checkAll(router, partsOf(items), true) as CheckResult;
        expect([n, decision.verdict]).toEqual([n, fits ? 'allow' : 'deny']);
        if (fits && permit !== undefined && pick(4) === 0)
          router.permits.settle(permit, { outcome: 'ignored' }); // gives back all of it
        else if (fits)
          for (const [counter, cost] of sums) taken.set(counter, (taken.get(counter) ?? 0) + cost);
        expectLeft();
      }
    },
  );

  test('with time: no limit admits more than its burst and its rate', () => {
    const random = seededRandom(7);
    const { clock, ask } = setUp({
      slow: { bucket: { rate: '1/s', burst: 5 } },
      fast: { bucket: { rate: '4/s', burst: 8 } },
    });
    const admitted = { slow: 0, fast: 0 };
    for (let n = 0; n < 4000; n++) {
      clock.advance(random() * 100);
      const [slow, fast] = [Math.floor(random() * 3), Math.floor(random() * 4)];
      if (ask(['slow', 'x', slow], ['fast', 'x', fast]).decision.verdict === 'deny') continue;
      admitted.slow += slow;
      admitted.fast += fast;
    }
    const seconds = (clock.now() - START) / 1000;
    expect(admitted.slow).toBeLessThanOrEqual(5 + seconds);
    expect(admitted.fast).toBeLessThanOrEqual(8 + 4 * seconds);
    expect(admitted.slow).toBeGreaterThan(0.9 * seconds); // a refusal took nothing
  });
});
