/**
 * What there is to see of a limit: every figure by its name, once for all who show figures.
 *
 * Names are spelled as OpenTelemetry spells them. Prometheus writes `sluice.decisions` as
 * `sluice_decisions_total`, as it would if it came by way of OpenTelemetry, so that a question or an
 * alert is the same whichever way the figures came.
 */

import { OUTCOMES } from '../../core/decision.ts';
import type { Histogram } from '../../limiter/stats.ts';
import type { AnyStats, KeySnapshot, LimiterSnapshot } from './watch.ts';

export type Labels = Readonly<Record<string, string>>;

export interface DataPoint {
  readonly labels: Labels;
  readonly value: number;
}

/** A number: one that only grows, or one that goes up and down. */
export interface Metric {
  readonly name: string;
  readonly kind: 'counter' | 'gauge';
  readonly unit?: 'By';
  readonly help: string;
  dataPoints(reading: LimiterSnapshot): DataPoint[];
}

/** How long something took, in seconds. */
export interface DurationMetric {
  readonly name: string;
  readonly help: string;
  read(stats: AnyStats): Histogram;
}

/** A figure that is one number for the whole limit, where there is such a thing. */
const perLimit =
  (read: (stats: AnyStats) => number | undefined) =>
  ({ limit, stats }: LimiterSnapshot): DataPoint[] => {
    const value = read(stats);
    return value === undefined ? [] : [{ labels: { limit }, value }];
  };

/** A figure that is several, told apart by a label. */
const perLabel =
  (label: string, read: (stats: AnyStats) => Readonly<Record<string, number>>) =>
  ({ limit, stats }: LimiterSnapshot): DataPoint[] =>
    Object.entries(read(stats)).map(([name, value]) => ({
      labels: { limit, [label]: name },
      value,
    }));

/** A figure of each key that is shown. */
const perKey = (
  { limit, keys }: LimiterSnapshot,
  read: (key: KeySnapshot) => number | undefined,
): DataPoint[] =>
  keys.flatMap((own) => {
    const value = read(own);
    return value === undefined ? [] : [{ labels: { limit, key: own.key }, value }];
  });

const permitsHeld = perLimit((stats) => stats.held);

export const METRICS: readonly Metric[] = [
  {
    name: 'sluice.decisions',
    kind: 'counter',
    help: 'Calls decided: allow at once, wait and then go ahead, deny.',
    dataPoints: perLabel('verdict', ({ allowed, waited, denied }) => ({
      allow: allowed - waited,
      wait: waited,
      deny: denied,
    })),
  },
  {
    name: 'sluice.limited',
    kind: 'counter',
    help: 'Calls that could not go ahead at once: they waited, were denied or left.',
    dataPoints: perLimit(({ waited, denied, cancelled }) => waited + denied + cancelled),
  },
  {
    name: 'sluice.cancelled',
    kind: 'counter',
    help: 'Calls that gave up while they waited: their signal aborted.',
    dataPoints: perLimit((stats) => stats.cancelled),
  },
  {
    name: 'sluice.expired_permits',
    kind: 'counter',
    help: 'Permits that were never settled and were taken back.',
    dataPoints: perLimit((stats) => stats.expiredPermits),
  },
  {
    name: 'sluice.settled',
    kind: 'counter',
    help: 'Calls settled, by how they went.',
    dataPoints: perLabel('outcome', ({ settled }) =>
      Object.fromEntries(OUTCOMES.map((outcome) => [outcome, settled[outcome]])),
    ),
  },
  {
    name: 'sluice.limit',
    kind: 'gauge',
    help: 'The limit as it stands. adaptive: calls in flight; busy: calls a second.',
    dataPoints: (reading) => perKey(reading, ({ limit }) => limit),
  },
  {
    name: 'sluice.in_flight',
    kind: 'gauge',
    help: 'Calls in flight: by key where the limit counts them, else all permits that are out.',
    dataPoints: (reading) =>
      reading.hasInFlightByKey ? perKey(reading, ({ inFlight }) => inFlight) : permitsHeld(reading),
  },
  {
    name: 'sluice.waiting',
    kind: 'gauge',
    help: 'Calls that stand in line right now.',
    dataPoints: perLimit((stats) => stats.waiting),
  },
  {
    name: 'sluice.backend_available',
    kind: 'gauge',
    help: 'Whoever decides a shared limit: 1 if in reach, 0 while onUnavailable answers instead.',
    dataPoints: perLimit(({ isAvailable }) =>
      isAvailable === undefined ? undefined : Number(isAvailable),
    ),
  },
  {
    name: 'sluice.fallback',
    kind: 'counter',
    help: 'Calls of a shared limit that onUnavailable answered.',
    dataPoints: perLimit((stats) => stats.fallback),
  },
  {
    name: 'sluice.pool_divisor',
    kind: 'gauge',
    help: 'In how many parts a pool divides the limit, as this process uses it; 0: it has none.',
    dataPoints: perLimit(({ poolSize }) => poolSize),
  },
  {
    name: 'sluice.keys',
    kind: 'gauge',
    help: 'Keys that have a state right now.',
    dataPoints: perLimit((stats) => stats.keys),
  },
  {
    name: 'sluice.evicted_keys',
    kind: 'counter',
    help: 'Keys that had to make room while in use: if it grows, maxKeys is too small.',
    dataPoints: perLimit((stats) => stats.evicted),
  },
  {
    name: 'sluice.memory',
    kind: 'gauge',
    unit: 'By',
    help: 'Memory held for keys.',
    dataPoints: perLimit((stats) => stats.bytes),
  },
];

export const WAIT_DURATION: DurationMetric = {
  name: 'sluice.wait.duration',
  help: 'How long those waited who had to wait and were let through.',
  read: (stats) => stats.waitMs,
};

export const RTT_DURATION: DurationMetric = {
  name: 'sluice.rtt.duration',
  help: 'How long calls took that went well.',
  read: (stats) => stats.rttMs,
};
