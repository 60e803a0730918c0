/**
 * The definitions of all metrics of a limiter, shared by all exporters.
 *
 * Names follow OpenTelemetry. Prometheus gets `sluice.decisions` as `sluice_decisions_total`, as if it came through
 * OpenTelemetry, so that queries and alerts are the same on both paths.
 */

import { OUTCOMES } from '../../core/decision.ts';
import type { MetricFamily, MetricSample } from '../../core/metric-family.ts';
import type { Histogram } from '../../limiter/stats.ts';
import type { AnyStats, KeySnapshot, LimiterSnapshot } from './collector.ts';

/** A counter or a gauge. */
export interface Metric extends Pick<MetricFamily, 'name' | 'kind' | 'help'> {
  readonly unit?: 'By' | undefined;
  samples(snapshot: LimiterSnapshot): MetricSample[];
}

/** A histogram of durations, exported in seconds. */
export interface DurationMetric {
  readonly name: string;
  readonly help: string;
  read(stats: AnyStats): Histogram;
}

/** One sample per limit; none where the value is undefined. */
const perLimit =
  (read: (stats: AnyStats) => number | undefined): Metric['samples'] =>
  ({ limit, stats }) => {
    const value = read(stats);
    return value === undefined ? [] : [[{ limit }, value]];
  };

/** A statistic that is exported as it is. */
type PlainStat =
  | 'cancelled'
  | 'expiredPermits'
  | 'waiting'
  | 'fallback'
  | 'poolSize'
  | 'poolTokens'
  | 'poolUsed'
  | 'poolSaturation'
  | 'keys'
  | 'evicted'
  | 'bytes';

const metricOf =
  (kind: Metric['kind']) =>
  (name: string, help: string, read: PlainStat | Metric['samples'], unit?: 'By'): Metric => {
    const samples = typeof read === 'string' ? perLimit((stats) => stats[read]) : read;
    return { name, kind, help, samples, unit };
  };

const counter = metricOf('counter');
const gauge = metricOf('gauge');

/** Several samples per limit, distinguished by a label. */
const perLabel =
  (label: string, read: (stats: AnyStats) => Readonly<Record<string, number>>): Metric['samples'] =>
  ({ limit, stats }) =>
    Object.entries(read(stats)).map(([name, value]) => [{ limit, [label]: name }, value]);

/** One sample per reported key; none where the value is undefined. */
const perKey =
  (field: 'limit' | 'inFlight'): Metric['samples'] =>
  ({ limit, keys }) =>
    keys.flatMap((key: KeySnapshot): MetricSample[] => {
      const value = key[field];
      return value === undefined ? [] : [[{ limit, key: key.key }, value]];
    });

const permitsHeld = perLimit((stats) => stats.held);
const inFlightByKey = perKey('inFlight');

export const METRICS: readonly Metric[] = [
  counter(
    'sluice.decisions',
    'Decisions by verdict: allow (at once), wait (allowed after a wait), deny.',
    perLabel('verdict', ({ allowed, waited, denied }) => ({
      allow: allowed - waited,
      wait: waited,
      deny: denied,
    })),
  ),
  counter(
    'sluice.limited',
    'Calls that were not allowed at once: they waited, were denied or cancelled.',
    perLimit(({ waited, denied, cancelled }) => waited + denied + cancelled),
  ),
  counter('sluice.cancelled', 'Calls cancelled in the queue: their signal aborted.', 'cancelled'),
  counter(
    'sluice.expired_permits',
    'Permits that expired: not settled within permitTimeout.',
    'expiredPermits',
  ),
  counter(
    'sluice.settled',
    'Calls settled, by outcome.',
    perLabel('outcome', ({ settled }) =>
      Object.fromEntries(OUTCOMES.map((outcome) => [outcome, settled[outcome]])),
    ),
  ),
  gauge(
    'sluice.limit',
    'The current limit of a key. adaptive, concurrency: calls in flight; busy: calls per second.',
    perKey('limit'),
  ),
  gauge(
    'sluice.in_flight',
    'Calls in flight: by key where the limit counts them, else all unsettled permits.',
    (snapshot) => (snapshot.hasInFlightByKey ? inFlightByKey : permitsHeld)(snapshot),
  ),
  gauge('sluice.waiting', 'Calls that wait in the queue.', 'waiting'),
  gauge(
    'sluice.backend_available',
    'Whether a remote backend is available: 1, or 0 while onUnavailable decides.',
    perLimit(({ isAvailable }) => (isAvailable === undefined ? undefined : Number(isAvailable))),
  ),
  counter(
    'sluice.fallback',
    'Calls decided by onUnavailable instead of a remote backend.',
    'fallback',
  ),
  gauge(
    'sluice.pool_divisor',
    'By how many members a pool divides the limit, as this process uses it; 0: it has no part.',
    'poolSize',
  ),
  gauge(
    'sluice.pool_tokens',
    'Units a second of this process in a pool: its part of the limit, over all keys in use.',
    'poolTokens',
  ),
  counter(
    'sluice.pool_used',
    'Units that this process has used of its part of a limit in a pool, in complete seconds.',
    'poolUsed',
  ),
  gauge(
    'sluice.pool_saturation',
    'Fraction of its part of a limit that this process used in the last ten seconds: 0 to 1.',
    'poolSaturation',
  ),
  gauge('sluice.keys', 'Keys with state in memory.', 'keys'),
  counter(
    'sluice.evicted_keys',
    'Keys evicted while in use: if this grows, maxKeys is too small.',
    'evicted',
  ),
  gauge('sluice.memory', 'Memory used for the state of keys.', 'bytes', 'By'),
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
