/** Runs bench/soak/groups.mjs in short: real processes over HTTP with delay and a partition. */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

/** A run ends long before. */
const MAX_RUN_MS = 60_000;

interface SoakResult {
  /** Utilisation of the limit, and calls per second of the busy region. */
  readonly rows: readonly { readonly utilisation: number; readonly eu: number }[];
  readonly overshoot: number;
  readonly bound: number;
}

test(
  'groups soak: a busy region borrows the surplus, and uses its fraction of the limit while partitioned',
  async () => {
    const { rows, overshoot, bound } = await runBench<SoakResult>(
      MAX_RUN_MS,
      'soak/groups.mjs',
      '--short',
    );
    const [connected, , again] = rows.map(({ utilisation }) => utilisation);
    expect(overshoot).toBeLessThanOrEqual(bound);
    expect(connected).toBeGreaterThan(0.85);
    expect(rows[1].eu).toBeLessThan(115); // its own third of 300
    expect(again).toBeGreaterThan(0.85);
  },
  MAX_RUN_MS,
);
