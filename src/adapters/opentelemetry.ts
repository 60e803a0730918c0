/**
 * `sluice/opentelemetry`: metrics of limiters for OpenTelemetry.
 *
 *     const stop = instrument([api, sink]);
 *
 * Counters and gauges are read from the limiters on collection, at no cost per decision. Histograms are recorded as events
 * occur, because the API takes no finished histograms. Without an SDK nothing is attached. Start the SDK first: a meter
 * that was obtained before stays a no-op.
 */

import {
  type BatchObservableCallback,
  createNoopMeter,
  type Meter,
  metrics,
  type Observable,
} from '@opentelemetry/api';
import { OUTCOMES } from '../core/decision.ts';
import { isRecord, OptionReader } from '../core/options.ts';
import {
  type AnyLimiter,
  labelName,
  MetricCollector,
  readMaxKeys,
  toLimiterList,
} from './metrics/collector.ts';
import { HISTOGRAM_METRICS, METRICS, type Metric } from './metrics/definitions.ts';

/** Options of `instrument`. */
export interface InstrumentOptions {
  /** The meter to use. Default: `sluice` of the registered provider. */
  readonly meter?: Meter | undefined;
  /** For limits that learn: how many keys get series of their own. 0: none. Default 20. */
  readonly maxKeys?: number | undefined;
}

/** Exports one or several limiters; the returned function stops it. @throws {ConfigError} if two have the same name. */
export function instrument(
  limiters: AnyLimiter | readonly AnyLimiter[],
  options: InstrumentOptions = {},
): () => void {
  const reader = new OptionReader('', options);
  const meter = reader.optional('meter', isMeter, 'a meter') ?? metrics.getMeter('sluice');
  const maxKeys = readMaxKeys(reader);
  reader.finish();
  const list = toLimiterList(limiters);
  const isNoop = meter === createNoopMeter();
  const collector = new MetricCollector(isNoop ? undefined : maxKeys);
  collector.addAll(list); // also for a no-op meter: a duplicate name must not first fail in production
  if (isNoop) return () => {};
  const stops = [
    registerObservables(meter, collector),
    ...recordHistograms(meter, list),
    () => collector.stop(),
  ];
  return () => {
    for (const stop of stops.splice(0)) stop();
  };
}

const isMeter = (value: unknown): value is Meter =>
  isRecord(value) && typeof value.createHistogram === 'function';

/** One callback for all metrics, so that a collection reads each limiter once. */
function registerObservables(meter: Meter, collector: MetricCollector): () => void {
  const observables = METRICS.map((metric) => createObservable(meter, metric));
  const collect: BatchObservableCallback = (result) => {
    const snapshots = collector.collect();
    for (const [n, metric] of METRICS.entries()) {
      for (const [labels, value] of snapshots.flatMap(metric.samples))
        result.observe(observables[n], value, labels);
    }
  };
  meter.addBatchObservableCallback(collect, observables);
  return () => meter.removeBatchObservableCallback(collect, observables);
}

function createObservable(meter: Meter, { name, kind, unit, help }: Metric): Observable {
  const options = { description: help, ...(unit && { unit }) };
  return kind === 'counter'
    ? meter.createObservableCounter(name, options)
    : meter.createObservableGauge(name, options);
}

/** The values that the limiter's own histograms and the exporter for Prometheus count. */
function recordHistograms(meter: Meter, limiters: readonly AnyLimiter[]): (() => void)[] {
  const recorders = HISTOGRAM_METRICS.map(({ name, unit, help, bounds, isByOutcome, valueIn }) => {
    const advice = { explicitBucketBoundaries: [...bounds] };
    const options = { description: help, ...(unit && { unit }), advice };
    return { isByOutcome, valueIn, histogram: meter.createHistogram(name, options) };
  });
  return limiters.map((limiter) => {
    const limit = labelName(limiter.name);
    const labels = { limit };
    const labelsByOutcome = OUTCOMES.map((outcome) => ({ limit, outcome }));
    return limiter.on((event) => {
      const byOutcome =
        event.type === 'settled' ? labelsByOutcome[OUTCOMES.indexOf(event.outcome)] : labels;
      for (const { isByOutcome, valueIn, histogram } of recorders) {
        const value = valueIn(event);
        if (value !== undefined) histogram.record(value, isByOutcome ? byOutcome : labels);
      }
    });
  });
}
