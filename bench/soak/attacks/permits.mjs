/**
 * Attacks the permits of a daemon: a client holds permits of cost 0, of tiny costs and of long keys, never settles most
 * of them, and settles others with absurd amounts.
 *
 * Invariants: a cost of 0 gets no permit, a concurrency limit never has more calls in flight than it allows, a key owes
 * at most what an hour refills, and the memory of the daemon is bounded.
 */

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createClient } from 'redis';
import { seededRandom } from '../../../dist/core/random.js';
import { memoryOf, startDaemon } from '../../daemon/process.mjs';

const CONCURRENCY = 5;
const HOLDS_PER_ROUND = 1000;
const MAX_MEMORY_MB = 500;
const HOUR_MS = 3_600_000;

const CONFIG = `
limits:
  flights: { concurrency: ${CONCURRENCY}, match: 'flight:*' }
  debts: { bucket: { rate: 1/s, burst: 10 }, match: 'debt:*' }
  rest: { bucket: { rate: 1/h, burst: 1000 } }
`;

const PORTS = ['--line', 'off', '--http', 'off', '--resp', '127.0.0.1:0'];

export async function attack({ rounds, seed }) {
  const random = seededRandom(seed);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const config = join(folder, 'sluice.yaml');
  writeFileSync(config, CONFIG);
  const daemon = await startDaemon(['--config', config, ...PORTS], { log: 'ignore' });
  const redis = createClient({ url: `redis://127.0.0.1:${daemon.port('resp')}` });
  redis.on('error', () => {});
  await redis.connect();
  const counts = { holds: 0, full: 0, inFlight: 0, settled: 0, memoryMB: 0 };

  const hold = async (key, cost) => {
    const reply = await redis.sendCommand(['SLUICE.CHECK', '*', key, String(cost), 'HOLD']);
    const [allowed, , retryAfterMs, , permit, reason] = reply;
    counts.holds++;
    if (reason === 'unavailable') counts.full++;
    if (cost === 0 && permit !== '') throw new Error('a permit of cost 0');
    if (cost > 0 && (allowed === 1) !== (permit !== '')) throw new Error(`${key}: ${reply}`);
    return { isAllowed: allowed === 1, permit, retryAfterMs };
  };

  const randomCost = () => [0, 0.000001, 1, 1][Math.floor(random() * 4)];
  const randomKey = () => `${Math.floor(random() * 1e9)}${'x'.repeat(4000 * random())}`;

  const attackRound = async (round) => {
    await Promise.all(
      Array.from({ length: HOLDS_PER_ROUND }, () => hold(randomKey(), randomCost())),
    );
    const flights = Array.from({ length: 40 }, () => hold(`flight:${seed} ${round}`, 1));
    const inFlight = (await Promise.all(flights)).filter(({ isAllowed }) => isAllowed).length;
    if (inFlight > CONCURRENCY) throw new Error(`${inFlight} of ${CONCURRENCY} in flight`);
    counts.inFlight += inFlight;
    const key = `debt:${seed} ${round}`;
    const debts = await Promise.all(Array.from({ length: 3 }, () => hold(key, 1)));
    for (const { permit } of debts.filter(({ isAllowed }) => isAllowed)) {
      await redis.sendCommand(['SLUICE.SETTLE', permit, 'ok', 'USED', '999999999999999']);
      counts.settled++;
    }
    const { retryAfterMs } = await hold(key, 1);
    if (!(retryAfterMs <= HOUR_MS + 11_000)) throw new Error(`locked for ${retryAfterMs} ms`);
    counts.memoryMB = Math.max(counts.memoryMB, Math.round(memoryOf(daemon.pid) / 2 ** 20));
    if (counts.memoryMB > MAX_MEMORY_MB) throw new Error(`${counts.memoryMB} MiB`);
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
