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

interface CellOptions extends ScenarioOptions {
  readonly on: ScenarioName;
  readonly clients?: number;
  readonly seeds?: readonly number[];
}

/** Cells by their parameters: tests share them. */
const cache = new Map<string, SweepCell>();

function cellOf(option: SweepOption, value: SweepValue, options: CellOptions): SweepCell {
  const { on, clients = 1, seeds = SEEDS, ...scenario } = options;
  const name = JSON.stringify([option, value, options]);
  const cell =
    cache.get(name) ??
    runSweepCell({ option, value, scenario: createScenario(on, scenario), clients, seeds });
  cache.set(name, cell);
  return cell;
}

/** Medians of a figure, by value. */
const sweep = (
  option: SweepOption,
  values: readonly SweepValue[],
  figure: keyof FleetFigures,
  options: CellOptions,
): number[] => values.map((value) => cellOf(option, value, options).figures[figure].median);

const isRising = (values: readonly number[]): boolean =>
  values.every((value, n) => n === 0 || value > values[n - 1]);

const isFalling = (values: readonly number[]): boolean => isRising([...values].reverse());

/** A window long after the start, when the limit is stable. */
const STABLE = { fromS: 200, toS: 300 };

describe('sweep', () => {
  test.each(SWEEP_OPTIONS)('has the default of %s', (option) => {
    const run = { scenario: createScenario('rate'), clients: 2, seed: 1 };
    const explicit = runFleet({ ...run, limit: { [option]: SWEEPS[option].defaultValue } });
    expect(explicit).toEqual(runFleet({ ...run, limit: {} }));
    expect(SWEEPS[option].values).toContain(SWEEPS[option].defaultValue);
  });

  test('a cell has the median, the lowest and the highest of its runs', () => {
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

describe('sweep of alpha', () => {
  test('alpha 1 leaves a queue mostly unused, alpha 0.4 uses it fully', () => {
    const [one, standard] = sweep('alpha', [1, 0.4], 'utilisation', { on: 'queue' });
    expect(one).toBeLessThan(0.4);
    expect(standard).toBeGreaterThan(0.99);
  });

  test('steady: a smaller alpha reaches a higher limit', () => {
    expect(isFalling(sweep('alpha', [0.1, 0.2, 0.4, 0.6, 0.8], 'limit', { on: 'steady' }))).toBe(
      true,
    );
  });

  test('uneven: random variation is no rise, for a large alpha either', () => {
    const utilisations = sweep('alpha', [0.1, 0.4, 0.8], 'utilisation', { on: 'uneven' });
    expect(Math.min(...utilisations)).toBeGreaterThan(0.9);
  });

  test('queue: a smaller alpha builds a longer queue', () => {
    const [small, standard] = sweep('alpha', [0.2, 0.4], 'meanMs', { on: 'queue', window: STABLE });
    expect(small).toBeGreaterThan(1.4 * standard);
    expect(standard).toBeLessThan(2 * 105 + 10); // no more time in the queue than in service
  });

  test('steady: random decreases keep the default below 100, from an initial limit of 200', () => {
    const sink = createScenario('steady', { window: STABLE });
    const limitWith = (alpha: number) =>
      runFleet({ scenario: sink, limit: { alpha, initial: 200 }, clients: 1, seed: 1 }).figures
        .limit;
    expect(limitWith(0.4)).toBeLessThan(100);
    expect(limitWith(0.1)).toBeGreaterThan(150);
  });
});

describe('sweep of decreaseRatio', () => {
  const RATIOS = [0.5, 0.7, 0.8, 0.9];

  test('rate: a higher ratio has more throughput and more rejections', () => {
    expect(isRising(sweep('decreaseRatio', RATIOS, 'utilisation', { on: 'rate' }))).toBe(true);
    expect(isRising(sweep('decreaseRatio', RATIOS, 'rejected', { on: 'rate' }))).toBe(true);
  });

  test('strict: a higher ratio has less throughput', () => {
    const ratios = [0.7, 0.9, 0.95];
    const utilisations = sweep('decreaseRatio', ratios, 'utilisation', { on: 'strict' });
    expect(isFalling(utilisations)).toBe(true);
  });

  test('queue: 0.5 leaves a third unused, 0.9 uses it fully', () => {
    const [half, eight, nine] = sweep('decreaseRatio', [0.5, 0.8, 0.9], 'utilisation', {
      on: 'queue',
    });
    expect(half).toBeLessThan(0.7);
    expect(eight).toBeLessThan(0.98);
    expect(nine).toBeGreaterThan(0.99);
  });

  test('outage: the limit is one with any ratio; a higher one recovers faster, up to 0.9', () => {
    for (const ratio of [0.5, 0.9, 0.98]) {
      const { limits } = cellOf('decreaseRatio', ratio, { on: 'outage' }).firstRun;
      expect(limits[599], `${ratio}`).toBe(1); // 59.9 s: silent for 20 s
    }
    expect(isFalling(sweep('decreaseRatio', [0.5, 0.7, 0.9], 'recoveryS', { on: 'outage' }))).toBe(
      true,
    );
  });
});

describe('sweep of deviationScale', () => {
  test('queue: without a tolerance band half of the capacity is unused', () => {
    const scales = [0, 1, 2.5];
    const [none, one, standard] = sweep('deviationScale', scales, 'utilisation', { on: 'queue' });
    expect(none).toBeLessThan(0.5);
    expect(one).toBeLessThan(0.97);
    expect(standard).toBeGreaterThan(0.99);
  });

  test('queue: a wider band has a longer queue', () => {
    const scales = [1, 2, 2.5, 3, 4, 6];
    expect(isRising(sweep('deviationScale', scales, 'p95Ms', { on: 'queue' }))).toBe(true);
  });
});

describe('sweep of slowStart and initial', () => {
  const RAMP_UP = { fromS: 0, toS: 20 };

  test('uneven: the first replies, which are the quickest, make the next ones no rise', () => {
    const run = { on: 'uneven', window: RAMP_UP } as const;
    const [started] = sweep('initial', [20], 'utilisation', run);
    expect(started).toBeGreaterThan(0.95);
  });

  test('constant service times: the ramp-up is nine times as fast', () => {
    const [added, doubled] = sweep('slowStart', [false, true], 'convergenceS', {
      on: 'steady',
      serviceJitter: 0,
      window: RAMP_UP,
    });
    expect(doubled).toBeLessThan(2);
    expect(added).toBeGreaterThan(9 * doubled);
  });

  test('variable service times: the ramp-up takes 60 % of the time, and some seeds end it early', () => {
    const seeds = Array.from({ length: 21 }, (_, n) => n + 1);
    const [added, doubled] = sweep('slowStart', [false, true], 'convergenceS', {
      on: 'queue',
      window: RAMP_UP,
      seeds,
    });
    expect(doubled).toBeLessThan(added * 0.6);

    const sink = createScenario('queue', { window: RAMP_UP });
    const peaks = seeds.map((seed) => {
      const { limits } = runFleet({ scenario: sink, limit: { slowStart: true }, clients: 1, seed });
      const firstCut = limits.findIndex((limit, n) => limit < (limits[n - 1] ?? 0));
      return limits[firstCut - 1];
    });
    expect(peaks.filter((peak) => peak <= 4).length).toBeGreaterThan(3);
  });

  test('rate: slow start has more rejections', () => {
    const seeds = Array.from({ length: 11 }, (_, n) => n + 1);
    const options = { on: 'rate', window: RAMP_UP, seeds } as const;
    expect(isRising(sweep('slowStart', [false, true], 'rejected', options))).toBe(true);
  });
});

describe('sweep of jitter', () => {
  const RATE = { on: 'rate', scale: 4 } as const;

  test('16 clients: jitter lowers correlation, oscillation and rejections', () => {
    const sixteen = { ...RATE, clients: 16 };
    for (const figure of ['limitCorrelation', 'oscillation', 'rejected'] as const) {
      const [without, withJitter] = sweep('jitter', [0, 1], figure, sixteen);
      expect(withJitter, figure).toBeLessThan(without * 0.85);
    }
    const [without, withJitter] = sweep('jitter', [0, 1], 'utilisation', sixteen);
    expect(withJitter).toBeGreaterThan(without - 0.02);
  });

  test("a client's part of the capacity matters more than jitter", () => {
    const refused = (clients: number, size: number) =>
      sweep('jitter', [0], 'rejected', { on: 'rate', clients, scale: size, seeds: [1] })[0];
    // Clients and scale of the server: 200 calls per second for each client, then 50.
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

describe('incidents', () => {
  test('slow-down: keeps the utilisation and recovers within 2 s', () => {
    const [utilisation] = sweep('alpha', [0.4], 'utilisation', { on: 'slow-down' });
    const [recoveryS] = sweep('alpha', [0.4], 'recoveryS', { on: 'slow-down' });
    expect(utilisation).toBeGreaterThan(0.99);
    expect(recoveryS).toBeLessThan(2);
  });

  test('outage: the limit falls to 1 and recovers within 6 s', () => {
    const run = { scenario: createScenario('outage'), limit: {}, clients: 1, seed: 1 };
    const { limits, figures } = runFleet(run);
    expect(limits[599]).toBe(1);
    expect(figures.recoveryS).toBeLessThan(6);
  });
});
