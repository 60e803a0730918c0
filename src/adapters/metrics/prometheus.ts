/**
 *     const metrics = prometheus([api, sink]);
 *     server.get('/metrics', (_, reply) => reply.type(metrics.contentType).send(metrics.text()));
 *
 * The text is built on each scrape from the counters that limiters keep anyway. The format is version 0.0.4, which every
 * scraper reads; all values are in base units.
 */

import { OUTCOMES } from '../../core/decision.ts';
import type { MetricFamily, MetricLabels } from '../../core/metric-family.ts';
import { OptionReader } from '../../core/options.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import {
  type AnyLimiter,
  type KeySnapshot,
  type LimiterSnapshot,
  MetricCollector,
  readMaxKeys,
  toLimiterList,
} from './collector.ts';
import {
  type Buckets,
  HISTOGRAM_METRICS,
  type HistogramMetric,
  METRICS,
  type Metric,
} from './definitions.ts';

/** Options of `prometheus`. */
export interface PrometheusOptions {
  /** For limits that learn: how many keys get series of their own. 0: none. Default 20. */
  readonly maxKeys?: number | undefined;
}

/** Exports metrics of limiters for a scrape. */
export interface PrometheusExporter {
  /** The `Content-Type` of the text. */
  readonly contentType: string;
  /** The current values of all metrics. */
  text(): string;
  /** Adds a limiter. @throws {ConfigError} if another one has its name. */
  add(limiter: AnyLimiter): void;
  /** Removes a limiter and its listener. */
  remove(limiter: AnyLimiter): void;
  /** Removes all limiters. */
  stop(): void;
}

/** Further labels of a limit, by its name. */
type LabelsOf = (limit: string) => MetricLabels | undefined;

/** Called once per scrape. The daemon marks limits in shadow mode by it. */
type MoreLabels = () => LabelsOf;

const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Exports one or several limiters. @throws {ConfigError} if two have the same name. */
export function prometheus(
  limiters: AnyLimiter | readonly AnyLimiter[],
  options: PrometheusOptions = {},
): PrometheusExporter {
  const {
    textInSteps,
    keysOf: _,
    ...exporter
  } = createExporter(limiters, options, () => () => undefined);
  return { ...exporter, text: () => runAtOnce(textInSteps()) };
}

/** Builds the text in steps of one metric each, for a process that has to do other work meanwhile. */
export interface SteppedExporter extends Omit<PrometheusExporter, 'text'> {
  textInSteps(): Steps<string>;
  /** The keys of a limit that learns, each with its state. */
  keysOf(limiter: AnyLimiter): readonly KeySnapshot[];
}

export function createExporter(
  limiters: AnyLimiter | readonly AnyLimiter[],
  options: PrometheusOptions,
  moreLabels: MoreLabels,
): SteppedExporter {
  const reader = new OptionReader('', options);
  const collector = new MetricCollector(readMaxKeys(reader));
  reader.finish();
  collector.addAll(toLimiterList(limiters));
  return {
    contentType: CONTENT_TYPE,
    keysOf: (limiter) => collector.keysOf(limiter),
    textInSteps: () => renderText(collector.collect(), moreLabels()),
    add: (limiter) => collector.add(limiter),
    remove: (limiter) => collector.remove(limiter),
    stop: () => collector.stop(),
  };
}

function* renderText(snapshots: readonly LimiterSnapshot[], labelsOf: LabelsOf): Steps<string> {
  const texts: string[] = [];
  for (const metric of METRICS) {
    texts.push(renderMetricFamilies([familyOf(metric, snapshots, labelsOf)]));
    yield;
  }
  for (const metric of HISTOGRAM_METRICS) {
    texts.push(renderHistogram(metric, snapshots, labelsOf));
    yield;
  }
  return texts.join('');
}

const familyOf = (
  metric: Metric,
  snapshots: readonly LimiterSnapshot[],
  labelsOf: LabelsOf,
): MetricFamily => ({
  ...metric,
  name: metricName(metric),
  samples: snapshots.flatMap((snapshot) => {
    const [samples, more] = [metric.samples(snapshot), labelsOf(snapshot.limit)];
    return more ? samples.map(([labels, value]) => [{ ...labels, ...more }, value]) : samples;
  }),
});

/** Encodes metric families; those of other components, such as the daemon, too. */
export const renderMetricFamilies = (families: readonly MetricFamily[]): string =>
  families
    .map(({ name, kind, help, samples }) => {
      const lines = samples.map(([labels, value]) => sampleLine(name, labels, value));
      return renderFamily(name, kind, help, lines);
    })
    .join('');

/** Encodes a histogram of another component; `name` in full. */
export const renderHistogramFamily = (name: string, help: string, buckets: Buckets): string =>
  renderFamily(name, 'histogram', help, histogramLines(name, {}, buckets));

function renderHistogram(
  metric: HistogramMetric,
  snapshots: readonly LimiterSnapshot[],
  labelsOf: LabelsOf,
): string {
  const name = `${withUnderscores(metric.name)}${metric.unit === 's' ? '_seconds' : ''}`;
  const outcomes = metric.isByOutcome ? OUTCOMES : [undefined];
  const lines = snapshots.flatMap((snapshot) =>
    outcomes.flatMap((outcome) => {
      const buckets = metric.read(snapshot, outcome);
      const { limit } = snapshot;
      const labels = { limit, ...(outcome && { outcome }), ...labelsOf(limit) };
      return buckets ? histogramLines(name, labels, buckets) : [];
    }),
  );
  return renderFamily(name, 'histogram', metric.help, lines);
}

/** Buckets are cumulative: each counts all values up to its bound. */
function histogramLines(
  name: string,
  labels: MetricLabels,
  { bounds, counts, sum }: Buckets,
): string[] {
  let total = 0;
  const buckets = Array.from(counts, (count, n) => {
    total += count;
    const le = n < bounds.length ? String(bounds[n]) : '+Inf';
    return sampleLine(`${name}_bucket`, { ...labels, le }, total);
  });
  return [
    ...buckets,
    sampleLine(`${name}_sum`, labels, sum),
    sampleLine(`${name}_count`, labels, total),
  ];
}

/** Help and type before the samples; the empty string if there are none. */
function renderFamily(name: string, type: string, help: string, lines: readonly string[]): string {
  if (lines.length === 0) return '';
  return `# HELP ${name} ${escapeHelp(help)}\n# TYPE ${name} ${type}\n${lines.join('')}`;
}

const withUnderscores = (name: string): string => name.replaceAll('.', '_');

const UNIT_SUFFIXES = { By: '_bytes', s: '_seconds' };

const metricName = ({ name, unit, kind }: Metric): string =>
  `${withUnderscores(name)}${unit ? UNIT_SUFFIXES[unit] : ''}${kind === 'counter' ? '_total' : ''}`;

function sampleLine(name: string, labels: MetricLabels, value: number): string {
  const pairs = Object.entries(labels).map(labelPair).join(',');
  return `${name}${pairs && `{${pairs}}`} ${formatNumber(value)}\n`;
}

const labelPair = ([name, value]: [string, string]): string => `${name}="${escapeLabel(value)}"`;

const escapeHelp = (text: string): string =>
  /[\\\n]/.test(text) ? text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n') : text;

const escapeLabel = (value: string): string => escapeHelp(value).replaceAll('"', '\\"');

const formatNumber = (value: number): string =>
  Math.abs(value) === Infinity ? `${value < 0 ? '-' : '+'}Inf` : String(value);
