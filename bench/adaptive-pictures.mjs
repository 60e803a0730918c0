/**
 * Draws docs/pictures/adaptive-*.svg: one behaviour of the delay rule each, as a run of the laboratory.
 *
 *     title
 *     limit     ─── lines with their names at the right end; bands for tests and incidents
 *     goodput   ───
 *     refused   ───   where a sink refuses
 */

import { writeFileSync } from 'node:fs';
import { positionOf } from '../dist/cli/chart/chart.js';
import {
  BAND_COLOUR,
  drawSeries,
  formatPixels,
  MUTED_CENTRED,
  svgDocument,
  textElement,
  xAxis,
  xOf,
} from '../dist/cli/chart/plot.js';
import { laboratoryPicture } from '../dist/cli/simulate/laboratory-picture.js';

const WIDTH = 860;
const PLOT = { left: 64, width: 690 };
const FIRST_TOP = 92;
const LIMIT_HEIGHT = 150;
const OTHER_HEIGHT = 70;
const GAP = 40;
const LABEL_HEIGHT = 17;

/** As in the pictures of real servers. */
const COLOURS = ['#009e73', '#d55e00', '#cc79a7', '#e69f00'];
const BEST_COLOUR = '#0072b2';

/** Titles of the charts by the title that the command uses. */
const LABELS = {
  limit: 'limit, calls in flight',
  'limit, sum of 8 clients': 'sum of all limits, calls in flight',
  goodput: 'goodput, calls/s',
  'refused or timed out': 'refused or timed out, calls/s',
};

const INCIDENT = { from: 25, to: 45 };
const SPELL = { from: 30, to: 40 };

/** Pictures of one client: the sink, the rules and what is marked. */
const SINGLE = [
  {
    file: 'halved',
    sink: 'halved',
    rules: ['delay', 'aimd'],
    title: 'A server loses half of its workers for 20 s',
    phases: () => [{ name: '10 of 20 workers', ...INCIDENT }],
  },
  {
    file: 'quota',
    sink: 'quota',
    title: 'A quota of 80 calls in any second, then 429',
    charts: ['goodput', 'refused'],
  },
  {
    file: 'silence',
    sink: 'held-10-5',
    title: 'A server holds all replies for 10 s, timeout 5 s: one probe at a time',
    phases: () => [{ name: 'no reply', ...SPELL }],
  },
];

/** Writes all pictures into a folder. `runOn(rules, sink)` evaluates one run of each rule. */
export function writePictures(folder, runOn, findSink) {
  const write = (file, runs, options) =>
    writeFileSync(new URL(`adaptive-${file}.svg`, folder), drawBehaviour(runs, options));
  for (const { file, sink, rules = ['delay'], ...options } of SINGLE)
    write(file, runOn(rules, findSink(sink)), { ...options, names: rules });
  write('clients', runOn(['delay', 'aimd'], findSink('clients-8')), {
    title: 'Eight clients share a server with 40 workers, one more every 3 s',
    names: ['delay', 'aimd'],
    phases: () => [{ name: 'clients join', from: 0, to: 21 }],
  });
}

/** The SVG of some runs on one sink. `names` are the labels of their lines. */
function drawBehaviour(evaluations, { title, names, phases, charts }) {
  const rows = laboratoryPicture(evaluations)
    .charts.filter(({ title: name }) => charts?.some((wanted) => name.startsWith(wanted)) ?? true)
    .map((chart) => ({ ...chart, series: renamed(chart.series, names) }));
  const bands = phases?.(rows[0].series[1].points, evaluations[0].seeds[0]) ?? [];
  let top = FIRST_TOP;
  const parts = rows.map((chart, n) => {
    const box = { ...PLOT, top, height: n === 0 ? LIMIT_HEIGHT : OTHER_HEIGHT };
    top += box.height + GAP;
    return { chart, box };
  });
  const last = parts.at(-1).box;
  const bottom = last.top + last.height;
  return svgDocument(title, WIDTH, bottom + 48, [
    ...parts.flatMap(({ chart, box }, n) => drawChart(chart, box, bands, n === 0)),
    ...xAxis(rows[0].x, last, 12),
    textElement(last.left + last.width / 2, bottom + 38, 'seconds', MUTED_CENTRED),
  ]);
}

/** The best fixed limit first, so that it is drawn below the others. */
const renamed = (series, names) => {
  const learnt = series.slice(0, -1).map((one, n) => ({ ...one, name: names[n] }));
  return [series.at(-1), ...learnt];
};

function drawChart({ title, x, y, series }, box, bands, isFirst) {
  const colours = new Map(series.map((one, n) => [one, n === 0 ? BEST_COLOUR : COLOURS[n - 1]]));
  return [
    ...bands.map(({ from, to }) => band(xOf(from, x, box), xOf(to, x, box), box)),
    ...bands
      .filter(() => isFirst)
      .map(({ name, from, to }) =>
        textElement(formatPixels(xOf((from + to) / 2, x, box)), box.top - 6, name, MUTED_CENTRED),
      ),
    ...drawSeries(series, colours, { x, y }, box, isFirst ? 6 : 3),
    textElement(20, box.top - (isFirst ? 26 : 12), LABELS[title] ?? title, 'font-weight="600"'),
    ...endLabels(series, colours, y, box),
  ];
}

const band = (left, right, { top, height }) =>
  `<rect x="${formatPixels(left)}" y="${top}" width="${formatPixels(right - left)}" height="${height}" fill="${BAND_COLOUR}"/>`;

/** The name of each line at its right end; names that would overlap are moved apart. */
function endLabels(series, colours, y, box) {
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
