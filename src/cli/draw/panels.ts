/**
 * Draws many small pictures as one SVG, two side by side: the same things seen in several situations.
 *
 *     title
 *     ┌ panel title            ┐ ┌ …                      ┐
 *     │ what to see in it      │ │                        │
 *     │ calls ┤ ▁▂▄┆ changed   │ │                        │   a mark is a dashed line, named at its top
 *     │    ms ┤ ───┆───        │ │                        │   rows share the time below them
 *     └       └──────────── s  ┘ └                        ┘
 *     ┌ …                      ┐   what the colours mean, once
 *
 * Every row of every panel shows the same series, so that one legend is enough.
 */

import { type Axis, backToFront, type Series } from './chart.ts';
import {
  BARS,
  type Box,
  FAINT_INK,
  LINES,
  path,
  pictureOf,
  px,
  text,
  xAxis,
  xOf,
  yGrid,
} from './plot.ts';

/** An instant at which something happened. */
export interface Mark {
  readonly at: number;
  readonly name: string;
}

export interface Row {
  readonly y: Axis;
  readonly series: readonly Series[];
}

export interface Panel {
  readonly title: string;
  /** What to see in it, in one line. */
  readonly note: string;
  readonly x: Axis;
  readonly rows: readonly Row[];
  readonly marks: readonly Mark[];
}

export interface Panels {
  readonly title: string;
  readonly panels: readonly Panel[];
  /** What is the same in all of them, in short lines beside the legend. */
  readonly notes: readonly string[];
}

const COLUMNS = 2;
const WIDTH = 900;
const TITLE_HEIGHT = 52;
const CELL = { left: 20, width: 440, height: 282 };

/** Where the plots of a cell stand in it. */
const PLOT = { left: 44, width: 366, top: 60 };

/** The first row is what the panel is about, the others are beside it. */
const ROW_HEIGHTS = [110, 46];
const ROW_GAP = 18;

export function drawPanels({ title, panels, notes }: Panels): string {
  const places = panels.length + 1; // the last one is the legend's
  const height = TITLE_HEIGHT + Math.ceil(places / COLUMNS) * CELL.height;
  return pictureOf(title, WIDTH, height, [
    ...panels.flatMap((panel, n) => drawPanel(panel, n)),
    ...legend(panels, notes, cellAt(panels.length)),
  ]);
}

const cellAt = (n: number) => ({
  left: CELL.left + (n % COLUMNS) * CELL.width,
  top: TITLE_HEIGHT + Math.floor(n / COLUMNS) * CELL.height,
});

/** A colour for each series of a panel, over all its rows, so that none is used twice. */
function coloursOf(rows: readonly Row[]): string[][] {
  const used = { shade: 0, bars: 0, line: 0 };
  return rows.map(({ series }) =>
    series.map(({ look }) => (look === 'line' ? LINES : BARS)[used[look]++ % BARS.length]),
  );
}

function drawPanel(panel: Panel, n: number): string[] {
  const { left, top } = cellAt(n);
  const colours = coloursOf(panel.rows);
  const boxes = boxesOf(panel.rows.length, left + PLOT.left, top + PLOT.top);
  const last = boxes[boxes.length - 1];
  return [
    text(left, top + 18, panel.title, 'font-size="14" font-weight="600"'),
    text(left, top + 38, panel.note, `fill="${FAINT_INK}"`),
    ...panel.rows.flatMap((row, r) => drawRow(panel, row, colours[r], boxes[r])),
    ...xAxis(panel.x, last, 8),
    text(last.left + last.width + 6, last.top + last.height + 19, panel.x.label, FAINT),
    ...panel.marks.map((mark) => drawMark(mark, panel, boxes)),
  ];
}

const FAINT = `fill="${FAINT_INK}"`;

function boxesOf(count: number, left: number, top: number): Box[] {
  let next = top;
  return Array.from({ length: count }, (_, n) => {
    const height = ROW_HEIGHTS[Math.min(n, ROW_HEIGHTS.length - 1)];
    const box = { left, top: next, width: PLOT.width, height };
    next += height + ROW_GAP;
    return box;
  });
}

function drawRow({ x }: Panel, { y, series }: Row, colours: readonly string[], box: Box): string[] {
  const ordered = backToFront(series);
  return [
    ...yGrid(y, box, box.height > 100 ? 5 : 3),
    ...ordered.map((one) => path(one, colours[series.indexOf(one)], { x, y }, box)),
    text(box.left - 8, box.top - 8, y.label, `text-anchor="end" ${FAINT}`),
  ];
}

/** A dashed line through all rows; its name stands on the side that has more room. */
function drawMark({ at, name }: Mark, { x }: Panel, boxes: readonly Box[]): string {
  const [first, last] = [boxes[0], boxes[boxes.length - 1]];
  const across = xOf(at, x, first);
  const isLate = across > first.left + first.width / 2;
  const side = `text-anchor="${isLate ? 'end' : 'start'}"`;
  const halo = 'stroke="#ffffff" stroke-width="4" stroke-linejoin="round" paint-order="stroke"';
  const line = `<path d="M${px(across)} ${first.top - 6}V${last.top + last.height}" ${DASHED}/>`;
  return line + text(px(across + (isLate ? -5 : 5)), first.top + 4, name, `${side} ${halo}`);
}

const DASHED = `stroke="${FAINT_INK}" stroke-width="1.5" stroke-dasharray="4 3"`;

function legend(
  panels: readonly Panel[],
  notes: readonly string[],
  { left, top }: Place,
): string[] {
  const rows = panels[0]?.rows ?? [];
  const colours = coloursOf(rows).flat();
  const series = rows.flatMap((row) => row.series.map((one) => ({ ...one, unit: row.y.label })));
  const [from, step] = [top + 66, 26];
  const swatches = series.map(({ name, look, unit }, n) => {
    const tall = look === 'line' ? 3 : 12;
    const y = from + n * step;
    const swatch = `<rect x="${left + PLOT.left}" y="${y - 4 - tall / 2}" width="24" height="${tall}" fill="${colours[n]}"/>`;
    return swatch + text(left + PLOT.left + 34, y, `${name}, ${unit}`);
  });
  const below = from + series.length * step;
  return [
    ...swatches,
    `<path d="M${left + PLOT.left + 12} ${below - 13}v18" ${DASHED}/>`,
    text(left + PLOT.left + 34, below, 'something changes'),
    ...notes.map((note, n) => text(left + PLOT.left, below + 40 + n * 20, note, FAINT)),
  ];
}

interface Place {
  readonly left: number;
  readonly top: number;
}
