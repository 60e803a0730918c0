/**
 * What every share promises, whoever else spends from the limit.
 *
 * A share is made with a limit, a clock and a bound on keys; the same suite runs over all of them.
 */

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Backend } from '../../src/backends/backend.ts';
import { seededRandom } from '../../src/core/random.ts';
import { createPolicy } from '../../src/policies/limit.ts';
import type { Policy } from '../../src/policies/policy.ts';
import { VirtualClock } from '../../src/testing/virtual-clock.ts';

export interface BackendSetup {
  readonly policy: Policy;
  readonly clock: VirtualClock;
  readonly maxKeys: number;
}

type CreateBackend = (setup: BackendSetup) => Backend;

const bucketPolicy = (rate: number, burst: number): Policy =>
  createPolicy({ bucket: { rate, burst } }, seededRandom(1));

/** `isForBuckets`: a share that makes sense for buckets only leaves out what others do. */
export function backendContract(
  name: string,
  createBackend: CreateBackend,
  isForBuckets = false,
): void {
  const setUp = (policy: Policy, maxKeys = 1000) => {
    const clock = new VirtualClock(1_000_000);
    return { clock, backend: createBackend({ policy, clock, maxKeys }) };
  };

  const testInFlight = isForBuckets ? (): void => {} : test;

  describe(`${name}, as any share`, () => {
    test('every key has a limit of its own', () => {
      const { backend } = setUp(bucketPolicy(1, 2));
      expect(backend.check('alice', 2)).toEqual({ verdict: 'allow', remaining: 0 });
      expect(backend.check('alice', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(backend.check('bob', 1)).toEqual({ verdict: 'allow', remaining: 1 });
    });

    test('any text is a key, and texts that differ are different keys', () => {
      const { backend } = setUp(bucketPolicy(1, 1));
      const keys = [
        '',
        ' ',
        'a',
        'A',
        'aa',
        'ä',
        'a\u0308',
        '\0',
        '\0\0',
        '🔑',
        'x'.repeat(10_000),
      ];
      for (const key of keys) expect(backend.check(key, 1).verdict).toBe('allow');
      for (const key of keys) expect(backend.check(key, 1).verdict).toBe('deny');
    });

    test('looking at a key changes nothing, not even for a key never seen', () => {
      const { backend } = setUp(bucketPolicy(1, 3));
      const company = backend.poolSize === undefined ? {} : { poolSize: backend.poolSize };
      expect(backend.inspect('alice').state).toEqual({ remaining: 3, ...company });
      expect(backend.keys).toBe(0);
      backend.check('alice', 2);
      expect(backend.inspect('alice').state).toEqual({ remaining: 1, ...company });
      expect(backend.inspect('alice').state).toEqual({ remaining: 1, ...company });
    });

    test('what was not used comes back, and what others used is taken off', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5));
      expect(backend.takeUpTo('alice', Infinity)).toBe(5);
      backend.settle('alice', { outcome: 'ok', cost: 5, used: 2, dueAt: clock.now() });
      expect(backend.inspect('alice').state.remaining).toBe(3);
      expect(backend.update('alice', { hits: 4 })).toBe(true);
      expect(backend.inspect('alice').state.remaining).toBe(-1);
      expect(backend.takeUpTo('alice', 1)).toBe(0);
    });

    test('asked in whatever way, a call is counted once, and a look never', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5));
      expect(backend.peek('alice', 5).verdict).toBe('allow');
      expect(backend.checkNow('alice', 1, clock.now())).toEqual({ verdict: 'allow', remaining: 4 });
      expect(backend.check('alice', 1)).toEqual({ verdict: 'allow', remaining: 3 });
      expect(backend.takeUpTo('alice', 2)).toBe(2);
      expect(backend.checkHashed(1, 2, 3)).toEqual({ verdict: 'allow', remaining: 2 });
      expect(backend.checkHashed(1, 2, 3)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(backend.peek('alice', 2)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(backend.inspect('alice').rules).toMatchObject([
        { quota: 5, remaining: 1, freshInMs: 4000 },
      ]);
    });

    test('settling a key that is not there is not an error', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5));
      backend.settle('nobody', { outcome: 'ignored', cost: 5, dueAt: clock.now() });
      expect(backend.inspect('nobody').state.remaining).toBe(5);
    });

    test('keys that are as good as new are forgotten, without anybody looking after them', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 1), 1_000_000);
      for (let n = 0; n < 200_000; n++) {
        backend.check(`visitor ${n}`, 1);
        clock.advance(1); // each is as good as new a thousand visitors later
      }
      expect(backend.keys).toBeLessThan(5_000);
      expect(backend.bytes).toBeLessThan(1_000_000);
      expect(backend.evicted).toBe(0);
    });

    test('memory that a crowd needed is given back when the crowd has gone', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 1), 1_000_000);
      for (let n = 0; n < 100_000; n++) backend.check(`crowd ${n}`, 1);
      const crowded = backend.bytes;
      for (let n = 0; n < 300_000; n++) {
        backend.check(`straggler ${n}`, 1);
        clock.advance(10);
      }
      expect(backend.keys).toBeLessThan(1_000);
      expect(backend.bytes).toBeLessThan(crowded / 50);
    });

    test('the bound on keys holds under a flood, and who was refused stays refused', () => {
      const { backend, clock } = setUp(bucketPolicy(0.01, 5), 1_000);
      backend.takeUpTo('abuser', Infinity);
      backend.update('debtor', { hits: 50 });
      for (let n = 0; n < 100_000; n++) {
        backend.check(`flood ${n}`, 1);
        clock.advance(0.1);
        if (n % 1_000 === 0) {
          expect(backend.keys).toBeLessThanOrEqual(1_000);
          expect(backend.check('abuser', 1).verdict).toBe('deny');
          expect(backend.check('debtor', 1).verdict).toBe('deny');
        }
      }
      expect(backend.evicted).toBeGreaterThan(0);
    });

    test('a stranger under a flood is treated no worse than the key that made room for it', () => {
      const { backend } = setUp(bucketPolicy(1, 10), 100);
      for (let n = 0; n < 100; n++) backend.check(`guest ${n}`, 1); // each has spent one of ten
      expect(backend.check('stranger', 9).verdict).toBe('allow');
      expect(backend.evicted).toBe(1);
    });

    test('a flood of twice what fits does not lock newcomers out', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5), 1_000);
      let served = 0;
      for (let n = 0; n < 40_000; n++) {
        clock.advance(0.5); // two thousand strangers a second, each of them in use for a second
        if (backend.check(`flood ${n}`, 1).verdict === 'allow') served++;
      }
      expect(backend.evicted).toBeGreaterThan(10_000);
      expect(served).toBeGreaterThan(39_000);
    });

    testInFlight('a limit that was cut and left alone makes room in the end', () => {
      const limit = createPolicy({ adaptive: { initial: 10 } }, seededRandom(1));
      const { backend, clock } = setUp(limit, 2);
      for (const key of ['a', 'b']) {
        for (const outcome of ['ok', 'busy'] as const) {
          backend.check(key, 1);
          clock.advance(100);
          backend.settle(key, { outcome, cost: 1, rttMs: 100, dueAt: clock.now() });
        }
        expect(backend.inspect(key).state.limit).toBe(9);
      }
      expect(backend.check('c', 1).verdict).toBe('allow');
      expect(backend.inspect('c').state.limit).toBeLessThanOrEqual(10);
    });

    testInFlight(
      'while all keys hold calls in flight there is no room, and nobody is pushed out',
      () => {
        const { backend, clock } = setUp(createPolicy({ adaptive: {} }, seededRandom(1)), 3);
        for (const key of ['a', 'b', 'c']) expect(backend.check(key, 1).verdict).toBe('allow');
        expect(backend.check('d', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
        expect(backend.checkNow('d', 1, clock.now())).toEqual({
          verdict: 'deny',
          retryAfterMs: 1000,
        });
        expect(backend.checkHashed(1, 2, 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
        expect(backend.takeUpTo('d', 1)).toBe(0);
        expect(backend.update('d', { hits: 1 })).toBe(false);
        backend.settle('b', { outcome: 'ok', cost: 1, rttMs: 5, dueAt: clock.now() });
        expect(backend.check('d', 1).verdict).toBe('allow');
        expect(backend.check('a', 1).verdict).toBe('deny');
      },
    );

    // Few keys, long silences and a rate that lets buckets fill up in between, so that keys come
    // and go all the time.
    const visits = fc.array(
      fc.record({
        key: fc.integer({ min: 0, max: 30 }).map(String),
        cost: fc.integer({ min: 0, max: 3 }),
        afterMs: fc.oneof(fc.constant(0), fc.nat(400), fc.nat(4_000)),
      }),
      { minLength: 50, maxLength: 400 },
    );

    test('with room for all, it answers as if every key were kept for ever', () => {
      fc.assert(
        fc.property(visits, (traffic) => {
          const policy = bucketPolicy(2, 4);
          const { backend, clock } = setUp(policy, 31);
          const kept = new Map<string, Float64Array>();
          for (const { key, cost, afterMs } of traffic) {
            clock.advance(afterMs);
            const own = kept.get(key) ?? new Float64Array(policy.width);
            if (!kept.has(key)) policy.init(own, 0, clock.now());
            kept.set(key, own);
            expect(backend.check(key, cost)).toEqual(policy.check(own, 0, cost, clock.now()));
          }
        }),
        { numRuns: 200 },
      );
    });

    test('with far too little room, no key ever gets more than its limit allows', () => {
      let evicted = 0;
      fc.assert(
        fc.property(visits, (traffic) => {
          const { backend, clock } = setUp(bucketPolicy(2, 4), 5);
          const served = new Map<string, { at: number; cost: number }[]>();
          for (const { key, cost, afterMs } of traffic) {
            clock.advance(afterMs);
            if (backend.check(key, cost).verdict !== 'allow') continue;
            const own = served.get(key) ?? [];
            served.set(key, own);
            own.push({ at: clock.now(), cost });
            expect(overshootOf(own, 2, 4)).toBeLessThan(1e-5);
          }
          evicted += backend.evicted;
        }),
        { numRuns: 200 },
      );
      expect(evicted).toBeGreaterThan(100); // or the property would prove nothing
    });
  });
}

/** How far the hits of any window that ends with the last one exceed `burst` and the rate. */
function overshootOf(hits: { at: number; cost: number }[], rate: number, burst: number): number {
  const now = hits[hits.length - 1].at;
  let sum = 0;
  let excess = -Infinity;
  for (let n = hits.length - 1; n >= 0; n--) {
    sum += hits[n].cost;
    excess = Math.max(excess, sum - burst - (rate * (now - hits[n].at)) / 1000);
  }
  return excess;
}
