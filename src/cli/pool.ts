/** `sluice pool`: who divides limits with a running daemon, and whether they agree. */

import type { PoolStatus } from '../daemon/backends/pool.ts';
import { alignColumns } from './chart/table.ts';
import { adminPageCommand, toPrintable } from './framework/admin-client.ts';
import type { Terminal } from './framework/command.ts';

export const pool = adminPageCommand({
  name: 'pool',
  summary: 'shows the daemons that divide limits among them',
  description: `Shows a pool as one of its daemons sees it: how many there are, whether all of them use their part of that,
how long ago the store was heard, how much of its part of each limit was used, and every member with its size, its rank and
how long ago it was heard.`,
  emptyMessage: 'It is in no pool: see docs/pool.md.',
  render: printPool,
});

function printPool(shown: PoolStatus, terminal: Terminal): void {
  const { name, store, id, size, rank, active, isAgreed, ageMs, failures, syncs, reason } = shown;
  const agreed = isAgreed ? 'agreed' : 'not agreed';
  const part = size === 0 ? 'no part' : `1 of ${size}${rank < 0 ? '' : `, rank ${rank}`}`;
  terminal.print(`${toPrintable(name)}, ${toPrintable(store)}: ${active} active, ${agreed}`);
  terminal.print(`  ${toPrintable(id)} has ${part}; the store was ${formatLastContact(ageMs)}`);
  const why = reason === undefined ? '' : `: ${toPrintable(reason)}`;
  if (failures > 0) terminal.print(`  ${failures} of ${syncs} syncs failed${why}`);
  for (const [limit, used] of Object.entries(shown.saturation)) {
    const percent = Math.round(used * 100);
    terminal.print(`  ${toPrintable(limit)}: ${percent} % of its part was used in the last 10 s`);
  }
  if (!shown.members || shown.members.length === 0) return;
  const rows = shown.members.map((member) => [
    toPrintable(member.id),
    `${member.size}`,
    member.rank < 0 ? '-' : `${member.rank}`,
    formatAge(member.ageMs),
  ]);
  const table = [['member', 'size', 'rank', 'heard'], ...rows];
  for (const line of alignColumns(table, '  ', 1)) terminal.print(`  ${line}`);
}

/** JSON has no Infinity: what never was has no age. */
const formatAge = (ms: number | null): string =>
  ms === null ? 'never' : `${(ms / 1000).toFixed(1)} s ago`;

const formatLastContact = (ms: number | null): string =>
  ms === null ? 'never heard' : `heard ${formatAge(ms)}`;
