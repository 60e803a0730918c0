/** Runs bench/priorities.mjs in short: a real server under a spike of prefetch calls. */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

/** A run takes 9 s. */
const MAX_RUN_MS = 30_000;
const MAX_RUNS = 3;

/** On a loaded machine a blocked process receives its calls all at once. A call takes 200 ms. */
const MAX_BLOCKED_MS = 40;

interface Class {
  readonly share: number;
}

interface Result {
  readonly rows: readonly {
    readonly name: string;
    readonly user: Class;
    readonly prefetch: Class;
  }[];
  readonly blockedMs: number;
}

test(
  'rateLimit: with priorities a real server answers user calls while it refuses most prefetch calls',
  async () => {
    let result: Result = { rows: [], blockedMs: Infinity };
    for (let n = 0; n < MAX_RUNS && result.blockedMs > MAX_BLOCKED_MS; n++)
      result = await runBench<Result>(MAX_RUN_MS, 'priorities.mjs', '--short');
    const spike = result.rows.find(({ name }) => name === 'spike');
    expect(spike?.prefetch.share).toBeLessThan(0.35);
    expect(spike?.user.share).toBeGreaterThan(result.blockedMs > MAX_BLOCKED_MS ? 0.5 : 0.98);
  },
  MAX_RUNS * MAX_RUN_MS,
);
