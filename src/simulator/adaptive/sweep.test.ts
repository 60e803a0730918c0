/** What docs/adaptive.md concludes from the sweeps, held to it. */

import { describe, expect, test } from 'vitest';
import type { FleetFigures } from './fleet.ts';
import { runFleet } from './fleet.ts';
import { createScenario, type ScenarioName, type ScenarioOptions } from './scenario.ts';
import {
  runSweepCell,
  SWEEP_OPTIONS,
  SWEEPS,
  type SweepCell,
  type SweepOption,
  type SweepValue,
  spreadOf,
} from './sweep.ts';

const SEEDS = [1, 2, 3];

interface Where extends ScenarioOptions {
  readonly on: ScenarioName;
  readonly clients?: number;
  readonly seeds?: readonly number[];
}

/** A cell is run once, however many tests look at it. */
const known = new Map<string, SweepCell>();

function cellOf(option: SweepOption, value: SweepValue, where: Where): SweepCell {
  const { on, clients = 1, seeds = SEEDS, ...setting } = where;
  const name = JSON.stringify([option, value, where]);
  const cell =
    known.get(name) ??
    runSweepCell({ option, value, scenario: createScenario(on, setting), clients, seeds });
  known.set(name, cell);
  return cell;
}

/** The medians of one figure for each of these values. */
const sweep = (
  option: SweepOption,
  values: readonly SweepValue[],
  figure: keyof FleetFigures,
  where: Where,
): number[] => values.map((value) => cellOf(option, value, where).figures[figure].median);

const isRising = (values: readonly number[]): boolean =>
  values.every((value, n) => n === 0 || value > values[n - 1]);

const isFalling = (values: readonly number[]): boolean => isRising([...values].reverse());

/** Long after the start, when a limit has found its place. */
const SETTLED = { fromS: 200, toS: 300 };

describe('a sweep', () => {
  test.each(SWEEP_OPTIONS)('knows the default of %s', (option) => {
    const run = { scenario: createScenario('rate'), clients: 2, seed: 1 };
    const said = runFleet({ ...run, limit: { [option]: SWEEPS[option].defaultValue } });
    expect(said).toEqual(runFleet({ ...run, limit: {} }));
    expect(SWEEPS[option].values).toContain(SWEEPS[option].defaultValue);
  });

  test('a cell is the middle of its runs, with the extremes beside it', () => {
    expect(spreadOf([3, 1, 2])).toEqual({ median: 2, lo: 1, hi: 3 });
    expect(spreadOf([Infinity, 4, 1, 2])).toEqual({ median: 2, lo: 1, hi: Infinity });
    const plan = {
      option: 'alpha',
      value: 0.4,
      scenario: createScenario('rate'),
      clients: 1,
    } as const;
    const { utilisation } = runSweepCell({ ...plan, seeds: SEEDS }).figures;
    expect(utilisation.lo).toBeLessThan(utilisation.hi);
    const alone = SEEDS.map(
      (seed) => runSweepCell({ ...plan, seeds: [seed] }).figures.utilisation.median,
    );
    expect(utilisation).toEqual(spreadOf(alone));
  });
});

describe('alpha', () => {
  test('the last window alone (1) starves a sink that 0.4 fills', () => {
    const [last, usual] = sweep('alpha', [1, 0.4], 'utilisation', { on: 'queue' });
    expect(last).toBeLessThan(0.4);
    expect(usual).toBeGreaterThan(0.99);
  });

  test('a smaller one climbs higher where there is room', () => {
    expect(isFalling(sweep('alpha', [0.1, 0.2, 0.4, 0.6, 0.8], 'limit', { on: 'steady' }))).toBe(
      true,
    );
  });

  test('and drifts higher where there is none', () => {
    const [small, usual] = sweep('alpha', [0.2, 0.4], 'meanMs', { on: 'queue', window: SETTLED });
    expect(small).toBeGreaterThan(1.4 * usual);
    expect(usual).toBeLessThan(2 * 105 + 10); // the queue is no longer than the work
  });

  test('by default chance holds the limit below a hundred, from wherever it starts', () => {
    const sink = createScenario('steady', { window: SETTLED });
    const limitWith = (alpha: number) =>
      runFleet({ scenario: sink, limit: { alpha, initial: 200 }, clients: 1, seed: 1 }).figures
        .limit;
    expect(limitWith(0.4)).toBeLessThan(100);
    expect(limitWith(0.1)).toBeGreaterThan(150);
  });
});

describe('decreaseRatio', () => {
  const RATIOS = [0.5, 0.7, 0.8, 0.9];

  test('gentler cuts get more through a rate, and are refused more often', () => {
    expect(isRising(sweep('decreaseRatio', RATIOS, 'utilisation', { on: 'rate' }))).toBe(true);
    expect(isRising(sweep('decreaseRatio', RATIOS, 'rejected', { on: 'rate' }))).toBe(true);
  });

  test('but not where refused calls count: there a deep cut loses nothing', () => {
    const [deep, usual, gentle] = sweep('decreaseRatio', [0.7, 0.9, 0.95], 'utilisation', {
      on: 'strict',
    });
    expect(isFalling([deep, usual, gentle])).toBe(true);
  });

  test('halving leaves a third of a queue unused, 0.9 is the first to fill it', () => {
    const [half, eight, nine] = sweep('decreaseRatio', [0.5, 0.8, 0.9], 'utilisation', {
      on: 'queue',
    });
    expect(half).toBeLessThan(0.7);
    expect(eight).toBeLessThan(0.98);
    expect(nine).toBeGreaterThan(0.99);
  });

  test('gentler cuts come back from an outage sooner', () => {
    expect(isFalling(sweep('decreaseRatio', [0.5, 0.9, 0.98], 'recoveryS', { on: 'outage' }))).toBe(
      true,
    );
  });
});

describe('deviationScale', () => {
  test('no band at all takes every second window for a warning', () => {
    const [none, one, usual] = sweep('deviationScale', [0, 1, 2.5], 'utilisation', { on: 'queue' });
    expect(none).toBeLessThan(0.5);
    expect(one).toBeLessThan(0.97);
    expect(usual).toBeGreaterThan(0.99);
  });

  test('a wider band lets the queue grow longer', () => {
    const scales = [1, 2, 2.5, 3, 4, 6];
    expect(isRising(sweep('deviationScale', scales, 'p95Ms', { on: 'queue' }))).toBe(true);
  });
});

describe('slowStart', () => {
  const CLIMB = { fromS: 0, toS: 20 };

  test('is there ten times as soon if all calls take equally long', () => {
    const [added, doubled] = sweep('slowStart', [false, true], 'convergenceS', {
      on: 'steady',
      serviceJitter: 0,
      window: CLIMB,
    });
    expect(doubled).toBeLessThan(2);
    expect(added).toBeGreaterThan(9 * doubled);
  });

  test('is there in half the time if they do not, unless chance ends it at once', () => {
    const seeds = Array.from({ length: 21 }, (_, n) => n + 1);
    const [added, doubled] = sweep('slowStart', [false, true], 'convergenceS', {
      on: 'queue',
      window: CLIMB,
      seeds,
    });
    expect(doubled).toBeLessThan(added * 0.6);

    const sink = createScenario('queue', { window: CLIMB });
    const peaks = seeds.map((seed) => {
      const { limits } = runFleet({ scenario: sink, limit: { slowStart: true }, clients: 1, seed });
      const firstCut = limits.findIndex((limit, n) => limit < (limits[n - 1] ?? 0));
      return limits[firstCut - 1];
    });
    expect(peaks.filter((peak) => peak <= 4).length).toBeGreaterThan(3);
  });

  test('pays with refusals at a sink that has a rate', () => {
    const seeds = Array.from({ length: 11 }, (_, n) => n + 1);
    const where = { on: 'rate', window: CLIMB, seeds } as const;
    expect(isRising(sweep('slowStart', [false, true], 'rejected', where))).toBe(true);
  });
});

describe('jitter', () => {
  const RATE = { on: 'rate', scale: 4 } as const;

  test('lets sixteen clients march less, and be refused less', () => {
    const sixteen = { ...RATE, clients: 16 };
    for (const figure of ['limitCorrelation', 'oscillation', 'rejected'] as const) {
      const [march, stroll] = sweep('jitter', [0, 1], figure, sixteen);
      expect(stroll, figure).toBeLessThan(march * 0.85);
    }
    const [before, after] = sweep('jitter', [0, 1], 'utilisation', sixteen);
    expect(after).toBeGreaterThan(before - 0.02);
  });

  test('matters less than how small a share each of them has', () => {
    const refused = (clients: number, size: number) =>
      sweep('jitter', [0], 'rejected', { on: 'rate', clients, scale: size, seeds: [1] })[0];
    // Clients and size of the sink, at a share of 200 calls a second for each, then of 50.
    for (const [clients, size] of [
      [1, 1],
      [4, 4],
    ] as const) {
      expect(refused(clients, size)).toBeLessThan(0.1);
      expect(refused(clients * 4, size)).toBeGreaterThan(0.2);
      expect(refused(clients * 4, size)).toBeLessThan(0.28);
    }
  });
});

describe('an incident', () => {
  test('a slow-down becomes the new normal, and nothing is lost by it', () => {
    const [ofBest] = sweep('alpha', [0.4], 'utilisation', { on: 'slow-down' });
    const [backS] = sweep('alpha', [0.4], 'recoveryS', { on: 'slow-down' });
    expect(ofBest).toBeGreaterThan(0.99);
    expect(backS).toBeLessThan(2);
  });

  test('an outage ends at 1, and is over within seconds of its end', () => {
    const run = { scenario: createScenario('outage'), limit: {}, clients: 1, seed: 1 };
    const { limits, figures } = runFleet(run);
    expect(limits[599]).toBe(1);
    expect(figures.recoveryS).toBeLessThan(6);
  });
});
