import { counter, gauge, type MetricFamily } from '../../core/metric-family.ts';
import type { BackendPage, TextTable } from '../daemon-backend.ts';
import type { PoolView } from './pool.ts';
import type { PoolMemberRecord } from './store.ts';

/** `GET /pool`. */
export interface PoolStatus extends PoolView {
  /** All members that the store knows; left out while the store is unavailable. */
  readonly members?: readonly PoolMemberRecord[];
}

export const poolPage: BackendPage = {
  summary: 'the daemons that divide limits among them',
  description: `Shows the pool as one daemon sees it: its size, whether all members agree on it, the age of the last reply of
the store, the saturation of each limit, and every member with its size, its rank and the age of its last sync.`,
  emptyView: { members: [] },
  emptyMessage: 'The daemon is in no pool: see docs/reference/pool.md.',
  render: (view) => renderPool(view as PoolStatus),
};

function renderPool(shown: PoolStatus): (string | TextTable)[] {
  const { name, store, id, size, rank, active, isAgreed, ageMs, failures, syncs, reason } = shown;
  const agreed = isAgreed ? 'agreed' : 'not agreed';
  const part = size === 0 ? 'no part' : `1 of ${size}${rank < 0 ? '' : `, rank ${rank}`}`;
  const why = reason === undefined ? '' : `: ${reason}`;
  const saturation = Object.entries(shown.saturation).map(
    ([limit, used]) =>
      `  ${limit}: ${Math.round(used * 100)} % of its part was used in the last 10 s`,
  );
  const lines = [
    `${name}, ${store}: ${active} active, ${agreed}`,
    `  ${id} has ${part}; last reply of the store: ${formatAge(ageMs)}`,
    ...(failures > 0 ? [`  ${failures} of ${syncs} syncs failed${why}`] : []),
    ...saturation,
  ];
  const { members = [] } = shown;
  if (members.length === 0) return lines;
  const rows = members.map((member) => [
    member.id,
    `${member.size}`,
    member.rank < 0 ? '-' : `${member.rank}`,
    formatAge(member.ageMs),
  ]);
  return [...lines, [['member', 'size', 'rank', 'last sync'], ...rows]];
}

/** Formats an age. JSON has null for Infinity, the age without any reply. */
const formatAge = (ms: number | null): string =>
  ms === null ? 'never' : `${(ms / 1000).toFixed(1)} s ago`;

/** The age that represents "never" as a number in a graph. */
const MAX_AGE_MS = 86_400_000;

export const poolMetrics = (view: PoolView): MetricFamily[] => [
  gauge(
    'sluice_pool_size',
    'Number of members that this daemon divides its limits by; 0: it has no part.',
    view.size,
  ),
  gauge('sluice_pool_active', 'Members that synced with the store lately.', view.active),
  gauge('sluice_pool_agreed', '1 if all members use the same size.', Number(view.isAgreed)),
  gauge(
    'sluice_pool_age_seconds',
    'Age of the last reply of the store.',
    Math.min(view.ageMs, MAX_AGE_MS) / 1000,
  ),
  counter('sluice_pool_syncs_total', 'Syncs with the store.', [
    [{ result: 'ok' }, view.syncs - view.failures],
    [{ result: 'failed' }, view.failures],
  ]),
];
