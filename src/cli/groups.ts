/** `sluice groups`: what a running daemon's group has of its limits, and what it stole from others. */

import type { GroupsStatus } from '../daemon/backends/groups.ts';
import { alignColumns } from './chart/table.ts';
import { adminPageCommand, toPrintable } from './framework/admin-client.ts';
import type { Terminal } from './framework/command.ts';

export const groups = adminPageCommand({
  name: 'groups',
  summary: 'shows the groups that a daemon steals from',
  description: `Shows the groups of a limit over regions far apart as one of their daemons sees them: what part is its own, how
much others stole from it, how much it stole from each of them, how many requests that took and how many of these
failed, and why the last one did.`,
  emptyMessage: 'It is in no group: see docs/groups.md.',
  render: printGroups,
});

function printGroups({ id, part, lent, others }: GroupsStatus, terminal: Terminal): void {
  const percent = (part * 100).toFixed(1);
  terminal.print(`${toPrintable(id)} has ${percent} % of its limits, and gave ${lent} to others`);
  const rows = others.map(({ group, borrowed, requests, failures }) => [
    toPrintable(group),
    ...[borrowed, requests, failures].map(String),
  ]);
  const table = [['group', 'borrowed', 'requests', 'failed'], ...rows];
  for (const line of alignColumns(table, '  ', 1)) terminal.print(`  ${line}`);
  for (const { group, reason } of others) {
    if (reason === undefined) continue;
    terminal.print(`  ${toPrintable(group)} is out of reach: ${toPrintable(reason)}`);
  }
}
