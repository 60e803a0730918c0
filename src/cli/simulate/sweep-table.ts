import type { FleetFigures } from '../../simulator/adaptive/fleet.ts';
import { recoveryStartS } from '../../simulator/adaptive/scenario.ts';
import { type Spread, SWEEPS, type SweepCell } from '../../simulator/adaptive/sweep.ts';
import { formatPercent } from '../chart/format.ts';
import { alignColumns } from '../chart/table.ts';

interface Column {
  readonly heading: string;
  readonly text: (cell: SweepCell) => string;
}

export function tableOf(cells: readonly SweepCell[]): string[] {
  const columns = columnsFor(cells);
  const rows = cells.map((cell) => columns.map(({ text }) => text(cell)));
  return alignColumns([columns.map(({ heading }) => heading), ...rows], '  ').map((line) =>
    line.trimEnd(),
  );
}

/** Correlation is for several clients only, recovery for scenarios with an incident. */
function columnsFor(cells: readonly SweepCell[]): Column[] {
  const [{ option, scenario }] = cells;
  const value: Column = { heading: option, text: markDefault };
  if (cells.some(({ clients }) => clients > 1))
    return [CLIENTS_COLUMN, value, ...THROUGHPUT_COLUMNS, ...COST_COLUMNS, ...FLEET_COLUMNS];
  const isRampUp = scenario.fromS === 0;
  const hadIncident = recoveryStartS(scenario) !== undefined && !isRampUp;
  const last = [...(isRampUp ? [RAMP_UP_COLUMN] : []), ...(hadIncident ? [RECOVERY_COLUMN] : [])];
  return [value, ...THROUGHPUT_COLUMNS, SPREAD_COLUMN, ...COST_COLUMNS, LIMIT_COLUMN, ...last];
}

const markDefault = ({ option, value }: SweepCell): string =>
  `${value}${value === SWEEPS[option].defaultValue ? '*' : ' '}`;

/** The median of a figure; `format` also gets the number of clients. */
const column = (
  heading: string,
  figure: keyof FleetFigures,
  format: (median: number, clients: number) => string,
): Column => ({
  heading,
  text: ({ figures, clients }) => format(figures[figure].median, clients),
});

const CLIENTS_COLUMN: Column = { heading: 'clients', text: ({ clients }) => `${clients}` };
const UTILISATION_COLUMN = column('util', 'utilisation', (used) => `${formatUtilisation(used)} %`);
const SPREAD_COLUMN: Column = {
  heading: 'spread',
  text: ({ figures }) => formatRange(figures.utilisation),
};
const REJECTED_COLUMN = column('rejected', 'rejected', (part) => formatPercent(part, 1));
const LIMIT_COLUMN = column('limit', 'limit', formatInteger);
const RAMP_UP_COLUMN = column('ramp-up', 'convergenceS', formatSeconds);
const RECOVERY_COLUMN = column('recovery', 'recoveryS', formatSeconds);

const THROUGHPUT_COLUMNS: readonly Column[] = [
  column('calls/s', 'perSecond', (rate) => rate.toFixed(0)),
  UTILISATION_COLUMN,
];

const COST_COLUMNS: readonly Column[] = [
  REJECTED_COLUMN,
  column('mean', 'meanMs', formatInteger),
  column('p95', 'p95Ms', formatInteger),
  column('p99', 'p99Ms', formatInteger),
];

const FLEET_COLUMNS: readonly Column[] = [
  column('corr', 'limitCorrelation', formatForFleet),
  column('osc', 'oscillation', (value) => value.toFixed(2)),
  column('fair', 'fairness', formatForFleet),
];

/** In percent. Capped, because whole calls may exceed the average capacity of a sink slightly. */
function formatUtilisation(fraction: number): string {
  return formatInteger(Math.min(100, fraction * 100));
}

/** One number if all runs agree. */
function formatRange({ lo, hi }: Spread): string {
  const [min, max] = [formatUtilisation(lo), formatUtilisation(hi)];
  return min === max ? min : `${min}-${max}`;
}

function formatInteger(value: number): string {
  return Number.isNaN(value) ? '-' : value.toFixed(0);
}

function formatSeconds(seconds: number): string {
  return Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : 'never';
}

/** A single client has no correlation and no fairness. */
function formatForFleet(value: number, clients: number): string {
  return clients > 1 ? value.toFixed(2) : '-';
}

/** One row per value, one column per sink: utilisation, rejected attempts, p95 latency and more. */
export function markdownOf(cells: readonly SweepCell[]): string[] {
  const names = [...new Set(cells.map(({ scenario }) => scenario.name))];
  const isFleet = cells.some(({ clients }) => clients > 1);
  const rows = new Map<string, string[]>();
  for (const cell of cells) {
    const title = isFleet ? `${cell.clients} | ${markDefault(cell)}` : markDefault(cell);
    rows.set(title, [...(rows.get(title) ?? []), summaryOf(cell, isFleet)]);
  }
  const head = [...(isFleet ? ['clients'] : []), cells[0].option, ...names];
  return [
    markdownRow(head),
    markdownRow(head.map(() => '---')),
    ...[...rows].map(([title, texts]) => markdownRow([title.replace(/ $/, ''), ...texts])),
  ];
}

const markdownRow = (texts: readonly string[]): string => `| ${texts.join(' | ')} |`;

function summaryOf(cell: SweepCell, isFleet: boolean): string {
  const { figures, scenario } = cell;
  const startup = scenario.fromS === 0 ? [RAMP_UP_COLUMN] : [];
  const incident = recoveryStartS(scenario) === undefined ? [] : [RECOVERY_COLUMN];
  const single = startup.length > 0 ? startup : incident;
  const columns = isFleet ? FLEET_COLUMNS.slice(0, 2) : single;
  return [
    UTILISATION_COLUMN.text(cell),
    REJECTED_COLUMN.text(cell),
    `${formatInteger(figures.p95Ms.median)} ms`,
    ...columns.map(({ text }) => text(cell)),
  ].join(' · ');
}
