/** `sluice groups`: what a running daemon's group has of its limits, and what it stole from others. */

import type { GroupsShown } from '../daemon/backends/groups.ts';
import { aligned } from './chart/table.ts';
import { lookAt, printable } from './framework/admin-client.ts';
import type { Terminal } from './framework/command.ts';

export const groups = lookAt({
  name: 'groups',
  summary: 'shows the groups that a daemon steals from',
  about: `Shows the groups of a limit over regions far apart as one of their daemons sees them: what part is its own, how
much others stole from it, how much it stole from each of them, how many requests that took and how many of these
failed, and why the last one did.`,
  nothing: 'It is in no group: see docs/groups.md.',
  show,
});

function show({ id, part, given, others }: GroupsShown, terminal: Terminal): void {
  const percent = (part * 100).toFixed(1);
  terminal.print(`${printable(id)} has ${percent} % of its limits, and gave ${given} to others`);
  const rows = others.map(({ group, stolen, requests, failures }) => [
    printable(group),
    ...[stolen, requests, failures].map(String),
  ]);
  const table = [['group', 'stolen', 'requests', 'failed'], ...rows];
  for (const line of aligned(table, '  ', 1)) terminal.print(`  ${line}`);
  for (const { group, reason } of others) {
    if (reason === undefined) continue;
    terminal.print(`  ${printable(group)} is out of reach: ${printable(reason)}`);
  }
}
