/**
 * A series is a step function: a value holds until the next point, and `undefined` ends it. A curve is the
 * exception: its points are single measurements, joined by straight lines.
 */

import { roundFloat } from './format.ts';

export type Point = readonly [x: number, y: number | undefined];

/** From back to front. Within a style, a later series is drawn over an earlier one. */
const SERIES_STYLES = ['shade', 'bars', 'line', 'curve'] as const;
export type SeriesStyle = (typeof SERIES_STYLES)[number];

export interface Series {
  readonly name: string;
  readonly style: SeriesStyle;
  /** Ordered by x. */
  readonly points: readonly Point[];
}

export interface Axis {
  /** Quantity and unit. */
  readonly label: string;
  readonly from: number;
  readonly to: number;
  /** A `log` axis gives every power of ten the same width, and still starts at 0. */
  readonly scale?: 'linear' | 'log';
  /** Labels at values of its own, such as times of day; at most `maxTicks`. */
  readonly ticks?: (maxTicks: number) => number[];
  /** Default `formatShort`. */
  readonly format?: (value: number) => string;
}

/** A named interval of the x axis. */
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

/** A horizontal line from 0 on, such as a limit. */
export const levelLine = (name: string, level: number, end: number): Series => ({
  name,
  style: 'line',
  points: [
    [0, level],
    [end, undefined],
  ],
});

export const secondsAxis = (end: number): Axis => ({ label: 'time (s)', from: 0, to: end });

/** The series from back to front. */
export function inDrawOrder(series: readonly Series[]): Series[] {
  return SERIES_STYLES.flatMap((style) => series.filter((candidate) => candidate.style === style));
}

/** Position of a value on an axis, from 0 (start) to 1 (end); values outside are clamped. */
export function positionOf(value: number, { from, to, scale = 'linear' }: Axis): number {
  // log1p instead of log: close to a logarithm from 10 on, and defined at 0.
  const project = scale === 'log' ? Math.log1p : (linear: number) => linear;
  const span = project(to) - project(from);
  return span > 0 ? Math.min(1, Math.max(0, (project(value) - project(from)) / span)) : 0;
}

/** Round values to label an axis with, at most `maxTicks` of them. */
export function ticksOf(axis: Axis, maxTicks: number): number[] {
  if (axis.ticks) return axis.ticks(maxTicks);
  return axis.scale === 'log' ? logTicks(axis, maxTicks) : linearTicks(axis, maxTicks);
}

function linearTicks({ from, to }: Axis, maxTicks: number): number[] {
  if (!(to > from)) return [from];
  const step = roundStep((to - from) / Math.max(1, maxTicks - 1));
  const first = Math.ceil(from / step);
  const count = Math.floor(to / step + EPSILON) - first + 1;
  return Array.from({ length: count }, (_, n) => roundFloat((first + n) * step));
}

function logTicks({ from, to }: Axis, maxTicks: number): number[] {
  const powers = [0];
  for (let power = 1; power <= to; power *= 10) powers.push(power);
  if (to >= 2 * (powers.at(-1) ?? 0)) powers.push(to); // far enough from the last power for a label
  const every = Math.ceil(powers.length / Math.max(1, maxTicks));
  return powers.filter((power, n) => power >= from && n % every === 0);
}

const EPSILON = 1e-9;

/** The smallest of … 1, 2, 5, 10, 20, 50 … that is at least `min`. */
function roundStep(min: number): number {
  const power = 10 ** Math.floor(Math.log10(min));
  const digit = [1, 2, 5].find((candidate) => candidate * power >= min * (1 - EPSILON)) ?? 10;
  return digit * power;
}

/** A round end for an axis that starts at 0 and contains these values. */
export function roundAxisEnd(values: readonly number[]): number {
  const top = values.reduce((highest, value) => Math.max(highest, value), 0);
  if (!(top > 0)) return 1;
  const step = roundStep(top / 8);
  return roundFloat(Math.ceil(top / step - EPSILON) * step);
}
