import { describe, expect, test } from 'vitest';
import { exponentialVariate, seededRandom } from './random.ts';

const draw = (count: number, next: () => number): number[] => Array.from({ length: count }, next);
const meanOf = (numbers: readonly number[]): number =>
  numbers.reduce((a, b) => a + b, 0) / numbers.length;

describe('seededRandom', () => {
  // Reference values of Mulberry32.
  test.each([
    [0, [0.26642920868471265, 0.0003297457005828619, 0.2232720274478197]],
    [1, [0.6270739405881613, 0.002735721180215478, 0.5274470399599522]],
    [42, [0.6011037519201636, 0.44829055899754167, 0.8524657934904099]],
  ])('seed %d: gives the reference values of Mulberry32', (seed, first) => {
    expect(draw(3, seededRandom(seed))).toEqual(first);
  });

  test('gives the same numbers for the same seed, and others for another', () => {
    expect(draw(100, seededRandom(7))).toEqual(draw(100, seededRandom(7)));
    expect(draw(100, seededRandom(7))).not.toEqual(draw(100, seededRandom(8)));
  });

  test.each([0, 1, 2 ** 31, 2 ** 32 - 1, -1, 123_456_789])('seed %d: is uniform', (seed) => {
    const numbers = draw(100_000, seededRandom(seed));
    expect(numbers.every((n) => n >= 0 && n < 1)).toBe(true);
    expect(meanOf(numbers)).toBeCloseTo(0.5, 2);

    const tenths = new Array(10).fill(0);
    for (const n of numbers) tenths[Math.floor(n * 10)]++;
    for (const count of tenths) expect(Math.abs(count - 10_000)).toBeLessThan(500); // five sigma
    const rises = numbers.filter((n, k) => k > 0 && n > (numbers[k - 1] as number)).length;
    expect(Math.abs(rises - 50_000)).toBeLessThan(500);
  });
});

describe('exponentialVariate', () => {
  test('has mean 1 and the tail of an exponential distribution, and is finite', () => {
    const numbers = draw(100_000, () => exponentialVariate(random));
    expect(numbers.every((n) => n >= 0 && Number.isFinite(n))).toBe(true);
    expect(meanOf(numbers)).toBeGreaterThan(0.98);
    expect(meanOf(numbers)).toBeLessThan(1.02);
    const beyondTwo = numbers.filter((n) => n > 2).length / numbers.length;
    expect(beyondTwo).toBeCloseTo(Math.exp(-2), 2);
  });

  test('accepts both ends of the random range', () => {
    expect(exponentialVariate(() => 0)).toBe(-0);
    expect(exponentialVariate(() => 1 - 2 ** -32)).toBeCloseTo(32 * Math.LN2, 9);
  });

  const random = seededRandom(3);
});
