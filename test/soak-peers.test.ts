/**
 * Real daemons that keep one limit without a server, while one of them is cut off, killed, restarted: bench/soak/peers.mjs
 * plays a short version, this file says what must hold even on a machine that is busy with other things.
 */

import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { hasNamespaces } from './support/services.ts';

/** It ends by itself long before. */
const MAX_PLAY_MS = 120_000;

interface Act {
  readonly name: string;
  readonly admitted: number;
  readonly seconds: number;
  readonly windows: readonly { readonly windowMs: number; readonly bound: number }[];
  readonly broken: readonly unknown[];
  readonly repaired: number;
  readonly utilisation: number;
}

async function soak(...words: string[]): Promise<Act[]> {
  const script = 'soak/peers.mjs';
  const [{ results }] = await runBench<{ results: Act[] }[]>(
    MAX_PLAY_MS,
    script,
    '--short',
    ...words,
  );
  return results;
}

const names = (acts: readonly Act[]): string[] => acts.map(({ name }) => name);

/** Within what is stated, and not because nothing was let through. */
function holds(acts: readonly Act[]): void {
  for (const { name, broken, windows, admitted, seconds } of acts) {
    expect({ name, broken }).toEqual({ name, broken: [] });
    expect(windows.length, name).toBeGreaterThan(0);
    expect(admitted / seconds, name).toBeGreaterThan(50);
  }
}

test.skipIf(!hasNamespaces())(
  'in networks of their own they keep the bound, whatever happens, and have again what was missed',
  async () => {
    const acts = await soak();
    holds(acts);
    const cut = acts.find(({ name }) => name === 'one cut off, healed');
    expect(cut?.repaired).toBeGreaterThan(100); // a hundred a second on each side, for two seconds
    expect(names(acts)).toContain('all restarted');
  },
  MAX_PLAY_MS,
);

test(
  'beside each other on loopback they do so too',
  async () => {
    const acts = await soak('--loopback');
    holds(acts);
    expect(names(acts)).toEqual(['steady', 'one killed -9, back', 'all restarted', 'all of it']);
  },
  MAX_PLAY_MS,
);
