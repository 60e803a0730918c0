import { describe, expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import type { Limit } from '../policies/limit.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { limiter } from './limiter.ts';
import { bucket, smallLimiter, spacing, window } from './small.ts';

describe('small limiter', () => {
  test.each([
    [{ bucket: { rate: '5/s', burst: 3 } }, bucket({ rate: '5/s', burst: 3 })],
    [{ spacing: { every: '200ms' } }, spacing({ every: '200ms' })],
    [{ window: { limit: 5, per: '1s' } }, window({ limit: 5, per: '1s' })],
  ] as const)('decides as limiter({ limit: %o }) on the same random calls', (limit, rule) => {
    const clock = new VirtualClock(1_000_000);
    const small = smallLimiter(rule, { clock });
    const full = limiter({ limit: limit as Limit, clock });
    const random = seededRandom(7);
    for (let n = 0; n < 2000; n++) {
      const key = `k${Math.floor(random() * 4)}`;
      const cost = random() < 0.2 ? 2 : 1;
      expect(small.peek(key, cost)).toEqual(full.peek(key, cost));
      expect(small.check(key, cost)).toEqual(full.check(key, cost));
      clock.advance(Math.floor(random() * 100));
    }
  });

  test('refuses new keys at maxKeys, and accepts them when old ones are as good as unused', () => {
    const clock = new VirtualClock();
    const small = smallLimiter(bucket({ rate: '1/s', burst: 1 }), { clock, maxKeys: 3 });
    for (const key of ['a', 'b', 'c']) expect(small.check(key).verdict).toBe('allow');
    expect(small.check('d')).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
    expect(small.check('a').verdict).toBe('deny');
    clock.advance(2000);
    expect(small.check('d').verdict).toBe('allow');
    expect(small.size).toBeLessThanOrEqual(3);
  });

  test('removes idle keys as new ones come, and forgets a key on request', () => {
    const clock = new VirtualClock();
    const small = smallLimiter(bucket({ rate: '100/s', burst: 1 }), { clock });
    for (let n = 0; n < 10_000; n++) {
      small.check(`key ${n}`);
      clock.advance(10);
    }
    expect(small.size).toBeLessThan(10);
    expect(small.check('x').verdict).toBe('allow');
    expect(small.check('x').verdict).toBe('deny');
    small.reset('x');
    expect(small.check('x').verdict).toBe('allow');
  });

  test('refuses an invalid rule, cost and bound', () => {
    expect(() => bucket({ rate: '10 per second' as never })).toThrow(/did you mean "10\/second"/);
    expect(() => smallLimiter(bucket({ rate: 1 }), { maxKeys: 0 })).toThrow(/maxKeys/);
    expect(() => smallLimiter(spacing({ every: '1s', reserve: 1 }))).toThrow(/reserve.*no queue/);
    expect(() => smallLimiter(bucket({ rate: 1 })).check('k', -1)).toThrow(/cost/);
  });
});
