/** `sluice peers`: who keeps limits together with a running daemon, and how well it hears them. */

import type { FleetView } from '../daemon/peers.ts';
import { type Command, EXIT_OK, readArgs, type Terminal, UsageError } from './command.ts';
import { aligned } from './draw/table.ts';
import { LOOK_HELP, LOOK_OPTIONS, look } from './look.ts';

export const peers: Command = {
  name: 'peers',
  summary: 'shows the other daemons that keep the same limits',
  help: `usage: sluice peers [options]

Shows the fleet as one of its daemons sees it: who is there, how long ago each was heard, how many of its
reports came, are missing and asked for again, or are lost for good.

options:
${LOOK_HELP}
  --json         everything it knows, for machines

The admin token, if the daemon wants one, comes from $SLUICE_ADMIN_TOKEN.

example:
  sluice peers --at 127.0.0.1:7612`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, { ...LOOK_OPTIONS, json: { type: 'boolean' } });
    if (positionals.length > 0) {
      throw new UsageError(`expected no "${positionals[0]}"; see --help`);
    }
    const view = (await look('/peers', values)) as FleetView | { readonly peers: readonly [] };
    if (values.json) terminal.print(JSON.stringify(view, undefined, 2));
    else if ('id' in view) show(view, terminal);
    else terminal.print('It has no peers: see docs/peers.md.');
    return EXIT_OK;
  },
};

function show(view: FleetView, terminal: Terminal): void {
  const { name, transport, counts, carried, forged } = view;
  terminal.print(`${name}, ${transport}`);
  if (!view.isOpen) terminal.print('  not in reach of the others yet: until then it decides alone');
  else if (view.peers.length === 0) terminal.print('  nobody else is there');
  else {
    const rows = view.peers.map((peer) => [
      peer.name.replace(/\p{Cc}/gu, '?'), // whoever chose it need not reach into this terminal
      `${(peer.ageMs / 1000).toFixed(1)} s ago`,
      ...[peer.heard, peer.missing, peer.lost].map(String),
    ]);
    const table = [['peer', 'heard', 'reports', 'missing', 'lost'], ...rows];
    for (const line of aligned(table, '  ', 1)) terminal.print(`  ${line}`);
  }
  const { heard, failed, dropped } = carried;
  terminal.print(
    `  said ${counts.reports} reports in ${counts.sent} datagrams, ${counts.sentBytes} bytes; heard ${heard} datagrams`,
  );
  const odd = { failed, dropped, forged, senseless: counts.senseless, double: counts.duplicates };
  const seen = Object.entries(odd).filter(([, count]) => count > 0);
  if (seen.length > 0) {
    terminal.print(`  of them ${seen.map(([what, count]) => `${count} ${what}`).join(', ')}`);
  }
  if (counts.unknown > 0) {
    terminal.print(
      `  ${counts.unknown} keys were of limits it has not: is a rule different elsewhere?`,
    );
  }
}
