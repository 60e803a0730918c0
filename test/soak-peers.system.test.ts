/** Runs bench/soak/peers.mjs in short: real daemons under faults. The limits here also hold on a busy machine. */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { hasNamespaces } from './support/services.ts';

/** A run ends long before. */
const MAX_RUN_MS = 120_000;

interface Phase {
  readonly name: string;
  readonly admitted: number;
  readonly seconds: number;
  readonly windows: readonly { readonly windowMs: number; readonly bound: number }[];
  readonly broken: readonly unknown[];
  readonly repaired: number;
  readonly utilisation: number;
}

async function soak(...flags: string[]): Promise<Phase[]> {
  const script = 'soak/peers.mjs';
  const [{ results }] = await runBench<{ results: Phase[] }[]>(
    MAX_RUN_MS,
    script,
    '--short',
    ...flags,
  );
  return results;
}

const names = (phases: readonly Phase[]): string[] => phases.map(({ name }) => name);

/** Calls per second: a tenth of the limit. A busy machine sends fewer calls, and pays debts of an earlier phase. */
const PLAUSIBLE_RATE = 10;

/** Within the bound, and with a plausible number of admitted calls. */
function expectBounded(phases: readonly Phase[]): void {
  for (const { name, broken, windows, admitted, seconds } of phases) {
    expect({ name, broken }).toEqual({ name, broken: [] });
    expect(windows.length, name).toBeGreaterThan(0);
    expect(admitted / seconds, name).toBeGreaterThan(PLAUSIBLE_RATE);
  }
}

test.skipIf(!hasNamespaces())(
  'peers soak: in network namespaces, faults stay within the bound, and gaps are repaired',
  async () => {
    const phases = await soak();
    expectBounded(phases);
    const partition = phases.find(({ name }) => name === 'partition of one node');
    expect(partition?.repaired).toBeGreaterThan(100); // 100 reports/s on each side, for two seconds
    expect(names(phases)).toContain('rolling restart');
  },
  MAX_RUN_MS,
);

test(
  'peers soak: on loopback, faults stay within the bound',
  async () => {
    const phases = await soak('--loopback');
    expectBounded(phases);
    expect(names(phases)).toEqual([
      'steady',
      'one node killed -9, restarted',
      'rolling restart',
      'whole run',
    ]);
  },
  MAX_RUN_MS,
);
