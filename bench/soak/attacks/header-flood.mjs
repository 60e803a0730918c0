/**
 * Attack: a client behind a trusted proxy sends many headers, so that `X-Forwarded-For` may be dropped. It must not count
 * as the proxy, which is on the allow list: over all requests it gets its burst, and 429 or 431 for the rest.
 *
 *     const { requests, allowed, refused } = await attack({ rounds: 100, seed: 1 });
 */

import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seededRandom } from '../../../dist/core/random.js';
import { startDaemon } from '../../daemon/process.mjs';

const BURST = 5;

const CONFIG = `http: { prefix: 'ip:', trustProxy: [127.0.0.1] }
allow: ['ip:127.0.0.1']
limits: { per-client: { bucket: { rate: 1/d, burst: ${BURST} } } }
`;

/** Up to 3,000 headers, most counts near those at which a server may stop. */
function headersOf(random) {
  const near = [0, 50, 98, 100, 128, 500, 1000, 1024, 2000][Math.floor(random() * 9)];
  const count = Math.max(0, near + Math.floor(random() * 9) - 4);
  const name = ['A', 'a-b', 'Cookie', 'X-F'][Math.floor(random() * 4)];
  const value = random() < 0.5 ? '' : ' 1';
  return `${name}:${value}\r\n`.repeat(count);
}

async function statusOf(port, head) {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  socket.write(head);
  const [chunk] = await once(socket, 'data');
  socket.destroy();
  return Number(/^HTTP\/1.1 (\d+)/.exec(String(chunk))?.[1]);
}

/** Rejects if the client gets more than its burst, or no response. */
export async function attack({ rounds, seed }) {
  const random = seededRandom(seed);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const file = join(folder, 'sluice.yaml');
  writeFileSync(file, CONFIG);
  const ports = ['--line', 'off', '--resp', 'off', '--http', '127.0.0.1:0'];
  const daemon = await startDaemon(['--config', file, ...ports], { log: 'ignore' });
  const counts = { requests: 0, allowed: 0, refused: 0 };
  try {
    for (; counts.requests < rounds; counts.requests++) {
      const head = `GET /check HTTP/1.1\r\nHost: localhost\r\n${headersOf(random)}`;
      const status = await statusOf(
        daemon.port('http'),
        `${head}X-Forwarded-For: 203.0.113.9\r\n\r\n`,
      );
      if (status === 200) counts.allowed++;
      else if (status === 429 || status === 431) counts.refused++;
      else throw new Error(`status ${status}`);
      if (counts.allowed > BURST) throw new Error(`${counts.allowed} allowed, a burst of ${BURST}`);
    }
    return counts;
  } finally {
    await daemon.stop('SIGKILL');
    rmSync(folder, { recursive: true });
  }
}
