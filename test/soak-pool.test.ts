/**
 * Real pods that divide a limit through a real Redis, while both are treated badly: bench/soak/pool.mjs plays a short version,
 * this file says what must hold even on a machine that is busy with other things. Each store takes a minute, so NATS and etcd are
 * left to `npm run soak:pool`.
 */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { redisServer } from './support/services.ts';

/** It ends by itself long before. */
const MAX_PLAY_MS = 240_000;

interface Played {
  readonly name: string;
  readonly limit: number;
  readonly most: number;
  /** Nothing if it never came to that. */
  readonly wholeAfterMs: number | null;
}

test.skipIf(redisServer() === undefined)(
  'pods never take more than the limit in a second, and soon again all of it',
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
