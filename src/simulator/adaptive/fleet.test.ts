import { describe, expect, test } from 'vitest';
import { type FleetConfig, runFleet } from './fleet.ts';
import { createScenario, maxCompletable, SCENARIOS } from './scenario.ts';

const fleet = (config: Partial<FleetConfig>) =>
  runFleet({ scenario: createScenario('queue'), limit: {}, clients: 1, seed: 1, ...config });

const figures = (config: Partial<FleetConfig>) => fleet(config).figures;

describe('scenarios', () => {
  test('utilisation is 1 with as many calls in flight as workers', () => {
    expect(figures({ limit: { concurrency: 20 } }).utilisation).toBeCloseTo(1, 2);
    expect(
      figures({ scenario: createScenario('uneven'), limit: { concurrency: 30 } }).utilisation,
    ).toBeCloseTo(1, 1);
    expect(
      figures({ scenario: createScenario('steady'), limit: { concurrency: 200 } }).utilisation,
    ).toBeCloseTo(1, 1);
    expect(figures({ limit: { concurrency: 10 } }).utilisation).toBeCloseTo(0.5, 2);
  });

  test.each(SCENARIOS)('%s: utilisation is never above 1', (name) => {
    for (const concurrency of [10, 30, 60]) {
      expect(
        figures({ scenario: createScenario(name), limit: { concurrency } }).utilisation,
      ).toBeLessThan(1.02);
    }
  });

  test('the maximum throughput includes the capacity during an incident', () => {
    const whole = maxCompletable(createScenario('queue'));
    expect(maxCompletable(createScenario('outage'))).toBeCloseTo((whole * 2) / 3, 6); // 20 of 60 s
    expect(maxCompletable(createScenario('slow-down')) / whole).toBeCloseTo(2 / 3 + 1 / 12, 2);
    expect(maxCompletable(createScenario('outage', { window: { fromS: 45, toS: 55 } }))).toBe(0);
  });

  test('the maximum throughput is proportional to the scale', () => {
    for (const name of SCENARIOS) {
      expect(maxCompletable(createScenario(name, { scale: 4 }))).toBeCloseTo(
        4 * maxCompletable(createScenario(name)),
        6,
      );
    }
  });
});

describe('simulated fleet', () => {
  test('the same seed gives the same run, another seed another', () => {
    expect(fleet({ clients: 3, seed: 7 })).toEqual(fleet({ clients: 3, seed: 7 }));
    expect(figures({ seed: 7 })).not.toEqual(figures({ seed: 8 }));
  });

  test('timed-out attempts count as rejected and not in the latency', () => {
    const { rejected, p99Ms, recoveryS } = figures({ scenario: createScenario('outage') });
    expect(rejected).toBeGreaterThan(0.01);
    expect(p99Ms).toBeLessThan(300);
    expect(recoveryS).toBeLessThan(10);
  });

  test('convergence is Infinity if the capacity is never reached', () => {
    expect(figures({ limit: { concurrency: 20 } }).convergenceS).toBeLessThan(1.5);
    expect(figures({ limit: { concurrency: 10 } }).convergenceS).toBe(Infinity);
    expect(figures({}).recoveryS).toBeNaN();
  });

  test('utilisation of a sink without capacity is NaN', () => {
    const outage = createScenario('outage', { window: { fromS: 45, toS: 55 } });
    const { utilisation, p95Ms, rejected } = figures({ scenario: outage });
    expect([utilisation, p95Ms, rejected]).toEqual([Number.NaN, Number.NaN, 1]);
  });

  test('16 clients share a sink fairly', () => {
    const sixteen = figures({ scenario: createScenario('queue', { scale: 4 }), clients: 16 });
    expect(sixteen.fairness).toBeGreaterThan(0.9);
    expect(sixteen.utilisation).toBeGreaterThan(0.99);
  });

  test('records ten samples per second for charts', () => {
    const { limits, completed, figures: totals } = fleet({});
    expect([limits.length, completed.length]).toEqual([801, 800]);
    const counted = completed.slice(200).reduce((a, b) => a + b, 0);
    expect(counted / 60).toBeCloseTo(totals.perSecond, 0);
  });
});
