import { describe, expect, test } from 'vitest';
import { type FleetConfig, runFleet } from './fleet.ts';
import { createScenario, maxCompletable, SCENARIOS } from './scenario.ts';

const fleet = (own: Partial<FleetConfig>) =>
  runFleet({ scenario: createScenario('queue'), limit: {}, clients: 1, seed: 1, ...own });

const figures = (own: Partial<FleetConfig>) => fleet(own).figures;

describe('the scenarios', () => {
  test('know their best: as many in flight as there are workers get all of it', () => {
    expect(figures({ limit: { concurrency: 20 } }).utilisation).toBeCloseTo(1, 2);
    expect(
      figures({ scenario: createScenario('uneven'), limit: { concurrency: 30 } }).utilisation,
    ).toBeCloseTo(1, 1);
    expect(
      figures({ scenario: createScenario('steady'), limit: { concurrency: 200 } }).utilisation,
    ).toBeCloseTo(1, 1);
    expect(figures({ limit: { concurrency: 10 } }).utilisation).toBeCloseTo(0.5, 2);
  });

  test.each(SCENARIOS)('nobody gets more than the best of %s', (name) => {
    for (const concurrency of [10, 30, 60]) {
      expect(
        figures({ scenario: createScenario(name), limit: { concurrency } }).utilisation,
      ).toBeLessThan(1.02);
    }
  });

  test('an incident counts with what the sink can do in it', () => {
    const whole = maxCompletable(createScenario('queue'));
    expect(maxCompletable(createScenario('outage'))).toBeCloseTo((whole * 2) / 3, 6); // 20 of 60 s
    expect(maxCompletable(createScenario('slow-down')) / whole).toBeCloseTo(2 / 3 + 1 / 12, 2);
    expect(maxCompletable(createScenario('outage', { window: { fromS: 45, toS: 55 } }))).toBe(0);
  });

  test('a sink of another size is so many times as good', () => {
    for (const name of SCENARIOS) {
      expect(maxCompletable(createScenario(name, { scale: 4 }))).toBeCloseTo(
        4 * maxCompletable(createScenario(name)),
        6,
      );
    }
  });
});

describe('a fleet', () => {
  test('the same seed tells the same story, another seed another', () => {
    expect(fleet({ clients: 3, seed: 7 })).toEqual(fleet({ clients: 3, seed: 7 }));
    expect(figures({ seed: 7 })).not.toEqual(figures({ seed: 8 }));
  });

  test('attempts that get no answer count as rejected, and their second as nothing', () => {
    const { rejected, p99Ms, recoveryS } = figures({ scenario: createScenario('outage') });
    expect(rejected).toBeGreaterThan(0.01);
    expect(p99Ms).toBeLessThan(300);
    expect(recoveryS).toBeLessThan(10);
  });

  test('tells when it was there, and never if it never was', () => {
    expect(figures({ limit: { concurrency: 20 } }).convergenceS).toBeLessThan(1.5);
    expect(figures({ limit: { concurrency: 10 } }).convergenceS).toBe(Infinity);
    expect(figures({}).recoveryS).toBeNaN();
  });

  test('of a sink that can do nothing there is no best part', () => {
    const silence = createScenario('outage', { window: { fromS: 45, toS: 55 } });
    const { utilisation, p95Ms, rejected } = figures({ scenario: silence });
    expect([utilisation, p95Ms, rejected]).toEqual([Number.NaN, Number.NaN, 1]);
  });

  test('shares a sink fairly, whoever came first in each instant', () => {
    const sixteen = figures({ scenario: createScenario('queue', { scale: 4 }), clients: 16 });
    expect(sixteen.fairness).toBeGreaterThan(0.9);
    expect(sixteen.utilisation).toBeGreaterThan(0.99);
  });

  test('keeps what is needed to draw it: ten samples a second', () => {
    const { limits, completed, figures: sums } = fleet({});
    expect([limits.length, completed.length]).toEqual([801, 800]);
    const counted = completed.slice(200).reduce((a, b) => a + b, 0);
    expect(counted / 60).toBeCloseTo(sums.perSecond, 0);
  });
});
