import { describe, expect, test } from 'vitest';
import { jainIndex, mean, meanPairwiseCorrelation, standardDeviation } from './statistics.ts';

describe('statistics', () => {
  test('mean and standard deviation', () => {
    expect(mean([2, 4, 4, 4, 5, 5, 7, 9])).toBe(5);
    expect(standardDeviation([2, 4, 4, 4, 5, 5, 7, 9])).toBe(2);
  });

  test('correlation: 1 for proportional series, -1 for opposite series', () => {
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

  test('correlation: equals the mean of the correlations of all pairs', () => {
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

  test('correlation: 0 without two series that vary', () => {
    expect(
      meanPairwiseCorrelation([
        [1, 1, 1],
        [1, 2, 1],
      ]),
    ).toBe(0);
    expect(meanPairwiseCorrelation([])).toBe(0);
  });

  test('Jain index: 1 for equal amounts, 1/4 if one of four gets everything', () => {
    expect(jainIndex([7, 7, 7])).toBe(1);
    expect(jainIndex([0, 8, 0, 0])).toBe(0.25);
    expect(jainIndex([0, 0])).toBe(1);
  });
});
