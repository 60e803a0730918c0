import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { tables } from '../../test/support/ramp-tables.ts';
import { RAMP_MODES, type RampMode } from '../policies/ramp.ts';
import { simulateRamp } from './ramp.ts';

const options = (mode: RampMode) => ({ min: 10, max: 110, over: '10s', mode }) as const;
const pools = (mode: RampMode, requested: readonly number[], pods = 1) =>
  simulateRamp(options(mode), requested, pods).map(({ pool }) => pool);

describe('ramp simulation', () => {
  for (const { id, mode, min, max, overSeconds, thresholdPercent, rows } of tables) {
    test(`has the pools of the original's table ${id}`, () => {
      const over = `${overSeconds}s` as const;
      const requested = rows.map(({ used }) => used ?? 0);
      const threshold = thresholdPercent;
      const seconds = simulateRamp({ min, max, over, mode, threshold }, requested);
      rows.forEach((row, n) => {
        // The original has empty cells where it does not define the pool.
        if (row.pool !== null)
          expect(seconds[n]).toMatchObject({ second: row.second, pool: row.pool });
        expect(seconds[n].used).toBe(row.used ?? 0);
      });
    });
  }

  // The pool is used up twice; after two seconds without calls, it is used in part and then used up.
  test('the modes differ after a pause and after a second with unused tokens', () => {
    const requested = [99, 99, 0, 0, 15, 99];
    expect(pools('scheduled', requested)).toEqual([10, 20, 30, 40, 50, 60]);
    expect(pools('relaxed', requested)).toEqual([10, 20, 30, 30, 30, 40]);
    expect(pools('only-if-used', requested)).toEqual([10, 20, 30, 30, 30, 30]);
    expect(pools('go-back-n', requested)).toEqual([10, 20, 30, 20, 10, 20]);
  });

  test('reading the pool of a second without calls does not count as a call', () => {
    const silent = simulateRamp(options('relaxed'), [99, 0, 0, 0])[3];
    expect(silent).toEqual({ second: 4, requested: 0, pool: 20, used: 0, remaining: 20 });
  });

  test('a fraction of a token is neither used nor remaining', () => {
    const [, second] = simulateRamp({ min: 10, max: 100, over: '7s' }, [99, 99]);
    expect(second).toMatchObject({ used: 22, remaining: 0 });
    expect(second.pool).toBeCloseTo(22.86, 2);
  });
});

describe('ramp simulation with several pods', () => {
  test('pods use all tokens of a pool that does not divide evenly', () => {
    for (const mode of RAMP_MODES) {
      const alone = simulateRamp(options(mode), Array(12).fill(200));
      expect(simulateRamp(options(mode), Array(12).fill(200), 7)).toEqual(alone);
    }
  });

  test('every call is requested once if calls do not divide evenly', () => {
    const used = simulateRamp(options('scheduled'), [8, 8, 8], 3).map((second) => second.used);
    expect(used).toEqual([8, 8, 8]);
  });

  test('never uses more than the pool, for any traffic and number of pods', () => {
    const traffic = fc.array(fc.integer({ min: 0, max: 150 }), { minLength: 1, maxLength: 40 });
    fc.assert(
      fc.property(
        fc.constantFrom(...RAMP_MODES),
        traffic,
        fc.integer({ min: 1, max: 5 }),
        (mode, requested, pods) => {
          for (const second of simulateRamp(options(mode), requested, pods)) {
            expect(second.used).toBeLessThanOrEqual(second.requested);
            // Each pod divides its own copy of the pool, so each may get the remainder once.
            expect(second.used).toBeLessThanOrEqual(second.pool + pods - 1);
            expect(second.pool).toBeGreaterThanOrEqual(10);
            expect(second.pool).toBeLessThanOrEqual(110);
          }
        },
      ),
    );
  });
});
