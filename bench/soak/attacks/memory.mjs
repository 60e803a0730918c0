/**
 * Attack on memory: a client without credentials makes the daemon hold as much as its bounds allow. The daemon must
 * live, and answer another client.
 *
 *     const { permits, permitsMB, answered } = await attack({ rounds: 1 });
 *
 * `npm run soak:attack` starts the daemons with 512 MiB.
 */

import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { daemonToAttack, exchange, http, resp } from '../attacks-support.mjs';

const KEY_BYTES = 4096;

const MAX_TRIES = 10;

/** Of one connection. */
const IN_FLIGHT = 8;

const ONE_LIMIT = 'limits: { a: { bucket: { rate: 1/h, burst: 1000 } } }';
const THREE_LIMITS = `
limits:
  a: { bucket: { rate: 1/h, burst: 100 }, always: true }
  b: { window: { limit: 100, per: 1h }, always: true }
  c: { window: { limit: 1000, per: 24h }, always: true }
`;

async function open(port) {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true }).on('error', () => {});
  await Promise.race([once(socket, 'connect'), once(socket, 'close')]);
  return socket;
}

/** Sends requests over some connections and waits for their replies, each of which has the mark once. */
async function flood(port, requestOf, total, mark) {
  let next = 0;
  let replies = 0;
  const run = async () => {
    const socket = await open(port);
    let inFlight = 0;
    let end = '';
    const send = () => {
      let text = '';
      for (; inFlight < IN_FLIGHT && next < total; inFlight++) text += requestOf(next++);
      if (text !== '') socket.write(text, 'latin1');
      if (inFlight === 0) socket.destroy();
    };
    socket.on('data', (chunk) => {
      const parts = `${end}${chunk.toString('latin1')}`.split(mark);
      end = parts.at(-1).slice(1 - mark.length || Infinity);
      replies += parts.length - 1;
      inFlight -= parts.length - 1;
      send();
    });
    send();
    if (!socket.destroyed) await once(socket, 'close');
  };
  await Promise.all(Array.from({ length: 8 }, run));
  return replies;
}

/** Opens connections, sends these bytes over each and reads no reply. Resolves with their number. */
async function hold(port, count, bytes) {
  const held = [];
  for (let n = 0; n < count; n++) {
    const socket = await open(port);
    socket.pause().write(bytes);
    held.push(socket);
  }
  const isSending = (socket) => !socket.destroyed && socket.writableLength > 0;
  for (let n = 0; n < 100 && held.some(isSending); n++) await sleep(100);
  await sleep(2000);
  for (const socket of held) socket.destroy();
  return count;
}

const keyOf = (n) => `${n}`.padEnd(KEY_BYTES, 'k');
const word = 'x'.repeat(65_000);
const halfCommand = `*3\r\n${`$${word.length}\r\n${word}\r\n`.repeat(2)}$900\r\n`;
const queue = resp('MULTI') + resp('SLUICE.CHECK', '*', keyOf(0)).repeat(31);
const headers = Array.from({ length: 900 }, (_, n) => `A${n}: b${n}\r\n`).join('');
const post = 'POST /check HTTP/1.1\r\nHost: a\r\n';
const heldCheck = (n) => `GET /check?hold=1&key=${keyOf(n)} HTTP/1.1\r\nHost: a\r\n\r\n`;

/** What the client does, by the name of its count. */
const ATTACKS = {
  permits: ({ http: port }) => flood(port, heldCheck, 50_000, 'HTTP/1.1 '),
  respPermits: ({ resp: port }) =>
    flood(port, (n) => resp('SLUICE.CHECK', '*', keyOf(n), 1, 'HOLD'), 50_000, '*6\r\n'),
  halfCommands: ({ resp: port }) => hold(port, 2500, halfCommand),
  queues: ({ resp: port }) => hold(port, 2500, queue + halfCommand),
  halfHeads: ({ http: port }) => hold(port, 5000, `GET / HTTP/1.1\r\nHost: a\r\n${headers}`),
  halfBodies: ({ http: port }) => hold(port, 5000, `${post}Content-Length: 65536\r\n\r\n${word}`),
  chunkedBodies: ({ http: port }) =>
    hold(port, 500, `${post}Transfer-Encoding: chunked\r\n\r\n${'1\r\nx\r\n'.repeat(30_000)}`),
  unreadReplies: ({ resp: port }) => hold(port, 5000, resp('COMMAND').repeat(2000)),
  connections: ({ resp: port, http: other }) =>
    Promise.all([hold(port, 9000, ''), hold(other, 9000, post)]).then(() => 18_000),
  keys: ({ line: port }) => flood(port, (n) => `k${n}\n`, 1_100_000, '\n'),
};

/** A refused connection, or a busy machine, gives no reply at once. */
async function askAgain(port, text) {
  for (let tries = 1; ; tries++) {
    const reply = await exchange(port, [text]);
    if (reply !== '' || tries === MAX_TRIES) return reply;
  }
}

/** Rejects if the daemon ends, or another client gets no decision. */
export async function attack({ rounds, only = Object.keys(ATTACKS) }) {
  const counts = { answered: 0 };
  const attackOnce = async (name) => {
    const daemon = await daemonToAttack(name === 'keys' ? THREE_LIMITS : ONE_LIMIT);
    const ports = Object.fromEntries(['line', 'resp', 'http'].map((p) => [p, daemon.port(p)]));
    try {
      counts[name] = (counts[name] ?? 0) + (await ATTACKS[name](ports));
      counts[`${name}MB`] = Math.max(counts[`${name}MB`] ?? 0, daemon.check());
      const reply = await askAgain(ports.http, http('GET /check?key=bystander'));
      // Once keys were evicted, a new one may be refused.
      if (!/^HTTP\/1\.1 (200|429)/.test(reply)) throw new Error(`${name}: ${reply}`);
      counts.answered++;
    } finally {
      await daemon.stop();
    }
  };
  for (let round = 0; round < rounds; round++) for (const name of only) await attackOnce(name);
  return counts;
}
