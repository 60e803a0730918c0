/**
 * The figures of limiters for OpenTelemetry.
 *
 *     const stop = instrument([api, sink]);
 *
 * Counts and levels are read from the limiters when somebody collects, and cost a decision nothing.
 * Durations cannot be handed over as finished histograms, so those two are recorded as they happen.
 * Without an SDK all of it would lead nowhere: then nothing is attached at all. The SDK has to be
 * started first, because a meter handed out before that stays one that does nothing.
 */

import {
  type BatchObservableCallback,
  createNoopMeter,
  type Histogram,
  type Meter,
  metrics,
  type Observable,
} from '@opentelemetry/api';
import { isRecord, OptionReader } from '../core/options.ts';
import type { Listener } from '../limiter/events.ts';
import { HISTOGRAM_BOUNDS_MS } from '../limiter/stats.ts';
import {
  type DurationMetric,
  METRICS,
  type Metric,
  RTT_DURATION,
  WAIT_DURATION,
} from './metrics/figures.ts';
import {
  type AnyLimiter,
  DEFAULT_MAX_KEYS,
  labelName,
  MAX_KEYS_CEILING,
  MetricCollector,
  toLimiterList,
} from './metrics/watch.ts';

/** Where figures go, and how much of a limit is shown. */
export interface InstrumentOptions {
  /** Where figures go. Default: the meter `sluice` of the provider that was registered. */
  readonly meter?: Meter;
  /** Of limits that learn: the most keys shown one by one. 0 shows none. Default 20. */
  readonly maxKeys?: number;
}

/** Shows one limiter or several; what comes back ends that. @throws {ConfigError} if two have the same name. */
export function instrument(
  limiters: AnyLimiter | readonly AnyLimiter[],
  options: InstrumentOptions = {},
): () => void {
  const fields = new OptionReader('', options);
  const meter = fields.optional('meter', isMeter, 'a meter') ?? metrics.getMeter('sluice');
  const range = { min: 0, max: MAX_KEYS_CEILING, integer: true };
  const maxKeys = fields.number('maxKeys', range, DEFAULT_MAX_KEYS);
  fields.finish();
  const list = toLimiterList(limiters);
  const isFutile = meter === createNoopMeter();
  const watchlist = new MetricCollector(isFutile ? 0 : maxKeys); // without keys it listens to nobody
  watchlist.addAll(list); // in any case: mistakes should not wait for production to be found
  if (isFutile) return () => {};
  const stops = [
    registerObservables(meter, watchlist),
    ...recordDurations(meter, list),
    () => watchlist.stop(),
  ];
  return () => {
    for (const stop of stops.splice(0)) stop();
  };
}

const isMeter = (value: unknown): value is Meter =>
  isRecord(value) && typeof value.createHistogram === 'function';

/** One callback for all, so that a collection reads each limiter once. */
function registerObservables(meter: Meter, watchlist: MetricCollector): () => void {
  const observed = METRICS.map((figure) => ({
    figure,
    observable: createObservable(meter, figure),
  }));
  const observables = observed.map(({ observable }) => observable);
  const collect: BatchObservableCallback = (result) => {
    const readings = watchlist.collect();
    for (const { figure, observable } of observed) {
      const points = readings.flatMap((reading) => figure.dataPoints(reading));
      for (const { value, labels } of points) result.observe(observable, value, labels);
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

function recordDurations(meter: Meter, limiters: readonly AnyLimiter[]): (() => void)[] {
  const waits = createDurationHistogram(meter, WAIT_DURATION);
  const rtts = createDurationHistogram(meter, RTT_DURATION);
  return limiters.map((limiter) =>
    limiter.on(durationListener(labelName(limiter.name), waits, rtts)),
  );
}

function createDurationHistogram(meter: Meter, { name, help }: DurationMetric): Histogram {
  const explicitBucketBoundaries = HISTOGRAM_BOUNDS_MS.map((ms) => ms / 1000);
  return meter.createHistogram(name, {
    description: help,
    unit: 's',
    advice: { explicitBucketBoundaries },
  });
}

/** The same spans that the limiter counts: of those who waited, and of calls that went well. */
function durationListener(limit: string, waits: Histogram, rtts: Histogram): Listener {
  const labels = { limit };
  return (event) => {
    if (event.type === 'decision') {
      const { decision, waitedMs } = event;
      const ms = decision.verdict === 'wait' ? decision.waitMs : waitedMs;
      if (decision.verdict !== 'deny' && ms > 0) waits.record(ms / 1000, labels);
    } else if (event.type === 'settled' && event.outcome === 'ok' && event.rttMs !== undefined) {
      rtts.record(event.rttMs / 1000, labels);
    }
  };
}
