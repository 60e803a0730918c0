import type { KeySnapshot } from '../adapters/metrics/collector.ts';
import {
  createExporter,
  renderHistogramFamily,
  renderMetricFamilies,
  type SteppedExporter,
} from '../adapters/metrics/prometheus.ts';
import type { GcraTable } from '../backends/local/gcra-table.ts';
import { counter, gauge, type MetricFamily, type MetricSample } from '../core/metric-family.ts';
import { runInSlices } from '../core/steps.ts';
import type { BucketCounter } from '../limiter/stats.ts';
import type { LimitConfig } from './config/limits.ts';
import { shadowTest } from './config/shadow.ts';
import type { Health } from './health.ts';
import type { HttpServer } from './protocols/http/server/server.ts';
import type { LimiterEntry, LimiterRegistry } from './router/limiter-registry.ts';
import type { PermitRegistry } from './router/permits.ts';
import type { Waiting } from './router/waiting.ts';
import type { ConnectionCounts } from './server/connections.ts';
import type { Overload } from './server/overload.ts';
import type { SnapshotStatus } from './snapshotter.ts';

export interface MetricSources {
  readonly version: string;
  readonly line: { readonly counts: ConnectionCounts };
  readonly resp: { readonly counts: ConnectionCounts };
  readonly http: Pick<HttpServer, 'counts'>;
  readonly gcraTable: GcraTable;
  readonly permits: PermitRegistry;
  readonly waiting: Pick<Waiting, 'refused'>;
  readonly overload: Pick<Overload, 'shedCount'>;
  readonly backends: { metrics(): readonly MetricFamily[] };
  readonly health: Health;
  readonly durations: BucketCounter;
  readonly snapshots: { readonly status: SnapshotStatus };
  /** Calls denied without counting, by reason. */
  readonly staticDenials: Readonly<Record<string, number>>;
  /** Set at run time, in effect. */
  readonly controls: { readonly counts: Readonly<Record<string, number>> };
  readonly workers?: { metrics(): readonly MetricFamily[] } | undefined;
}

/** Limits and overrides with metrics of their own, limits first. Each has about fifty lines, and a scrape must not delay decisions. */
const MAX_EXPORTED_LIMITS = 200;

function exportedEntries(registry: LimiterRegistry): readonly LimiterEntry[] {
  const isOverride = ({ name }: LimiterEntry): boolean => name.endsWith(']');
  const limits = registry.all.filter((entry) => !isOverride(entry));
  return [...limits, ...registry.all.filter(isOverride)].slice(0, MAX_EXPORTED_LIMITS);
}

/** On every metric of a limit in shadow mode, so that alerts can exclude it. */
const SHADOW_LABEL = { shadow: 'true' };

export class Metrics {
  readonly #sources: MetricSources;
  readonly #registry: LimiterRegistry;
  readonly #limits: SteppedExporter;
  #exported: readonly LimiterEntry[] = [];
  #reloads = 0;
  #reloadsFailed = 0;
  #isLastReloadOk = true;

  constructor(
    sources: MetricSources,
    registry: LimiterRegistry,
    limits: () => readonly LimitConfig[] = () => [],
  ) {
    this.#limits = createExporter([], {}, () => {
      const isShadow = shadowTest(limits());
      return (name) => (isShadow(name) ? SHADOW_LABEL : undefined);
    });
    this.#sources = sources;
    this.#registry = registry;
    this.refresh();
  }

  /** To be called when the limits have changed. */
  refresh(): void {
    const next = exportedEntries(this.#registry);
    for (const old of this.#exported) if (!next.includes(old)) this.#limits.remove(old.limiter);
    for (const entry of next) if (!this.#exported.includes(entry)) this.#limits.add(entry.limiter);
    this.#exported = next;
  }

  /** The keys of a limit that learns, each with its state; none of a limit without metrics of its own. */
  keysOf(limiter: LimiterEntry['limiter']): readonly KeySnapshot[] {
    return this.#limits.keysOf(limiter);
  }

  countReload(isSuccess: boolean): void {
    this.#isLastReloadOk = isSuccess;
    if (isSuccess) this.#reloads++;
    else this.#reloadsFailed++;
  }

  /** In slices: with hundreds of limits it is a long text. */
  async text(): Promise<string> {
    const { health, durations } = this.#sources;
    return [
      await runInSlices(this.#limits.textInSteps()),
      renderMetricFamilies([...health.families(), ...this.#daemonFamilies()]),
      renderHistogramFamily(
        'sluice_daemon_event_loop_delay_seconds',
        'How late the event loop runs a timer: what a request may wait before it is read.',
        health.eventLoopDelay,
      ),
      renderHistogramFamily(
        'sluice_decision_duration_seconds',
        'Time to parse, decide and answer what a connection sent at once; one read in 64 is measured.',
        durations,
      ),
    ].join('');
  }

  #daemonFamilies(): readonly MetricFamily[] {
    const { version, line, resp, http, gcraTable, permits, waiting, overload, backends } =
      this.#sources;
    const { savedAt, failures, isUnused } = this.#sources.snapshots.status;
    const { 'allow-list': _, ...denials } = this.#sources.staticDenials;
    const protocols = { line: line.counts, resp: resp.counts, http: http.counts };
    const byProtocol = (count: keyof HttpServer['counts'] & keyof ConnectionCounts) =>
      Object.entries(protocols).map(
        ([protocol, counts]): MetricSample => [{ protocol }, counts[count]],
      );
    return [
      gauge('sluice_info', 'The version that runs.', [[{ version }, 1]]),
      gauge('sluice_limits', 'Limits and overrides, with metrics of their own or without.', [
        [{ shown: 'yes' }, this.#exported.length],
        [{ shown: 'no' }, this.#registry.all.length - this.#exported.length],
      ]),
      gauge('sluice_connections', 'Open connections.', byProtocol('open')),
      counter('sluice_connections_accepted_total', 'Connections accepted.', byProtocol('accepted')),
      counter(
        'sluice_connections_refused_total',
        'Connections refused: bounds.connections reached, or no memory for more.',
        byProtocol('refused'),
      ),
      counter(
        'sluice_connections_slow_total',
        'Connections closed: the client did not read, or complete a request, for bounds.slow.',
        byProtocol('slow'),
      ),
      counter(
        'sluice_connections_evicted_total',
        'Idle connections closed for new ones: bounds.connections reached, or no memory for more.',
        byProtocol('evicted'),
      ),
      counter(
        'sluice_connections_oversized_total',
        'Connections closed: all held too many bytes of unfinished requests, and these held most.',
        byProtocol('oversized'),
      ),
      counter(
        'sluice_connections_protocol_errors_total',
        'Connections closed after a protocol error.',
        [
          [{ protocol: 'line' }, line.counts.protocolErrors],
          [{ protocol: 'resp' }, resp.counts.protocolErrors],
        ],
      ),
      counter(
        'sluice_http_responses_total',
        'HTTP responses by status.',
        Object.entries(http.counts.responsesByStatus).map(([status, n]) => [{ status }, n]),
      ),
      counter('sluice_cl_throttle_decisions_total', 'Decisions of CL.THROTTLE.', [
        [{ verdict: 'allow' }, gcraTable.allowed],
        [{ verdict: 'deny' }, gcraTable.denied],
      ]),
      gauge('sluice_cl_throttle_keys', 'Keys of CL.THROTTLE.', gcraTable.keys),
      gauge(
        'sluice_cl_throttle_memory_bytes',
        'Memory of the keys of CL.THROTTLE.',
        gcraTable.bytes,
      ),
      counter(
        'sluice_overload_shed_total',
        'Checks answered by overload.fail, uncounted: older than overload.maxAge.',
        overload.shedCount,
      ),
      counter(
        'sluice_static_denials_total',
        'Calls denied without counting, by reason: a deny list, a ban, or no limit matches.',
        Object.entries(denials).map(([reason, count]) => [{ reason }, count]),
      ),
      gauge(
        'sluice_controls',
        'Bans and overrides in effect that were set at run time.',
        Object.entries(this.#sources.controls.counts).map(([kind, count]) => [{ kind }, count]),
      ),
      gauge(
        'sluice_snapshot_timestamp_seconds',
        'When the last snapshot was written, as a Unix time; none before the first.',
        savedAt === undefined ? [] : savedAt / 1000,
      ),
      counter(
        'sluice_snapshot_failures_total',
        'Snapshots, and changes of bans and overrides, that could not be written.',
        failures,
      ),
      gauge(
        'sluice_snapshot_unused',
        'Whether the snapshot of the start was not used, such as one that cannot be read: counts began anew.',
        Number(isUnused),
      ),
      gauge('sluice_permits', 'Permits that are not settled yet.', permits.size),
      counter('sluice_permits_refused_total', 'Calls refused: no more permits.', permits.refused),
      counter(
        'sluice_waiting_refused_total',
        'Calls refused: bounds.waiting reached.',
        waiting.refused,
      ),
      counter('sluice_reloads_total', 'Reloads of the configuration.', [
        [{ result: 'ok' }, this.#reloads],
        [{ result: 'failed' }, this.#reloadsFailed],
      ]),
      gauge(
        'sluice_last_reload_successful',
        '1, or 0 while the configuration is not the one in the file: the last reload failed.',
        Number(this.#isLastReloadOk),
      ),
      ...backends.metrics(),
      ...(this.#sources.workers?.metrics() ?? []),
    ];
  }
}

/** All limits with their rules, backends and counters, for `GET /limits`. */
export function describeLimits(limits: readonly LimitConfig[], registry: LimiterRegistry): unknown {
  return limits.map(({ name, rule, match, always, per, shadow, overrides, plans, backends }) => ({
    name,
    rule: rule.limit,
    match: match.slice(0, MAX_SHOWN_PATTERNS).map(({ text }) => text),
    always,
    per,
    shadow,
    overrides: describeOverrides(overrides),
    plans: Object.fromEntries([...plans].map(([plan, { limit }]) => [plan, limit])),
    ...Object.fromEntries(backends.map((backend) => [backend.name, backend.view])),
    stats: registry.get(name)?.limiter.stats(),
  }));
}

/** A list from a file may have thousands. */
const MAX_SHOWN_PATTERNS = 100;

/** By the names of their limiters, with the number of patterns: these are keys of clients. */
function describeOverrides(overrides: LimitConfig['overrides']): unknown {
  const counts = overrides.patternCounts();
  return overrides.rules.map(({ name, rule }, n) => ({
    name,
    rule: rule.limit,
    patterns: counts[n],
  }));
}
