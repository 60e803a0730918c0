/**
 * The figures of limiters as text for Prometheus, for those who have no OpenTelemetry.
 *
 *     const metrics = prometheus([api, sink]);
 *     server.get('/metrics', (_, reply) => reply.type(metrics.contentType).send(metrics.text()));
 *
 * Nothing is kept up to date for it: limiters count anyway, and the text is made when it is asked
 * for. The format is 0.0.4, which every scraper reads; everything is in base units.
 */

import { Fields } from '../../core/options.ts';
import type { Histogram } from '../../limiter/stats.ts';
import { FIGURES, type Figure, type Labels, RTT, type Timing, WAIT } from './figures.ts';
import {
  type AnyLimiter,
  listOf,
  type Reading,
  SHOWN_KEYS_MAX_DEFAULT,
  SHOWN_KEYS_MAX_MAX,
  Watchlist,
} from './watch.ts';

/** How much of a limit is shown. */
export interface PrometheusOptions {
  /** Of limits that learn: the most keys shown one by one. 0 shows none. Default 20. */
  readonly keysMax?: number;
}

/** Figures of limiters, for a scrape. */
export interface Prometheus {
  /** What to send along as `Content-Type`. */
  readonly contentType: string;
  /** Everything as it stands now. */
  text(): string;
  /** Shows one more. @throws {ConfigError} if another one has its name. */
  add(limiter: AnyLimiter): void;
  /** Shows one less, and stops listening to it. */
  remove(limiter: AnyLimiter): void;
  /** Removes all. */
  stop(): void;
}

const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Shows one limiter or several. @throws {ConfigError} if two have the same name. */
export function prometheus(
  limiters: AnyLimiter | readonly AnyLimiter[],
  options: PrometheusOptions = {},
): Prometheus {
  const fields = new Fields('', options);
  const range = { min: 0, max: SHOWN_KEYS_MAX_MAX, whole: true };
  const list = new Watchlist(fields.number('keysMax', range, SHOWN_KEYS_MAX_DEFAULT));
  fields.done();
  list.addAll(listOf(limiters));
  return {
    contentType: CONTENT_TYPE,
    text: () => render(list.read()),
    add: (limiter) => list.add(limiter),
    remove: (limiter) => list.remove(limiter),
    stop: () => list.stop(),
  };
}

function render(readings: readonly Reading[]): string {
  const numbers = FIGURES.flatMap((figure) => numberLines(figure, readings));
  const timings = [WAIT, RTT].flatMap((timing) => timingLines(timing, readings));
  return [...numbers, ...timings].map((line) => `${line}\n`).join('');
}

function numberLines(figure: Figure, readings: readonly Reading[]): string[] {
  const name = nameOf(figure);
  const points = readings.flatMap((reading) => figure.points(reading));
  const lines = points.map(({ labels, value }) => sample(name, labels, value));
  return family(name, figure.kind, figure.help, lines);
}

function timingLines(timing: Timing, readings: readonly Reading[]): string[] {
  const name = `${plain(timing.name)}_seconds`;
  const lines = readings.flatMap(({ limit, stats }) =>
    histogram(name, { limit }, timing.read(stats)),
  );
  return family(name, 'histogram', timing.help, lines);
}

/** Each bucket counts all that were no longer than its bound, so each holds those before it. */
function histogram(name: string, labels: Labels, { boundsMs, counts, sumMs }: Histogram): string[] {
  let sum = 0;
  const buckets = counts.map((count, n) => {
    sum += count;
    const le = n < boundsMs.length ? String(boundsMs[n] / 1000) : '+Inf';
    return sample(`${name}_bucket`, { ...labels, le }, sum);
  });
  const ends = [sample(`${name}_sum`, labels, sumMs / 1000), sample(`${name}_count`, labels, sum)];
  return [...buckets, ...ends];
}

/** What it is, once, before its values; nothing at all if there are none. */
function family(name: string, type: string, help: string, lines: readonly string[]): string[] {
  return lines.length === 0 ? [] : [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines];
}

const plain = (name: string): string => name.replaceAll('.', '_');

const nameOf = ({ name, unit, kind }: Figure): string =>
  `${plain(name)}${unit === 'By' ? '_bytes' : ''}${kind === 'counter' ? '_total' : ''}`;

const sample = (name: string, labels: Labels, value: number): string =>
  `${name}{${Object.entries(labels).map(labelled).join(',')}} ${numeral(value)}`;

const labelled = ([name, value]: [string, string]): string => `${name}="${escaped(value)}"`;

const escaped = (value: string): string =>
  value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');

const numeral = (value: number): string =>
  Math.abs(value) === Infinity ? `${value < 0 ? '-' : '+'}Inf` : String(value);
