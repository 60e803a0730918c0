import { describe, expect, test } from 'vitest';
import { type Fleet, runFleet } from './fleet.ts';
import { bestOf, SCENARIOS, scenario } from './scenario.ts';

const fleet = (own: Partial<Fleet>) =>
  runFleet({ scenario: scenario('queue'), limit: {}, clients: 1, seed: 1, ...own });

const figures = (own: Partial<Fleet>) => fleet(own).figures;

describe('the scenarios', () => {
  test('know their best: as many in flight as there are workers get all of it', () => {
    expect(figures({ limit: { fixed: 20 } }).ofBest).toBeCloseTo(1, 2);
    expect(figures({ scenario: scenario('uneven'), limit: { fixed: 30 } }).ofBest).toBeCloseTo(
      1,
      1,
    );
    expect(figures({ scenario: scenario('steady'), limit: { fixed: 200 } }).ofBest).toBeCloseTo(
      1,
      1,
    );
    expect(figures({ limit: { fixed: 10 } }).ofBest).toBeCloseTo(0.5, 2);
  });

  test.each(SCENARIOS)('nobody gets more than the best of %s', (name) => {
    for (const fixed of [10, 30, 60]) {
      expect(figures({ scenario: scenario(name), limit: { fixed } }).ofBest).toBeLessThan(1.02);
    }
  });

  test('an incident counts with what the sink can do in it', () => {
    const whole = bestOf(scenario('queue'));
    expect(bestOf(scenario('outage'))).toBeCloseTo((whole * 2) / 3, 6); // 20 of 60 s
    expect(bestOf(scenario('slow-down')) / whole).toBeCloseTo(2 / 3 + 1 / 12, 2);
    expect(bestOf(scenario('outage', { watch: { fromS: 45, toS: 55 } }))).toBe(0);
  });

  test('a sink of another size is so many times as good', () => {
    for (const name of SCENARIOS) {
      expect(bestOf(scenario(name, { size: 4 }))).toBeCloseTo(4 * bestOf(scenario(name)), 6);
    }
  });
});

describe('a fleet', () => {
  test('the same seed tells the same story, another seed another', () => {
    expect(fleet({ clients: 3, seed: 7 })).toEqual(fleet({ clients: 3, seed: 7 }));
    expect(figures({ seed: 7 })).not.toEqual(figures({ seed: 8 }));
  });

  test('attempts that get no answer count as rejected, and their second as nothing', () => {
    const { rejected, p99Ms, backS } = figures({ scenario: scenario('outage') });
    expect(rejected).toBeGreaterThan(0.01);
    expect(p99Ms).toBeLessThan(300);
    expect(backS).toBeLessThan(10);
  });

  test('tells when it was there, and never if it never was', () => {
    expect(figures({ limit: { fixed: 20 } }).thereS).toBeLessThan(1.5);
    expect(figures({ limit: { fixed: 10 } }).thereS).toBe(Infinity);
    expect(figures({}).backS).toBeNaN();
  });

  test('of a sink that can do nothing there is no best part', () => {
    const silence = scenario('outage', { watch: { fromS: 45, toS: 55 } });
    const { ofBest, p95Ms, rejected } = figures({ scenario: silence });
    expect([ofBest, p95Ms, rejected]).toEqual([Number.NaN, Number.NaN, 1]);
  });

  test('shares a sink fairly, whoever came first in each instant', () => {
    const sixteen = figures({ scenario: scenario('queue', { size: 4 }), clients: 16 });
    expect(sixteen.fairness).toBeGreaterThan(0.9);
    expect(sixteen.ofBest).toBeGreaterThan(0.99);
  });

  test('keeps what is needed to draw it: ten samples a second', () => {
    const { limits, completed, figures: sums } = fleet({});
    expect([limits.length, completed.length]).toEqual([801, 800]);
    const counted = completed.slice(200).reduce((a, b) => a + b, 0);
    expect(counted / 60).toBeCloseTo(sums.perSecond, 0);
  });
});
