/** `sluice pool`: who divides limits with a running daemon, and whether they agree. */

import type { PoolShown } from '../daemon/pool.ts';
import { type Command, EXIT_OK, readArgs, type Terminal, UsageError } from './command.ts';
import { aligned } from './draw/table.ts';
import { LOOK_HELP, LOOK_OPTIONS, look } from './look.ts';

export const pool: Command = {
  name: 'pool',
  summary: 'shows the daemons that divide limits among them',
  help: `usage: sluice pool [options]

Shows a pool as one of its daemons sees it: how many there are, whether all of them use their part of that,
how long ago the store was heard, how much of its part of each limit was used, and every member with its size, its rank
and how long ago it was heard.

options:
${LOOK_HELP}
  --json         everything it knows, for machines

The admin token, if the daemon wants one, comes from $SLUICE_ADMIN_TOKEN.

example:
  sluice pool --at 127.0.0.1:7612`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, { ...LOOK_OPTIONS, json: { type: 'boolean' } });
    if (positionals.length > 0) {
      throw new UsageError(`expected no "${positionals[0]}"; see --help`);
    }
    const shown = (await look('/pool', values)) as PoolShown | { readonly members: readonly [] };
    if (values.json) terminal.print(JSON.stringify(shown, undefined, 2));
    else if ('id' in shown) show(shown, terminal);
    else terminal.print('It is in no pool: see docs/pool.md.');
    return EXIT_OK;
  },
};

function show(shown: PoolShown, terminal: Terminal): void {
  const { name, store, id, size, rank, active, isAgreed, ageMs, failures, syncs, reason } = shown;
  const agreed = isAgreed ? 'agreed' : 'not agreed';
  const part = size === 0 ? 'no part' : `1 of ${size}${rank < 0 ? '' : `, rank ${rank}`}`;
  terminal.print(`${name}, ${store}: ${active} active, ${agreed}`);
  terminal.print(`  ${id} has ${part}; the store was heard ${seconds(ageMs)} ago`);
  if (failures > 0) {
    terminal.print(
      `  ${failures} of ${syncs} syncs failed${reason === undefined ? '' : `: ${reason}`}`,
    );
  }
  for (const [limit, used] of Object.entries(shown.saturation)) {
    terminal.print(`  ${limit}: ${Math.round(used * 100)} % of its part was used in the last 10 s`);
  }
  if (!shown.members || shown.members.length === 0) return;
  const rows = shown.members.map((member) => [
    member.id,
    `${member.size}`,
    member.rank < 0 ? '-' : `${member.rank}`,
    `${seconds(member.ageMs)} ago`,
  ]);
  const table = [['member', 'size', 'rank', 'heard'], ...rows];
  for (const line of aligned(table, '  ', 1)) terminal.print(`  ${line}`);
}

const seconds = (ms: number | null): string =>
  ms === null || ms === Infinity ? 'never' : `${(ms / 1000).toFixed(1)} s`;
