import { expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from '../policies/limit.ts';
import { everyMsOf, lookaheadMs } from './lookahead.ts';
import { RttEstimator } from './rtt-estimator.ts';

test('RttEstimator: before the first sample, the bound is half the deadline and the mean is 0', () => {
  const rtt = new RttEstimator(1000);
  expect([rtt.upperBoundMs, rtt.meanMs]).toEqual([500, 0]);
  expect(new RttEstimator().upperBoundMs).toBe(Infinity);
});

test('RttEstimator: equal samples shrink the bound to the mean', () => {
  const rtt = new RttEstimator(1000);
  rtt.observe(20);
  expect([rtt.meanMs, rtt.upperBoundMs]).toEqual([20, 60]);
  for (let n = 0; n < 50; n++) rtt.observe(20);
  expect(rtt.meanMs).toBe(20);
  expect(rtt.upperBoundMs).toBeCloseTo(20, 3);
});

test('RttEstimator: a sample counts for at most a quarter of the deadline', () => {
  const rtt = new RttEstimator(1000);
  rtt.observe(5000);
  expect([rtt.meanMs, rtt.upperBoundMs]).toEqual([250, 500]);
});

test('lookahead: round trip, timer lateness and jitter for a single spacing, 0 for other limits', () => {
  const everyMs = (limit: Limit) => everyMsOf(createPolicy(limit, seededRandom(1)));
  const spacing = { spacing: { every: 100 } };
  const bucket = { bucket: { rate: 1 } };
  expect(lookaheadMs(everyMs(spacing), 10)).toBe(10 + 5 + 5);
  expect(lookaheadMs(everyMs(bucket), 10)).toBe(0);
  expect(lookaheadMs(everyMs({ all: [spacing, bucket] }), 10)).toBe(0);
});
