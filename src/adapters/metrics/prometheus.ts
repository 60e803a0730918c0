/**
 * The figures of limiters as text for Prometheus, for those who have no OpenTelemetry.
 *
 *     const metrics = prometheus([api, sink]);
 *     server.get('/metrics', (_, reply) => reply.type(metrics.contentType).send(metrics.text()));
 *
 * Nothing is kept up to date for it: limiters count anyway, and the text is made when it is asked
 * for. The format is 0.0.4, which every scraper reads; everything is in base units.
 */

import type { MetricFamily } from '../../core/metric-family.ts';
import { OptionReader } from '../../core/options.ts';
import type { Histogram } from '../../limiter/stats.ts';
import {
  type DurationMetric,
  type Labels,
  METRICS,
  type Metric,
  RTT_DURATION,
  WAIT_DURATION,
} from './figures.ts';
import {
  type AnyLimiter,
  DEFAULT_MAX_KEYS,
  type LimiterSnapshot,
  MAX_KEYS_CEILING,
  MetricCollector,
  toLimiterList,
} from './watch.ts';

/** How much of a limit is shown. */
export interface PrometheusOptions {
  /** Of limits that learn: the most keys shown one by one. 0 shows none. Default 20. */
  readonly maxKeys?: number;
}

/** Figures of limiters, for a scrape. */
export interface PrometheusExporter {
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
): PrometheusExporter {
  const fields = new OptionReader('', options);
  const range = { min: 0, max: MAX_KEYS_CEILING, integer: true };
  const list = new MetricCollector(fields.number('maxKeys', range, DEFAULT_MAX_KEYS));
  fields.finish();
  list.addAll(toLimiterList(limiters));
  return {
    contentType: CONTENT_TYPE,
    text: () => renderText(list.collect()),
    add: (limiter) => list.add(limiter),
    remove: (limiter) => list.remove(limiter),
    stop: () => list.stop(),
  };
}

function renderText(readings: readonly LimiterSnapshot[]): string {
  const numbers = METRICS.flatMap((figure) => metricLines(figure, readings));
  const timings = [WAIT_DURATION, RTT_DURATION].flatMap((timing) =>
    durationLines(timing, readings),
  );
  return [...numbers, ...timings].map((line) => `${line}\n`).join('');
}

function metricLines(figure: Metric, readings: readonly LimiterSnapshot[]): string[] {
  const name = metricName(figure);
  const points = readings.flatMap((reading) => figure.dataPoints(reading));
  const lines = points.map(({ labels, value }) => sampleLine(name, labels, value));
  return familyLines(name, figure.kind, figure.help, lines);
}

function durationLines(timing: DurationMetric, readings: readonly LimiterSnapshot[]): string[] {
  const name = `${withUnderscores(timing.name)}_seconds`;
  const lines = readings.flatMap(({ limit, stats }) =>
    histogramLines(name, { limit }, timing.read(stats)),
  );
  return familyLines(name, 'histogram', timing.help, lines);
}

/** Each bucket counts all that were no longer than its bound, so each holds those before it. */
function histogramLines(
  name: string,
  labels: Labels,
  { boundsMs, counts, sumMs }: Histogram,
): string[] {
  let sum = 0;
  const buckets = counts.map((count, n) => {
    sum += count;
    const le = n < boundsMs.length ? String(boundsMs[n] / 1000) : '+Inf';
    return sampleLine(`${name}_bucket`, { ...labels, le }, sum);
  });
  const ends = [
    sampleLine(`${name}_sum`, labels, sumMs / 1000),
    sampleLine(`${name}_count`, labels, sum),
  ];
  return [...buckets, ...ends];
}

/** What it is, once, before its values; nothing at all if there are none. */
function familyLines(name: string, type: string, help: string, lines: readonly string[]): string[] {
  return lines.length === 0 ? [] : [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines];
}

const withUnderscores = (name: string): string => name.replaceAll('.', '_');

const metricName = ({ name, unit, kind }: Metric): string =>
  `${withUnderscores(name)}${unit === 'By' ? '_bytes' : ''}${kind === 'counter' ? '_total' : ''}`;

/** Families of other components in the same format, such as those of the daemon. */
export const renderMetricFamilies = (families: readonly MetricFamily[]): string =>
  families
    .flatMap(({ name, kind, help, samples }) =>
      familyLines(
        name,
        kind,
        help,
        samples.map(([labels, value]) => sampleLine(name, labels, value)),
      ),
    )
    .map((line) => `${line}\n`)
    .join('');

function sampleLine(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(labelPair).join(',');
  return `${name}${pairs && `{${pairs}}`} ${formatNumber(value)}`;
}

const labelPair = ([name, value]: [string, string]): string => `${name}="${escapeLabel(value)}"`;

const escapeLabel = (value: string): string =>
  value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');

const formatNumber = (value: number): string =>
  Math.abs(value) === Infinity ? `${value < 0 ? '-' : '+'}Inf` : String(value);
