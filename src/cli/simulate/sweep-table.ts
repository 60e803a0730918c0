/**
 * The cells of a sweep as the lines of a table: the value, what it gave and what it cost. Either one
 * sink in full, or all of them side by side in Markdown, for a page.
 */

import { recoveryStartS } from '../../simulator/adaptive/scenario.ts';
import { type Spread, SWEEPS, type SweepCell } from '../../simulator/adaptive/sweep.ts';
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

/** Only what can differ: whether clients march matters to several, the way back after an incident. */
function columnsFor(cells: readonly SweepCell[]): Column[] {
  const [{ option, scenario }] = cells;
  const value: Column = { heading: option, text: markDefault };
  if (cells.some(({ clients }) => clients > 1))
    return [CLIENTS_COLUMN, value, ...THROUGHPUT_COLUMNS, ...COST_COLUMNS, ...FLEET_COLUMNS];
  const isClimb = scenario.fromS === 0;
  const hadIncident = recoveryStartS(scenario) !== undefined && !isClimb;
  const ends = [...(isClimb ? [RAMP_UP_COLUMN] : []), ...(hadIncident ? [RECOVERY_COLUMN] : [])];
  return [value, ...THROUGHPUT_COLUMNS, SPREAD_COLUMN, ...COST_COLUMNS, LIMIT_COLUMN, ...ends];
}

/** The default is the one to compare with. */
const markDefault = ({ option, value }: SweepCell): string =>
  `${value}${value === SWEEPS[option].defaultValue ? '*' : ' '}`;

const CLIENTS_COLUMN: Column = { heading: 'clients', text: ({ clients }) => `${clients}` };

const BEST_COLUMN: Column = {
  heading: 'best',
  text: ({ figures }) => `${formatPercent(figures.utilisation.median)} %`,
};
const REJECTED_COLUMN: Column = {
  heading: 'rejected',
  text: ({ figures }) => `${(figures.rejected.median * 100).toFixed(1)} %`,
};

const THROUGHPUT_COLUMNS: readonly Column[] = [
  { heading: 'calls/s', text: ({ figures }) => figures.perSecond.median.toFixed(0) },
  BEST_COLUMN,
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

/** Sums of whole calls may pass what the sink does on average by a hair. */
const formatPercent = (part: number): string => formatInteger(Math.min(100, part * 100));

/** One figure if the runs do not differ in it. */
function formatRange({ lo, hi }: Spread): string {
  const [least, most] = [formatPercent(lo), formatPercent(hi)];
  return least === most ? least : `${least}-${most}`;
}

const formatInteger = (value: number): string => (Number.isNaN(value) ? '-' : value.toFixed(0));

const formatSeconds = (seconds: number): string =>
  Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : 'never';

/** One alone marches with nobody. */
const formatForFleet = (value: number, clients: number): string =>
  clients > 1 ? value.toFixed(2) : '-';

/** One row a value, one column a sink: what was got, what was refused, how long it took. */
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
  const price = [
    BEST_COLUMN.text(cell),
    REJECTED_COLUMN.text(cell),
    `${formatInteger(figures.p95Ms.median)} ms`,
  ];
  if (isFleet)
    return [...price, ...FLEET_COLUMNS.slice(0, 2).map(({ text }) => text(cell))].join(' · ');
  if (scenario.fromS === 0) return [...price, RAMP_UP_COLUMN.text(cell)].join(' · ');
  return [
    ...price,
    ...(recoveryStartS(scenario) === undefined ? [] : [RECOVERY_COLUMN.text(cell)]),
  ].join(' · ');
}
