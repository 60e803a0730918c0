/**
 * Draws charts as one SVG picture, one under the other: for a README, a ticket, a slide.
 *
 *     title
 *     ┌ chart title                              legend ┐
 *     │ y label                                         │
 *     │  ┤▒▒▒▒▒▒▒▒▒▒▒▒┆                                 │   phases are bands behind the plot,
 *     │  ┤▒▒ busy ▒▒▒▒┆  recovering                     │   named at their top
 *     │  └────────────────────────────────────── x label│
 *     └ … the next chart
 *
 * The text is an ordinary string without a reference to anything outside it: it can be kept,
 * compared and opened anywhere.
 */

import {
  type Axis,
  backToFront,
  type Chart,
  type Look,
  type Phase,
  positionOf,
  type Series,
  short,
  ticksOf,
} from './chart.ts';

export interface Picture {
  readonly title: string;
  readonly charts: readonly Chart[];
}

interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

const WIDTH = 860;
const MARGIN = { left: 64, right: 24 };
const TITLE_HEIGHT = 48;

/** Above a plot its title, legend and y label; below it the x labels. */
const HEAD_HEIGHT = 58;
const FOOT_HEIGHT = 54;

/** A single chart may be tall; of several, all should be seen at once. */
const PLOT_HEIGHT_ALONE = 320;
const PLOT_HEIGHT = 150;

const INK = '#1f2933';
const FAINT_INK = '#5b6770';
const GRID = '#d9dfe5';
const BAND = '#f8f9fa';
const SHADES = ['#e0e6ec', '#dcebdf'];
const BARS = ['#4a86c5', '#7fae7a'];
/** Told apart by eyes that do not see all colours, too (after Okabe and Ito). */
const LINES = ['#d55e00', '#0072b2', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#5b6770'];

export function drawSvg({ title, charts }: Picture): string {
  const plotHeight = charts.length > 1 ? PLOT_HEIGHT : PLOT_HEIGHT_ALONE;
  const chartHeight = HEAD_HEIGHT + plotHeight + FOOT_HEIGHT;
  const height = TITLE_HEIGHT + charts.length * chartHeight;
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" fill="${INK}">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>`,
    text(20, 32, title, 'font-size="18" font-weight="600"'),
    ...charts.flatMap((chart, n) => {
      const top = TITLE_HEIGHT + n * chartHeight + HEAD_HEIGHT;
      const width = WIDTH - MARGIN.left - MARGIN.right;
      return drawPlot(chart, { left: MARGIN.left, top, width, height: plotHeight });
    }),
    '</svg>',
  ].join('\n')}\n`;
}

function drawPlot(chart: Chart, box: Box): string[] {
  const colours = coloursOf(chart.series);
  const paths = (looks: readonly Look[]) =>
    backToFront(chart.series)
      .filter(({ look }) => looks.includes(look))
      .map((series) => path(series, colours.get(series), chart, box));
  return [
    text(20, box.top - 36, chart.title, 'font-size="14" font-weight="600"'),
    text(20, box.top - 14, chart.y.label, `fill="${FAINT_INK}"`),
    ...legend(chart.series, colours, box),
    ...(chart.phases ?? []).flatMap((phase) => band(phase, chart, box)),
    ...paths(['shade']),
    ...yGrid(chart.y, box), // over the shades, which would hide it, and behind the rest
    ...paths(['bars', 'line', 'curve']),
    ...(chart.phases ?? []).map((phase) => bandName(phase, chart, box)),
    ...xAxis(chart.x, box),
  ];
}

/** Each look has its own colours, handed out in the order of the series. */
function coloursOf(series: readonly Series[]): Map<Series, string> {
  const palettes = { shade: SHADES, bars: BARS, line: LINES, curve: LINES };
  const used = { shade: 0, bars: 0, line: 0, curve: 0 };
  return new Map(
    series.map((one) => {
      const palette = palettes[one.look];
      return [one, palette[used[one.look]++ % palette.length]];
    }),
  );
}

const xOf = (value: number, axis: Axis, { left, width }: Box): number =>
  left + positionOf(value, axis) * width;

const yOf = (value: number, axis: Axis, { top, height }: Box): number =>
  top + (1 - positionOf(value, axis)) * height;

function path({ look, points }: Series, colour: string | undefined, chart: Chart, box: Box) {
  if (look === 'curve') return curve(points, colour, chart, box);
  const stretches = stretchesOf(points, chart.x.to);
  if (look === 'line') {
    const d = stretches.map((stretch) => steps(stretch, chart, box)).join('');
    return `<path d="${d}" fill="none" stroke="${colour}" stroke-width="2.5" stroke-linejoin="round"/>`;
  }
  const floor = px(box.top + box.height);
  const areas = stretches.map((stretch) => {
    const [[begin]] = stretch.points;
    return `${steps(stretch, chart, box)}V${floor}H${px(xOf(begin, chart.x, box))}Z`;
  });
  return `<path d="${areas.join('')}" fill="${colour}"/>`;
}

/** A dot for each thing measured; the slopes between only lead the eye from one to the next. */
function curve(points: Series['points'], colour: string | undefined, chart: Chart, box: Box) {
  const dots = stretchesOf(points, chart.x.to).map((stretch) =>
    stretch.points.map(([x, y]) => [px(xOf(x, chart.x, box)), px(yOf(y, chart.y, box))]),
  );
  const d = dots.map((stretch) => `M${stretch.map((dot) => dot.join(' ')).join('L')}`).join('');
  return [
    `<path d="${d}" fill="none" stroke="${colour}" stroke-width="2" stroke-linejoin="round"/>`,
    ...dots.flat().map(([x, y]) => `<circle cx="${x}" cy="${y}" r="3.5" fill="${colour}"/>`),
  ].join('');
}

/** Steps, not slopes: a value holds until the next one. */
function steps({ points, end }: Stretch, chart: Chart, box: Box): string {
  const [first, ...rest] = points.map(([x, y]) => ({
    x: px(xOf(x, chart.x, box)),
    y: px(yOf(y, chart.y, box)),
  }));
  const turns = rest.map(({ x, y }) => `H${x}V${y}`).join('');
  return `M${first.x} ${first.y}${turns}H${px(xOf(end, chart.x, box))}`;
}

/** Points that follow each other without a gap, and where the last of them ends. */
interface Stretch {
  readonly points: [x: number, y: number][];
  end: number;
}

function stretchesOf(points: Series['points'], end: number): Stretch[] {
  const stretches: Stretch[] = [];
  let current: Stretch | undefined;
  for (const [x, y] of points) {
    if (y === undefined) {
      if (current) current.end = x;
      current = undefined;
    } else if (current) {
      current.points.push([x, y]);
    } else {
      current = { points: [[x, y]], end };
      stretches.push(current);
    }
  }
  return stretches;
}

function yGrid(y: Axis, box: Box): string[] {
  return ticksOf(y, box.height > PLOT_HEIGHT ? 7 : 5).flatMap((tick) => {
    const at = px(yOf(tick, y, box));
    return [
      `<path d="M${box.left} ${at}h${box.width}" stroke="${GRID}"/>`,
      text(box.left - 8, Number(at) + 4, short(tick), `text-anchor="end" fill="${FAINT_INK}"`),
    ];
  });
}

function xAxis(x: Axis, box: Box): string[] {
  const floor = box.top + box.height;
  return [
    `<path d="M${box.left} ${floor}h${box.width}" stroke="${FAINT_INK}"/>`,
    ...ticksOf(x, 12).flatMap((tick) => {
      const at = px(xOf(tick, x, box));
      return [
        `<path d="M${at} ${floor}v5" stroke="${FAINT_INK}"/>`,
        text(at, floor + 19, short(tick), `text-anchor="middle" fill="${FAINT_INK}"`),
      ];
    }),
    text(box.left + box.width / 2, floor + 37, x.label, `text-anchor="middle" fill="${FAINT_INK}"`),
  ];
}

function band({ from, to }: Phase, { x }: Chart, box: Box): string[] {
  const [left, right] = [xOf(from, x, box), xOf(to, x, box)];
  const size = `width="${px(right - left)}" height="${box.height}"`;
  return [`<rect x="${px(left)}" y="${box.top}" ${size} fill="${BAND}"/>`];
}

function bandName({ name, from, to }: Phase, { x }: Chart, box: Box): string {
  const middle = (xOf(from, x, box) + xOf(to, x, box)) / 2;
  return text(middle, box.top - 6, name, `text-anchor="middle" fill="${FAINT_INK}"`);
}

/** From the right edge to the left; text is measured by counting, which is near enough. */
function legend(series: readonly Series[], colours: Map<Series, string>, box: Box): string[] {
  let right = box.left + box.width;
  return [...series].reverse().map((one) => {
    const left = right - one.name.length * 7 - 22;
    right = left - 18;
    const tall = one.look === 'line' || one.look === 'curve' ? 3 : 12;
    const swatch = `<rect x="${left}" y="${box.top - 40 - tall / 2}" width="16" height="${tall}" fill="${colours.get(one)}"/>`;
    return swatch + text(left + 22, box.top - 36, one.name);
  });
}

function text(x: number | string, y: number, words: string, more = ''): string {
  return `<text x="${x}" y="${y}"${more && ` ${more}`}>${escaped(words)}</text>`;
}

/** A tenth of a pixel is finer than anybody sees, and keeps the file small. */
const px = (value: number): string => String(Math.round(value * 10) / 10);

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&apos;',
};

const escaped = (words: string): string => words.replace(/[&<>"']/g, (sign) => ENTITIES[sign]);
