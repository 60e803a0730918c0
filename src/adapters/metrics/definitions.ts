/**
 * Names follow OpenTelemetry. Prometheus gets `sluice.decisions` as `sluice_decisions_total`, as if it came through
 * OpenTelemetry, so that queries and alerts are the same on both paths.
 */

import { OUTCOMES, type Outcome } from '../../core/decision.ts';
import type { MetricFamily, MetricSample } from '../../core/metric-family.ts';
import type { LimitEvent } from '../../limiter/events.ts';
import { ruleNamesOf } from '../../limiter/inspection.ts';
import { HISTOGRAM_BOUNDS_MS, type Histogram } from '../../limiter/stats.ts';
import {
  type AnyStats,
  CONCURRENCY_BOUNDS,
  type KeySnapshot,
  type LimiterSnapshot,
  RATE_BOUNDS,
} from './collector.ts';

/** A counter or a gauge. */
export interface Metric extends Pick<MetricFamily, 'name' | 'kind' | 'help'> {
  readonly unit?: 'By' | 's' | undefined;
  samples(snapshot: LimiterSnapshot): MetricSample[];
}

/** How many values are in each bucket; the last one has no bound. Not cumulative. */
export interface Buckets {
  readonly bounds: readonly number[];
  readonly counts: ArrayLike<number>;
  readonly sum: number;
}

/** A histogram: of durations in seconds, or of numbers of calls. */
export interface HistogramMetric {
  readonly name: string;
  readonly unit?: 's';
  readonly help: string;
  readonly bounds: readonly number[];
  /** Has a series for each outcome, with the label `outcome`. */
  readonly isByOutcome?: true;
  /** The values so far, of one outcome if it is by outcome; undefined where the limit has none. */
  read(snapshot: LimiterSnapshot, outcome?: Outcome): Buckets | undefined;
  /** The value that an event adds. */
  valueIn(event: LimitEvent): number | undefined;
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
  | 'reserved'
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
  (
    name: string,
    help: string,
    read: PlainStat | Metric['samples'],
    unit?: Metric['unit'],
  ): Metric => {
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
  (read: (key: KeySnapshot) => number | undefined): Metric['samples'] =>
  ({ limit, keys }) =>
    keys.flatMap((key): MetricSample[] => {
      const value = read(key);
      return value === undefined ? [] : [[{ limit, key: key.key }, value]];
    });

const permitsHeld = perLimit((stats) => stats.held);
const inFlightByKey = perKey(({ inFlight }) => inFlight);

/** Their limit is `sluice.limit`. */
const LEARNING_KINDS: readonly string[] = ['adaptive', 'busy'];

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
  counter(
    'sluice.rule_denials',
    'Calls denied by each rule of a limit with several, or shed by event-loop delay.',
    perLabel('rule', ({ deniedByRule }) => deniedByRule),
  ),
  counter(
    'sluice.locked',
    'Calls denied because a lock-out had locked their key; from the first one on.',
    perLimit(({ locked }) => locked || undefined),
  ),
  counter('sluice.reserved', 'Slots that checks reserved ahead: decided wait.', 'reserved'),
  counter('sluice.cancelled', 'Calls cancelled in the queue: their signal aborted.', 'cancelled'),
  counter(
    'sluice.expired_permits',
    'Permits that expired: not settled within permitTimeout.',
    'expiredPermits',
  ),
  counter(
    'sluice.denied_retries',
    'Retries that a retry budget refused; none before the first.',
    perLimit(({ deniedRetries }) => deniedRetries || undefined), // a daemon has thousands of limits, and no retries
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
    perKey(({ limit }) => limit),
  ),
  gauge(
    'sluice.quota',
    'The configured limit of each rule: calls per window, or at once where there is no window.',
    ({ limit, rules }) => {
      const names = ruleNamesOf(rules.map(({ kind }) => kind));
      return rules.flatMap(({ kind, quota }, n): MetricSample[] =>
        LEARNING_KINDS.includes(kind) ? [] : [[{ limit, rule: names[n] }, quota]],
      );
    },
  ),
  gauge(
    'sluice.ramp.tokens',
    'ramp: tokens of a key in this second, over all members of a pool.',
    perKey(({ level }) => level),
  ),
  gauge(
    'sluice.ramp.used',
    'ramp: tokens of this second that a key has used.',
    perKey(({ level, remaining = 0, poolSize = 1 }) =>
      level === undefined
        ? undefined
        : Math.max(0, Math.floor(level / Math.max(1, poolSize)) - remaining),
    ),
  ),
  gauge(
    'sluice.spacing.reserved',
    'spacing: slots of a key that are reserved and not yet due.',
    perKey(({ reserved }) => reserved),
  ),
  gauge(
    'sluice.base_rtt',
    'adaptive, rule delay: the round-trip time of a key without a queue.',
    perKey(({ baseRttMs: ms }) => (ms === undefined ? undefined : ms / 1000)),
    's',
  ),
  gauge(
    'sluice.knee',
    'adaptive, rule delay: calls in flight of a key beyond which the service only queues.',
    perKey(({ knee }) => knee),
  ),
  gauge(
    'sluice.pace',
    'adaptive, rule delay: calls per second of a key that refusals have left; none without refusals.',
    perKey(({ pacePerSecond }) => pacePerSecond),
  ),
  counter(
    'sluice.limit_adjustments',
    'Changes of learnt limits, by cause.',
    ({ limit, adjustments }) =>
      Object.entries(adjustments).map(([cause, count]) => [{ limit, cause }, count]),
  ),
  gauge(
    'sluice.in_flight',
    'Calls in flight: by key where the limit counts them, else all unsettled permits.',
    (snapshot) => (snapshot.hasInFlightByKey ? inFlightByKey : permitsHeld)(snapshot),
  ),
  gauge('sluice.waiting', 'Calls that wait in the queue.', 'waiting'),
  gauge(
    'sluice.event_loop_delay',
    'Delay of the event loop, where HTTP middleware sheds load by it (maxEventLoopDelay).',
    perLimit(({ eventLoopDelayMs: ms }) => (ms === undefined ? undefined : ms / 1000)),
    's',
  ),
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

const BOUNDS_IN_SECONDS = HISTOGRAM_BOUNDS_MS.map((ms) => ms / 1000);

const inSeconds = ({ counts, sumMs }: Histogram): Buckets => ({
  bounds: BOUNDS_IN_SECONDS,
  counts,
  sum: sumMs / 1000,
});

const concurrencyOf = (event: LimitEvent) =>
  event.type === 'settled' ? event.concurrency : undefined;

export const HISTOGRAM_METRICS: readonly HistogramMetric[] = [
  {
    name: 'sluice.wait.duration',
    unit: 's',
    help: 'How long calls waited that were allowed after a wait.',
    bounds: BOUNDS_IN_SECONDS,
    read: ({ stats }) => inSeconds(stats.waitMs),
    valueIn(event) {
      if (event.type !== 'decision' || event.decision.verdict === 'deny') return undefined;
      const { decision, waitedMs } = event;
      const ms = decision.verdict === 'wait' ? decision.waitMs : waitedMs;
      return ms > 0 ? ms / 1000 : undefined;
    },
  },
  {
    name: 'sluice.rtt.duration',
    unit: 's',
    help: 'Round-trip times of settled calls, by outcome; of another than ok from the first one on.',
    bounds: BOUNDS_IN_SECONDS,
    isByOutcome: true,
    read({ stats }, outcome = 'ok') {
      if (outcome === 'ok') return inSeconds(stats.rttMs);
      const rttMs = stats.unsuccessfulRttMs[outcome];
      return rttMs.count > 0 ? inSeconds(rttMs) : undefined; // a daemon has hundreds of limits
    },
    valueIn: (event) =>
      event.type === 'settled' && event.rttMs !== undefined ? event.rttMs / 1000 : undefined,
  },
  {
    name: 'sluice.concurrency.limit',
    help: 'The limit on calls in flight, once per settled call.',
    bounds: CONCURRENCY_BOUNDS,
    read: ({ concurrency }) => concurrency?.limit,
    valueIn: (event) => concurrencyOf(event)?.limit,
  },
  {
    name: 'sluice.concurrency.in_flight',
    help: 'Calls in flight, once per settled call, itself included.',
    bounds: CONCURRENCY_BOUNDS,
    read: ({ concurrency }) => concurrency?.inFlight,
    valueIn: (event) => concurrencyOf(event)?.inFlight,
  },
  {
    name: 'sluice.busy.limit',
    help: 'busy: the limit in calls a second, once per settled call.',
    bounds: RATE_BOUNDS,
    read: ({ rateLimit }) => rateLimit,
    valueIn: (event) => (event.type === 'settled' ? event.rateLimit : undefined),
  },
];
