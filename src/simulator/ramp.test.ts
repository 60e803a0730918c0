import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { tables } from '../../test/support/ramp-tables.ts';
import { RAMP_MODES, type RampMode } from '../policies/ramp.ts';
import { simulateRamp } from './ramp.ts';

const options = (mode: RampMode) => ({ min: 10, max: 110, over: '10s', mode });
const pools = (mode: RampMode, asked: readonly number[], pods = 1) =>
  simulateRamp(options(mode), asked, pods).map(({ pool }) => pool);

describe('the ramp, second by second', () => {
  for (const { id, mode, min, max, overSeconds, thresholdPercent, rows } of tables) {
    test(`hands out the pools of the original's table ${id}`, () => {
      const over = `${overSeconds}s`;
      const asked = rows.map(({ used }) => used ?? 0);
      const seconds = simulateRamp({ min, max, over, mode, threshold: thresholdPercent }, asked);
      rows.forEach((row, n) => {
        // The original leaves a cell empty where it does not say what would have been there.
        if (row.pool !== null)
          expect(seconds[n]).toMatchObject({ second: row.second, pool: row.pool });
        expect(seconds[n].used).toBe(row.used ?? 0);
      });
    });
  }

  // The same traffic in four modes: two good seconds, two silent ones, a weak one, a good one.
  test('each mode makes something else of a silence and of a weak second', () => {
    const asked = [99, 99, 0, 0, 15, 99];
    expect(pools('scheduled', asked)).toEqual([10, 20, 30, 40, 50, 60]);
    expect(pools('relaxed', asked)).toEqual([10, 20, 30, 30, 30, 40]);
    expect(pools('only-if-used', asked)).toEqual([10, 20, 30, 30, 30, 30]);
    expect(pools('go-back-n', asked)).toEqual([10, 20, 30, 20, 10, 20]);
  });

  test('to look at a silent second is not to call in it', () => {
    const silent = simulateRamp(options('relaxed'), [99, 0, 0, 0])[3];
    expect(silent).toEqual({ second: 4, asked: 0, pool: 20, used: 0, remaining: 20 });
  });

  test('a fraction of a token is neither used nor left', () => {
    const [, second] = simulateRamp({ min: 10, max: 100, over: '7s' }, [99, 99]);
    expect(second).toMatchObject({ used: 22, remaining: 0 });
    expect(second.pool).toBeCloseTo(22.86, 2);
  });
});

describe('a pool shared by pods', () => {
  test('is handed out to the last token, though it cannot be divided evenly', () => {
    for (const mode of RAMP_MODES) {
      const alone = simulateRamp(options(mode), Array(12).fill(200));
      expect(simulateRamp(options(mode), Array(12).fill(200), 7)).toEqual(alone);
    }
  });

  test('asks for every call once, though the calls cannot be divided evenly either', () => {
    const used = simulateRamp(options('scheduled'), [8, 8, 8], 3).map((second) => second.used);
    expect(used).toEqual([8, 8, 8]);
  });

  test('hands out no more than it holds, whatever is asked and by how many', () => {
    const traffic = fc.array(fc.integer({ min: 0, max: 150 }), { minLength: 1, maxLength: 40 });
    fc.assert(
      fc.property(
        fc.constantFrom(...RAMP_MODES),
        traffic,
        fc.integer({ min: 1, max: 5 }),
        (mode, asked, pods) => {
          for (const second of simulateRamp(options(mode), asked, pods)) {
            expect(second.used).toBeLessThanOrEqual(second.asked);
            // Pods judge their own part, so their copies differ by a turn at the remainder each.
            expect(second.used).toBeLessThanOrEqual(second.pool + pods - 1);
            expect(second.pool).toBeGreaterThanOrEqual(10);
            expect(second.pool).toBeLessThanOrEqual(110);
          }
        },
      ),
    );
  });
});
