/**
 * Real pods that divide a limit through a real Redis, while both are treated badly: bench/soak/pool.mjs plays a short version,
 * this file says what must hold even on a machine that is busy with other things. Each store takes a minute, so NATS and etcd are
 * left to `npm run soak:pool`.
 */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { redisServer } from './support/services.ts';

const run = promisify(execFile);

/** It ends by itself long before. */
const PLAY_MS_MAX = 240_000;

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
    const args = ['bench/soak/pool.mjs', '--store', 'redis', '--short', '--json'];
    const { stdout } = await run(process.execPath, args, { timeout: PLAY_MS_MAX }).catch(
      (error: { stdout?: string }) => {
        if (error.stdout) return { stdout: error.stdout }; // something did not hold: told below
        throw error;
      },
    );
    const plays = JSON.parse(stdout) as Played[];
    expect(plays.length).toBe(10);
    for (const { name, most, limit, wholeAfterMs } of plays) {
      expect({ name, most }).toEqual({ name, most: limit });
      expect(wholeAfterMs ?? Infinity, name).toBeLessThan(15_000);
    }
  },
  PLAY_MS_MAX,
);
