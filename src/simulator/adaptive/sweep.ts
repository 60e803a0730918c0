/**
 * Sweeps: one option of the adaptive limit over a range of values, with defaults for all other options.
 *
 * A cell is one value on one scenario with a number of clients. It runs once per seed and reports the median, the
 * lowest and the highest value of each figure.
 */

import type { AdaptiveOptions } from '../../policies/adaptive.ts';
import { type FleetFigures, type FleetRun, runFleet } from './fleet.ts';
import type { Scenario } from './scenario.ts';

/** The swept options with their defaults and values. */
export const SWEEPS = {
  alpha: { defaultValue: 0.4, values: [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1] },
  decreaseRatio: { defaultValue: 0.9, values: [0.5, 0.7, 0.8, 0.9, 0.95, 0.98] },
  deviationScale: { defaultValue: 2.5, values: [0, 1, 2, 2.5, 3, 4, 6] },
  slowStart: { defaultValue: false, values: [false, true] },
  initial: { defaultValue: 1, values: [1, 5, 20, 50, 100] },
  jitter: { defaultValue: 0, values: [0, 0.1, 0.2, 0.5, 1] },
} satisfies { readonly [name in keyof AdaptiveOptions]: Sweep };

interface Sweep {
  readonly defaultValue: SweepValue;
  readonly values: readonly SweepValue[];
}

export type SweepOption = keyof typeof SWEEPS;
export type SweepValue = number | boolean;
export const SWEEP_OPTIONS = Object.keys(SWEEPS) as readonly SweepOption[];

export interface SweepCellPlan {
  readonly option: SweepOption;
  readonly value: SweepValue;
  readonly scenario: Scenario;
  readonly clients: number;
  /** One run per seed; at least one. */
  readonly seeds: readonly number[];
}

/** Median, lowest and highest over the runs. */
export interface Spread {
  readonly median: number;
  readonly lo: number;
  readonly hi: number;
}

export interface SweepCell extends SweepCellPlan {
  readonly figures: { readonly [name in keyof FleetFigures]: Spread };
  /** The run of the first seed, for charts. */
  readonly firstRun: FleetRun;
}

export function runSweepCell(plan: SweepCellPlan): SweepCell {
  const { option, value, scenario, clients } = plan;
  const runs = plan.seeds.map((seed) =>
    runFleet({ scenario, clients, seed, limit: { [option]: value } }),
  );
  const names = Object.keys(runs[0].figures) as (keyof FleetFigures)[];
  const spreads = names.map((name) => [name, spreadOf(runs.map(({ figures }) => figures[name]))]);
  return { ...plan, figures: Object.fromEntries(spreads), firstRun: runs[0] };
}

/** The median of an even number of values is the lower middle one, so that it is a measured value. */
export function spreadOf(values: readonly number[]): Spread {
  const sorted = [...values].sort((a, b) => a - b);
  return {
    median: sorted[Math.ceil(sorted.length / 2) - 1],
    lo: sorted[0],
    hi: sorted[sorted.length - 1],
  };
}
