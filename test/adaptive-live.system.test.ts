/** An adaptive limit beside p-limit and no limit, at a real HTTP server: the short form of bench/adaptive-live.mjs. */

import { beforeAll, describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

const MAX_RUN_MS = 60_000;
const MAX_RUNS = 3;

/** Of p-limit's with the best number; about the same on an idle machine. */
const MIN_GOODPUT = 0.8;

/** The rule under test. */
const RULE = 'delay';

interface Figures {
  readonly name: string;
  readonly goodput: number;
  readonly p99: number;
  readonly inFlight: number;
}

let byName: Readonly<Record<string, Figures>>;

beforeAll(async () => {
  // The limits run one after the other: a load that comes and goes on the machine hits one of them.
  for (let n = 0; n < MAX_RUNS; n++) {
    const { results } = await runBench<{ results: Figures[] }>(
      MAX_RUN_MS,
      'adaptive-live.mjs',
      '--short',
    );
    byName = Object.fromEntries(results.map((figures) => [figures.name, figures]));
    if (byName[RULE].goodput >= MIN_GOODPUT * byName['p-limit'].goodput) return;
  }
}, MAX_RUNS * MAX_RUN_MS);

// Wide bounds: on an idle machine the goodput is equal, and the p99 a fifth.
describe('adaptive limit at a real server with 8 slots and a queue, 200 callers', () => {
  test('reaches 80 % of the goodput of p-limit with the best number', () => {
    expect(byName['p-limit'].goodput).toBeGreaterThan(100);
    expect(byName[RULE].goodput).toBeGreaterThanOrEqual(MIN_GOODPUT * byName['p-limit'].goodput);
  });

  test('has a lower p99 and fewer calls in flight than without a limit', () => {
    expect(byName[RULE].p99).toBeLessThan(byName['no limit'].p99);
    expect(byName[RULE].inFlight).toBeLessThan(0.5 * byName['no limit'].inFlight);
  });
});
