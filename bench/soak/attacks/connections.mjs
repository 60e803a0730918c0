/**
 * Attack: connections that are idle, or have sent half a request, fill every port to its maximum. A client that comes
 * later must be served all the same, and a full port must not cost the daemon memory for long.
 *
 *     const { held, served } = await attack({ rounds: 10, seed: 1 });
 */

import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { seededRandom } from '../../../dist/core/random.js';
import { startDaemon } from '../../daemon/process.mjs';

const MAX_CONNECTIONS = 40;

/** Longer than a connection must be idle to make space. */
const IDLE_MS = 1200;

const REPLY_TIMEOUT_MS = 5000;

/** A request by protocol, and beginnings of one that never ends. */
const PROTOCOLS = {
  line: { request: 'bystander\n', halves: ['', 'half a key', 'x'.repeat(4000)] },
  resp: {
    request: '*3\r\n$12\r\nSLUICE.CHECK\r\n$1\r\n*\r\n$9\r\nbystander\r\n',
    halves: ['', '*3\r\n$12\r\nSLU', `*2\r\n$4\r\nECHO\r\n$65536\r\n${'x'.repeat(60_000)}`, 'PING'],
  },
  http: {
    request: 'GET /check?key=bystander HTTP/1.1\r\nHost: localhost\r\n\r\n',
    halves: ['', 'GET /check', 'POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nkey'],
  },
};

const open = async (port) => {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  await Promise.race([once(socket, 'connect'), once(socket, 'close')]);
  return socket;
};

/** True if the request gets a reply. */
async function isServed(port, request) {
  const socket = await open(port);
  socket.write(request);
  const replied = once(socket, 'data').then(() => true);
  const ended = once(socket, 'close').then(() => false);
  const late = sleep(REPLY_TIMEOUT_MS, false, { ref: false });
  const isReply = await Promise.race([replied, ended, late]).catch(() => false);
  socket.destroy();
  return isReply;
}

/** Rejects if a client is not served while all connections are held. */
export async function attack({ rounds, seed }) {
  const random = seededRandom(seed);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const file = join(folder, 'sluice.yaml');
  writeFileSync(file, `bounds: { connections: ${MAX_CONNECTIONS}, slow: 2s }\n`);
  const ports = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];
  const daemon = await startDaemon(['--config', file, ...ports], { log: 'ignore' });
  const counts = { held: 0, served: 0 };
  const held = [];
  try {
    for (let round = 0; round < rounds; round++) {
      for (const [protocol, { halves }] of Object.entries(PROTOCOLS)) {
        for (let n = 0; n < MAX_CONNECTIONS * 1.2; n++) {
          const socket = await open(daemon.port(protocol));
          socket.resume().write(halves[Math.floor(random() * halves.length)]);
          held.push(socket);
          counts.held++;
        }
      }
      await sleep(IDLE_MS);
      for (const [protocol, { request }] of Object.entries(PROTOCOLS)) {
        if (!(await isServed(daemon.port(protocol), request)))
          throw new Error(`round ${round}: no reply over ${protocol}`);
        counts.served++;
      }
      for (const socket of held.splice(0)) socket.destroy();
    }
    return counts;
  } finally {
    for (const socket of held) socket.destroy();
    await daemon.stop('SIGKILL');
    rmSync(folder, { recursive: true });
  }
}
