import type { Millis } from '../../core/clock.ts';
import { counter, gauge, type MetricFamily, type MetricSample } from '../../core/metric-family.ts';
import type { BackendPage, TextTable } from '../daemon-backend.ts';
import type { FleetView } from './node.ts';
import type { RejectedSource } from './rejected-sources.ts';

export const peersPage: BackendPage = {
  summary: 'the other daemons of the fleet',
  description: `Shows the fleet as one daemon sees it: every peer, the newest wire version that it speaks, the age of its last
datagram, and how many of its reports were received, are missing and requested again, or are lost. Lists peers that
are gone for up to a minute, and addresses whose datagrams are rejected, as they have another key or wire version:
then the fleet is split.`,
  emptyView: { peers: [] },
  emptyMessage: 'The daemon has no peers: see docs/reference/peers.md.',
  render: (view) => renderFleet(view as FleetView),
};

const UNKNOWN_LIMITS = 'keys were of unknown limits: do all daemons have the same rules?';

function renderFleet(view: FleetView): (string | TextTable)[] {
  const { name, transport, counts, transportCounts, authFailed, otherKey } = view;
  const { received, failed, dropped } = transportCounts;
  const receivedProblems = {
    'auth failed': authFailed,
    'of another version': counts.otherVersion,
    'with another key': otherKey,
    'protocol errors': counts.protocolErrors,
    duplicate: counts.duplicates,
  };
  return [
    `${name}, ${transport}`,
    renderPeers(view),
    ...renderGone(view),
    `  sent ${counts.reports} reports in ${counts.sent} datagrams, ${counts.sentBytes} bytes${listCounts({ failed, dropped })}`,
    `  received ${received} datagrams${listCounts(receivedProblems)}`,
    ...renderRejected(view),
    ...(counts.unknownLimits > 0 ? [`  ${counts.unknownLimits} ${UNKNOWN_LIMITS}`] : []),
  ];
}

/** Formats the counts above 0: `: 2 failed, 1 dropped`. */
function listCounts(counts: Readonly<Record<string, number>>): string {
  const seen = Object.entries(counts).filter(([, count]) => count > 0);
  return seen.length > 0 ? `: ${seen.map(([what, count]) => `${count} ${what}`).join(', ')}` : '';
}

function renderPeers({ isOpen, peers }: FleetView): string | TextTable {
  if (!isOpen) return '  transport not open yet: until then this daemon decides alone';
  if (peers.length === 0) return '  no other daemon is present';
  const rows = peers.map((peer) => [
    peer.name,
    `${peer.version}`,
    `${(peer.ageMs / 1000).toFixed(1)} s ago`,
    ...[peer.reportsReceived, peer.missing, peer.lost].map(String),
  ]);
  return [['peer', 'version', 'last datagram', 'reports', 'missing', 'lost'], ...rows];
}

function renderGone({ gone }: FleetView): (string | TextTable)[] {
  if (gone.length === 0) return [];
  const rows = gone.map(({ name, ageMs }) => [name, `${(ageMs / 1000).toFixed(1)} s ago`]);
  return [
    '  gone, as no datagram came within the peer timeout:',
    [['peer', 'last datagram'], ...rows],
  ];
}

/** The sources whose datagrams are rejected now: the fleet is split while there are any. */
function renderRejected({ rejected, versions }: FleetView): (string | TextTable)[] {
  const present = rejected.filter(isPresent);
  if (present.length === 0) return [];
  const { oldest, newest } = versions;
  const rows = present.map(({ from, reason, version, datagrams }) => [
    from || 'unknown',
    reason === 'auth_failed' ? 'another key or seed' : `version ${version}`,
    String(datagrams),
  ]);
  return [
    `  rejected, as this daemon has another key or speaks versions ${oldest} to ${newest}:`,
    [['from', 'because of', 'datagrams'], ...rows],
  ];
}

/** True for a source that still sends: a node sends at least once a second. */
const isPresent = ({ ageMs }: RejectedSource): boolean => ageMs < REJECTED_FOR_MS;
const REJECTED_FOR_MS: Millis = 60_000;

const rejectedSamples = (rejected: FleetView['rejected']): MetricSample[] =>
  (['auth_failed', 'other_version'] as const).map((reason) => [
    { reason },
    rejected.filter((source) => source.reason === reason && isPresent(source)).length,
  ]);

export function peersMetrics(view: FleetView): MetricFamily[] {
  const { peers, counts, authFailed, otherKey, transportCounts, rejected, version } = view;
  const total = (count: 'missing' | 'lost'): number =>
    peers.reduce((sum, peer) => sum + peer[count], 0);
  const oldestMs = peers.reduce((most, { ageMs }) => Math.max(most, ageMs), 0);
  const byFate = Object.entries(transportCounts).map(([fate, n]): MetricSample => [{ fate }, n]);
  return [
    gauge('sluice_peers', 'Other daemons of the fleet that are present.', peers.length),
    gauge('sluice_peers_age_seconds', 'Age of the oldest last datagram.', oldestMs / 1000),
    gauge('sluice_peers_reports_missing', 'Missing reports, requested again.', total('missing')),
    gauge('sluice_peers_reports_lost', 'Reports that no daemon can retransmit.', total('lost')),
    gauge('sluice_peers_version', 'The wire version that this daemon sends.', version),
    gauge(
      'sluice_peers_rejected',
      'Sources of rejected datagrams in the last minute. Above 0 the fleet may be split.',
      rejectedSamples(rejected),
    ),
    counter('sluice_peers_reports_total', 'Reports sent by this daemon.', counts.reports),
    counter(
      'sluice_peers_sent_bytes_total',
      'Bytes sent to peers: once for all receivers, without authentication and headers.',
      counts.sentBytes,
    ),
    counter('sluice_peers_repaired_total', 'Reports repaired by retransmission.', counts.repaired),
    counter('sluice_peers_unknown_total', 'Reported keys of unknown limits.', counts.unknownLimits),
    counter('sluice_peers_datagrams_total', 'Datagrams by what became of them.', [
      ...byFate,
      [{ fate: 'auth_failed' }, authFailed],
      [{ fate: 'other_version' }, counts.otherVersion],
      [{ fate: 'other_key' }, otherKey],
      [{ fate: 'protocol_errors' }, counts.protocolErrors],
      [{ fate: 'duplicate' }, counts.duplicates],
    ]),
  ];
}
