/**
 * What a daemon has to tell of itself: the figures of every limit, and its own beside them.
 */

import { type Prometheus, prometheus } from '../adapters/metrics/prometheus.ts';
import type { GroupsView } from '../backends/groups/membership.ts';
import type { Cells } from '../backends/local/gcra-table.ts';
import type { FleetView } from '../backends/peers/node.ts';
import type { PeerView } from '../backends/peers/peer-table.ts';
import type { PoolView } from '../backends/pool/membership.ts';
import type { GroupsPlace } from './backends/groups.ts';
import type { PeersPlace } from './backends/peers.ts';
import type { PoolPlace } from './backends/pool.ts';
import type { LimitConfig } from './config/limits.ts';
import { safeUrl } from './config/redis.ts';
import type { HttpSurface } from './protocols/http/server/server.ts';
import type { Shelf, Shelved } from './router/limiter-registry.ts';
import type { Permits } from './router/permits.ts';
import type { StreamCounts } from './server/connections.ts';

/** Whose figures these are. */
export interface Watched {
  readonly version: string;
  readonly line: { readonly counts: StreamCounts };
  readonly resp: { readonly counts: StreamCounts };
  readonly http: Pick<HttpSurface, 'counts'>;
  readonly cells: Cells;
  readonly permits: Permits;
  readonly peers: PeersPlace | undefined;
  readonly pool: PoolPlace | undefined;
  readonly groups: GroupsPlace | undefined;
}

/**
 * Limits and overrides shown one by one, limits first. Each is some fifty lines, and a scrape must not keep
 * anybody waiting for an answer.
 */
const SHOWN_MAX = 200;

function shownOf(shelf: Shelf): readonly Shelved[] {
  const isOverride = ({ name }: Shelved): boolean => name.endsWith(']');
  const limits = shelf.all.filter((own) => !isOverride(own));
  return [...limits, ...shelf.all.filter(isOverride)].slice(0, SHOWN_MAX);
}

export class Metrics {
  readonly #watched: Watched;
  readonly #shelf: Shelf;
  readonly #limits: Prometheus = prometheus([]);
  #shown: readonly Shelved[] = [];
  #reloads = 0;
  #reloadsFailed = 0;

  constructor(watched: Watched, shelf: Shelf) {
    this.#watched = watched;
    this.#shelf = shelf;
    this.change();
  }

  /** The limits have changed. */
  change(): void {
    const next = shownOf(this.#shelf);
    for (const old of this.#shown) if (!next.includes(old)) this.#limits.remove(old.engine);
    for (const own of next) if (!this.#shown.includes(own)) this.#limits.add(own.engine);
    this.#shown = next;
  }

  reloaded(isFine: boolean): void {
    if (isFine) this.#reloads++;
    else this.#reloadsFailed++;
  }

  text(): string {
    return this.#limits.text() + this.#own().flatMap(lines).join('');
  }

  #own(): readonly Family[] {
    const { version, line, resp, http, cells, permits, peers, pool, groups } = this.#watched;
    const surfaces = { line: line.counts, resp: resp.counts, http: http.counts };
    const by = (
      read: (counts: { open: number; accepted: number; refused: number; slow: number }) => number,
    ) => Object.entries(surfaces).map(([surface, counts]): Sample => [{ surface }, read(counts)]);
    return [
      gauge('sluice_info', 'What runs here.', [[{ version }, 1]]),
      gauge('sluice_limits', 'Limits and overrides, shown above or too many for that.', [
        [{ shown: 'yes' }, this.#shown.length],
        [{ shown: 'no' }, this.#shelf.all.length - this.#shown.length],
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
        'sluice_connections_senseless_total',
        'Connections ended: what they said made no sense.',
        [
          [{ surface: 'line' }, line.counts.senseless],
          [{ surface: 'resp' }, resp.counts.senseless],
        ],
      ),
      counter(
        'sluice_http_responses_total',
        'HTTP responses by status.',
        Object.entries(http.counts.answered).map(([status, count]): Sample => [{ status }, count]),
      ),
      counter('sluice_cells_decisions_total', 'CL.THROTTLE decided.', [
        [{ verdict: 'allow' }, cells.allowed],
        [{ verdict: 'deny' }, cells.denied],
      ]),
      gauge('sluice_cells_keys', 'Keys of CL.THROTTLE.', [[{}, cells.keys]]),
      gauge('sluice_cells_memory_bytes', 'Memory held for them.', [[{}, cells.bytes]]),
      gauge('sluice_permits', 'Permits that callers hold.', [[{}, permits.size]]),
      counter('sluice_reloads_total', 'Configurations read again.', [
        [{ result: 'ok' }, this.#reloads],
        [{ result: 'failed' }, this.#reloadsFailed],
      ]),
      ...(peers ? ofFleet(peers.view()) : []),
      ...(pool ? ofPool(pool.view()) : []),
      ...(groups ? ofGroups(groups.view()) : []),
    ];
  }
}

function ofFleet({ peers, counts, forged, carried }: FleetView): Family[] {
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
      [{}, counts.unknown],
    ]),
    counter('sluice_peers_datagrams_total', 'Datagrams by what became of them.', [
      ...Object.entries(carried).map(([fate, count]): Sample => [{ fate }, count]),
      [{ fate: 'forged' }, forged],
      [{ fate: 'senseless' }, counts.senseless],
      [{ fate: 'duplicate' }, counts.duplicates],
    ]),
  ];
}

function ofPool(view: PoolView): Family[] {
  const one = (name: string, help: string, value: number): Family =>
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
      Math.min(view.ageMs, AGE_MS_MAX) / 1000,
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

function ofGroups({ part, given, others }: GroupsView): Family[] {
  const byGroup = (read: (other: GroupsView['others'][number]) => number): Sample[] =>
    others.map((other) => [{ group: other.group }, read(other)]);
  return [
    gauge('sluice_groups_part', 'What part of the limits its own group has: 0 to 1.', [[{}, part]]),
    counter('sluice_groups_given_total', 'What other groups stole from this daemon.', [
      [{}, given],
    ]),
    counter(
      'sluice_groups_stolen_total',
      'What this daemon stole from other groups.',
      byGroup(({ stolen }) => stolen),
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
const AGE_MS_MAX = 86_400_000;

type Sample = readonly [labels: Readonly<Record<string, string>>, value: number];

interface Family {
  readonly name: string;
  readonly kind: 'counter' | 'gauge';
  readonly help: string;
  readonly samples: readonly Sample[];
}

const counter = (name: string, help: string, samples: readonly Sample[]): Family => ({
  name,
  kind: 'counter',
  help,
  samples,
});

const gauge = (name: string, help: string, samples: readonly Sample[]): Family => ({
  name,
  kind: 'gauge',
  help,
  samples,
});

const lines = ({ name, kind, help, samples }: Family): string[] => [
  `# HELP ${name} ${help}\n`,
  `# TYPE ${name} ${kind}\n`,
  ...samples.map(([labels, value]) => `${name}${inBraces(labels)} ${value}\n`),
];

/** Labels here are words of our own, which need no escaping. */
function inBraces(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${value}"`);
  return pairs.length > 0 ? `{${pairs.join(',')}}` : '';
}

/** The limits there are, for whoever wants to list them. */
export function describeLimits(limits: readonly LimitConfig[], shelf: Shelf): unknown {
  return limits.map(
    ({ name, rule, match, always, per, shadow, overrides, redis, etcd, peers, pool, groups }) => ({
      name,
      rule: rule.limit,
      match: match.map(({ text }) => text),
      always,
      per,
      shadow,
      overrides: overrides.map((own) => ({ match: own.match.text, rule: own.rule.limit })),
      ...(redis && { redis: safeUrl(redis.url) }),
      ...(etcd && { etcd: etcd.endpoints }),
      ...(peers && { peers }),
      ...(pool && { pool }),
      ...(groups && { groups: true }),
      stats: shelf.get(name)?.engine.stats(),
    }),
  );
}
