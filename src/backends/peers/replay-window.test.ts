import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ReplayWindow } from './replay-window.ts';

describe('replay window', () => {
  test('accepts each number once, in any order, and none from before its start', () => {
    const start = 2 ** 40;
    const near = fc.integer({ min: -2000, max: 2000 }).map((by) => start + by);
    fc.assert(
      fc.property(fc.array(near, { maxLength: 200 }), (seqs) => {
        const window = new ReplayWindow(start);
        const seen = new Set<number>();
        for (const seq of seqs) {
          expect(window.accept(seq)).toBe(seq > start && !seen.has(seq));
          seen.add(seq);
        }
      }),
    );
  });

  test('isLatest is true only above the highest accepted number', () => {
    const window = new ReplayWindow(10);
    expect(window.isLatest(10)).toBe(false);
    expect(window.accept(15)).toBe(true);
    expect([window.isLatest(14), window.isLatest(15), window.isLatest(16)]).toEqual([
      false,
      false,
      true,
    ]);
  });

  test('rejects numbers that are too old', () => {
    const window = new ReplayWindow(0);
    expect(window.accept(1)).toBe(true);
    expect(window.accept(5000)).toBe(true);
    expect([1, 2, 900].map((seq) => window.accept(seq))).toEqual([false, false, false]);
    expect([905, 4999].map((seq) => window.accept(seq))).toEqual([true, true]);
    expect([905, 4999, 5000].map((seq) => window.accept(seq))).toEqual([false, false, false]);
    expect(window.accept(Number.MAX_SAFE_INTEGER)).toBe(true);
    expect(window.accept(Number.MAX_SAFE_INTEGER)).toBe(false);
  });
});
