import { describe, expect, test } from 'vitest';
import { jainIndex, mean, meanPairwiseCorrelation, standardDeviation } from './statistics.ts';

describe('statistics', () => {
  test('the middle, and how far from it', () => {
    expect(mean([2, 4, 4, 4, 5, 5, 7, 9])).toBe(5);
    expect(standardDeviation([2, 4, 4, 4, 5, 5, 7, 9])).toBe(2);
  });

  test('those who march are 1, however long their legs; those who see-saw are -1', () => {
    expect(
      meanPairwiseCorrelation([
        [1, 2, 3, 2],
        [10, 20, 30, 20],
        [5, 6, 7, 6],
      ]),
    ).toBeCloseTo(1, 12);
    expect(
      meanPairwiseCorrelation([
        [1, 2, 3, 2],
        [3, 2, 1, 2],
      ]),
    ).toBeCloseTo(-1, 12);
  });

  test('the mean over all pairs is what looking at each pair gives', () => {
    const series = [
      [1, 3, 2, 5],
      [2, 2, 4, 1],
      [0, 1, 0, 1],
    ];
    const pairs = [
      [0, 1],
      [0, 2],
      [1, 2],
    ].map(([a, b]) => meanPairwiseCorrelation([series[a], series[b]]));
    expect(meanPairwiseCorrelation(series)).toBeCloseTo(mean(pairs), 12);
  });

  test('who never moves marches with nobody', () => {
    expect(
      meanPairwiseCorrelation([
        [1, 1, 1],
        [1, 2, 1],
      ]),
    ).toBe(0);
    expect(meanPairwiseCorrelation([])).toBe(0);
  });

  test('Jain: all alike is 1, all to one of four is a quarter', () => {
    expect(jainIndex([7, 7, 7])).toBe(1);
    expect(jainIndex([0, 8, 0, 0])).toBe(0.25);
    expect(jainIndex([0, 0])).toBe(1);
  });
});
