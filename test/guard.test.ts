/** A limit on capacity in front of real servers under load, in processes of their own. Needs a build. */

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
    results = await runBench(60_000, 'guard.mjs', '--quick');
  }, 60_000);
  const find = (handler: string, guard: string) =>
    results.find((one) => one.handler === handler && one.guard === guard && one.load > 1) as Result;

  test.each(['cpu', 'io'])('%s: replies in time where the unguarded server does not', (handler) => {
    const [guarded, unguarded] = [find(handler, 'sluice'), find(handler, 'none')];
    expect(guarded.goodput).toBeGreaterThan(unguarded.goodput);
    expect(guarded.p99Ms).toBeLessThan(1500);
    expect(guarded.timedOut).toBeLessThan(0.1);
    expect(guarded.refused).toBeGreaterThan(0.3);
  });

  test('below the capacity: refuses nearly nothing', () => {
    for (const { load, refused } of results) if (load < 1) expect(refused).toBeLessThan(0.05);
  });
});
