/**
 * Attacks the clients of a daemon that fail open: requests that the daemon rejects, and servers that are no daemon. A
 * request that was rejected must not be allowed, or a long key is enough to get past every limit.
 *
 * Invariants: no rejected call is allowed, the keys of other clients get exactly what their limit allows, and only
 * without a server does the client fail open.
 */

import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from '../../../dist/client/index.js';
import { seededRandom } from '../../../dist/core/random.js';
import { startDaemon } from '../../daemon/process.mjs';

const BURST = 3;
const CHECKS = 10;
const MAX_KEY = 64;
const PASSWORD = 'a-password-of-the-daemon';

const CONFIG = `
resp: { password: ${PASSWORD} }
bounds: { key: ${MAX_KEY} }
limits: { three: { bucket: { rate: 1/h, burst: ${BURST} } } }
`;

const PORTS = ['--line', 'off', '--http', 'off', '--resp', '127.0.0.1:0'];

/** What a server that is no daemon sends. */
const BANNERS = [
  'HTTP/1.1 400 Bad Request\r\n\r\n',
  "-ERR unknown command 'HELLO'\r\n",
  '-NOAUTH Authentication required.\r\n',
  '$-7\r\n*9999999999\r\n',
  'SSH-2.0-OpenSSH_9.2\r\n',
];

export async function attack({ rounds, seed }) {
  const random = seededRandom(seed);
  const below = (n) => Math.floor(random() * n);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const config = join(folder, 'sluice.yaml');
  writeFileSync(config, CONFIG);
  const daemon = await startDaemon(['--config', config, ...PORTS], { log: 'ignore' });
  let stopped;
  const stop = () => (stopped ??= daemon.stop('SIGKILL'));
  const foreign = createServer((socket) => {
    socket.on('error', () => {});
    socket.write(BANNERS[below(BANNERS.length)]);
  }).listen(0, '127.0.0.1');
  await once(foreign, 'listening');
  const open = (options) => connect({ deadline: '10s', ...options });
  const port = daemon.port('resp');
  const sluice = open({ at: { port }, password: PASSWORD });
  const counts = { rejected: 0, allowed: 0, failedOpen: 0 };

  const mustReject = async (what, results) => {
    for (const result of await Promise.allSettled(results)) {
      const { verdict, rejected } = result.value ?? {};
      const isError = result.reason?.code === 'REJECTED';
      if (!isError && (verdict !== 'deny' || !rejected)) throw new Error(`${what}: ${verdict}`);
      counts.rejected++;
    }
  };

  const attackRound = async (round) => {
    const others = Array.from({ length: CHECKS }, () => sluice.check(`other ${seed} ${round}`));
    const long = () => 'x'.repeat(MAX_KEY + 1 + below(5000));
    await mustReject(
      'long keys',
      Array.from({ length: CHECKS }, () => sluice.check(long())),
    );
    const limit = `three${'e'.repeat(1 + below(3))}`;
    await mustReject('unknown limit', [sluice.check('a', 1, { limit })]);
    const allowed = (await Promise.all(others)).filter(({ verdict }) => verdict === 'allow');
    if (allowed.length !== BURST) throw new Error(`${allowed.length} of ${BURST} allowed`);
    counts.allowed += allowed.length;
    const wrong = [
      open({ at: { port }, password: 'a-guess-of-the-password' }),
      open({ at: { port } }),
      open({ at: { port: foreign.address().port } }),
    ];
    for (const client of wrong) {
      await mustReject('wrong server or password', [client.check('a'), client.check('b')]);
      await client.close();
    }
  };

  try {
    for (let round = 0; round < rounds; round++) await attackRound(round);
    await stop();
    const { verdict, unavailable } = await sluice.check('a');
    if (verdict !== 'allow' || !unavailable) throw new Error(`an outage: ${verdict}`);
    counts.failedOpen++;
    return counts;
  } finally {
    await sluice.close();
    foreign.close();
    await stop();
    rmSync(folder, { recursive: true });
  }
}
