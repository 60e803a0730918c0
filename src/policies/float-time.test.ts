import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { addRoundingUp, subtractRoundingDown } from './float-time.ts';

/** The next larger and the next smaller number, by the bits of the number. */
function neighboursOf(value: number): { readonly next: number; readonly previous: number } {
  const bits = new BigInt64Array(1);
  const number = new Float64Array(bits.buffer);
  const shifted = (by: bigint): number => {
    number[0] = value;
    bits[0] = (bits[0] as bigint) + (value > 0 ? by : -by);
    return number[0] as number;
  };
  return { next: shifted(1n), previous: shifted(-1n) };
}

// Instants and spans whose differences doubles represent exactly.
const instant = fc.double({ min: 2e9, max: 4e15, noNaN: true });
const span = fc.double({ min: 0.001, max: 1e9, noNaN: true });

describe('instants far from zero', () => {
  test('addRoundingUp: the first number at least the span later', () => {
    fc.assert(
      fc.property(instant, span, (at, ms) => {
        const sum = addRoundingUp(at, ms);
        expect(sum - at).toBeGreaterThanOrEqual(ms);
        expect(neighboursOf(sum).previous - at).toBeLessThan(ms);
      }),
    );
  });

  test('subtractRoundingDown: the last number at least the span earlier', () => {
    fc.assert(
      fc.property(instant, span, (at, ms) => {
        const difference = subtractRoundingDown(at, ms);
        expect(at - difference).toBeGreaterThanOrEqual(ms);
        if (difference !== 0) expect(at - neighboursOf(difference).next).toBeLessThan(ms);
      }),
    );
  });

  test.each([2 ** 50, 2 ** 50 - 0.125, 1e15 + 6083.25])(
    '%d plus a span of less than the distance of its neighbour',
    (at) => {
      expect(addRoundingUp(at, 0.01)).toBe(neighboursOf(at).next);
      expect(subtractRoundingDown(at, 0.01)).toBe(neighboursOf(at).previous);
    },
  );
});
