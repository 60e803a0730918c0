/**
 * Real processes that keep one limit over HTTP, on ways that take 40 ms each and are cut: bench/soak/groups.mjs plays a short
 * version, this file says what must hold even on a machine that is busy with other things.
 */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

/** It ends by itself long before. */
const MAX_PLAY_MS = 60_000;

interface Played {
  readonly rows: readonly { readonly name: string; readonly used: number }[];
  readonly excess: number;
  readonly bound: number;
}

test(
  'regions use what quieter ones do not need, and live on their part when cut off',
  async () => {
    const { rows, excess, bound } = await runBench<Played>(
      MAX_PLAY_MS,
      'soak/groups.mjs',
      '--short',
    );
    const [whole, apart, again] = rows.map(({ used }) => used);
    expect(excess).toBeLessThanOrEqual(bound);
    expect(whole).toBeGreaterThan(0.85);
    expect(apart).toBeLessThan(0.45); // its own third, and what the others are asked for
    expect(again).toBeGreaterThan(0.85);
  },
  MAX_PLAY_MS,
);
