import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ReplayWindow } from './replay-window.ts';

describe('the window on what came', () => {
  test('lets each in once, in whatever order, and nothing from before its start', () => {
    const start = 2 ** 40;
    const near = fc.integer({ min: -2000, max: 2000 }).map((by) => start + by);
    fc.assert(
      fc.property(fc.array(near, { maxLength: 200 }), (counts) => {
        const window = new ReplayWindow(start);
        const seen = new Set<number>();
        for (const count of counts) {
          expect(window.accept(count)).toBe(count > start && !seen.has(count));
          seen.add(count);
        }
      }),
    );
  });

  test('knows the latest', () => {
    const window = new ReplayWindow(10);
    expect(window.isLatest(10)).toBe(false);
    expect(window.accept(15)).toBe(true);
    expect([window.isLatest(14), window.isLatest(15), window.isLatest(16)]).toEqual([
      false,
      false,
      true,
    ]);
  });

  test('forgets what is far behind, and lets none of it in again', () => {
    const window = new ReplayWindow(0);
    expect(window.accept(1)).toBe(true);
    expect(window.accept(5000)).toBe(true);
    expect([1, 2, 900].map((count) => window.accept(count))).toEqual([false, false, false]);
    expect([905, 4999].map((count) => window.accept(count))).toEqual([true, true]);
    expect([905, 4999, 5000].map((count) => window.accept(count))).toEqual([false, false, false]);
    expect(window.accept(Number.MAX_SAFE_INTEGER)).toBe(true);
    expect(window.accept(Number.MAX_SAFE_INTEGER)).toBe(false);
  });
});
