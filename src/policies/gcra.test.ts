import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { NEVER } from '../core/decision.ts';
import { Gcra, GcraLifecycle } from './gcra.ts';

const gcraLifecycle = new GcraLifecycle();

interface Check {
  readonly limit?: number;
  readonly intervalMs?: number;
  readonly quantity: number;
  readonly at: number;
}

function key(): { check(request: Check): (number | boolean)[]; state: Float64Array } {
  const state = new Float64Array(1);
  const rule = new Gcra();
  return {
    state,
    check({ limit = 5, intervalMs = 1000, quantity, at }) {
      rule.check(state, 0, limit, intervalMs, quantity, at);
      return [
        rule.isLimited,
        rule.remaining,
        rule.retryAfterMs === NEVER ? -1 : rule.retryAfterMs,
        rule.resetAfterMs,
      ];
    },
  };
}

describe('gcra', () => {
  // The table of the redis-cell documentation: a burst of 4 and one a second.
  test('gcra: matches redis-cell', () => {
    const rows: readonly (readonly [at: number, quantity: number, ...answer: unknown[]])[] = [
      [0, 6, true, 5, -1, 0],
      [0, 1, false, 4, 0, 1000],
      [0, 1, false, 3, 0, 2000],
      [0, 1, false, 2, 0, 3000],
      [0, 1, false, 1, 0, 4000],
      [0, 1, false, 0, 0, 5000],
      [0, 1, true, 0, 1000, 5000],
      [3000, 1, false, 2, 0, 3000],
      [3100, 1, false, 1, 0, 3900],
      [4000, 1, false, 1, 0, 4000],
      [8000, 1, false, 4, 0, 1000],
      [9500, 1, false, 4, 0, 1000],
      [9500, 0, false, 4, 0, 1000],
      [9500, 2, false, 2, 0, 3000],
      [9500, 5, true, 2, 3000, 3000],
    ];
    const { check } = key();
    const answers = rows.map(([at, quantity]) => [at, quantity, ...check({ at, quantity })]);
    expect(answers).toEqual(rows);
  });

  test('gcra: time that goes backwards earns nothing', () => {
    const { check } = key();
    check({ at: 10_000, quantity: 5 });
    expect(check({ at: 9000, quantity: 1 })).toEqual([true, 0, 2000, 6000]);
    expect(check({ at: 10_000, quantity: 1 })).toEqual([true, 0, 1000, 5000]);
  });

  test('gcra: other terms meet the same state', () => {
    const { check } = key();
    check({ at: 0, quantity: 5 });
    expect(check({ at: 0, quantity: 1, limit: 10, intervalMs: 1000 })).toEqual([false, 4, 0, 6000]);
    expect(check({ at: 0, quantity: 1, limit: 1, intervalMs: 100 })).toEqual([true, 0, 6000, 6000]);
    expect(check({ at: 0, quantity: 0, limit: 1, intervalMs: 100 })).toEqual([true, 0, 5900, 6000]);
  });

  test('gcra: counts to its limit at any interval, and opens at the given time', () => {
    const terms = fc.record({
      count: fc.integer({ min: 1, max: 1_000_000 }),
      periodS: fc.integer({ min: 1, max: 86_400 }),
      limit: fc.integer({ min: 1, max: 50 }),
      at: fc.double({ min: 0, max: 1e9, noNaN: true }),
    });
    fc.assert(
      fc.property(terms, ({ count, periodS, limit, at }) => {
        const { check } = key();
        const intervalMs = (periodS * 1000) / count;
        for (let left = limit - 1; left >= 0; left--) {
          expect(check({ at, limit, intervalMs, quantity: 1 }).slice(0, 2)).toEqual([false, left]);
        }
        const [isLimited, , retryAfterMs] = check({ at, limit, intervalMs, quantity: 1 });
        expect(isLimited).toBe(true);
        const then = at + (retryAfterMs as number);
        expect(check({ at: then, limit, intervalMs, quantity: 1 })[0]).toBe(false);
      }),
    );
  });

  test.each([
    [1, 1, 0],
    [1_000_000, 1, 0], // a microsecond of tolerance would be a whole unit
    [1_000_000, 50, 1e9], // sums of instants of this size have rounding errors
  ])(
    'gcra: at %i/s with a limit of %i, from %d on, exactly the limit fits at once',
    (rate, limit, at) => {
      const { check } = key();
      let taken = 0;
      while (taken <= limit && !check({ at, limit, intervalMs: 1000 / rate, quantity: 1 })[0])
        taken++;
      expect(taken).toBe(limit);
    },
  );

  test('gcra: half a millisecond early is refused', () => {
    const { check } = key();
    check({ at: 0, limit: 1, quantity: 1 });
    expect(check({ at: 999.5, limit: 1, quantity: 1 })).toEqual([true, 0, 0.5, 0.5]);
  });

  test('gcra: a quantity of 0 changes nothing', () => {
    const { state, check } = key();
    check({ at: 0, quantity: 1 });
    check({ at: 60_000, quantity: 0 });
    expect(gcraLifecycle.freshAt(state, 0)).toBe(1000);
  });

  test('gcra: a key evicted too early is fresh only then', () => {
    const { state, check } = key();
    gcraLifecycle.toleranceMs = 3000;
    gcraLifecycle.init(state, 0, 1000, 1e12); // at most one burst of its own
    expect(gcraLifecycle.freshAt(state, 0)).toBe(4000);
    gcraLifecycle.init(state, 0, 1000, 4000);
    expect(check({ at: 1000, quantity: 0 })).toEqual([false, 2, 0, 3000]);
    gcraLifecycle.init(state, 0, 1000);
    expect(check({ at: 1000, quantity: 0 })).toEqual([false, 5, 0, 0]);
  });
});
