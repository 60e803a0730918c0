import {
  type Axis,
  type Chart,
  inDrawOrder,
  positionOf,
  type Series,
  type SeriesStyle,
  ticksOf,
} from './chart.ts';
import { formatShort, roundTo } from './format.ts';

export interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

const TEXT_COLOUR = '#1f2933';
const MUTED_COLOUR = '#5b6770';
export const MUTED_FILL = `fill="${MUTED_COLOUR}"`;
const MUTED_STROKE = `stroke="${MUTED_COLOUR}"`;
const GRID_COLOUR = '#d9dfe5';
/** The background of a phase. */
export const BAND_COLOUR = '#f3f5f7';
/** Safe for colour-blind readers (after Okabe and Ito). */
const LINE_COLOURS = ['#d55e00', '#0072b2', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#5b6770'];

type Palettes = Readonly<Record<SeriesStyle, readonly string[]>>;

const PALETTES: Palettes = {
  shade: ['#e0e6ec', '#dcebdf'],
  bars: ['#4a86c5', '#7fae7a'],
  line: LINE_COLOURS,
  curve: LINE_COLOURS,
};

/** Colours in dark mode, instead of the light ones. Others are visible on both. */
const DARK_COLOURS: Readonly<Record<string, string>> = {
  '#ffffff': '#0d1117',
  [MUTED_COLOUR]: '#9aa6b2',
  [GRID_COLOUR]: '#30363d',
  '#e0e6ec': '#2d333b',
  '#dcebdf': '#21352a',
  [BAND_COLOUR]: '#161b22',
  '#0072b2': '#4aa3e0',
};

const DARK_STYLE = `<style>@media (prefers-color-scheme: dark) { svg { fill: #e6edf3 } ${Object.entries(
  DARK_COLOURS,
)
  .flatMap(([light, dark]) =>
    ['fill', 'stroke'].map((name) => `[${name}="${light}"] { ${name}: ${dark} }`),
  )
  .join(' ')} }</style>`;

/** A complete SVG, light or dark as its reader prefers, with a title for screen readers. */
export function svgDocument(title: string, width: number, height: number, parts: string[]): string {
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" fill="${TEXT_COLOUR}">`,
    `<title>${escapeXml(title)}</title>`,
    DARK_STYLE,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    textElement(20, 32, title, 'font-size="18" font-weight="600"'),
    ...parts,
    '</svg>',
  ].join('\n')}\n`;
}

type Axes = Pick<Chart, 'x' | 'y'>;

/** Assigns the colours of each style's palette in the order of the series. */
export function coloursOf(
  series: readonly Series[],
  palettes: Palettes = PALETTES,
): Map<Series, string> {
  const used = { shade: 0, bars: 0, line: 0, curve: 0 };
  return new Map(
    series.map((one) => {
      const palette = palettes[one.style];
      return [one, palette[used[one.style]++ % palette.length]];
    }),
  );
}

/** The series of one plot from back to front. The grid is drawn over the shades, which would cover it. */
export function drawSeries(
  series: readonly Series[],
  colours: ReadonlyMap<Series, string>,
  axes: Axes,
  box: Box,
  maxTicks: number,
): string[] {
  const paths = (isShade: boolean) =>
    inDrawOrder(series)
      .filter(({ style }) => (style === 'shade') === isShade)
      .map((one) => seriesPath(one, colours.get(one), axes, box));
  return [...paths(true), ...yGrid(axes.y, box, maxTicks), ...paths(false)];
}

export const xOf = (value: number, axis: Axis, { left, width }: Box): number =>
  left + positionOf(value, axis) * width;

const yOf = (value: number, axis: Axis, { top, height }: Box): number =>
  top + (1 - positionOf(value, axis)) * height;

function seriesPath(
  { style, points }: Series,
  colour: string | undefined,
  axes: Axes,
  box: Box,
): string {
  const segments = segmentsOf(points, axes.x.to);
  if (style === 'curve') return curvePath(segments, colour, axes, box);
  if (style === 'line') {
    const d = segments.map((segment) => stepPath(segment, axes, box)).join('');
    return `<path d="${d}" fill="none" stroke="${colour}" stroke-width="2.5" stroke-linejoin="round"/>`;
  }
  const floor = formatPixels(box.top + box.height);
  const areas = segments.map((segment) => {
    const [[begin]] = segment.points;
    return `${stepPath(segment, axes, box)}V${floor}H${formatPixels(xOf(begin, axes.x, box))}Z`;
  });
  return `<path d="${areas.join('')}" fill="${colour}"/>`;
}

/** One dot per measurement, joined by straight lines. */
function curvePath(
  segments: readonly Segment[],
  colour: string | undefined,
  axes: Axes,
  box: Box,
): string {
  const dots = segments.map((segment) => pixelsOf(segment, axes, box));
  const d = dots.map((segment) => `M${segment.map((dot) => dot.join(' ')).join('L')}`).join('');
  return [
    `<path d="${d}" fill="none" stroke="${colour}" stroke-width="2" stroke-linejoin="round"/>`,
    ...dots.flat().map(([x, y]) => `<circle cx="${x}" cy="${y}" r="3.5" fill="${colour}"/>`),
  ].join('');
}

/** A step line: a value holds until the next one. */
function stepPath(segment: Segment, axes: Axes, box: Box): string {
  const [first, ...rest] = pixelsOf(segment, axes, box);
  const steps = rest.map(([x, y]) => `H${x}V${y}`).join('');
  return `M${first.join(' ')}${steps}H${formatPixels(xOf(segment.end, axes.x, box))}`;
}

const pixelsOf = ({ points }: Segment, axes: Axes, box: Box): [x: string, y: string][] =>
  points.map(([x, y]) => [formatPixels(xOf(x, axes.x, box)), formatPixels(yOf(y, axes.y, box))]);

/** Points without a gap between them, and where the last value ends. */
interface Segment {
  readonly points: [x: number, y: number][];
  end: number;
}

function segmentsOf(points: Series['points'], end: number): Segment[] {
  const segments: Segment[] = [];
  let current: Segment | undefined;
  for (const [x, y] of points) {
    if (y === undefined) {
      if (current) current.end = x;
      current = undefined;
    } else if (current) {
      current.points.push([x, y]);
    } else {
      current = { points: [[x, y]], end };
      segments.push(current);
    }
  }
  return segments;
}

function yGrid(y: Axis, box: Box, maxTicks: number): string[] {
  return ticksOf(y, maxTicks).flatMap((tick) => {
    const at = formatPixels(yOf(tick, y, box));
    return [
      `<path d="M${box.left} ${at}h${box.width}" stroke="${GRID_COLOUR}"/>`,
      textElement(
        box.left - 8,
        Number(at) + 4,
        formatShort(tick),
        `text-anchor="end" ${MUTED_FILL}`,
      ),
    ];
  });
}

export const MUTED_CENTRED = `text-anchor="middle" ${MUTED_FILL}`;

export function xAxis(x: Axis, box: Box, maxTicks: number): string[] {
  const floor = box.top + box.height;
  return [
    `<path d="M${box.left} ${floor}h${box.width}" ${MUTED_STROKE}/>`,
    ...ticksOf(x, maxTicks).flatMap((tick) => {
      const at = formatPixels(xOf(tick, x, box));
      return [
        `<path d="M${at} ${floor}v5" ${MUTED_STROKE}/>`,
        textElement(at, floor + 19, (x.format ?? formatShort)(tick), MUTED_CENTRED),
      ];
    }),
  ];
}

export function textElement(x: number | string, y: number, text: string, attributes = ''): string {
  return `<text x="${x}" y="${y}"${attributes && ` ${attributes}`}>${escapeXml(text)}</text>`;
}

/** A tenth of a pixel: below what is visible, and short enough to keep the file small. */
export const formatPixels = (value: number): string => String(roundTo(value, 1));

const XML_ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&apos;',
};

const escapeXml = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => XML_ENTITIES[character]);
