import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { GapSampler, SAMPLES_PER_SECOND } from './gap-sampler.ts';

/** Calls of a second; returns the samples and what they weigh. */
function second(sampler: GapSampler, calls: number, onSample = (_call: number, _w: number) => {}) {
  let [samples, weight] = [0, 0];
  for (let call = 0; call < calls; call++) {
    if (!sampler.isDue()) continue;
    const each = sampler.take();
    samples++;
    weight += each;
    onSample(call, each);
  }
  sampler.adapt(1000);
  return { samples, weight };
}

describe('gap sampler', () => {
  test('fewer calls than samples: every call is one', () => {
    const sampler = new GapSampler(seededRandom(1));
    for (let n = 0; n < 5; n++)
      expect(second(sampler, SAMPLES_PER_SECOND - 1)).toEqual({
        samples: SAMPLES_PER_SECOND - 1,
        weight: SAMPLES_PER_SECOND - 1,
      });
  });

  test.each([1, 2, 3])(
    'a million calls a second, seed %i: 5,000 samples, whose weights add up to the calls',
    (seed) => {
      const sampler = new GapSampler(seededRandom(seed));
      second(sampler, 1_000_000);
      const { samples, weight } = second(sampler, 1_000_000);
      expect(sampler.meanGap).toBe(200);
      expect(Math.abs(samples / SAMPLES_PER_SECOND - 1)).toBeLessThan(0.06); // 4 standard deviations
      expect(Math.abs(weight / 1_000_000 - 1)).toBeLessThan(0.06);
    },
  );

  test('the first second of a flood: thinned out at once, without bias', () => {
    const sampler = new GapSampler(seededRandom(4));
    second(sampler, 100);
    const { samples, weight } = second(sampler, 1_000_000);
    expect(samples).toBeLessThan(8 * SAMPLES_PER_SECOND); // it doubles seven times
    expect(Math.abs(weight / 1_000_000 - 1)).toBeLessThan(0.06);
  });

  test('the end of a flood: after a second every call is counted again', () => {
    const sampler = new GapSampler(seededRandom(5));
    for (let n = 0; n < 3; n++) second(sampler, 1_000_000);
    second(sampler, 10);
    expect(second(sampler, 10)).toEqual({ samples: 10, weight: 10 });
  });

  test('a second that took three: the rate decides, not the number of calls', () => {
    const sampler = new GapSampler(seededRandom(6));
    second(sampler, 300_000);
    expect(sampler.meanGap).toBe(60);
    for (let call = 0; call < 300_000; call++) if (sampler.isDue()) sampler.take();
    sampler.adapt(3000);
    expect(sampler.meanGap).toBe(20);
  });

  test('keys that take turns in the period of the gap: each gets its part of the samples', () => {
    const sampler = new GapSampler(seededRandom(7));
    const period = 200;
    const weights = new Float64Array(period);
    second(sampler, 1_000_000);
    for (let n = 0; n < 20; n++)
      second(sampler, 1_000_000, (call, weight) => {
        weights[call % period] += weight;
      });
    // Each key has 100,000 calls, and about 500 samples with a deviation of 22.
    expect(Math.min(...weights)).toBeGreaterThan(75_000);
    expect(Math.max(...weights)).toBeLessThan(125_000);
  });
});
