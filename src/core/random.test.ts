import { describe, expect, test } from 'vitest';
import { exponentialVariate, seededRandom } from './random.ts';

const drawn = (count: number, draw: () => number): number[] => Array.from({ length: count }, draw);
const meanOf = (numbers: readonly number[]): number =>
  numbers.reduce((a, b) => a + b, 0) / numbers.length;

describe('seeded chance', () => {
  // What Mulberry32 gives wherever it was written down.
  test.each([
    [0, [0.26642920868471265, 0.0003297457005828619, 0.2232720274478197]],
    [1, [0.6270739405881613, 0.002735721180215478, 0.5274470399599522]],
    [42, [0.6011037519201636, 0.44829055899754167, 0.8524657934904099]],
  ])('from seed %d is what it always was', (seed, first) => {
    expect(drawn(3, seededRandom(seed))).toEqual(first);
  });

  test('is the same from the same seed, and another from another', () => {
    expect(drawn(100, seededRandom(7))).toEqual(drawn(100, seededRandom(7)));
    expect(drawn(100, seededRandom(7))).not.toEqual(drawn(100, seededRandom(8)));
  });

  test.each([0, 1, 2 ** 31, 2 ** 32 - 1, -1, 123_456_789])(
    'from seed %d is spread evenly',
    (seed) => {
      const numbers = drawn(100_000, seededRandom(seed));
      expect(numbers.every((n) => n >= 0 && n < 1)).toBe(true);
      expect(meanOf(numbers)).toBeCloseTo(0.5, 2);

      const tenths = new Array(10).fill(0);
      for (const n of numbers) tenths[Math.floor(n * 10)]++;
      for (const count of tenths) expect(Math.abs(count - 10_000)).toBeLessThan(500); // five sigma
      const rises = numbers.filter((n, k) => k > 0 && n > (numbers[k - 1] as number)).length;
      expect(Math.abs(rises - 50_000)).toBeLessThan(500);
    },
  );
});

describe('exponential waiting', () => {
  test('has mean 1 and the right tail, and is never endless', () => {
    const numbers = drawn(100_000, () => exponentialVariate(random));
    expect(numbers.every((n) => n >= 0 && Number.isFinite(n))).toBe(true);
    expect(meanOf(numbers)).toBeGreaterThan(0.98);
    expect(meanOf(numbers)).toBeLessThan(1.02);
    const beyondTwo = numbers.filter((n) => n > 2).length / numbers.length;
    expect(beyondTwo).toBeCloseTo(Math.exp(-2), 2);
  });

  test('takes the ends of chance as they come', () => {
    expect(exponentialVariate(() => 0)).toBe(-0);
    expect(exponentialVariate(() => 1 - 2 ** -32)).toBeCloseTo(32 * Math.LN2, 9);
  });

  const random = seededRandom(3);
});
