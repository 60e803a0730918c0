/**
 * A spacing shared through three servers that are one etcd, while they are treated badly: bench/soak/etcd.mjs plays a short
 * version, this file says what must hold even on a machine that is busy with other things.
 */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { etcdServer } from './support/services.ts';

/** It ends by itself long before. */
const MAX_PLAY_MS = 120_000;

interface Played {
  readonly name: string;
  readonly permits: number;
  readonly tooClose: number;
  readonly nextPermitMs: number | null;
  readonly slowestMs: number;
  readonly askedWithout?: number;
  readonly allowedWithout?: number;
  readonly begunWithout?: number;
}

test.skipIf(etcdServer() === undefined)(
  'six workers never begin too close, whichever server dies or hangs, and go on within seconds',
  async () => {
    const plays = await runBench<Played[]>(MAX_PLAY_MS, 'soak/etcd.mjs', '--short');
    expect(plays.length).toBe(4);
    for (const { name, tooClose, permits, nextPermitMs, slowestMs } of plays) {
      expect({ name, tooClose }).toEqual({ name, tooClose: 0 });
      expect(permits, name).toBeGreaterThan(5);
      expect(nextPermitMs ?? Infinity, name).toBeLessThan(5000);
      expect(slowestMs, name).toBeLessThan(1500); // they have a second
    }
    const without = plays.find(({ askedWithout }) => askedWithout !== undefined);
    expect(without?.allowedWithout).toBe(0);
    expect(without?.begunWithout).toBeLessThanOrEqual(1); // whoever had the next place already
    expect(without?.askedWithout).toBeGreaterThan(50);
  },
  MAX_PLAY_MS,
);
