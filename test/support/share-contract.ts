/**
 * What every share promises, whoever else spends from the limit.
 *
 * A share is made with a limit, a clock and a bound on keys; the same suite runs over all of them.
 */

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Share } from '../../src/backends/backend.ts';
import { seededRandom } from '../../src/core/random.ts';
import { policyOf } from '../../src/policies/limit.ts';
import type { Policy } from '../../src/policies/policy.ts';
import { VirtualClock } from '../../src/testing/virtual-clock.ts';

export interface ShareSetup {
  readonly policy: Policy;
  readonly clock: VirtualClock;
  readonly keysMax: number;
}

type MakeShare = (setup: ShareSetup) => Share;

const bucketOf = (rate: number, burst: number): Policy =>
  policyOf({ bucket: { rate, burst } }, seededRandom(1));

/** `isForBuckets`: a share that makes sense for buckets only leaves out what others do. */
export function shareContract(name: string, make: MakeShare, isForBuckets = false): void {
  const setUp = (policy: Policy, keysMax = 1000) => {
    const clock = new VirtualClock(1_000_000);
    return { clock, share: make({ policy, clock, keysMax }) };
  };

  const testInFlight = isForBuckets ? (): void => {} : test;

  describe(`${name}, as any share`, () => {
    test('every key has a limit of its own', () => {
      const { share } = setUp(bucketOf(1, 2));
      expect(share.ask('alice', 2)).toEqual({ verdict: 'allow', remaining: 0 });
      expect(share.ask('alice', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(share.ask('bob', 1)).toEqual({ verdict: 'allow', remaining: 1 });
    });

    test('any text is a key, and texts that differ are different keys', () => {
      const { share } = setUp(bucketOf(1, 1));
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
      for (const key of keys) expect(share.ask(key, 1).verdict).toBe('allow');
      for (const key of keys) expect(share.ask(key, 1).verdict).toBe('deny');
    });

    test('looking at a key changes nothing, not even for a key never seen', () => {
      const { share } = setUp(bucketOf(1, 3));
      const company = share.poolSize === undefined ? {} : { poolSize: share.poolSize };
      expect(share.inspect('alice').view).toEqual({ remaining: 3, ...company });
      expect(share.keys).toBe(0);
      share.ask('alice', 2);
      expect(share.inspect('alice').view).toEqual({ remaining: 1, ...company });
      expect(share.inspect('alice').view).toEqual({ remaining: 1, ...company });
    });

    test('what was not used comes back, and what others used is taken off', () => {
      const { share, clock } = setUp(bucketOf(1, 5));
      expect(share.take('alice', Infinity)).toBe(5);
      share.settle('alice', { outcome: 'ok', cost: 5, used: 2, dueAt: clock.now() });
      expect(share.inspect('alice').view.remaining).toBe(3);
      expect(share.hear('alice', { hits: 4 })).toBe(true);
      expect(share.inspect('alice').view.remaining).toBe(-1);
      expect(share.take('alice', 1)).toBe(0);
    });

    test('asked in whatever way, a call is counted once, and a look never', () => {
      const { share, clock } = setUp(bucketOf(1, 5));
      expect(share.peek('alice', 5).verdict).toBe('allow');
      expect(share.askNow('alice', 1, clock.now())).toEqual({ verdict: 'allow', remaining: 4 });
      expect(share.ask('alice', 1)).toEqual({ verdict: 'allow', remaining: 3 });
      expect(share.take('alice', 2)).toBe(2);
      expect(share.askHashed(1, 2, 3)).toEqual({ verdict: 'allow', remaining: 2 });
      expect(share.askHashed(1, 2, 3)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(share.peek('alice', 2)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
      expect(share.inspect('alice').standings).toMatchObject([
        { quota: 5, remaining: 1, freshInMs: 4000 },
      ]);
    });

    test('settling a key that is not there is not an error', () => {
      const { share, clock } = setUp(bucketOf(1, 5));
      share.settle('nobody', { outcome: 'ignored', cost: 5, dueAt: clock.now() });
      expect(share.inspect('nobody').view.remaining).toBe(5);
    });

    test('keys that are as good as new are forgotten, without anybody looking after them', () => {
      const { share, clock } = setUp(bucketOf(1, 1), 1_000_000);
      for (let n = 0; n < 200_000; n++) {
        share.ask(`visitor ${n}`, 1);
        clock.advance(1); // each is as good as new a thousand visitors later
      }
      expect(share.keys).toBeLessThan(5_000);
      expect(share.bytes).toBeLessThan(1_000_000);
      expect(share.evicted).toBe(0);
    });

    test('memory that a crowd needed is given back when the crowd has gone', () => {
      const { share, clock } = setUp(bucketOf(1, 1), 1_000_000);
      for (let n = 0; n < 100_000; n++) share.ask(`crowd ${n}`, 1);
      const crowded = share.bytes;
      for (let n = 0; n < 300_000; n++) {
        share.ask(`straggler ${n}`, 1);
        clock.advance(10);
      }
      expect(share.keys).toBeLessThan(1_000);
      expect(share.bytes).toBeLessThan(crowded / 50);
    });

    test('the bound on keys holds under a flood, and who was refused stays refused', () => {
      const { share, clock } = setUp(bucketOf(0.01, 5), 1_000);
      share.take('abuser', Infinity);
      share.hear('debtor', { hits: 50 });
      for (let n = 0; n < 100_000; n++) {
        share.ask(`flood ${n}`, 1);
        clock.advance(0.1);
        if (n % 1_000 === 0) {
          expect(share.keys).toBeLessThanOrEqual(1_000);
          expect(share.ask('abuser', 1).verdict).toBe('deny');
          expect(share.ask('debtor', 1).verdict).toBe('deny');
        }
      }
      expect(share.evicted).toBeGreaterThan(0);
    });

    test('a stranger under a flood is treated no worse than the key that made room for it', () => {
      const { share } = setUp(bucketOf(1, 10), 100);
      for (let n = 0; n < 100; n++) share.ask(`guest ${n}`, 1); // each has spent one of ten
      expect(share.ask('stranger', 9).verdict).toBe('allow');
      expect(share.evicted).toBe(1);
    });

    test('a flood of twice what fits does not lock newcomers out', () => {
      const { share, clock } = setUp(bucketOf(1, 5), 1_000);
      let served = 0;
      for (let n = 0; n < 40_000; n++) {
        clock.advance(0.5); // two thousand strangers a second, each of them in use for a second
        if (share.ask(`flood ${n}`, 1).verdict === 'allow') served++;
      }
      expect(share.evicted).toBeGreaterThan(10_000);
      expect(served).toBeGreaterThan(39_000);
    });

    testInFlight('a limit that was cut and left alone makes room in the end', () => {
      const limit = policyOf({ adaptive: { initial: 10 } }, seededRandom(1));
      const { share, clock } = setUp(limit, 2);
      for (const key of ['a', 'b']) {
        for (const outcome of ['ok', 'busy'] as const) {
          share.ask(key, 1);
          clock.advance(100);
          share.settle(key, { outcome, cost: 1, rttMs: 100, dueAt: clock.now() });
        }
        expect(share.inspect(key).view.limit).toBe(9);
      }
      expect(share.ask('c', 1).verdict).toBe('allow');
      expect(share.inspect('c').view.limit).toBeLessThanOrEqual(10);
    });

    testInFlight(
      'while all keys hold calls in flight there is no room, and nobody is pushed out',
      () => {
        const { share, clock } = setUp(policyOf({ adaptive: {} }, seededRandom(1)), 3);
        for (const key of ['a', 'b', 'c']) expect(share.ask(key, 1).verdict).toBe('allow');
        expect(share.ask('d', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
        expect(share.askNow('d', 1, clock.now())).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
        expect(share.askHashed(1, 2, 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
        expect(share.take('d', 1)).toBe(0);
        expect(share.hear('d', { hits: 1 })).toBe(false);
        share.settle('b', { outcome: 'ok', cost: 1, rttMs: 5, dueAt: clock.now() });
        expect(share.ask('d', 1).verdict).toBe('allow');
        expect(share.ask('a', 1).verdict).toBe('deny');
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
          const policy = bucketOf(2, 4);
          const { share, clock } = setUp(policy, 31);
          const kept = new Map<string, Float64Array>();
          for (const { key, cost, afterMs } of traffic) {
            clock.advance(afterMs);
            const own = kept.get(key) ?? new Float64Array(policy.width);
            if (!kept.has(key)) policy.start(own, 0, clock.now());
            kept.set(key, own);
            expect(share.ask(key, cost)).toEqual(policy.ask(own, 0, cost, clock.now()));
          }
        }),
        { numRuns: 200 },
      );
    });

    test('with far too little room, no key ever gets more than its limit allows', () => {
      let evicted = 0;
      fc.assert(
        fc.property(visits, (traffic) => {
          const { share, clock } = setUp(bucketOf(2, 4), 5);
          const served = new Map<string, { at: number; cost: number }[]>();
          for (const { key, cost, afterMs } of traffic) {
            clock.advance(afterMs);
            if (share.ask(key, cost).verdict !== 'allow') continue;
            const own = served.get(key) ?? [];
            served.set(key, own);
            own.push({ at: clock.now(), cost });
            expect(excessOver(own, 2, 4)).toBeLessThan(1e-5);
          }
          evicted += share.evicted;
        }),
        { numRuns: 200 },
      );
      expect(evicted).toBeGreaterThan(100); // or the property would prove nothing
    });
  });
}

/** How far the hits of any window that ends with the last one exceed `burst` and the rate. */
function excessOver(hits: { at: number; cost: number }[], rate: number, burst: number): number {
  const now = hits[hits.length - 1].at;
  let sum = 0;
  let excess = -Infinity;
  for (let n = hits.length - 1; n >= 0; n--) {
    sum += hits[n].cost;
    excess = Math.max(excess, sum - burst - (rate * (now - hits[n].at)) / 1000);
  }
  return excess;
}
