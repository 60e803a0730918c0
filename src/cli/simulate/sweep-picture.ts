import { type FleetFigures, SAMPLE_MS } from '../../simulator/adaptive/fleet.ts';
import { recoveryStartS } from '../../simulator/adaptive/scenario.ts';
import { SWEEPS, type SweepCell } from '../../simulator/adaptive/sweep.ts';
import {
  type Axis,
  type Chart,
  type Phase,
  type Point,
  roundAxisEnd,
  secondsAxis,
} from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';

interface ChartSpec {
  /** Quantity and unit: above the plot, because a y label would collide with the mark of the default. */
  readonly title: string;
  readonly figure: keyof FleetFigures;
  /** Factor from the figure to this unit. */
  readonly scale: number;
  /** Fixed end of the axis. Default: from the values. */
  readonly axisEnd?: number;
}

const UTILISATION: ChartSpec = {
  title: 'utilisation, % of capacity',
  figure: 'utilisation',
  scale: 100,
  axisEnd: 100,
};
const REJECTED: ChartSpec = { title: 'rejected, % of attempts', figure: 'rejected', scale: 100 };
const LATENCY: ChartSpec = { title: 'p95 latency, ms', figure: 'p95Ms', scale: 1 };
const OSCILLATION: ChartSpec = {
  title: 'oscillation: standard deviation / mean of calls in flight',
  figure: 'oscillation',
  scale: 1,
};
const CORRELATION: ChartSpec = {
  title: "correlation of the clients' limits",
  figure: 'limitCorrelation',
  scale: 1,
};

export function curvesPicture(cells: readonly SweepCell[]): Picture {
  const [{ option }] = cells;
  const isFleet = cells.some(({ clients }) => clients > 1);
  const panels = isFleet
    ? [REJECTED, LATENCY, OSCILLATION, CORRELATION]
    : [UTILISATION, REJECTED, LATENCY];
  const counts = [...new Set(cells.map(({ clients }) => clients))];
  const fleet = isFleet && counts.length === 1 ? `, ${counts[0]} clients on one sink` : '';
  return {
    title: `Adaptive limit: effect of ${option}${fleet}`,
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

/** An undefined figure, such as the latency of no calls, is a gap in the curve. */
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
  const [min, max] = [Math.min(...values), Math.max(...values)];
  const margin = (max - min || 1) * 0.03; // keeps dots off the frame
  return { label: cells[0].option, from: min - margin, to: max + margin };
}

function defaultMark({ option }: SweepCell, { from, to }: Axis): Phase {
  const value = Number(SWEEPS[option].defaultValue);
  const half = (to - from) * 0.012;
  return { name: 'default', from: Math.max(from, value - half), to: Math.min(to, value + half) };
}

/** The limit and the throughput over time, of the first seed: a median over runs is not a run. */
export function timelinesPicture(cells: readonly SweepCell[]): Picture {
  const [{ option, scenario, clients }] = cells;
  const fleet = clients > 1 ? `, sum of ${clients} clients` : '';
  const limits = cells.map((cell) => steps(cell.firstRun.limits, SAMPLE_MS));
  const rates = cells.map((cell) => steps(perSecond(cell.firstRun.completed), 1000));
  return {
    title: `Adaptive limit: ${option} on ${scenario.name} over time`,
    charts: [
      timeChart(`limit${fleet}`, 'calls in flight', cells, limits),
      timeChart('completed calls', 'calls/s', cells, rates),
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
    x: secondsAxis(scenario.toS),
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
