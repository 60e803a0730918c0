/**
 * Draws small multiples as one SVG, two panels side by side: the same series in several scenarios.
 *
 *     title
 *     ┌ panel title            ┐ ┌ …                      ┐
 *     │ caption                │ │                        │
 *     │ calls ┤ ▁▂▄┆ marker    │ │                        │   a marker is a dashed line with its name on top
 *     │    ms ┤ ───┆───        │ │                        │   rows share the time axis below them
 *     └       └──────────── s  ┘ └                        ┘
 *     ┌ …                      ┐   one legend
 *
 * All panels have the same rows and series, so one legend is enough.
 */

import {
  coloursOf,
  drawSeries,
  formatPixels,
  MUTED_FILL,
  svgDocument,
  textElement,
  xAxis,
  xOf,
} from '../../dist/cli/chart/plot.js';

/**
 * @typedef {object} Row
 * @property {object} y An axis, as in `dist/cli/chart/chart.js`.
 * @property {object[]} series
 * @property {number} [height] In pixels. Default: a tall first row, low further rows.
 *
 * @typedef {object} Panel
 * @property {string} title
 * @property {string} caption One line below the title: the result.
 * @property {object} x
 * @property {Row[]} rows
 * @property {{ at: number, name: string }[]} markers Events on the time axis.
 */

const COLUMNS = 2;
const WIDTH = 900;
const TITLE_HEIGHT = 52;
const CELL = { left: 20, width: 440 };

/** Margins of the plots in a cell: title and caption above, the time axis below. */
const PLOT = { left: 44, width: 366, top: 72, below: 42 };
const ROW_HEIGHTS = [110, 46];
const ROW_GAP = 30;

/** Lighter than in a large chart, so that a line over an area stays visible. */
const PANEL_COLOURS = {
  shade: ['#e0e6ec'],
  bars: ['#a3c4e6', '#e8b98f'],
  line: ['#d55e00', '#009e73', '#cc79a7'],
  curve: ['#d55e00', '#009e73', '#cc79a7'],
};

/** Draws `panels`; `notes` are short lines beside the legend, about all panels. */
export function drawPanels({ title, panels, notes }) {
  const cellHeight = panelHeight(panels[0]?.rows ?? []);
  const originOf = (n) => ({
    left: CELL.left + (n % COLUMNS) * CELL.width,
    top: TITLE_HEIGHT + Math.floor(n / COLUMNS) * cellHeight,
  });
  // In the free cell of the last line, or below all panels.
  const key = legend(panels, notes, originOf(panels.length), panels.length % COLUMNS === 0);
  const height = Math.max(
    TITLE_HEIGHT + Math.ceil(panels.length / COLUMNS) * cellHeight,
    key.bottom,
  );
  const parts = panels.flatMap((panel, n) => drawPanel(panel, originOf(n)));
  return svgDocument(title, WIDTH, height, [...parts, ...key.parts]);
}

const rowHeight = ({ height }, n) => height ?? ROW_HEIGHTS[Math.min(n, ROW_HEIGHTS.length - 1)];

function panelHeight(rows) {
  const plots = rows.reduce((sum, row, n) => sum + rowHeight(row, n) + ROW_GAP, 0);
  return PLOT.top + plots - ROW_GAP + PLOT.below;
}

/** One colour per series over all rows of a panel. */
const panelColours = (rows) =>
  coloursOf(
    rows.flatMap(({ series }) => series),
    PANEL_COLOURS,
  );

function drawPanel(panel, { left, top }) {
  const colours = panelColours(panel.rows);
  const boxes = boxesOf(panel.rows, left + PLOT.left, top + PLOT.top);
  const last = boxes[boxes.length - 1];
  return [
    textElement(left, top + 18, panel.title, 'font-size="14" font-weight="600"'),
    textElement(left, top + 38, panel.caption, MUTED_FILL),
    ...panel.rows.flatMap((row, r) => drawRow(panel, row, colours, boxes[r])),
    ...xAxis(panel.x, last, 8),
    textElement(
      last.left + last.width + 14,
      last.top + last.height + 19,
      panel.x.label,
      MUTED_FILL,
    ),
    ...panel.markers.map((_, m) => drawMarker(panel, m, boxes)),
  ];
}

function boxesOf(rows, left, top) {
  let next = top;
  return rows.map((row, n) => {
    const box = { left, top: next, width: PLOT.width, height: rowHeight(row, n) };
    next += box.height + ROW_GAP;
    return box;
  });
}

function drawRow({ x }, { y, series }, colours, box) {
  return [
    ...drawSeries(series, colours, { x, y }, box, box.height > 100 ? 5 : 3),
    textElement(box.left - PLOT.left, box.top - 12, y.label, MUTED_FILL),
  ];
}

/** A dashed line through all rows, with its name above: to the right, or to the left if that does not fit. */
function drawMarker({ markers, x }, m, boxes) {
  const [first, last] = [boxes[0], boxes[boxes.length - 1]];
  const across = xOf(markers[m].at, x, first);
  const next = markers[m + 1] ? xOf(markers[m + 1].at, x, first) : first.left + first.width;
  const isTight = across + markers[m].name.length * 7 + 10 > next;
  const side = `text-anchor="${isTight ? 'end' : 'start'}"`;
  const line = `<path d="M${formatPixels(across)} ${first.top - 22}V${last.top + last.height}" ${DASHED_STROKE}/>`;
  return (
    line +
    textElement(formatPixels(across + (isTight ? -5 : 5)), first.top - 12, markers[m].name, side)
  );
}

const DASHED_STROKE = `stroke="#5b6770" stroke-width="1.5" stroke-dasharray="4 3"`;

/** The series and their colours, with the notes below or, in a wide legend, beside them. */
function legend(panels, notes, { left: cell, top }, isWide) {
  const rows = panels[0]?.rows ?? [];
  const colours = panelColours(rows);
  const entries = rows.flatMap((row) =>
    row.series.map((series) => ({ series, unit: row.y.label })),
  );
  const left = cell + PLOT.left;
  const [from, step] = [top + (isWide ? 24 : PLOT.top), 26];
  const swatches = entries.map(({ series, unit }, n) => {
    const tall = series.style === 'line' ? 3 : 12;
    const y = from + n * step;
    const swatch = `<rect x="${left}" y="${y - 4 - tall / 2}" width="24" height="${tall}" fill="${colours.get(series)}"/>`;
    return swatch + textElement(left + 34, y, `${series.name}, ${unit}`);
  });
  const end = from + entries.length * step;
  const beside = isWide ? { left: left + CELL.width, top: from } : { left, top: end + 40 };
  return {
    parts: [
      ...swatches,
      `<path d="M${left + 12} ${end - 13}v18" ${DASHED_STROKE}/>`,
      textElement(left + 34, end, 'event'),
      ...notes.map((note, n) => textElement(beside.left, beside.top + n * 20, note, MUTED_FILL)),
    ],
    bottom: Math.max(end, beside.top + (notes.length - 1) * 20) + 24,
  };
}
