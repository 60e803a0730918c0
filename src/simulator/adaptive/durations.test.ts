import { describe, expect, test } from 'vitest';
import { DurationHistogram } from './durations.ts';

describe('duration histogram', () => {
  test('a quantile is the shortest duration that the fraction does not exceed', () => {
    const spans = new DurationHistogram();
    for (let ms = 1; ms <= 100; ms++) spans.add(ms);
    expect(spans.figures()).toEqual({ meanMs: 50.5, p95Ms: 95, p99Ms: 99 });
    expect(spans.quantile(0)).toBe(1);
    expect(spans.quantile(1)).toBe(100);
  });

  test('a single outlier moves the mean and the quantiles above it only', () => {
    const spans = new DurationHistogram();
    for (let n = 0; n < 99; n++) spans.add(10);
    spans.add(1000);
    expect(spans.figures()).toEqual({ meanMs: 19.9, p95Ms: 10, p99Ms: 10 });
    expect(spans.quantile(0.995)).toBe(1000);
  });

  test('an empty histogram has NaN figures', () => {
    expect(new DurationHistogram().figures()).toEqual({ meanMs: NaN, p95Ms: NaN, p99Ms: NaN });
  });
});
