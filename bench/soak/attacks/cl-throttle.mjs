/**
 * Attacks CL.THROTTLE, whose terms come with the command: a client takes from more keys than the daemon holds, with
 * bursts that take as long as possible to earn. The daemon is restarted from its snapshot half-way.
 *
 * Invariants: a fresh key with modest terms is allowed after at most one interval of its own, and never owes more than
 * one burst.
 */

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createClient } from 'redis';
import { seededRandom } from '../../../dist/core/random.js';
import { startDaemon } from '../../daemon/process.mjs';

const COMMANDS_PER_ROUND = 5000;
const FRESH_KEYS = 50;

/** A burst of 16 and 30 a minute: an interval of 2 s, a burst of 32 s. */
const MODEST = ['15', '30', '60'];
const MAX_RETRY_S = 2;
const MAX_RESET_S = 32;

const PORTS = ['--line', 'off', '--http', 'off', '--resp', '127.0.0.1:0'];

export async function attack({ rounds, seed }) {
  const random = seededRandom(seed);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const config = join(folder, 'sluice.yaml');
  writeFileSync(config, `bounds: { throttleKeys: 10000 }\nsnapshot: ${join(folder, 'state')}\n`);
  const start = async () => {
    const daemon = await startDaemon(['--config', config, ...PORTS], { log: 'ignore' });
    const redis = createClient({ url: `redis://127.0.0.1:${daemon.port('resp')}` });
    redis.on('error', () => {});
    await redis.connect();
    return { daemon, redis };
  };
  let { daemon, redis } = await start();
  const counts = { commands: 0, rejected: 0, fresh: 0, freshDenied: 0, restarts: 0 };

  const throttle = async (...words) => {
    counts.commands++;
    const reply = await redis.sendCommand(['CL.THROTTLE', ...words.map(String)]).catch(() => []);
    if (reply.length === 0) counts.rejected++;
    return reply;
  };
  const power = (most) => Math.floor(10 ** (random() * most));

  /** Takes a whole burst at once. Half of the terms are as long as the daemon accepts. */
  const take = (n) => {
    const isLongest = random() < 0.5;
    const burst = isLongest ? 172_799 : power(9);
    const [count, period] = isLongest ? [1, 1] : [power(3), power(6)];
    return throttle(`evil ${seed} ${counts.commands} ${n}`, burst, count, period, burst + 1);
  };

  const attackRound = async (round) => {
    await Promise.all(Array.from({ length: COMMANDS_PER_ROUND }, (_, n) => take(n)));
    for (let n = 0; n < FRESH_KEYS; n++) {
      const [denied, , , retryS, resetS] = await throttle(`fresh ${seed} ${round} ${n}`, ...MODEST);
      counts.fresh++;
      counts.freshDenied += denied;
      if (retryS > MAX_RETRY_S || resetS > MAX_RESET_S)
        throw new Error(`a fresh key: retry after ${retryS} s, reset after ${resetS} s`);
    }
    if (round !== Math.floor(rounds / 2)) return;
    redis.destroy();
    await daemon.stop();
    ({ daemon, redis } = await start());
    counts.restarts++;
  };

  try {
    for (let round = 0; round < rounds; round++) await attackRound(round);
    return counts;
  } finally {
    redis.destroy();
    await daemon.stop('SIGKILL');
    rmSync(folder, { recursive: true });
  }
}
