/**
 * Draws four limits on real servers, narrow enough for a phone: the course of one server, then all by number of clients.
 *
 *     legend
 *     goodput      ───   steady │ 4 of 8 slots │        │ no replies │
 *     in flight    ───
 *     queue: p99            •──•──•──•
 *     queue: fairness       •──•──•──•
 *     knee: goodput         •─────•──•
 *     knee: p99             1  2  4  8 clients
 */

import { roundAxisEnd } from '../../dist/cli/chart/chart.js';
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

const WIDTH = 420;
const PLOT = { left: 56, width: 344 };
const LEGEND_TOP = 146;
const FIRST_TOP = 246;
const GAP = 40;
const LABEL_GAP = 12;
/** Between the two parts: the axis, and the heading of the second part. */
const PART_GAP = 122;

/** The limits in their order; the last one is drawn over the others. */
const COLOURS = ['#cc79a7', '#0072b2', '#d55e00', '#009e73'];
const PALETTES = { shade: [], bars: [], line: COLOURS, curve: COLOURS };

const CLIENTS = [1, 2, 4, 8];
const CLIENTS_AXIS = {
  label: '',
  from: -0.3,
  to: CLIENTS.length - 0.7,
  ticks: () => CLIENTS.map((_, n) => n),
  format: (n) => `${CLIENTS[n]}`,
};

const PHASE_LABELS = { halved: '4 of 8 slots', hung: 'no replies' };

/** `about` are lines on how it was measured. `course` are the phases, and `pictured` the server and clients shown in time. */
export function drawLive(results, { course, pictured, about }) {
  const { server, clients } = pictured;
  const inTime = results.filter((one) => one.server === server && one.clients === clients);
  const names = inTime.map(({ name }) => name);
  const phases = phasesOf(course);
  const time = { label: '', from: 0, to: phases.at(-1).to };
  const timeRow = (label, height, value, yOf) => {
    const series = inTime.map(({ name, seconds }) => ({
      name,
      style: 'line',
      points: seconds.map((second, at) => [at, value(second)]),
    }));
    return { label, height, x: time, y: yOf(valuesOf(series)), series };
  };
  const clientsRow = (kind, label, value, yOf) => {
    const series = names.map((name) => ({
      name,
      style: 'curve',
      points: results
        .filter((one) => one.server === kind && one.name === name)
        .map((one) => [CLIENTS.indexOf(one.clients), value(one.figures.steady)]),
    }));
    return { label, height: 84, x: CLIENTS_AXIS, y: yOf(valuesOf(series)), series };
  };
  const upper = [
    timeRow('goodput, calls/s', 110, ({ goodput }) => goodput, linear),
    timeRow('calls in flight', 110, ({ inFlight }) => inFlight, logarithmic(0)),
  ];
  const lower = [
    clientsRow('queue', 'queue: p99, ms', ({ p99 }) => p99, logarithmic(10)),
    clientsRow('queue', "queue: fairness of the clients (Jain's index)", ({ jain }) => jain, unit),
    clientsRow('knee', 'knee: goodput, calls/s', ({ goodput }) => goodput, linear),
    clientsRow('knee', 'knee: p99, ms', ({ p99 }) => p99, logarithmic(10)),
  ];
  const placed = place(upper, FIRST_TOP);
  const end = bottomOf(placed);
  const placedLower = place(lower, end + PART_GAP);
  const bottom = bottomOf(placedLower);
  return svgDocument('Adaptive limits on real servers', WIDTH, bottom + 50, [
    ...about.map((line, n) => textElement(20, 54 + 19 * n, line, `${MUTED_FILL} font-size="12"`)),
    ...legend(names),
    textElement(20, FIRST_TOP - 36, `${server} with ${clients} clients, over time`, BOLD),
    ...bands(phases, time, placed),
    ...placed.flatMap(drawRow),
    ...xAxis(time, placed.at(-1).box, 9),
    textElement(PLOT.left + PLOT.width / 2, end + 38, 'seconds', MUTED_CENTRED),
    textElement(20, end + 82, 'Steady phase, by number of clients', BOLD),
    ...placedLower.flatMap(drawRow),
    ...xAxis(CLIENTS_AXIS, placedLower.at(-1).box, CLIENTS.length),
    textElement(PLOT.left + PLOT.width / 2, bottom + 38, 'client processes', MUTED_CENTRED),
  ]);
}

const BOLD = 'font-size="14" font-weight="600"';

const valuesOf = (series) =>
  series
    .flatMap(({ points }) => points.map(([, value]) => value))
    .filter((value) => value !== undefined);
const unit = () => ({ label: '', from: 0, to: 1 });
const linear = (values) => ({ label: '', from: 0, to: roundAxisEnd(values) });
const logarithmic = (from) => (values) => ({
  label: '',
  from,
  to: roundAxisEnd(values),
  scale: 'log',
});

function phasesOf(course) {
  let at = 0;
  return course.map(({ phase, seconds }) => {
    at += seconds;
    return { phase, from: at - seconds, to: at };
  });
}

/** Rows below each other, each with the box of its plot. */
function place(rows, top) {
  let next = top;
  return rows.map((row) => {
    const box = { ...PLOT, top: next, height: row.height };
    next += row.height + GAP;
    return { ...row, box };
  });
}

function bottomOf(placed) {
  const { top, height } = placed.at(-1).box;
  return top + height;
}

/** Two entries in a line. */
const legend = (names) =>
  names.flatMap((name, n) => {
    const [x, y] = [20 + 200 * (n % 2), LEGEND_TOP + 20 * Math.floor(n / 2)];
    const swatch = `<rect x="${x}" y="${y - 6}" width="22" height="4" fill="${COLOURS[n]}"/>`;
    return [swatch, textElement(x + 30, y, name)];
  });

/** The phases that have a name, behind the plots, with their names above the first one. */
const bands = (phases, x, placed) =>
  phases
    .filter(({ phase }) => phase in PHASE_LABELS)
    .flatMap(({ phase, from, to }) => {
      const [left, right] = [xOf(from, x, PLOT), xOf(to, x, PLOT)];
      const [at, width] = [formatPixels(left), formatPixels(right - left)];
      const middle = formatPixels((left + right) / 2);
      return [
        ...placed.map(
          ({ box }) =>
            `<rect x="${at}" y="${box.top}" width="${width}" height="${box.height}" fill="${BAND_COLOUR}"/>`,
        ),
        textElement(middle, placed[0].box.top - LABEL_GAP, PHASE_LABELS[phase], MUTED_CENTRED),
      ];
    });

function drawRow({ label, x, y, series, box }) {
  return [
    ...drawSeries(series, coloursOf(series, PALETTES), { x, y }, box, y.scale === 'log' ? 7 : 5),
    textElement(20, box.top - LABEL_GAP, label),
  ];
}
