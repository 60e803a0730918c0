import type { RegionsFigures } from '../../simulator/groups/figures.ts';
import type { Design, RegionsOptions, RegionsRun } from '../../simulator/groups/run.ts';
import { type Chart, levelLine, type Point, roundAxisEnd, secondsAxis } from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';

export interface DesignRun {
  readonly design: Design;
  readonly run: RegionsRun;
  readonly figures: RegionsFigures;
}

const TITLES: Readonly<Record<Design, string>> = {
  groups: 'groups that borrow from each other',
  even: 'even division',
  central: 'one bucket in the first region',
};

/** Width of a step. */
const STEP_MS = 500;

/** The first steps contain the burst. The y axis ignores them, or the rest of the chart would be flat. */
const BURST_STEPS = 4;

export function pictureOf(options: RegionsOptions, runs: readonly DesignRun[]): Picture {
  const { rate, regions, rttMs } = options;
  return {
    title: `${rate} calls/s over ${regions.length} regions, ${rttMs} ms apart`,
    charts: runs.map((run) => chartOf(options, run, yAxisEnd(options, runs))),
  };
}

function yAxisEnd({ spanMs, rate }: RegionsOptions, runs: readonly DesignRun[]): number {
  const totals = runs.flatMap(({ run }) => ratesOf([...run.admitted.values()].flat(), spanMs));
  const later = totals.filter((_, n) => n % stepCount(spanMs) >= BURST_STEPS);
  return roundAxisEnd([rate, ...later.map(([, y]) => y ?? 0)]);
}

function chartOf(options: RegionsOptions, { design, run }: DesignRun, top: number): Chart {
  const { rate, spanMs, outages } = options;
  const end = spanMs / 1000;
  return {
    title: TITLES[design],
    x: secondsAxis(end),
    y: { label: 'allowed calls/s', from: 0, to: top },
    series: [
      {
        name: 'all regions',
        style: 'shade',
        points: ratesOf([...run.admitted.values()].flat(), spanMs),
      },
      ...[...run.admitted].map(([name, times]) => ({
        name,
        style: 'line' as const,
        points: ratesOf(times, spanMs),
      })),
      levelLine(`limit ${rate}/s`, rate, end),
    ],
    phases: outages.map(({ region, fromMs, toMs }) => ({
      name: `${region} partitioned`,
      from: fromMs / 1000,
      to: toMs / 1000,
    })),
  };
}

const stepCount = (spanMs: number): number => Math.ceil(spanMs / STEP_MS);

function ratesOf(times: readonly number[], spanMs: number): Point[] {
  const counts = new Float64Array(stepCount(spanMs));
  for (const at of times) if (at < spanMs) counts[Math.floor(at / STEP_MS)]++;
  return [...counts].map((count, n) => [(n * STEP_MS) / 1000, (count * 1000) / STEP_MS]);
}
