import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import type { Traffic } from './scenario.ts';
import { nextCallOf } from './traffic.ts';

/** The times of all calls in 100 s. */
function timesOf(traffic: Traffic): number[] {
  const next = nextCallOf(traffic, seededRandom(7));
  const times: number[] = [];
  for (let at = next?.(0) ?? Infinity; at < 100_000; at = next?.(at) ?? Infinity) times.push(at);
  return times;
}

const countBetween = (times: readonly number[], from: number, to: number): number =>
  times.filter((at) => at >= from && at < to).length;

describe('traffic', () => {
  test('steady: calls at equal intervals', () => {
    const times = timesOf({ shape: 'steady', perMs: 0.05 });
    expect(times).toHaveLength(5000);
    for (let n = 1; n < times.length; n++) expect(times[n] - times[n - 1]).toBeCloseTo(20, 6);
  });

  test('poisson: the rate on average, and intervals that vary', () => {
    const times = timesOf({ shape: 'poisson', perMs: 0.05 });
    expect(times.length).toBeGreaterThan(4800);
    expect(times.length).toBeLessThan(5200);
    const shortest = Math.min(...times.slice(1).map((at, n) => at - times[n]));
    expect(shortest).toBeLessThan(1);
  });

  test('spike: so many times as many calls for a while', () => {
    const times = timesOf({
      shape: 'spike',
      ...{ perMs: 0.05, everyMs: 20_000, forMs: 2000, times: 10 },
    });
    const spikes = [0, 20, 40, 60, 80].map((s) => countBetween(times, s * 1000, (s + 2) * 1000));
    const total = spikes.reduce((sum, count) => sum + count, 0);
    expect(total / 10_000).toBeCloseTo(0.5, 1);
    expect((times.length - total) / 90_000).toBeCloseTo(0.05, 2);
  });

  test('sine: more calls in the first half of a period than in the second', () => {
    const times = timesOf({ shape: 'sine', perMs: 0.05, everyMs: 50_000, swing: 1 });
    expect(times.length / 100_000).toBeCloseTo(0.05, 2);
    const first = countBetween(times, 0, 25_000) + countBetween(times, 50_000, 75_000);
    expect(first / times.length).toBeGreaterThan(0.75);
  });

  test('flappy: no call while it is off', () => {
    const times = timesOf({ shape: 'flappy', perMs: 0.05, everyMs: 10_000, forMs: 4000 });
    expect(times.every((at) => at % 10_000 < 4000)).toBe(true);
    expect(times.length / 40_000).toBeCloseTo(0.05, 2);
  });

  test('hog: its next call follows the last one', () => {
    expect(nextCallOf({ shape: 'hog', parallel: 1, everyMs: 1 }, seededRandom(1))).toBeUndefined();
  });
});
