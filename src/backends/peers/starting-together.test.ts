import { describe, expect, test } from 'vitest';
import { runs } from '../../../test/support/runs.ts';
import { runStartingFleet, type StartingFleet } from '../../../test/support/starting-fleet.ts';
import type { WireVersions } from './wire-versions.ts';

const SEEDS = runs(100);

const VERSION_3: WireVersions = { oldest: 3, newest: 3 };
const VERSION_4: WireVersions = { oldest: 3, newest: 4 };

const nodes = (count: number, versions: WireVersions): WireVersions[] =>
  Array<WireVersions>(count).fill(versions);

/** The fleets of these seeds in which a node has counted too much or too little: seed and error of each node. */
async function wrongFleets(fleet: Omit<StartingFleet, 'seed'>, seeds = SEEDS): Promise<string[]> {
  const wrong: string[] = [];
  for (let seed = 1; seed <= seeds; seed++) {
    const { errors } = await runStartingFleet({ trafficMs: 700, settleMs: 3000, ...fleet, seed });
    if (errors.some((error) => error !== 0)) wrong.push(`seed ${seed}: ${errors}`);
  }
  return wrong;
}

/** Calls beyond the burst of one key, on average over some seeds. */
async function overshoot(fleet: Omit<StartingFleet, 'seed'>, seeds = SEEDS / 8): Promise<number> {
  let sum = 0;
  for (let seed = 1; seed <= seeds; seed++) {
    const { served } = await runStartingFleet({ keys: 1, burst: 100, settleMs: 0, ...fleet, seed });
    sum += served - 100;
  }
  return sum / seeds;
}

describe('peers that start together, version 4', () => {
  test('two nodes: no hit counts twice and none is lost', async () => {
    expect(await wrongFleets({ versions: nodes(2, VERSION_4) })).toEqual([]);
  });

  test('two nodes, a fifth of the datagrams lost: no hit counts twice and none is lost', async () => {
    const fleet = { versions: nodes(2, VERSION_4), loss: 0.2, settleMs: 15_000 };
    expect(await wrongFleets(fleet, SEEDS / 2)).toEqual([]);
  });

  // `periodic` has no comparisons of levels (anti-entropy), which would hide errors and add their own.
  test('four nodes, datagrams repeated and reordered: no hit counts twice and none is lost', async () => {
    const peers = { exchange: 'periodic' } as const;
    const fleet = { versions: nodes(4, VERSION_4), peers, duplication: 0.1, maxDelayMs: 60 };
    expect(await wrongFleets(fleet, SEEDS / 4)).toEqual([]);
  });

  test('four nodes with pages of many keys, datagrams lost: no hit counts twice and none is lost', async () => {
    const peers = { exchange: 'periodic' } as const;
    const faults = { loss: 0.2, duplication: 0.1, maxDelayMs: 60, settleMs: 15_000 };
    const fleet = { versions: nodes(4, VERSION_4), peers, keys: 600, ...faults };
    expect(await wrongFleets(fleet, SEEDS / 8)).toEqual([]);
  });

  // The start must not add to the overshoot that reports every 100 ms cause.
  test.each([0, 0.1])(
    'three nodes, periodic: the fleet admits as much as one that runs, loss %d',
    async (loss) => {
      const peers = { exchange: 'periodic' } as const;
      const fleet = { versions: nodes(3, VERSION_4), peers, loss };
      const running = await overshoot({ ...fleet, firstCallMs: 4000 }, SEEDS / 2);
      expect(await overshoot(fleet, SEEDS / 2)).toBeLessThanOrEqual(running + 2);
    },
  );

  test('two nodes, one of which restarts: it gets all hits once', async () => {
    expect(await wrongFleets({ versions: nodes(2, VERSION_4), restarts: 1 }, SEEDS / 8)).toEqual(
      [],
    );
  });
});

describe('peers that start together, anti-entropy', () => {
  test('four nodes, datagrams lost: comparisons are off by a few hits, either way', async () => {
    const faults = { loss: 0.2, duplication: 0.1, settleMs: 15_000 };
    const all: number[] = [];
    for (let seed = 1; seed <= SEEDS / 8; seed++) {
      const fleet = { versions: nodes(4, VERSION_4), ...faults, seed };
      all.push(...(await runStartingFleet(fleet)).errors);
    }
    expect(Math.max(...all.map(Math.abs))).toBeLessThanOrEqual(10);
    expect(Math.abs(all.reduce((sum, error) => sum + error, 0) / all.length)).toBeLessThan(0.5);
  });
});

describe('peers that start together, version 3', () => {
  test('two nodes: hits that a report and a state transfer bring count twice', async () => {
    const wrong = await wrongFleets({ versions: nodes(2, VERSION_3) }, SEEDS / 10);
    expect(wrong.length).toBeGreaterThan(SEEDS / 20);
  });
});

describe('peers that start together, some with version 3 only', () => {
  test('the fleet admits no more than one of version 3', async () => {
    const [older, mixed] = [nodes(3, VERSION_3), [VERSION_3, VERSION_4, VERSION_4]];
    const overshoots = [await overshoot({ versions: older }), await overshoot({ versions: mixed })];
    expect(overshoots[1]).toBeLessThanOrEqual(overshoots[0] + 1);
  });
});
