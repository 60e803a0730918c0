/**
 * Real processes that keep one limit over HTTP, on ways that take 40 ms each and are cut: bench/soak/groups.mjs plays a short
 * version, this file says what must hold even on a machine that is busy with other things.
 */

import { expect, test } from 'vitest';
import { play } from './support/play.ts';

/** It ends by itself long before. */
const PLAY_MS_MAX = 60_000;

interface Played {
  readonly rows: readonly { readonly name: string; readonly used: number }[];
  readonly excess: number;
  readonly bound: number;
}

test(
  'regions use what quieter ones do not need, and live on their part when cut off',
  async () => {
    const { rows, excess, bound } = await play<Played>(PLAY_MS_MAX, 'soak/groups.mjs', '--short');
    const [whole, apart, again] = rows.map(({ used }) => used);
    expect(excess).toBeLessThanOrEqual(bound);
    expect(whole).toBeGreaterThan(0.85);
    expect(apart).toBeLessThan(0.45); // its own third, and what the others are asked for
    expect(again).toBeGreaterThan(0.85);
  },
  PLAY_MS_MAX,
);
