/**
 * What it costs a daemon to be one of a fleet: the same questions to one that is alone and to one of two.
 *
 *     npm run bench:peers              medians of seven rounds, a part of bench/RESULTS.md
 *     npm run bench:peers -- --smoke   a moment, writes nothing
 *
 * Every question is answered with yes, so that every one is told to the other daemon: the most there is to
 * tell. That one lives on the same machine and takes processor time too, so beside answers a second stand
 * answers for each second of processor time that the daemon asked has used.
 */

import { createSocket } from 'node:dgram';
import { machineLine, median, row, writeSection } from '../report.mjs';
import { measureLoad } from './measure.mjs';
import { startDaemon } from './process.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 7;
const SPAN_MS = smoke ? 100 : 500;
const DEPTHS = smoke ? [16] : [1, 16, 256];
const CONNECTIONS = 8;

async function freeUdpPort() {
  const socket = createSocket('udp4');
  await new Promise((ready) => socket.bind(0, '127.0.0.1', ready));
  const { port } = socket.address();
  await new Promise((closed) => socket.close(closed));
  return port;
}

/** A limit that is never reached, and keys that are not as good as new a moment later. */
const start = (...args) =>
  startDaemon([
    ...['--rate', '1000/s', '--burst', '1000000000'],
    ...['--line', '127.0.0.1:0', '--resp', 'off', '--http', 'off', ...args],
  ]);

const [one, other] = [await freeUdpPort(), await freeUdpPort()].map((port) => `127.0.0.1:${port}`);
process.env.SLUICE_PEERS_KEY = 'a key that seals every datagram';
const alone = await start();
const peer = await start('--peers', `${other},${one}`);
const oneOfTwo = await start('--peers', `${one},${other}`);
const targets = [alone, oneOfTwo].map(({ pid, port }) => ({
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
    const ratio = (figure) => median(rounds.map(([own, shared]) => shared[figure] / own[figure]));
    rows.push([
      depth,
      ...[0, 1].map((n) => `${Math.round(of(n, 'perSecond') / 1000)} k/s`),
      `${ratio('perSecond').toFixed(2)} ×`,
      `${ratio('perCore').toFixed(2)} ×`,
    ]);
    console.log(
      `${depth} deep: alone ${rows.at(-1)[1]}, one of two ${rows.at(-1).slice(2).join(', ')}`,
    );
  }
} finally {
  await Promise.all([alone, oneOfTwo, peer].map(({ stop }) => stop()));
}

if (!smoke) {
  writeSection(
    'The daemon: one of a fleet',
    `The line protocol, ${CONNECTIONS} connections, 1,000 tags, every answer yes: a daemon alone, and one that tells another one, on the
same machine, of every call it lets through, sealed. Medians of ${ROUNDS} rounds in one run of \`npm run bench:peers\`, the ratio that of each round;
the last column counts answers for each second of processor time that the daemon used, as the other one takes its part of a
machine with few cores. ${machineLine()}.

${[row(['deep', 'alone', 'one of two', 'ratio', 'for its processor time']), row(['---:', '---:', '---:', '---:', '---:']), ...rows.map(row)].join('\n')}`,
  );
}
