/** Regions that keep one limit, as a picture: what each got over time, in each of the ways to keep it. */

import type { Design, RegionsOptions, RegionsRun } from '../../simulator/groups/run.ts';
import { type Chart, type Point, roundAxisEnd } from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';

export interface DesignRun {
  readonly design: Design;
  readonly run: RegionsRun;
}

const TITLES: Readonly<Record<Design, string>> = {
  groups: 'groups that steal from each other',
  even: 'even division',
  redis: 'one bucket in the first region',
};

/** What is shown as one step. */
const STEP_MS = 500;

/** For so long the burst is seen: it would make all the rest small. */
const BURST_STEPS = 4;

export function pictureOf(options: RegionsOptions, played: readonly DesignRun[]): Picture {
  const { rate, regions, rttMs } = options;
  return {
    title: `${rate} calls/s over ${regions.length} regions, ${rttMs} ms apart`,
    charts: played.map((own) => chartOf(options, own, yAxisEnd(options, played))),
  };
}

function yAxisEnd({ spanMs, rate }: RegionsOptions, played: readonly DesignRun[]): number {
  const totals = played.flatMap(({ run }) => ratesOf([...run.admitted.values()].flat(), spanMs));
  const later = totals.filter((_, n) => n % stepCount(spanMs) >= BURST_STEPS);
  return roundAxisEnd([rate, ...later.map(([, y]) => y ?? 0)]);
}

function chartOf(options: RegionsOptions, { design, run }: DesignRun, top: number): Chart {
  const { rate, spanMs, outages } = options;
  const end = spanMs / 1000;
  return {
    title: TITLES[design],
    x: { label: 'time, in seconds', from: 0, to: end },
    y: { label: 'calls/s let through', from: 0, to: top },
    series: [
      { name: 'all', style: 'shade', points: ratesOf([...run.admitted.values()].flat(), spanMs) },
      ...[...run.admitted].map(([name, times]) => ({
        name,
        style: 'line' as const,
        points: ratesOf(times, spanMs),
      })),
      {
        name: `limit ${rate}/s`,
        style: 'line',
        points: [
          [0, rate],
          [end, undefined],
        ],
      },
    ],
    phases: outages.map(({ region, fromMs, toMs }) => ({
      name: `${region} cut off`,
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
