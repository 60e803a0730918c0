/**
 * The parts every SVG picture is made of: axes, steps and areas in a box, and text that is safe to write.
 *
 * svg.ts puts charts one under the other, panels.ts small ones side by side.
 */

import { type Axis, type Chart, formatShort, positionOf, type Series, ticksOf } from './chart.ts';

export interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

const TEXT_COLOUR = '#1f2933';
export const MUTED_COLOUR = '#5b6770';
const GRID_COLOUR = '#d9dfe5';
const SHADE_COLOURS = ['#e0e6ec', '#dcebdf'];
const BAR_COLOURS = ['#4a86c5', '#7fae7a'];
/** Told apart by eyes that do not see all colours, too (after Okabe and Ito). */
const LINE_COLOURS = ['#d55e00', '#0072b2', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#5b6770'];

/** A whole picture: its words are read aloud to those who cannot see it, and its ground is white in any mode. */
export function svgDocument(title: string, width: number, height: number, parts: string[]): string {
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" fill="${TEXT_COLOUR}">`,
    `<title>${escapeXml(title)}</title>`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    textElement(20, 32, title, 'font-size="18" font-weight="600"'),
    ...parts,
    '</svg>',
  ].join('\n')}\n`;
}

/** What a series is drawn against. */
export type Axes = Pick<Chart, 'x' | 'y'>;

/** Each look has its own colours, handed out in the order of the series. */
export function coloursOf(series: readonly Series[]): Map<Series, string> {
  const palettes = {
    shade: SHADE_COLOURS,
    bars: BAR_COLOURS,
    line: LINE_COLOURS,
    curve: LINE_COLOURS,
  };
  const used = { shade: 0, bars: 0, line: 0, curve: 0 };
  return new Map(
    series.map((one) => {
      const palette = palettes[one.style];
      return [one, palette[used[one.style]++ % palette.length]];
    }),
  );
}

export const xOf = (value: number, axis: Axis, { left, width }: Box): number =>
  left + positionOf(value, axis) * width;

const yOf = (value: number, axis: Axis, { top, height }: Box): number =>
  top + (1 - positionOf(value, axis)) * height;

export function seriesPath(
  { style, points }: Series,
  colour: string | undefined,
  axes: Axes,
  box: Box,
): string {
  if (style === 'curve') return curvePath(points, colour, axes, box);
  const stretches = segmentsOf(points, axes.x.to);
  if (style === 'line') {
    const d = stretches.map((stretch) => stepPath(stretch, axes, box)).join('');
    return `<path d="${d}" fill="none" stroke="${colour}" stroke-width="2.5" stroke-linejoin="round"/>`;
  }
  const floor = formatPixels(box.top + box.height);
  const areas = stretches.map((stretch) => {
    const [[begin]] = stretch.points;
    return `${stepPath(stretch, axes, box)}V${floor}H${formatPixels(xOf(begin, axes.x, box))}Z`;
  });
  return `<path d="${areas.join('')}" fill="${colour}"/>`;
}

/** A dot for each thing measured; the slopes between only lead the eye from one to the next. */
function curvePath(
  points: Series['points'],
  colour: string | undefined,
  axes: Axes,
  box: Box,
): string {
  const dots = segmentsOf(points, axes.x.to).map((stretch) =>
    stretch.points.map(([x, y]) => [
      formatPixels(xOf(x, axes.x, box)),
      formatPixels(yOf(y, axes.y, box)),
    ]),
  );
  const d = dots.map((stretch) => `M${stretch.map((dot) => dot.join(' ')).join('L')}`).join('');
  return [
    `<path d="${d}" fill="none" stroke="${colour}" stroke-width="2" stroke-linejoin="round"/>`,
    ...dots.flat().map(([x, y]) => `<circle cx="${x}" cy="${y}" r="3.5" fill="${colour}"/>`),
  ].join('');
}

/** Steps, not slopes: a value holds until the next one. */
function stepPath({ points, end }: Segment, { x: across, y: up }: Axes, box: Box): string {
  const [first, ...rest] = points.map(([x, y]) => ({
    x: formatPixels(xOf(x, across, box)),
    y: formatPixels(yOf(y, up, box)),
  }));
  const turns = rest.map(({ x, y }) => `H${x}V${y}`).join('');
  return `M${first.x} ${first.y}${turns}H${formatPixels(xOf(end, across, box))}`;
}

/** Points that follow each other without a gap, and where the last of them ends. */
interface Segment {
  readonly points: [x: number, y: number][];
  end: number;
}

function segmentsOf(points: Series['points'], end: number): Segment[] {
  const stretches: Segment[] = [];
  let current: Segment | undefined;
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

export function yGrid(y: Axis, box: Box, most: number): string[] {
  return ticksOf(y, most).flatMap((tick) => {
    const at = formatPixels(yOf(tick, y, box));
    return [
      `<path d="M${box.left} ${at}h${box.width}" stroke="${GRID_COLOUR}"/>`,
      textElement(
        box.left - 8,
        Number(at) + 4,
        formatShort(tick),
        `text-anchor="end" fill="${MUTED_COLOUR}"`,
      ),
    ];
  });
}

/** The line the plot stands on, with round values under it. */
export function xAxis(x: Axis, box: Box, most: number): string[] {
  const floor = box.top + box.height;
  return [
    `<path d="M${box.left} ${floor}h${box.width}" stroke="${MUTED_COLOUR}"/>`,
    ...ticksOf(x, most).flatMap((tick) => {
      const at = formatPixels(xOf(tick, x, box));
      return [
        `<path d="M${at} ${floor}v5" stroke="${MUTED_COLOUR}"/>`,
        textElement(
          at,
          floor + 19,
          formatShort(tick),
          `text-anchor="middle" fill="${MUTED_COLOUR}"`,
        ),
      ];
    }),
  ];
}

export function textElement(x: number | string, y: number, words: string, more = ''): string {
  return `<text x="${x}" y="${y}"${more && ` ${more}`}>${escapeXml(words)}</text>`;
}

/** A tenth of a pixel is finer than anybody sees, and keeps the file small. */
export const formatPixels = (value: number): string => String(Math.round(value * 10) / 10);

const XML_ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&apos;',
};

const escapeXml = (words: string): string =>
  words.replace(/[&<>"']/g, (sign) => XML_ENTITIES[sign]);
