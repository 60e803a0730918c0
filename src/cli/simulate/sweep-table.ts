/**
 * The cells of a sweep as the lines of a table: the value, what it gave and what it cost. Either one
 * sink in full, or all of them side by side in Markdown, for a page.
 */

import { recoveryFrom } from '../../simulator/adaptive/scenario.ts';
import { type Cell, type Spread, SWEEPS } from '../../simulator/adaptive/sweep.ts';
import { aligned } from '../chart/table.ts';

interface Column {
  readonly heading: string;
  readonly text: (cell: Cell) => string;
}

export function tableOf(cells: readonly Cell[]): string[] {
  const columns = columnsFor(cells);
  const rows = cells.map((cell) => columns.map(({ text }) => text(cell)));
  return aligned([columns.map(({ heading }) => heading), ...rows], '  ').map((line) =>
    line.trimEnd(),
  );
}

/** Only what can differ: whether clients march matters to several, the way back after an incident. */
function columnsFor(cells: readonly Cell[]): Column[] {
  const [{ option, scenario }] = cells;
  const value: Column = { heading: option, text: marked };
  if (cells.some(({ clients }) => clients > 1))
    return [CLIENTS, value, ...RESULT, ...PRICE, ...FLEET];
  const isClimb = scenario.fromS === 0;
  const hadIncident = recoveryFrom(scenario) !== undefined && !isClimb;
  const ends = [...(isClimb ? [THERE] : []), ...(hadIncident ? [BACK] : [])];
  return [value, ...RESULT, SPREAD, ...PRICE, LIMIT, ...ends];
}

/** The default is the one to compare with. */
const marked = ({ option, value }: Cell): string =>
  `${value}${value === SWEEPS[option].usual ? '*' : ' '}`;

const CLIENTS: Column = { heading: 'clients', text: ({ clients }) => `${clients}` };

const BEST: Column = {
  heading: 'best',
  text: ({ figures }) => `${percent(figures.ofBest.median)} %`,
};
const REJECTED: Column = {
  heading: 'rejected',
  text: ({ figures }) => `${(figures.rejected.median * 100).toFixed(1)} %`,
};

const RESULT: readonly Column[] = [
  { heading: 'calls/s', text: ({ figures }) => figures.perSecond.median.toFixed(0) },
  BEST,
];

const SPREAD: Column = { heading: 'spread', text: ({ figures }) => range(figures.ofBest) };

const PRICE: readonly Column[] = [
  REJECTED,
  { heading: 'mean', text: ({ figures }) => whole(figures.meanMs.median) },
  { heading: 'p95', text: ({ figures }) => whole(figures.p95Ms.median) },
  { heading: 'p99', text: ({ figures }) => whole(figures.p99Ms.median) },
];

const LIMIT: Column = { heading: 'limit', text: ({ figures }) => whole(figures.limit.median) };

const THERE: Column = { heading: 'there in', text: ({ figures }) => span(figures.thereS.median) };
const BACK: Column = { heading: 'back in', text: ({ figures }) => span(figures.backS.median) };

const FLEET: readonly Column[] = [
  { heading: 'in step', text: ({ figures, clients }) => many(figures.inStep.median, clients) },
  { heading: 'sway', text: ({ figures }) => figures.sway.median.toFixed(2) },
  { heading: 'fair', text: ({ figures, clients }) => many(figures.fairness.median, clients) },
];

/** Sums of whole calls may pass what the sink does on average by a hair. */
const percent = (part: number): string => whole(Math.min(100, part * 100));

/** One figure if the runs do not differ in it. */
function range({ lo, hi }: Spread): string {
  const [least, most] = [percent(lo), percent(hi)];
  return least === most ? least : `${least}-${most}`;
}

const whole = (value: number): string => (Number.isNaN(value) ? '-' : value.toFixed(0));

const span = (seconds: number): string =>
  Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : 'never';

/** One alone marches with nobody. */
const many = (value: number, clients: number): string => (clients > 1 ? value.toFixed(2) : '-');

/** One row a value, one column a sink: what was got, what was refused, how long it took. */
export function markdownOf(cells: readonly Cell[]): string[] {
  const names = [...new Set(cells.map(({ scenario }) => scenario.name))];
  const isFleet = cells.some(({ clients }) => clients > 1);
  const rows = new Map<string, string[]>();
  for (const cell of cells) {
    const title = isFleet ? `${cell.clients} | ${marked(cell)}` : marked(cell);
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

function summaryOf(cell: Cell, isFleet: boolean): string {
  const { figures, scenario } = cell;
  const price = [BEST.text(cell), REJECTED.text(cell), `${whole(figures.p95Ms.median)} ms`];
  if (isFleet) return [...price, ...FLEET.slice(0, 2).map(({ text }) => text(cell))].join(' · ');
  if (scenario.fromS === 0) return [...price, THERE.text(cell)].join(' · ');
  return [...price, ...(recoveryFrom(scenario) === undefined ? [] : [BACK.text(cell)])].join(' · ');
}
