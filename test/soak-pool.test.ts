/**
 * Soak test of a pool: processes divide a limit through a real Redis while both crash and stall. Runs a short bench/soak/pool.mjs
 * and asserts what must hold even on a loaded machine. Each store takes a minute, so NATS and etcd are
 * left to `npm run soak:pool`.
 */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { redisServer } from './support/services.ts';

/** Far above its usual run time. */
const MAX_PLAY_MS = 240_000;

interface Played {
  readonly name: string;
  readonly limit: number;
  readonly most: number;
  /** undefined if that never happened. */
  readonly wholeAfterMs: number | null;
}

test.skipIf(redisServer() === undefined)(
  'pool soak: members never exceed the limit in a second, and soon use all of it again',
  async () => {
    const plays = await runBench<Played[]>(
      MAX_PLAY_MS,
      'soak/pool.mjs',
      '--store',
      'redis',
      '--short',
    );
    expect(plays.length).toBe(10);
    for (const { name, most, limit, wholeAfterMs } of plays) {
      expect({ name, most }).toEqual({ name, most: limit });
      expect(wholeAfterMs ?? Infinity, name).toBeLessThan(15_000);
    }
  },
  MAX_PLAY_MS,
);
