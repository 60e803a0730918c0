import { describe, expect, test } from 'vitest';
import { runs } from '../../../test/support/runs.ts';
import { overshootOf } from '../overshoot.ts';
import { figuresOf } from './figures.ts';
import { randomRegions } from './random-regions.ts';
import { type Design, type RegionsOptions, simulateRegions } from './run.ts';

const SEEDS = runs(20);

/** Three regions 80 ms apart, one with ten times the demand of each of the other two. */
const BUSY: RegionsOptions = {
  regions: [
    { name: 'eu', load: 300, weight: 1, min: 0 },
    { name: 'us', load: 30, weight: 1, min: 0 },
    { name: 'ap', load: 30, weight: 1, min: 0 },
  ],
  rate: 300,
  burst: 300,
  rttMs: 80,
  links: [],
  jitter: 0.1,
  reserve: 0.5,
  deadlineMs: 500,
  outages: [],
  spanMs: 30_000,
  seed: 1,
};

const figures = async (design: Design, options = BUSY) =>
  figuresOf(await simulateRegions(design, options), options);

const loads = (...each: number[]): RegionsOptions['regions'] =>
  BUSY.regions.map((region, n) => ({ ...region, load: each[n] }));

describe('groups simulation', () => {
  test('a busy region uses the surplus of idle ones, without overshoot', async () => {
    const borrowing = await figures('groups');
    const even = await figures('even');
    expect(borrowing.utilisation).toBeGreaterThan(0.97);
    expect(borrowing.overshootCalls).toBeCloseTo(0);
    expect(even.utilisation).toBeLessThan(0.6);
    expect(borrowing.meanLatencyMs).toBeCloseTo(0);
  });

  test('borrowing uses 95 % where even division uses 40 %', async () => {
    const options = { ...BUSY, regions: loads(400, 10, 10) };
    expect((await figures('even', options)).utilisation).toBeCloseTo(0.4, 1);
    expect((await figures('groups', options)).utilisation).toBeGreaterThan(0.95);
  });

  test.each([
    [80, 30],
    [160, 60],
    [300, 100],
  ])('%i ms apart with a burst of %i: utilisation stays above 90 %%', async (rttMs, burst) => {
    const { utilisation, overshootCalls } = await figures('groups', { ...BUSY, rttMs, burst });
    expect(utilisation).toBeGreaterThan(0.9);
    expect(overshootCalls).toBeCloseTo(0);
  });

  test('a region with demand for its fraction of the limit gets it, however busy the rest is', async () => {
    const options = { ...BUSY, regions: loads(3000, 99, 3000) };
    const { rates } = await figures('groups', options);
    expect(rates.get('us')).toBeGreaterThan(95);
  });

  test('a region gets nearly the whole rate while the rest is idle', async () => {
    const quiet = await simulateRegions('groups', { ...BUSY, regions: loads(900, 0, 0) });
    const times = quiet.admitted.get('eu') ?? [];
    expect(times.filter((at) => at > 20_000).length).toBeGreaterThan(2800);
  });

  test('a partitioned region uses its fraction, and borrows again afterwards', async () => {
    const outages = [{ region: 'eu', fromMs: 10_000, toMs: 20_000 }];
    const run = await simulateRegions('groups', { ...BUSY, outages });
    const between = (from: number, to: number): number =>
      (run.admitted.get('eu') ?? []).filter((at) => at >= from && at < to).length / (to - from);
    expect(between(5000, 10_000)).toBeGreaterThan(0.22);
    expect(between(12_000, 20_000)).toBeCloseTo(0.1, 2);
    expect(between(21_500, 30_000)).toBeGreaterThan(0.22);
    expect(figuresOf(run, BUSY).overshootCalls).toBeCloseTo(0);
  });

  test('a central bucket denies all calls of a partitioned region, and adds latency elsewhere', async () => {
    const outages = [{ region: 'us', fromMs: 10_000, toMs: 20_000 }];
    const run = await simulateRegions('central', { ...BUSY, outages });
    const during = (run.admitted.get('us') ?? []).filter((at) => at >= 10_100 && at < 20_000);
    expect(during).toEqual([]);
    expect(run.meanLatencyMs).toBeGreaterThan(10);
  });

  test(
    'random regions stay within the overshoot bound',
    async () => {
      for (let seed = 1; seed <= SEEDS; seed++) {
        const options = randomRegions(seed);
        const { overshootCalls, bound } = await figures('groups', options);
        expect({ seed, isHeld: overshootCalls <= bound }).toEqual({ seed, isHeld: true });
      }
    },
    60_000 + SEEDS * 500,
  );
});

test('overshootOf: how far one central bucket would go below zero', () => {
  expect(overshootOf([0, 0, 0, 0, 0], 10, 3)).toBe(2);
  expect(overshootOf([0, 0, 0, 100, 200], 10, 3)).toBe(0);
  expect(overshootOf([0, 0, 0, 50, 60], 10, 3)).toBeCloseTo(1.4);
});
