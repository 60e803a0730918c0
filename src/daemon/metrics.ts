/**
 * What a daemon has to tell of itself: the figures of every limit, and its own beside them.
 */

import { type PrometheusExporter, prometheus } from '../adapters/metrics/prometheus.ts';
import type { GroupsView } from '../backends/groups/membership.ts';
import type { GcraTable } from '../backends/local/gcra-table.ts';
import type { FleetView } from '../backends/peers/node.ts';
import type { PeerView } from '../backends/peers/peer-table.ts';
import type { PoolView } from '../backends/pool/membership.ts';
import type { GroupMembership } from './backends/groups.ts';
import type { PeerMembership } from './backends/peers.ts';
import type { PoolMembership } from './backends/pool.ts';
import type { LimitConfig } from './config/limits.ts';
import { redactUrl } from './config/redis.ts';
import type { HttpServer } from './protocols/http/server/server.ts';
import type { LimiterEntry, LimiterRegistry } from './router/limiter-registry.ts';
import type { PermitRegistry } from './router/permits.ts';
import type { ConnectionCounts } from './server/connections.ts';

/** Whose figures these are. */
export interface MetricSources {
  readonly version: string;
  readonly line: { readonly counts: ConnectionCounts };
  readonly resp: { readonly counts: ConnectionCounts };
  readonly http: Pick<HttpServer, 'counts'>;
  readonly gcraTable: GcraTable;
  readonly permits: PermitRegistry;
  readonly peers: PeerMembership | undefined;
  readonly pool: PoolMembership | undefined;
  readonly groups: GroupMembership | undefined;
}

/**
 * Limits and overrides shown one by one, limits first. Each is some fifty lines, and a scrape must not keep
 * anybody waiting for an answer.
 */
const MAX_EXPORTED_LIMITS = 200;

function exportedEntries(registry: LimiterRegistry): readonly LimiterEntry[] {
  const isOverride = ({ name }: LimiterEntry): boolean => name.endsWith(']');
  const limits = registry.all.filter((own) => !isOverride(own));
  return [...limits, ...registry.all.filter(isOverride)].slice(0, MAX_EXPORTED_LIMITS);
}

export class Metrics {
  readonly #sources: MetricSources;
  readonly #registry: LimiterRegistry;
  readonly #limits: PrometheusExporter = prometheus([]);
  #exported: readonly LimiterEntry[] = [];
  #reloads = 0;
  #reloadsFailed = 0;

  constructor(sources: MetricSources, registry: LimiterRegistry) {
    this.#sources = sources;
    this.#registry = registry;
    this.refresh();
  }

  /** The limits have changed. */
  refresh(): void {
    const next = exportedEntries(this.#registry);
    for (const old of this.#exported) if (!next.includes(old)) this.#limits.remove(old.limiter);
    for (const own of next) if (!this.#exported.includes(own)) this.#limits.add(own.limiter);
    this.#exported = next;
  }

  countReload(isFine: boolean): void {
    if (isFine) this.#reloads++;
    else this.#reloadsFailed++;
  }

  text(): string {
    return this.#limits.text() + this.#daemonFamilies().flatMap(renderFamily).join('');
  }

  #daemonFamilies(): readonly MetricFamily[] {
    const { version, line, resp, http, gcraTable, permits, peers, pool, groups } = this.#sources;
    const surfaces = { line: line.counts, resp: resp.counts, http: http.counts };
    const by = (
      read: (counts: { open: number; accepted: number; refused: number; slow: number }) => number,
    ) => Object.entries(surfaces).map(([surface, counts]): Sample => [{ surface }, read(counts)]);
    return [
      gauge('sluice_info', 'What runs here.', [[{ version }, 1]]),
      gauge('sluice_limits', 'Limits and overrides, shown above or too many for that.', [
        [{ shown: 'yes' }, this.#exported.length],
        [{ shown: 'no' }, this.#registry.all.length - this.#exported.length],
      ]),
      gauge(
        'sluice_connections',
        'Connections right now.',
        by(({ open }) => open),
      ),
      counter(
        'sluice_connections_accepted_total',
        'Connections taken.',
        by(({ accepted }) => accepted),
      ),
      counter(
        'sluice_connections_refused_total',
        'Connections turned away: too many.',
        by(({ refused }) => refused),
      ),
      counter(
        'sluice_connections_slow_total',
        'Connections let go: they did not read.',
        by(({ slow }) => slow),
      ),
      counter(
        'sluice_connections_protocol_errors_total',
        'Connections ended: what they said made no sense.',
        [
          [{ surface: 'line' }, line.counts.protocolErrors],
          [{ surface: 'resp' }, resp.counts.protocolErrors],
        ],
      ),
      counter(
        'sluice_http_responses_total',
        'HTTP responses by status.',
        Object.entries(http.counts.responsesByStatus).map(
          ([status, count]): Sample => [{ status }, count],
        ),
      ),
      counter('sluice_cells_decisions_total', 'CL.THROTTLE decided.', [
        [{ verdict: 'allow' }, gcraTable.allowed],
        [{ verdict: 'deny' }, gcraTable.denied],
      ]),
      gauge('sluice_cells_keys', 'Keys of CL.THROTTLE.', [[{}, gcraTable.keys]]),
      gauge('sluice_cells_memory_bytes', 'Memory held for them.', [[{}, gcraTable.bytes]]),
      gauge('sluice_permits', 'Permits that callers hold.', [[{}, permits.size]]),
      counter('sluice_reloads_total', 'Configurations read again.', [
        [{ result: 'ok' }, this.#reloads],
        [{ result: 'failed' }, this.#reloadsFailed],
      ]),
      ...(peers ? peerFamilies(peers.view()) : []),
      ...(pool ? poolFamilies(pool.view()) : []),
      ...(groups ? groupFamilies(groups.view()) : []),
    ];
  }
}

function peerFamilies({ peers, counts, authFailed, transportCounts }: FleetView): MetricFamily[] {
  const total = (of: (peer: PeerView) => number): number =>
    peers.reduce((sum, peer) => sum + of(peer), 0);
  const oldestMs = peers.reduce((most, { ageMs }) => Math.max(most, ageMs), 0);
  return [
    gauge('sluice_peers', 'Other daemons of the fleet that are there.', [[{}, peers.length]]),
    gauge('sluice_peers_age_seconds', 'How long ago the most silent of them was heard.', [
      [{}, oldestMs / 1000],
    ]),
    gauge('sluice_peers_reports_missing', 'Reports of theirs that are asked for again.', [
      [{}, total(({ missing }) => missing)],
    ]),
    gauge('sluice_peers_reports_lost', 'Reports of theirs that nobody has any more.', [
      [{}, total(({ lost }) => lost)],
    ]),
    counter('sluice_peers_reports_total', 'Reports of this daemon.', [[{}, counts.reports]]),
    counter(
      'sluice_peers_sent_bytes_total',
      'Bytes said to peers: once, however many hear them, and without seal and headers.',
      [[{}, counts.sentBytes]],
    ),
    counter('sluice_peers_repaired_total', 'Reports that came only when asked for again.', [
      [{}, counts.repaired],
    ]),
    counter('sluice_peers_unknown_total', 'Keys with hits of limits that this daemon has not.', [
      [{}, counts.unknownLimits],
    ]),
    counter('sluice_peers_datagrams_total', 'Datagrams by what became of them.', [
      ...Object.entries(transportCounts).map(([fate, count]): Sample => [{ fate }, count]),
      [{ fate: 'auth_failed' }, authFailed],
      [{ fate: 'protocol_errors' }, counts.protocolErrors],
      [{ fate: 'duplicate' }, counts.duplicates],
    ]),
  ];
}

function poolFamilies(view: PoolView): MetricFamily[] {
  const one = (name: string, help: string, value: number): MetricFamily =>
    gauge(`sluice_pool_${name}`, help, [[{}, value]]);
  return [
    one(
      'size',
      'How many share the limits of the pool, as this one uses them; 0: it has no part.',
      view.size,
    ),
    one('active', 'Members that the store has heard lately.', view.active),
    one('agreed', '1 if all of them use their part.', Number(view.isAgreed)),
    one(
      'age_seconds',
      'How long ago the store was heard.',
      Math.min(view.ageMs, MAX_AGE_MS) / 1000,
    ),
    gauge(
      'sluice_pool_saturation',
      'How much of its part of a limit this one used in the last ten seconds: 0 to 1.',
      Object.entries(view.saturation).map(([limit, value]) => [{ limit }, value]),
    ),
    counter('sluice_pool_syncs_total', 'Syncs with the store.', [
      [{ result: 'ok' }, view.syncs - view.failures],
      [{ result: 'failed' }, view.failures],
    ]),
  ];
}

function groupFamilies({ part, lent, others }: GroupsView): MetricFamily[] {
  const byGroup = (read: (other: GroupsView['others'][number]) => number): Sample[] =>
    others.map((other) => [{ group: other.group }, read(other)]);
  return [
    gauge('sluice_groups_part', 'What part of the limits its own group has: 0 to 1.', [[{}, part]]),
    counter('sluice_groups_lent_total', 'What other groups borrowed from this daemon.', [
      [{}, lent],
    ]),
    counter(
      'sluice_groups_borrowed_total',
      'What this daemon borrowed from other groups.',
      byGroup(({ borrowed }) => borrowed),
    ),
    counter(
      'sluice_groups_requests_total',
      'Requests to other groups.',
      byGroup(({ requests }) => requests),
    ),
    counter(
      'sluice_groups_failures_total',
      'Those that failed, or took too long.',
      byGroup(({ failures }) => failures),
    ),
  ];
}

/** Never is a long time, but a number. */
const MAX_AGE_MS = 86_400_000;

type Sample = readonly [labels: Readonly<Record<string, string>>, value: number];

interface MetricFamily {
  readonly name: string;
  readonly kind: 'counter' | 'gauge';
  readonly help: string;
  readonly samples: readonly Sample[];
}

const counter = (name: string, help: string, samples: readonly Sample[]): MetricFamily => ({
  name,
  kind: 'counter',
  help,
  samples,
});

const gauge = (name: string, help: string, samples: readonly Sample[]): MetricFamily => ({
  name,
  kind: 'gauge',
  help,
  samples,
});

const renderFamily = ({ name, kind, help, samples }: MetricFamily): string[] => [
  `# HELP ${name} ${help}\n`,
  `# TYPE ${name} ${kind}\n`,
  ...samples.map(([labels, value]) => `${name}${renderLabels(labels)} ${value}\n`),
];

/** Labels here are words of our own, which need no escaping. */
function renderLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${value}"`);
  return pairs.length > 0 ? `{${pairs.join(',')}}` : '';
}

/** The limits there are, for whoever wants to list them. */
export function describeLimits(limits: readonly LimitConfig[], registry: LimiterRegistry): unknown {
  return limits.map(
    ({ name, rule, match, always, per, shadow, overrides, redis, etcd, peers, pool, groups }) => ({
      name,
      rule: rule.limit,
      match: match.map(({ text }) => text),
      always,
      per,
      shadow,
      overrides: overrides.map((own) => ({ match: own.match.text, rule: own.rule.limit })),
      ...(redis && { redis: redactUrl(redis.url) }),
      ...(etcd && { etcd: etcd.endpoints }),
      ...(peers && { peers }),
      ...(pool && { pool }),
      ...(groups && { groups: true }),
      stats: registry.get(name)?.limiter.stats(),
    }),
  );
}
