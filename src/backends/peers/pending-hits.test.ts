import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { PendingHits } from './pending-hits.ts';

describe('pending hits', () => {
  test('are summed by limit and key', () => {
    const key = fc.tuple(
      fc.constantFrom(0, 1, 2 ** 32 - 1),
      fc.integer({ min: -3, max: 3 }),
      fc.constantFrom(1, 2, 8192),
    );
    fc.assert(
      fc.property(
        fc.array(fc.tuple(key, fc.integer({ min: 1, max: 5 })), { maxLength: 200 }),
        (additions) => {
          const pendingHits = new PendingHits();
          const expected = new Map<string, number>();
          for (const [[limit, low, high], count] of additions) {
            pendingHits.add(limit, low, high, count);
            const name = `${limit},${low},${high}`;
            expected.set(name, (expected.get(name) ?? 0) + count);
          }
          const drained = pendingHits.drain();
          const seen = new Map<string, number>();
          for (let n = 0; n < drained.length; n += 4) {
            seen.set(drained.slice(n, n + 3).join(','), drained[n + 3]);
          }
          expect(seen).toEqual(expected);
          expect(pendingHits.size).toBe(0);
          expect(pendingHits.drain()).toEqual([]);
        },
      ),
    );
  });

  test('retract takes back at most the pending hits of a key', () => {
    const pendingHits = new PendingHits();
    pendingHits.add(7, 1, 1, 3);
    expect(pendingHits.retract(7, 1, 1, 2)).toBe(2);
    expect(pendingHits.retract(7, 9, 9, 2)).toBe(0);
    expect(pendingHits.drain()).toEqual([7, 1, 1, 1]);
  });

  test('isFull at 4096 keys', () => {
    const pendingHits = new PendingHits();
    for (let n = 1; !pendingHits.isFull; n++) pendingHits.add(0, n * 8192, n, 1);
    expect(pendingHits.size).toBe(4096);
    expect(pendingHits.drain()).toHaveLength(4096 * 4);
  });
});
