/**
 * Draws a server that loses half its slots for a while: latency, goodput and calls in flight under each rule.
 *
 *     p99, log axis    ─── lines with their names at the right end
 *     goodput          ───
 *     in flight        ───
 *                      8 slots │ 4 slots │ 8 slots
 */

import { positionOf, roundAxisEnd } from '../../dist/cli/chart/chart.js';
import {
  BAND_COLOUR,
  coloursOf,
  drawSeries,
  formatPixels,
  MUTED_CENTRED,
  MUTED_FILL,
  svgDocument,
  textElement,
  xAxis,
  xOf,
} from '../../dist/cli/chart/plot.js';
import { median, whole } from '../report.mjs';

const WIDTH = 900;
const PLOT = { left: 64, width: 690 };
const TOP = 124;
const GAP = 44;
const LABEL_HEIGHT = 17;

/** The best rule is drawn last, over the others. */
const PALETTE = ['#cc79a7', '#0072b2', '#d55e00', '#009e73'];
const PALETTES = { shade: [], bars: [], line: PALETTE, curve: [] };

/** `made`: from how many runs, and under which load. */
export function drawCapacity(runs, { halvedAt, restoredAt, endS, slots }, made) {
  const x = { label: 's', from: 0, to: endS };
  const series = (of) =>
    Object.entries(runs).map(([name, steps]) => ({
      name,
      style: 'line',
      points: steps.map((step) => [step.at, of(step)]),
    }));
  const values = (of) => Object.values(runs).flatMap((steps) => steps.map(of));
  const upTo = (of) => roundAxisEnd(values(of).filter((value) => value !== undefined));
  const rows = [
    {
      label: 'p99 of the round trip, ms',
      height: 230,
      y: { label: '', from: 20, to: 2000, scale: 'log' },
      isNamed: true,
      series: series(({ p99 }) => p99),
    },
    {
      label: 'goodput, calls/s',
      height: 110,
      y: { label: '', from: 0, to: upTo(({ goodput }) => goodput) },
      series: series(({ goodput }) => goodput),
    },
    {
      label: 'calls in flight',
      height: 130,
      y: { label: '', from: 1, to: 200, scale: 'log' },
      isNamed: true,
      series: series(({ inFlight }) => inFlight),
    },
  ];
  const halved = Object.entries(runs).map(([name, steps]) => {
    const measured = steps.filter(({ at }) => at >= halvedAt && at < restoredAt);
    return `${name} ${whole(median(measured.map(({ p99 }) => p99)))} ms`;
  });
  let top = TOP;
  const parts = rows.map((row) => {
    const box = { ...PLOT, top, height: row.height };
    top += row.height + GAP;
    return { row, box };
  });
  const bottom = top - GAP;
  const last = parts.at(-1).box;
  const band = { left: xOf(halvedAt, x, PLOT), right: xOf(restoredAt, x, PLOT) };
  const bandWidth = formatPixels(band.right - band.left);
  const phases = [
    [0, halvedAt, `${slots} calls at once`],
    [halvedAt, restoredAt, `${slots / 2} calls at once`],
    [restoredAt, endS, `${slots} calls at once`],
  ];
  return svgDocument('A server loses half its capacity and gets it back', WIDTH, bottom + 48, [
    textElement(20, 55, SUBTITLE, MUTED_FILL),
    textElement(20, 75, `p99 with half the capacity: ${halved.join(', ')}. ${made}`, MUTED_FILL),
    ...parts.map(
      ({ box }) =>
        `<rect x="${formatPixels(band.left)}" y="${box.top}" width="${bandWidth}" height="${box.height}" fill="${BAND_COLOUR}"/>`,
    ),
    ...phases.map(([from, to, name]) =>
      textElement(
        formatPixels(xOf((from + to) / 2, x, PLOT)),
        TOP + rows[0].height - 10,
        name,
        MUTED_CENTRED,
      ),
    ),
    ...parts.flatMap(({ row, box }) => drawRow(row, x, box)),
    ...xAxis(x, last, 10),
    textElement(last.left + last.width + 14, bottom + 19, x.label, MUTED_FILL),
  ]);
}

const SUBTITLE =
  'A real HTTP server, 25 ms a call, and a client with 200 callers that always have a next call.';

function drawRow({ label, y, series, isNamed }, x, box) {
  const colours = coloursOf(series, PALETTES);
  return [
    ...drawSeries(series, colours, { x, y }, box, 7),
    textElement(20, box.top - 12, label, 'font-weight="600"'),
    ...(isNamed ? endLabels(series, colours, y, box) : []),
  ];
}

/** The name of each line at its right end; names that would overlap are moved apart. */
export function endLabels(series, colours, y, box) {
  const ends = series.map((one) => {
    const values = one.points.map(([, value]) => value).filter((value) => value !== undefined);
    return { one, at: box.top + (1 - positionOf(values.at(-1) ?? 0, y)) * box.height };
  });
  ends.sort((a, b) => a.at - b.at);
  for (let n = 1; n < ends.length; n++)
    ends[n].at = Math.max(ends[n].at, ends[n - 1].at + LABEL_HEIGHT);
  const excess = Math.max(0, (ends.at(-1)?.at ?? 0) - box.top - box.height);
  return ends.map(({ one, at }) =>
    textElement(
      box.left + box.width + 8,
      formatPixels(at - excess + 4),
      one.name,
      `fill="${colours.get(one)}" font-weight="600"`,
    ),
  );
}
