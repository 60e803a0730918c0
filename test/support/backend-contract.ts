/** Contract suite of every synchronous backend: created with a policy, a clock and a bound on keys. */

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

/** @param isForBuckets true for a backend that supports token buckets only. */
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

  describe(`${name}: backend contract`, () => {
    test('backend: every key has its own limit', () => {
      const { backend } = setUp(bucketPolicy(1, 2));
      expect(backend.check('alice', 2)).toEqual({ verdict: 'allow', remaining: 0 });
      expect(backend.check('alice', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(backend.check('bob', 1)).toEqual({ verdict: 'allow', remaining: 1 });
    });

    test('backend: any string is a key, and different strings are different keys', () => {
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

    test('backend: inspect changes nothing, not even for an unknown key', () => {
      const { backend } = setUp(bucketPolicy(1, 3));
      const pool =
        backend.poolStats?.poolSize === undefined ? {} : { poolSize: backend.poolStats?.poolSize };
      expect(backend.inspect('alice').state).toEqual({ remaining: 3, ...pool });
      expect(backend.keys).toBe(0);
      backend.check('alice', 2);
      expect(backend.inspect('alice').state).toEqual({ remaining: 1, ...pool });
      expect(backend.inspect('alice').state).toEqual({ remaining: 1, ...pool });
    });

    test('backend: settle returns unused units, and hits elsewhere are subtracted', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5));
      expect(backend.takeUpTo('alice', Infinity)).toBe(5);
      backend.settle('alice', { outcome: 'ok', cost: 5, used: 2, dueAt: clock.now() });
      expect(backend.inspect('alice').state.remaining).toBe(3);
      expect(backend.update('alice', { hits: 4 })).toBe(true);
      expect(backend.inspect('alice').state.remaining).toBe(-1);
      expect(backend.takeUpTo('alice', 1)).toBe(0);
    });

    test('backend: every form of check counts once, and peek never', () => {
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

    test('backend: checkWithStatus counts once and reports the status after it, or takes nothing', () => {
      const { backend } = setUp(bucketPolicy(1, 5));
      const checked = backend.checkWithStatus?.(1, 2, 3);
      const remaining = checked ? 2 : 5;
      if (checked) {
        expect(checked.decision).toEqual({ verdict: 'allow', remaining });
        expect(checked.rules).toMatchObject([{ quota: 5, remaining, freshInMs: 3000 }]);
      }
      expect(backend.checkHashed(1, 2, 0)).toEqual({ verdict: 'allow', remaining });
    });

    test('backend: a sliding window counts every form of check, and a successor continues', () => {
      const policy = createPolicy({ window: { limit: 9, per: '1m' } }, seededRandom(1));
      const { backend, clock } = setUp(policy);
      expect(backend.check('alice', 2)).toEqual({ verdict: 'allow', remaining: 7 });
      expect(backend.checkNow('alice', 1, clock.now())).toEqual({ verdict: 'allow', remaining: 6 });
      expect(backend.takeUpTo('alice', 3)).toBe(3);
      backend.settle('alice', { outcome: 'ok', cost: 3, used: 1, dueAt: clock.now() });
      expect(backend.update('alice', { hits: 4 })).toBe(true);
      expect(backend.peek('alice', 2).verdict).toBe('deny');
      expect(backend.inspect('alice').rules).toMatchObject([{ quota: 9, remaining: 1 }]);
      backend.checkHashed(1, 2, 8);
      const { backend: successor, clock: later } = setUp(policy);
      successor.restore(backend.snapshot());
      expect(successor.checkHashed(1, 2, 2).verdict).toBe('deny');
      later.advance(63_750); // a window and a step
      expect(successor.checkHashed(1, 2, 9)).toEqual({ verdict: 'allow', remaining: 0 });
    });

    test('backend: a successor continues from the snapshot, and the original is unchanged', () => {
      const policy = bucketPolicy(1, 5);
      const { backend } = setUp(policy);
      backend.checkHashed(1, 2, 3);
      const { backend: successor } = setUp(policy);
      successor.restore(backend.snapshot());
      expect(successor.keys).toBe(1);
      expect(successor.checkHashed(1, 2, 2)).toEqual({ verdict: 'allow', remaining: 0 });
      expect(successor.checkHashed(1, 2, 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(backend.checkHashed(1, 2, 2)).toEqual({ verdict: 'allow', remaining: 0 });
    });

    test('backend: with other numbers, what was spent stays spent, and refills at the old rate until then', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 20));
      backend.check('alice', 15);
      clock.advance(5000);
      backend.prepareChange?.(bucketPolicy(3, 40))?.();
      const left = (key: string): number => backend.inspect(key).state.remaining;
      expect([left('alice'), left('bob')]).toEqual([30, 40]);
      clock.advance(2000);
      expect(left('alice')).toBe(36);
      backend.prepareChange?.(bucketPolicy(0.001, 2))?.();
      expect([left('alice'), left('bob')]).toEqual([-2, 2]);
      clock.advance(3_000_000); // nothing is fresh before its time
      expect(backend.check('alice', 2).verdict).toBe('deny');
      backend.prepareChange?.(bucketPolicy(0.001, 20))?.();
      expect(left('alice')).toBe(19);
    });

    test('backend: after detach it still decides, from the state it has', () => {
      const { backend } = setUp(bucketPolicy(1, 5));
      backend.check('alice', 3);
      backend.detach?.();
      expect(backend.check('alice', 2)).toEqual({ verdict: 'allow', remaining: 0 });
      expect(backend.check('alice', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(backend.snapshot().entries.length).toBeGreaterThan(0);
    });

    test('backend: settling an unknown key is not an error', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5));
      backend.settle('unknown', { outcome: 'ignored', cost: 5, dueAt: clock.now() });
      expect(backend.inspect('unknown').state.remaining).toBe(5);
    });

    test('backend: removes keys that are as good as new, without timers', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 1), 1_000_000);
      for (let n = 0; n < 200_000; n++) {
        backend.check(`key ${n}`, 1);
        clock.advance(1); // each is as good as new a thousand keys later
      }
      expect(backend.keys).toBeLessThan(5_000);
      expect(backend.bytes).toBeLessThan(1_000_000);
      expect(backend.evicted).toBe(0);
    });

    test('backend: releases memory after a peak of keys', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 1), 1_000_000);
      for (let n = 0; n < 100_000; n++) backend.check(`peak ${n}`, 1);
      const peakBytes = backend.bytes;
      for (let n = 0; n < 300_000; n++) {
        backend.check(`later ${n}`, 1);
        clock.advance(10);
      }
      expect(backend.keys).toBeLessThan(1_000);
      expect(backend.bytes).toBeLessThan(peakBytes / 50);
    });

    test('backend: maxKeys holds under a flood, and refused keys stay refused', () => {
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

    test('backend: a new key is treated no worse than the key evicted for it', () => {
      const { backend } = setUp(bucketPolicy(1, 10), 100);
      for (let n = 0; n < 100; n++) backend.check(`key ${n}`, 1); // each has spent one of ten
      expect(backend.check('new key', 9).verdict).toBe('allow');
      expect(backend.evicted).toBe(1);
    });

    test('backend: a flood of twice maxKeys does not lock new keys out', () => {
      const { backend, clock } = setUp(bucketPolicy(1, 5), 1_000);
      let served = 0;
      for (let n = 0; n < 40_000; n++) {
        clock.advance(0.5); // 2,000 new keys a second, each in use for a second
        if (backend.check(`flood ${n}`, 1).verdict === 'allow') served++;
      }
      expect(backend.evicted).toBeGreaterThan(10_000);
      expect(served).toBeGreaterThan(39_000);
    });

    testInFlight('backend: evicts an idle key whose adaptive limit was decreased', () => {
      const limit = createPolicy({ adaptive: { rule: 'aimd', initial: 10 } }, seededRandom(1));
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

    testInFlight('backend: evicts no key with calls in flight, and refuses new keys', () => {
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
    });

    // Few keys, long pauses and buckets that refill meanwhile, so that keys are added and removed often.
    const visits = fc.array(
      fc.record({
        key: fc.integer({ min: 0, max: 30 }).map(String),
        cost: fc.integer({ min: 0, max: 3 }),
        afterMs: fc.oneof(fc.constant(0), fc.nat(400), fc.nat(4_000)),
      }),
      { minLength: 50, maxLength: 400 },
    );

    test('backend: below maxKeys it decides as if every key were kept for ever', () => {
      fc.assert(
        fc.property(visits, (traffic) => {
          const policy = bucketPolicy(2, 4);
          const { backend, clock } = setUp(policy, 31);
          const states = new Map<string, Float64Array>();
          for (const { key, cost, afterMs } of traffic) {
            clock.advance(afterMs);
            const state = states.get(key) ?? new Float64Array(policy.width);
            if (!states.has(key)) policy.init(state, 0, clock.now());
            states.set(key, state);
            expect(backend.check(key, cost)).toEqual(policy.check(state, 0, cost, clock.now()));
          }
        }),
        { numRuns: 200 },
      );
    });

    test('backend: far above maxKeys no key exceeds its limit', () => {
      let evicted = 0;
      fc.assert(
        fc.property(visits, (traffic) => {
          const { backend, clock } = setUp(bucketPolicy(2, 4), 5);
          const served = new Map<string, { at: number; cost: number }[]>();
          for (const { key, cost, afterMs } of traffic) {
            clock.advance(afterMs);
            if (backend.check(key, cost).verdict !== 'allow') continue;
            const hits = served.get(key) ?? [];
            served.set(key, hits);
            hits.push({ at: clock.now(), cost });
            expect(overshootOf(hits, 2, 4)).toBeLessThan(1e-5);
          }
          evicted += backend.evicted;
        }),
        { numRuns: 200 },
      );
      expect(evicted).toBeGreaterThan(100); // otherwise the property would hold trivially
    });
  });
}

/** How far the hits of any window that ends with the last one exceed `burst` and the rate. */
function overshootOf(hits: { at: number; cost: number }[], rate: number, burst: number): number {
  const now = hits[hits.length - 1].at;
  let sum = 0;
  let overshoot = -Infinity;
  for (let n = hits.length - 1; n >= 0; n--) {
    sum += hits[n].cost;
    overshoot = Math.max(overshoot, sum - burst - (rate * (now - hits[n].at)) / 1000);
  }
  return overshoot;
}
