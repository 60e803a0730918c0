/**
 * Concurrency limit over a fleet, while workers are killed during their calls.
 *
 * Calls go to a server that counts them itself. A call of a killed worker counts until its lease may expire. So calls in
 * flight and leases of killed workers together must never exceed the limit. When those leases have expired, the survivors
 * must use all of it. One call in each worker outlives the lease it began with.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { now, startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';
import { inFlightOf, startSink } from './sink.mjs';

/** The lifetime of a lease and its renewal interval, as documented. */
export const LEASE_MS = 10_000;
const RENEWED_MS = LEASE_MS / 3;

/** A busy machine renews late. */
const TOLERANCE_MS = 500;

export function concurrency({ isShort }) {
  return Promise.all([false, true].map((isFair) => run(isFair, isShort)));
}

async function run(isFair, isShort) {
  const [workers, cap, kills, calmMs] = isShort ? [5, 12, 2, 500] : [8, 25, 3, 1000];
  const server = await startRedis();
  const sink = await startSink();
  try {
    const fleet = await startFleet({
      port: server.port,
      limit: { concurrency: cap },
      workers,
      lines: Math.ceil(cap / (workers - kills)) + 1, // survivors can use the whole limit, killed workers not
      work: { port: sink.port, longs: 1 },
      options: { onUnavailable: 'deny', fairQueue: isFair },
    });
    await sleep(2 * calmMs);
    let killedAt = 0;
    const killed = new Set();
    for (let n = 0; n < kills; n++) {
      // The worker with the latest grant has a call in flight.
      const { worker } = fleet.grants.findLast((grant) => !killed.has(grant.worker));
      killed.add(worker);
      killedAt = now();
      await fleet.kill(worker);
      await sleep(calmMs);
    }
    await sleep(killedAt + LEASE_MS + 2 * calmMs - now());
    sink.endAll();
    const totals = await fleet.stop();
    const keptMs = LEASE_MS - RENEWED_MS - TOLERANCE_MS;
    const counted = inFlightOf(sink.events, { most: cap, keptMs, since: killedAt + keptMs });
    const { fullAt } = counted;
    return { isFair, workers, cap, kills, ...counted, backAfterMs: fullAt - killedAt, ...totals };
  } finally {
    sink.stop();
    await server.stop();
  }
}
