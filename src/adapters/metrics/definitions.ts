/**
 * The definitions of all metrics of a limiter, shared by all exporters.
 *
 * Names follow OpenTelemetry. Prometheus gets `sluice.decisions` as `sluice_decisions_total`, as if it came through
 * OpenTelemetry, so that queries and alerts are the same on both paths.
 */

import { OUTCOMES } from '../../core/decision.ts';
import type { MetricLabels } from '../../core/metric-family.ts';
import type { Histogram } from '../../limiter/stats.ts';
import type { AnyStats, KeySnapshot, LimiterSnapshot } from './collector.ts';

export interface DataPoint {
  readonly labels: MetricLabels;
  readonly value: number;
}

/** A counter or a gauge. */
export interface Metric {
  readonly name: string;
  readonly kind: 'counter' | 'gauge';
  readonly unit?: 'By';
  readonly help: string;
  dataPoints(snapshot: LimiterSnapshot): DataPoint[];
}

/** A histogram of durations, exported in seconds. */
export interface DurationMetric {
  readonly name: string;
  readonly help: string;
  read(stats: AnyStats): Histogram;
}

/** One data point per limit; none where the value is undefined. */
const perLimit =
  (read: (stats: AnyStats) => number | undefined) =>
  ({ limit, stats }: LimiterSnapshot): DataPoint[] => {
    const value = read(stats);
    return value === undefined ? [] : [{ labels: { limit }, value }];
  };

/** Several data points per limit, distinguished by a label. */
const perLabel =
  (label: string, read: (stats: AnyStats) => Readonly<Record<string, number>>) =>
  ({ limit, stats }: LimiterSnapshot): DataPoint[] =>
    Object.entries(read(stats)).map(([name, value]) => ({
      labels: { limit, [label]: name },
      value,
    }));

/** One data point per reported key. */
const perKey = (
  { limit, keys }: LimiterSnapshot,
  read: (key: KeySnapshot) => number | undefined,
): DataPoint[] =>
  keys.flatMap((snapshot) => {
    const value = read(snapshot);
    return value === undefined ? [] : [{ labels: { limit, key: snapshot.key }, value }];
  });

const permitsHeld = perLimit((stats) => stats.held);

export const METRICS: readonly Metric[] = [
  {
    name: 'sluice.decisions',
    kind: 'counter',
    help: 'Decisions by verdict: allow (at once), wait (allowed after a wait), deny.',
    dataPoints: perLabel('verdict', ({ allowed, waited, denied }) => ({
      allow: allowed - waited,
      wait: waited,
      deny: denied,
    })),
  },
  {
    name: 'sluice.limited',
    kind: 'counter',
    help: 'Calls that were not allowed at once: they waited, were denied or cancelled.',
    dataPoints: perLimit(({ waited, denied, cancelled }) => waited + denied + cancelled),
  },
  {
    name: 'sluice.reserved',
    kind: 'counter',
    help: 'Slots that checks reserved ahead: decided wait.',
    dataPoints: perLimit((stats) => stats.reserved),
  },
  {
    name: 'sluice.cancelled',
    kind: 'counter',
    help: 'Calls cancelled in the queue: their signal aborted.',
    dataPoints: perLimit((stats) => stats.cancelled),
  },
  {
    name: 'sluice.expired_permits',
    kind: 'counter',
    help: 'Permits that expired: not settled within permitTimeout.',
    dataPoints: perLimit((stats) => stats.expiredPermits),
  },
  {
    name: 'sluice.settled',
    kind: 'counter',
    help: 'Calls settled, by outcome.',
    dataPoints: perLabel('outcome', ({ settled }) =>
      Object.fromEntries(OUTCOMES.map((outcome) => [outcome, settled[outcome]])),
    ),
  },
  {
    name: 'sluice.limit',
    kind: 'gauge',
    help: 'The current limit of a key. adaptive, concurrency: calls in flight; busy: calls per second.',
    dataPoints: (snapshot) => perKey(snapshot, ({ limit }) => limit),
  },
  {
    name: 'sluice.in_flight',
    kind: 'gauge',
    help: 'Calls in flight: by key where the limit counts them, else all unsettled permits.',
    dataPoints: (snapshot) =>
      snapshot.hasInFlightByKey
        ? perKey(snapshot, ({ inFlight }) => inFlight)
        : permitsHeld(snapshot),
  },
  {
    name: 'sluice.waiting',
    kind: 'gauge',
    help: 'Calls that wait in the queue.',
    dataPoints: perLimit((stats) => stats.waiting),
  },
  {
    name: 'sluice.backend_available',
    kind: 'gauge',
    help: 'Whether a remote backend is available: 1, or 0 while onUnavailable decides.',
    dataPoints: perLimit(({ isAvailable }) =>
      isAvailable === undefined ? undefined : Number(isAvailable),
    ),
  },
  {
    name: 'sluice.fallback',
    kind: 'counter',
    help: 'Calls decided by onUnavailable instead of a remote backend.',
    dataPoints: perLimit((stats) => stats.fallback),
  },
  {
    name: 'sluice.pool_divisor',
    kind: 'gauge',
    help: 'By how many members a pool divides the limit, as this process uses it; 0: it has no part.',
    dataPoints: perLimit(({ poolSize }) => poolSize),
  },
  {
    name: 'sluice.keys',
    kind: 'gauge',
    help: 'Keys with state in memory.',
    dataPoints: perLimit((stats) => stats.keys),
  },
  {
    name: 'sluice.evicted_keys',
    kind: 'counter',
    help: 'Keys evicted while in use: if this grows, maxKeys is too small.',
    dataPoints: perLimit((stats) => stats.evicted),
  },
  {
    name: 'sluice.memory',
    kind: 'gauge',
    unit: 'By',
    help: 'Memory used for the state of keys.',
    dataPoints: perLimit((stats) => stats.bytes),
  },
];

export const DURATION_METRICS: readonly DurationMetric[] = [
  {
    name: 'sluice.wait.duration',
    help: 'How long calls waited that were allowed after a wait.',
    read: (stats) => stats.waitMs,
  },
  {
    name: 'sluice.rtt.duration',
    help: 'Round-trip times of calls with outcome ok.',
    read: (stats) => stats.rttMs,
  },
];
