/**
 * The cost of peers: the same load on a single daemon and on one with a peer.
 *
 *     npm run bench:peers              medians of seven rounds, written to bench/RESULTS.md
 *     npm run bench:peers -- --smoke   a short run, writes nothing
 *
 * Every call is allowed, so every call is reported to the peer: the highest possible report traffic. The peer uses CPU
 * on the same machine, so replies per second of CPU time are compared too.
 */

import { freeUdpPorts } from '../ports.mjs';
import { machineLine, median, row, writeSection } from '../report.mjs';
import { measureLoad } from './measure.mjs';
import { startDaemon } from './process.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 7;
const SPAN_MS = smoke ? 100 : 500;
const DEPTHS = smoke ? [16] : [1, 16, 256];
const CONNECTIONS = 8;

/** A limit that is never reached, but slow enough that keys do not become idle between calls. */
const start = (...args) =>
  startDaemon([
    ...['--rate', '1000/s', '--burst', '1000000000'],
    ...['--line', '127.0.0.1:0', '--resp', 'off', '--http', 'off', ...args],
  ]);

const [one, other] = (await freeUdpPorts(2)).map((port) => `127.0.0.1:${port}`);
process.env.SLUICE_PEERS_KEY = 'a key for the authentication of datagrams';
const alone = await start();
const peer = await start('--peers', `${other},${one}`);
const withPeer = await start('--peers', `${one},${other}`);
const targets = [alone, withPeer].map(({ pid, port }) => ({
  pid,
  kind: 'line',
  port: port('line'),
}));

const rows = [];
try {
  for (const depth of DEPTHS) {
    const rounds = [];
    for (let n = 0; n < ROUNDS; n++) {
      const figures = [];
      for (const target of targets) {
        figures.push(await measureLoad(target, { connections: CONNECTIONS, depth, ms: SPAN_MS }));
      }
      rounds.push(figures);
    }
    const of = (n, figure) => median(rounds.map((figures) => figures[n][figure]));
    const ratio = (figure) => median(rounds.map(([single, peer]) => peer[figure] / single[figure]));
    rows.push([
      depth,
      ...[0, 1].map((n) => `${Math.round(of(n, 'perSecond') / 1000)} k/s`),
      `${ratio('perSecond').toFixed(2)} ×`,
      `${ratio('perCore').toFixed(2)} ×`,
    ]);
    console.log(
      `depth ${depth}: alone ${rows.at(-1)[1]}, with a peer ${rows.at(-1).slice(2).join(', ')}`,
    );
  }
} finally {
  await Promise.all([alone, withPeer, peer].map(({ stop }) => stop()));
}

if (!smoke) {
  writeSection(
    'Daemon with peers',
    `The line protocol, ${CONNECTIONS} connections, 1,000 keys, every call allowed: a single daemon, and one that reports every allowed call to
a peer on the same machine, authenticated. Medians of ${ROUNDS} rounds in one run of \`npm run bench:peers\`, and of the ratio per round;
the last column compares replies per second of CPU time, because the peer takes its part of a machine
with few cores. ${machineLine()}.

${[row(['pipeline depth', 'alone', 'with a peer', 'ratio', 'ratio per CPU time']), row(['---:', '---:', '---:', '---:', '---:']), ...rows.map(row)].join('\n')}`,
  );
}
