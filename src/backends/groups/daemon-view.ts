import { counter, gauge, type MetricFamily, type MetricSample } from '../../core/metric-family.ts';
import type { BackendPage, TextTable } from '../daemon-backend.ts';
import type { GroupsView } from './group.ts';

/** `GET /groups`. */
export interface GroupsStatus extends GroupsView {
  /** The name of the daemon's own group. */
  readonly id: string;
}

export const groupsPage: BackendPage = {
  summary: 'the groups that this daemon borrows from and lends to',
  description: `Shows the groups of a limit over several regions as one daemon sees them: the fraction of its own group, how much it
lent, how much it borrowed from each group, with how many requests, how many of these failed, and the last reason.`,
  emptyView: { others: [] },
  emptyMessage: 'The daemon is in no group: see docs/reference/groups.md.',
  render: (view) => renderGroups(view as GroupsStatus),
};

function renderGroups({ id, fraction, lent, others }: GroupsStatus): (string | TextTable)[] {
  const rows = others.map(({ group, borrowed, requests, failures }) => [
    group,
    ...[borrowed, requests, failures].map(String),
  ]);
  return [
    `${id} has ${(fraction * 100).toFixed(1)} % of its limits, and lent ${lent} to other groups`,
    [['group', 'borrowed', 'requests', 'failed'], ...rows],
    ...others.flatMap(({ group, reason }) =>
      reason === undefined ? [] : [`  ${group} is unavailable: ${reason}`],
    ),
  ];
}

export function groupsMetrics({ fraction, lent, others }: GroupsView): MetricFamily[] {
  const byGroup = (count: 'borrowed' | 'requests' | 'failures'): MetricSample[] =>
    others.map((other) => [{ group: other.group }, other[count]]);
  return [
    gauge(
      'sluice_groups_fraction',
      'Fraction of the limits that its own group has: 0 to 1.',
      fraction,
    ),
    counter('sluice_groups_lent_total', 'Tokens that this daemon lent to other groups.', lent),
    counter('sluice_groups_borrowed_total', 'Tokens that it borrowed.', byGroup('borrowed')),
    counter('sluice_groups_requests_total', 'Requests to borrow.', byGroup('requests')),
    counter('sluice_groups_failures_total', 'Failed requests to borrow.', byGroup('failures')),
  ];
}
