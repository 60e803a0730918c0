/**
 * A cap on calls in flight over a fleet, while workers are killed in the middle of theirs.
 *
 * Calls go to a server that counts for itself. Those of the dead count on until their leases may end, so what
 * must hold is: calls under way, and places kept for the dead, are never more than the cap together; and when the
 * leases have ended, the survivors use all of it. One call in each worker outlives the lease it began with.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { now, startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';
import { atOnce, startSink } from './sink.mjs';

/** As documented: a lease, and how long after its last renewal a worker may have died. */
export const LEASE_MS = 10_000;
const RENEWED_MS = LEASE_MS / 3;

/** A busy machine renews a little later than it should. */
const SLACK_MS = 500;

export function flights({ isShort }) {
  return Promise.all([false, true].map((isFair) => play(isFair, isShort)));
}

async function play(isFair, isShort) {
  const [workers, cap, kills, calmMs] = isShort ? [5, 12, 2, 500] : [8, 25, 3, 1000];
  const server = await startRedis();
  const sink = await startSink();
  try {
    const fleet = await startFleet({
      port: server.port,
      limit: { concurrency: cap },
      workers,
      lines: Math.ceil(cap / (workers - kills)) + 1, // survivors can use all, the dead have not all of it
      work: { port: sink.port, longs: 1 },
      options: { onUnavailable: 'deny', fairQueue: isFair },
    });
    await sleep(2 * calmMs);
    let killedAt = 0;
    const killed = new Set();
    for (let n = 0; n < kills; n++) {
      // Whoever was let in last is in the middle of a call.
      const { worker } = fleet.grants.findLast((grant) => !killed.has(grant.worker));
      killed.add(worker);
      killedAt = now();
      await fleet.kill(worker);
      await sleep(calmMs);
    }
    await sleep(killedAt + LEASE_MS + 2 * calmMs - now());
    sink.endAll();
    const end = await fleet.stop();
    const keptMs = LEASE_MS - RENEWED_MS - SLACK_MS;
    const seen = atOnce(sink.events, { most: cap, keptMs, since: killedAt + keptMs });
    const { fullAt } = seen;
    return { isFair, workers, cap, kills, ...seen, backAfterMs: fullAt - killedAt, ...end };
  } finally {
    sink.stop();
    await server.stop();
  }
}
