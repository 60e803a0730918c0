import { beforeAll, describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

/** Every scenario has its own, shorter bound. */
const MAX_RUN_MS = 90_000;

interface BenchResult {
  readonly facts: Readonly<Record<string, Readonly<Record<string, number | boolean>>>>;
}

let facts: BenchResult['facts'];

beforeAll(async () => {
  ({ facts } = await runBench<BenchResult>(MAX_RUN_MS, 'real-servers/run.mjs'));
}, MAX_RUN_MS);

describe('adaptive limit against real servers', () => {
  test('healthy server: reaches the maximum and stays near it', () => {
    expect(facts['ramp-up']).toMatchObject({ reached: true, errors: 0 });
    expect(Number(facts['ramp-up'].after)).toBeGreaterThanOrEqual(
      0.75 * Number(facts['ramp-up'].max),
    );
  });

  test('outage: falls to 1 and rises afterwards', () => {
    expect(facts.outage).toMatchObject({ fell: true, stayed: true, rose: true });
    expect(facts.outage.before).toBeGreaterThan(4);
  });

  test('slow-down: decreases by a quarter or more', () => {
    const { before, after } = facts['slow-down'];
    expect(before).toBeGreaterThan(4);
    expect(after).toBeLessThanOrEqual(0.75 * Number(before)); // on an idle machine it falls to a quarter
    expect(facts['slow-down'].errors).toBe(0);
  });

  // On an idle machine it is 90 % or more.
  test('fixed rate: delivers three quarters of it or more, with at most 20 % rejections', () => {
    expect(facts.quota.delivered).toBeGreaterThanOrEqual(0.75);
    expect(facts.quota.refused).toBeLessThanOrEqual(0.2);
  });

  test('flood: never more calls in flight than the limit, and none lost', () => {
    const { events, delivered, errors, isOver } = facts.flood;
    expect({ delivered, errors, isOver }).toEqual({ delivered: events, errors: 0, isOver: false });
    expect(facts.flood.peak).toBeLessThanOrEqual(Number(facts.flood.highest));
    expect(facts.flood.atOnce).toBeLessThanOrEqual(Number(facts.flood.before));
  });
});

describe('busy limit against a real server', () => {
  test('traffic drops within a second of the first busy reply', () => {
    expect(facts.busy.collapse).toBeLessThanOrEqual(1);
    expect(facts.busy.sentShare).toBeLessThanOrEqual(0.05);
  });

  test('does not flap during the overload, and keeps probing', () => {
    expect(facts.busy.probes).toBeGreaterThan(0);
    expect(facts.busy.most).toBeLessThanOrEqual(0.05 * Number(facts.busy.offered));
  });

  test('recovers fully within seconds, and later after a longer overload', () => {
    expect(facts.busy.isBack).toBe(true);
    expect(facts.busy.long).toBeLessThanOrEqual(10);
    expect(facts.busy.short).toBeLessThan(Number(facts.busy.long));
  });
});
