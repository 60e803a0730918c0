/** `sluice peers`: who keeps limits together with a running daemon, and how well it hears them. */

import type { FleetView } from '../daemon/backends/peers.ts';
import { alignColumns } from './chart/table.ts';
import { adminPageCommand, toPrintable } from './framework/admin-client.ts';
import type { Terminal } from './framework/command.ts';

export const peers = adminPageCommand({
  name: 'peers',
  summary: 'shows the other daemons that keep the same limits',
  description: `Shows the fleet as one of its daemons sees it: who is there, how long ago each was heard, how many of its
reports came, are missing and asked for again, or are lost for good.`,
  emptyMessage: 'It has no peers: see docs/peers.md.',
  render: printPeers,
});

function printPeers(view: FleetView, terminal: Terminal): void {
  const { name, transport, counts, transportCounts, authFailed } = view;
  terminal.print(`${name}, ${transport}`);
  if (!view.isOpen) terminal.print('  not in reach of the others yet: until then it decides alone');
  else if (view.peers.length === 0) terminal.print('  nobody else is there');
  else {
    const rows = view.peers.map((peer) => [
      toPrintable(peer.name),
      `${(peer.ageMs / 1000).toFixed(1)} s ago`,
      ...[peer.reportsReceived, peer.missing, peer.lost].map(String),
    ]);
    const table = [['peer', 'heard', 'reports', 'missing', 'lost'], ...rows];
    for (const line of alignColumns(table, '  ', 1)) terminal.print(`  ${line}`);
  }
  const { received, failed, dropped } = transportCounts;
  terminal.print(
    `  said ${counts.reports} reports in ${counts.sent} datagrams, ${counts.sentBytes} bytes; heard ${received} datagrams`,
  );
  const odd = {
    failed,
    dropped,
    'auth failed': authFailed,
    'protocol errors': counts.protocolErrors,
    duplicate: counts.duplicates,
  };
  const seen = Object.entries(odd).filter(([, count]) => count > 0);
  if (seen.length > 0) {
    terminal.print(`  of them ${seen.map(([what, count]) => `${count} ${what}`).join(', ')}`);
  }
  if (counts.unknownLimits > 0) {
    terminal.print(
      `  ${counts.unknownLimits} keys were of limits it has not: is a rule different elsewhere?`,
    );
  }
}
