/** Adaptive limits beside p-limit and no limit, at a real HTTP server: the short form of bench/adaptive-live.mjs. */

import { beforeAll, describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

const MAX_RUN_MS = 120_000;

interface Figures {
  readonly steady: Readonly<Record<'goodput' | 'p99' | 'inFlight', number>>;
  /** The most calls in flight while the server hangs, relative to the second before. */
  readonly hang: { readonly growth: number };
}

let none: Figures;
let best: Figures;
let adaptive: Figures;

beforeAll(async () => {
  const run = runBench<{ results: { name: string; figures: Figures }[] }>;
  const { results } = await run(MAX_RUN_MS, 'adaptive-live.mjs', '--short');
  expect(results.map(({ name }) => name)).toEqual(NAMES);
  [none, best, , adaptive] = results.map(({ figures }) => figures);
}, MAX_RUN_MS);

const NAMES = ['no limit', 'p-limit(8)', 'adaptive (aimd)', 'adaptive (delay)'];

// Wide bounds: on an idle machine the goodput is equal, and the p99 a quarter. All limits run at the same time.
describe('adaptive limit in 4 client processes at a real server with 8 slots and a queue', () => {
  test('reaches 80 % of the goodput of p-limit with the best number', () => {
    expect(best.steady.goodput).toBeGreaterThan(100);
    expect(adaptive.steady.goodput).toBeGreaterThanOrEqual(0.8 * best.steady.goodput);
  });

  test('has a lower p99 and fewer calls in flight than without a limit', () => {
    expect(adaptive.steady.p99).toBeLessThan(none.steady.p99);
    expect(adaptive.steady.inFlight).toBeLessThan(0.5 * none.steady.inFlight);
  });

  test('does not flood a server that hangs', () => {
    expect(adaptive.hang.growth).toBeLessThan(3); // a hang may begin in a test, with half of the calls
  });
});
