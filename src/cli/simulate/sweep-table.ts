/** Prints a sweep: a table of one sink with all columns, or a Markdown table of all sinks. */

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

const CLIENTS_COLUMN: Column = { heading: 'clients', text: ({ clients }) => `${clients}` };

const UTILISATION_COLUMN: Column = {
  heading: 'util',
  text: ({ figures }) => `${formatUtilisation(figures.utilisation.median)} %`,
};
const REJECTED_COLUMN: Column = {
  heading: 'rejected',
  text: ({ figures }) => formatPercent(figures.rejected.median, 1),
};

const THROUGHPUT_COLUMNS: readonly Column[] = [
  { heading: 'calls/s', text: ({ figures }) => figures.perSecond.median.toFixed(0) },
  UTILISATION_COLUMN,
];

const SPREAD_COLUMN: Column = {
  heading: 'spread',
  text: ({ figures }) => formatRange(figures.utilisation),
};

const COST_COLUMNS: readonly Column[] = [
  REJECTED_COLUMN,
  { heading: 'mean', text: ({ figures }) => formatInteger(figures.meanMs.median) },
  { heading: 'p95', text: ({ figures }) => formatInteger(figures.p95Ms.median) },
  { heading: 'p99', text: ({ figures }) => formatInteger(figures.p99Ms.median) },
];

const LIMIT_COLUMN: Column = {
  heading: 'limit',
  text: ({ figures }) => formatInteger(figures.limit.median),
};

const RAMP_UP_COLUMN: Column = {
  heading: 'ramp-up',
  text: ({ figures }) => formatSeconds(figures.convergenceS.median),
};
const RECOVERY_COLUMN: Column = {
  heading: 'recovery',
  text: ({ figures }) => formatSeconds(figures.recoveryS.median),
};

const FLEET_COLUMNS: readonly Column[] = [
  {
    heading: 'corr',
    text: ({ figures, clients }) => formatForFleet(figures.limitCorrelation.median, clients),
  },
  { heading: 'osc', text: ({ figures }) => figures.oscillation.median.toFixed(2) },
  {
    heading: 'fair',
    text: ({ figures, clients }) => formatForFleet(figures.fairness.median, clients),
  },
];

/** In percent. Capped, because whole calls may exceed the average capacity of a sink slightly. */
const formatUtilisation = (fraction: number): string =>
  formatInteger(Math.min(100, fraction * 100));

/** One number if all runs agree. */
function formatRange({ lo, hi }: Spread): string {
  const [min, max] = [formatUtilisation(lo), formatUtilisation(hi)];
  return min === max ? min : `${min}-${max}`;
}

const formatInteger = (value: number): string => (Number.isNaN(value) ? '-' : value.toFixed(0));

const formatSeconds = (seconds: number): string =>
  Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : 'never';

/** A single client has no correlation and no fairness. */
const formatForFleet = (value: number, clients: number): string =>
  clients > 1 ? value.toFixed(2) : '-';

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
  const summary = [
    UTILISATION_COLUMN.text(cell),
    REJECTED_COLUMN.text(cell),
    `${formatInteger(figures.p95Ms.median)} ms`,
  ];
  if (isFleet)
    return [...summary, ...FLEET_COLUMNS.slice(0, 2).map(({ text }) => text(cell))].join(' · ');
  if (scenario.fromS === 0) return [...summary, RAMP_UP_COLUMN.text(cell)].join(' · ');
  return [
    ...summary,
    ...(recoveryStartS(scenario) === undefined ? [] : [RECOVERY_COLUMN.text(cell)]),
  ].join(' · ');
}
