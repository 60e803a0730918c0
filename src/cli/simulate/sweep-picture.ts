/**
 * A sweep as a picture: all values side by side, a curve for each sink; or one sink over time, a
 * line for each value.
 */

import { type FleetFigures, SAMPLE_MS } from '../../simulator/adaptive/fleet.ts';
import { recoveryStartS } from '../../simulator/adaptive/scenario.ts';
import { SWEEPS, type SweepCell } from '../../simulator/adaptive/sweep.ts';
import { type Axis, type Chart, type Phase, type Point, roundAxisEnd } from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';

interface ChartSpec {
  /** What, and in which unit: above the plot, where the mark of the default leaves it alone. */
  readonly title: string;
  readonly figure: keyof FleetFigures;
  /** What one is in this unit. */
  readonly scale: number;
  /** The end of the axis, if it is not what the values need. */
  readonly axisEnd?: number;
}

const THROUGHPUT: ChartSpec = {
  title: 'throughput, % of best',
  figure: 'utilisation',
  scale: 100,
  axisEnd: 100,
};
const REJECTED: ChartSpec = { title: 'rejected, % of attempts', figure: 'rejected', scale: 100 };
const LATENCY: ChartSpec = { title: 'latency, p95 in ms', figure: 'p95Ms', scale: 1 };
const OSCILLATION: ChartSpec = {
  title: 'oscillation, deviation / mean of calls in flight',
  figure: 'oscillation',
  scale: 1,
};
const CORRELATION: ChartSpec = {
  title: 'correlation of limits',
  figure: 'limitCorrelation',
  scale: 1,
};

export function curvesPicture(cells: readonly SweepCell[]): Picture {
  const [{ option }] = cells;
  const isFleet = cells.some(({ clients }) => clients > 1);
  const panels = isFleet
    ? [REJECTED, LATENCY, OSCILLATION, CORRELATION]
    : [THROUGHPUT, REJECTED, LATENCY];
  const counts = [...new Set(cells.map(({ clients }) => clients))];
  const who = isFleet && counts.length === 1 ? `, ${counts[0]} clients on one sink` : '';
  return {
    title: `Adaptive limit: what ${option} does${who}`,
    charts: panels.map((panel) => panelChart(panel, cells, counts.length > 1)),
  };
}

function panelChart(panel: ChartSpec, cells: readonly SweepCell[], namesClients: boolean): Chart {
  const lines = groupByScenario(cells, namesClients);
  const measured = ({ figures }: SweepCell): number => figures[panel.figure].median * panel.scale;
  const x = valueAxis(cells);
  return {
    title: panel.title,
    x,
    y: {
      label: '',
      from: 0,
      to: panel.axisEnd ?? roundAxisEnd(cells.flatMap((cell) => gapIfNaN(measured(cell)) ?? [])),
    },
    series: [...lines].map(([name, line]) => ({
      name,
      style: 'curve',
      points: line.map((cell): Point => [Number(cell.value), gapIfNaN(measured(cell))]),
    })),
    phases: [defaultMark(cells[0], x)],
  };
}

/** What has no meaning, such as the latency of nothing, is a gap. */
const gapIfNaN = (value: number): number | undefined => (Number.isNaN(value) ? undefined : value);

function groupByScenario(
  cells: readonly SweepCell[],
  namesClients: boolean,
): Map<string, SweepCell[]> {
  const groups = new Map<string, SweepCell[]>();
  for (const cell of cells) {
    const name = namesClients ? `${cell.scenario.name} ×${cell.clients}` : cell.scenario.name;
    groups.set(name, [...(groups.get(name) ?? []), cell]);
  }
  return groups;
}

function valueAxis(cells: readonly SweepCell[]): Axis {
  const values = cells.map(({ value }) => Number(value));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const edge = (most - least || 1) * 0.03; // so that no dot sits on the frame
  return { label: cells[0].option, from: least - edge, to: most + edge };
}

function defaultMark({ option }: SweepCell, { from, to }: Axis): Phase {
  const usual = Number(SWEEPS[option].defaultValue);
  const half = (to - from) * 0.012;
  return { name: 'default', from: Math.max(from, usual - half), to: Math.min(to, usual + half) };
}

/** The limit and what came of it, from the first seed's run: a median of stories is no story. */
export function timelinesPicture(cells: readonly SweepCell[]): Picture {
  const [{ option, scenario, clients }] = cells;
  const who = clients > 1 ? ` of ${clients} clients together` : '';
  const limits = cells.map((cell) => steps(cell.firstRun.limits, SAMPLE_MS));
  const rates = cells.map((cell) => steps(perSecond(cell.firstRun.completed), 1000));
  return {
    title: `Adaptive limit: ${option} on ${scenario.name} over time`,
    charts: [
      timeChart(`limit${who}`, 'calls in flight', cells, limits),
      timeChart('completed', 'calls/s', cells, rates),
    ],
  };
}

function timeChart(
  title: string,
  label: string,
  cells: readonly SweepCell[],
  lines: readonly Point[][],
): Chart {
  const [{ option, scenario }] = cells;
  const highest = lines.flat().map(([, y]) => y ?? 0);
  return {
    title,
    x: { label: 'time, in seconds', from: 0, to: scenario.toS },
    y: { label, from: 0, to: roundAxisEnd(highest) },
    series: cells.map(({ value, clients }, n) => ({
      name: `${option} ${value}${hasMixedClients(cells) ? ` ×${clients}` : ''}`,
      style: 'line',
      points: lines[n],
    })),
    phases: incidentOf(cells[0]),
  };
}

const hasMixedClients = (cells: readonly SweepCell[]): boolean =>
  cells.some(({ clients }) => clients !== cells[0].clients);

function incidentOf({ scenario }: SweepCell): Phase[] {
  const to = recoveryStartS(scenario);
  if (to === undefined || to > scenario.toS) return [];
  return [{ name: scenario.name, from: scenario.stages[1].fromS, to }];
}

const steps = (values: readonly number[], everyMs: number): Point[] =>
  values.map((value, n): Point => [(n * everyMs) / 1000, value]);

function perSecond(counts: readonly number[]): number[] {
  const each = 1000 / SAMPLE_MS;
  const seconds = Math.floor(counts.length / each);
  return Array.from({ length: seconds }, (_, n) =>
    counts.slice(n * each, (n + 1) * each).reduce((a, b) => a + b, 0),
  );
}
