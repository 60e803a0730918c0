/**
 * Draws a chart with characters, so that it can be read over ssh, in a log or in a bug report. Series differ by
 * density instead of colour.
 *
 *     calls/s  █ sent  ░ demand
 *        100 ┤░░░░░░░░░░▄▄▄▄▄▄
 *            │░░░░░░░░░░██████          a cell of a bar is filled by eighths,
 *         50 ┤░░░░░▂▂▂▂▂██████          so ten rows show eighty heights
 *            │▁▁▁▁▁█████▇▇▇▇▇▇
 *          0 ┼┬─────────┬─────
 *          s  1         3
 *             ├─ busy ─┤├ ok ┤
 */

import {
  type Chart,
  inDrawOrder,
  type Phase,
  positionOf,
  type Series,
  type SeriesStyle,
  ticksOf,
} from './chart.ts';
import { formatShort } from './format.ts';

export interface CanvasSize {
  /** Width, labels included. */
  readonly columns: number;
  /** Height of the plot, without title and axes. */
  readonly rows: number;
}

const PLOT_COLUMNS_MIN = 10;

const VERTICAL_EIGHTHS = ' ▁▂▃▄▅▆▇█';

const SWATCH: Readonly<Record<SeriesStyle, string>> = {
  shade: '░',
  bars: '█',
  line: '━',
  curve: '━',
};

export const drawChart = (chart: Chart, size: CanvasSize): string[] => drawStack([chart], size);

/** Draws charts with the same axes and styles one below the other, with one legend on top and one x axis label. */
export function drawStack(charts: readonly Chart[], { columns, rows }: CanvasSize): string[] {
  return charts
    .flatMap((chart, n) => {
      const frame = frameOf(chart, columns, rows);
      return [
        chart.title,
        ...(n === 0 ? [`${chart.y.label}  ${legend(chart.series)}`] : []),
        ...plotLines(chart, frame),
        ...(n === charts.length - 1 ? [xLabelLine(chart, frame)] : []),
        ...(chart.phases ? [phaseLine(chart, chart.phases, frame)] : []),
      ];
    })
    .map((line) => truncate(line.trimEnd(), columns));
}

/** A horizontal bar for a row of a table: `used` is dark, the rest up to `total` light; `max` is `columns` long. */
export function horizontalBar(used: number, total: number, max: number, columns: number): string {
  const [usedEighths, totalEighths] = [used, total].map((value) =>
    eighthsOf(max > 0 ? Math.min(1, value / max) : 0, columns),
  );
  const bar = '█'.repeat(Math.floor(usedEighths / 8)) + HORIZONTAL_EIGHTHS[usedEighths % 8];
  return bar.padEnd(Math.round(totalEighths / 8), '░');
}

const HORIZONTAL_EIGHTHS = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/** A position in eighths of a cell. A value above 0 gets at least one. */
function eighthsOf(position: number, cells: number): number {
  return position > 0 ? Math.max(1, Math.round(position * cells * 8)) : 0;
}

const truncate = (text: string, columns: number): string =>
  text.length > columns ? `${text.slice(0, Math.max(0, columns - 1))}…` : text;

const legend = (series: readonly Series[]): string =>
  [...series]
    .reverse()
    .map(({ name, style }) => `${SWATCH[style]} ${name}`)
    .join('  ');

/** Layout: labels to the left, an axis, the plot. */
interface Frame {
  readonly gutter: number;
  readonly width: number;
  readonly rows: number;
  /** y labels, by the row whose upper edge has that value; -1 is the x axis. */
  readonly labels: ReadonlyMap<number, string>;
}

function frameOf(chart: Chart, columns: number, rows: number): Frame {
  const labels = labelsByRow(chart, rows);
  const gutter = Math.max(chart.x.label.length, ...[...labels.values()].map((text) => text.length));
  return { gutter, labels, rows, width: plotWidth(chart, columns - gutter - 2) };
}

function plotLines(chart: Chart, { gutter, labels, rows, width }: Frame): string[] {
  const plot = paint(chart, width, rows).map((cells, n) => {
    const label = labels.get(rows - 1 - n);
    return `${(label ?? '').padStart(gutter)} ${label === undefined ? '│' : '┤'}${cells}`;
  });
  return [...plot, `${(labels.get(-1) ?? '').padStart(gutter)} ${xAxis(chart, width)}`];
}

/** Every unit of x gets the same number of columns if possible: bars of unequal width look like data. */
function plotWidth({ x }: Chart, available: number): number {
  const columns = Math.max(PLOT_COLUMNS_MIN, available);
  const units = x.to - x.from;
  const each = Math.floor(columns / units);
  return Number.isInteger(units) && each >= 1 ? units * each : columns;
}

/** A linear axis is labelled at the edges of rows, where a value can be read exactly. */
function labelsByRow({ y }: Chart, rows: number): Map<number, string> {
  const edges = Array.from({ length: Math.ceil(rows / 2) }, (_, n) => rows - 2 * n);
  const values =
    y.scale === 'log'
      ? ticksOf(y, Math.floor(rows / 2) + 1)
      : [y.from, ...edges.map((edge) => y.from + ((y.to - y.from) * edge) / rows)];
  return new Map(
    values.map((value) => [Math.round(positionOf(value, y) * rows) - 1, formatShort(value)]),
  );
}

/** The plot, top row first. */
function paint(chart: Chart, width: number, rows: number): string[] {
  const canvas = Array.from({ length: rows }, () => Array<string>(width).fill(' '));
  for (const series of inDrawOrder(chart.series)) {
    columnValues(chart, series, width).forEach((value, column) => {
      if (value === undefined) return;
      const position = positionOf(value, chart.y);
      for (const [row, glyph] of PAINTERS[series.style](position, rows)) {
        canvas[rows - 1 - row][column] = glyph;
      }
    });
  }
  return canvas.map((cells) => cells.join(''));
}

type Painter = (position: number, rows: number) => [row: number, glyph: string][];

const PAINTERS: Readonly<Record<SeriesStyle, Painter>> = {
  shade: (position, rows) => paintColumn(Math.round(position * rows), '░'),

  bars(position, rows) {
    const eighths = eighthsOf(position, rows);
    const full = Math.floor(eighths / 8);
    const cells = paintColumn(full, '█');
    return eighths % 8 === 0 ? cells : [...cells, [full, VERTICAL_EIGHTHS[eighths % 8]]];
  },

  line: paintLine,
  curve: paintLine,
};

function paintLine(position: number, rows: number): [row: number, glyph: string][] {
  return [[Math.max(0, Math.round(position * rows) - 1), '━']];
}

const paintColumn = (height: number, glyph: string): [row: number, glyph: string][] =>
  Array.from({ length: height }, (_, row) => [row, glyph]);

/** The value of a series in each column: the highest within the column, because an average hides peaks. */
function columnValues({ x }: Chart, { points }: Series, width: number): (number | undefined)[] {
  const step = (x.to - x.from) / width;
  const epsilon = step * 1e-6; // thirds of a second do not add up to whole seconds
  const values: (number | undefined)[] = [];
  let current: number | undefined;
  let next = 0;
  for (let n = 0; n < width; n++) {
    const begin = x.from + n * step;
    for (; next < points.length && points[next][0] <= begin + epsilon; next++)
      current = points[next][1];
    let highest = current;
    for (; next < points.length && points[next][0] < begin + step - epsilon; next++) {
      current = points[next][1];
      if (current !== undefined) highest = Math.max(highest ?? current, current);
    }
    values.push(highest);
  }
  return values;
}

const columnOf = (value: number, { x }: Chart, width: number): number =>
  Math.round(positionOf(value, x) * width);

/** A label needs its own width and a gap. */
const X_LABEL_COLUMNS = 7;

function xTicks(chart: Chart, width: number): [at: number, label: string][] {
  const ticks = ticksOf(chart.x, Math.floor(width / X_LABEL_COLUMNS) + 1);
  return ticks
    .map((tick): [number, string] => [
      columnOf(tick, chart, width),
      (chart.x.format ?? formatShort)(tick),
    ])
    .filter(([at]) => at < width);
}

function xAxis(chart: Chart, width: number): string {
  const ticks = new Set(xTicks(chart, width).map(([at]) => at));
  const line = Array.from({ length: width }, (_, n) => (ticks.has(n) ? '┬' : '─'));
  return `┼${line.join('')}`;
}

function xLabelLine(chart: Chart, { gutter, width }: Frame): string {
  const start = `${chart.x.label.padStart(gutter)}  `;
  return xTicks(chart, width).reduce(
    (line, [at, label]) => line.padEnd(start.length + at) + label,
    start,
  );
}

function phaseLine(chart: Chart, phases: readonly Phase[], { gutter, width }: Frame): string {
  const start = ' '.repeat(gutter + 2);
  return phases.reduce((line, { name, from, to }) => {
    const [begin, end] = [columnOf(from, chart, width), columnOf(to, chart, width)];
    return line.padEnd(start.length + begin) + phaseBracket(name, end - begin);
  }, start);
}

/** `├── name ──┤`, truncated if it does not fit. */
function phaseBracket(name: string, columns: number): string {
  if (columns < 2) return '│'.repeat(columns);
  const inside = columns - 2;
  const text = name.length + 2 <= inside ? ` ${name} ` : truncate(name, inside);
  const left = Math.floor((inside - text.length) / 2);
  return `├${'─'.repeat(left)}${text}${'─'.repeat(inside - text.length - left)}┤`;
}
