/** What attacks share: random choices by seed, mutated bytes, raw connections with deadlines, and a daemon to attack. */

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seededRandom } from '../../dist/core/random.js';
import { memoryOf, startDaemon } from '../daemon/process.mjs';

/** Random choices; the same seed gives the same ones. */
export function choices(seed) {
  const random = seededRandom(seed);
  const below = (n) => Math.floor(random() * n);
  const oneOf = (list) => list[below(list.length)];
  const upTo = (most, make) => Array.from({ length: below(most + 1) }, (_, n) => make(n));
  const noise = (most) => Buffer.from(upTo(most, () => below(256)));
  /** Some bytes are flipped, removed, repeated, inserted, or the rest is cut off. */
  const mutated = (bytes) => {
    let changed = Buffer.from(bytes);
    for (let times = 1 + below(4); times > 0; times--) {
      const at = below(changed.length + 1);
      const [before, after] = [changed.subarray(0, at), changed.subarray(at)];
      changed = oneOf([
        () => Buffer.concat([before, Buffer.from([below(256)]), after.subarray(1)]),
        () => Buffer.concat([before, after.subarray(1 + below(8))]),
        () => Buffer.concat([before, noise(8), after]),
        () => Buffer.concat([before, changed.subarray(at >> 1)]),
        () =>
          Buffer.concat([
            before,
            Buffer.alloc(below(8000), oneOf(['x', '1', ' ', '\n', '*'])),
            after,
          ]),
        () => before,
      ])();
    }
    return changed;
  };
  return { random, below, oneOf, upTo, noise, mutated };
}

/** How long a connection waits for replies. */
const MAX_REPLY_MS = 5000;

/** Sends the chunks, half-closes, and resolves with what was received; with `isAborted` the connection is reset instead. */
export function exchange(port, chunks, isAborted = false) {
  return new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1', noDelay: true });
    const received = [];
    socket.setTimeout(MAX_REPLY_MS, () => socket.destroy());
    socket.on('data', (chunk) => received.push(chunk));
    socket.on('error', () => {}); // the daemon may end the connection at any time
    socket.on('close', () => resolve(Buffer.concat(received).toString('latin1')));
    for (const chunk of chunks) socket.write(chunk);
    if (isAborted) setImmediate(() => socket.resetAndDestroy());
    else socket.end();
  });
}

/** Replies to a request that must be answered. */
export async function ask(port, text) {
  const reply = await exchange(port, [text]);
  if (reply === '')
    throw new Error(`no reply within ${MAX_REPLY_MS} ms to ${JSON.stringify(text)}`);
  return reply;
}

const PORTS = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

/** Growth of the daemon beyond this, over any number of rounds, would be a leak. */
const MAX_MEMORY_MB = 500;

/** A daemon with this configuration; `check` throws if it has ended or holds too much memory. */
export async function daemonToAttack(config, flags = PORTS) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const file = join(folder, 'sluice.yaml');
  writeFileSync(file, config);
  const daemon = await startDaemon([...flags, '--config', file], { log: 'ignore' });
  return {
    ...daemon,
    folder,
    /** Its memory in MB. */
    check() {
      const memoryMB = Math.round(memoryOf(daemon.pid) / 1e6); // throws without the process
      if (memoryMB > MAX_MEMORY_MB) throw new Error(`the daemon holds ${memoryMB} MB`);
      return memoryMB;
    },
    async stop() {
      await daemon.stop('SIGKILL');
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export const resp = (...words) =>
  `*${words.length}\r\n${words.map((word) => `$${Buffer.byteLength(`${word}`)}\r\n${word}\r\n`).join('')}`;

export const http = (line, headers = '', body = '') =>
  `${line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n${headers}\r\n${body}`;
