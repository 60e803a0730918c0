/**
 * Pods divide a limit through a real Redis, under faults: a short run of bench/soak/pool.mjs, with bounds that hold on a
 * busy machine. Each store takes a minute, so `npm run soak:pool` covers NATS and etcd.
 */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { redisServer } from './support/services.ts';

/** A run ends long before this. */
const MAX_RUN_MS = 240_000;

interface FaultResult {
  readonly name: string;
  readonly limit: number;
  readonly most: number;
  /** Null if the limit was not fully used again within 30 s. */
  readonly wholeAfterMs: number | null;
}

test.skipIf(redisServer() === undefined)(
  'pool soak: pods never exceed the limit in a second, and fully use it again after each fault',
  async () => {
    const results = await runBench<FaultResult[]>(
      MAX_RUN_MS,
      'soak/pool.mjs',
      '--store',
      'redis',
      '--short',
    );
    expect(results.length).toBe(10);
    for (const { name, most, limit, wholeAfterMs } of results) {
      expect({ name, most }).toEqual({ name, most: limit });
      expect(wholeAfterMs, name).not.toBeNull(); // within 30 s
    }
  },
  MAX_RUN_MS,
);
