/**
 * What a picture shows, apart from how it is drawn: terminal.ts and svg.ts both draw a `Chart`.
 *
 * A series says what held from when on, as everything here does that is counted by the second or
 * changed by an event: a value stays until the next point, and `undefined` ends it. Only a curve is
 * different: its points are all that was measured, and what lies between them is a guess.
 */

export type Point = readonly [x: number, y: number | undefined];

/** Shades stand behind, then bars, lines and curves; in each, later before earlier. */
const SERIES_STYLES = ['shade', 'bars', 'line', 'curve'] as const;
export type SeriesStyle = (typeof SERIES_STYLES)[number];

export interface Series {
  readonly name: string;
  readonly style: SeriesStyle;
  /** In the order of x. */
  readonly points: readonly Point[];
}

export interface Axis {
  /** What is measured, and in which unit. */
  readonly label: string;
  readonly from: number;
  readonly to: number;
  /** A `log` axis gives every power of ten the same room, and starts at 0 all the same. */
  readonly scale?: 'linear' | 'log';
}

/** A stretch of the x axis that has a name. */
export interface Phase {
  readonly name: string;
  readonly from: number;
  readonly to: number;
}

export interface Chart {
  readonly title: string;
  readonly x: Axis;
  readonly y: Axis;
  readonly series: readonly Series[];
  readonly phases?: readonly Phase[];
}

/** The series from the one that stands behind all to the one before all. */
export function inDrawOrder(series: readonly Series[]): Series[] {
  return SERIES_STYLES.flatMap((style) => series.filter((candidate) => candidate.style === style));
}

/** Where a value stands on an axis: 0 at its start, 1 at its end, never outside. */
export function positionOf(value: number, { from, to, scale = 'linear' }: Axis): number {
  // log1p rather than log: it is as good as a logarithm from ten on, and has a place for 0.
  const bent = scale === 'log' ? Math.log1p : (plain: number) => plain;
  const span = bent(to) - bent(from);
  return span > 0 ? Math.min(1, Math.max(0, (bent(value) - bent(from)) / span)) : 0;
}

/** The values worth a label: round ones, and no more of them than fit. */
export function ticksOf(axis: Axis, most: number): number[] {
  return axis.scale === 'log' ? logTicks(axis, most) : linearTicks(axis, most);
}

function linearTicks({ from, to }: Axis, most: number): number[] {
  if (!(to > from)) return [from];
  const step = roundStep((to - from) / Math.max(1, most - 1));
  const first = Math.ceil(from / step);
  const count = Math.floor(to / step + EPSILON) - first + 1;
  return Array.from({ length: count }, (_, n) => roundFloat((first + n) * step));
}

function logTicks({ from, to }: Axis, most: number): number[] {
  const powers = [0];
  for (let power = 1; power <= to; power *= 10) powers.push(power);
  if (to >= 2 * (powers.at(-1) ?? 0)) powers.push(to); // the end is worth a label if there is room
  const every = Math.ceil(powers.length / Math.max(1, most));
  return powers.filter((power, n) => power >= from && n % every === 0);
}

const EPSILON = 1e-9;

/** Three tenths are 0.30000000000000004, which nobody wants to read. */
const roundFloat = (value: number): number => Number(value.toPrecision(12));

/** The smallest of … 1, 2, 5, 10, 20, 50 … that is no smaller than this. */
function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  const digit = [1, 2, 5].find((candidate) => candidate * power >= least * (1 - EPSILON)) ?? 10;
  return digit * power;
}

/** A round end for an axis that starts at 0 and has to hold these values. */
export function roundAxisEnd(values: readonly number[]): number {
  const top = values.reduce((highest, value) => Math.max(highest, value), 0);
  if (!(top > 0)) return 1;
  const step = roundStep(top / 8);
  return roundFloat(Math.ceil(top / step - EPSILON) * step);
}

/** A figure as short as a label should be: 0.25, 120, 5000, 20k, 3M. */
export function formatShort(value: number): string {
  const [unit, name] = value >= 1e6 ? [1e6, 'M'] : value >= 1e4 ? [1e3, 'k'] : [1, ''];
  return `${Number((value / unit).toPrecision(4))}${name}`;
}
