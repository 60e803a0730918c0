/**
 * Permits taken ahead, and workers killed that hold some: what they had is never used, and in no stretch of time are
 * there more calls than the limit says and `prefetch` for each process.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';

const CASES = [
  { perSecond: 200, burst: 20, prefetch: 20 },
  { perSecond: 1000, burst: 100, prefetch: 50 },
];

export async function leases({ isShort }) {
  const results = [];
  for (const one of isShort ? CASES.slice(0, 1) : CASES) results.push(await play(one, isShort));
  return results;
}

async function play({ perSecond, burst, prefetch }, isShort) {
  const [workers, kills, calmMs] = isShort ? [4, 2, 500] : [8, 5, 1000];
  const server = await startRedis();
  try {
    const fleet = await startFleet({
      port: server.port,
      limit: { bucket: { rate: perSecond, burst } },
      workers,
      options: { prefetch, onUnavailable: 'deny' },
    });
    await sleep(calmMs);
    for (let n = 0; n < kills; n++) {
      await fleet.kill(n);
      await sleep(calmMs);
    }
    const end = await fleet.stop();
    const times = fleet.grants.map(({ at }) => at).toSorted((a, b) => a - b);
    const spanMs = times.at(-1) - times[0];
    return {
      ...{ perSecond, burst, prefetch, workers, kills, grants: times.length },
      extra: mostBeyond(times, perSecond / 1000, burst),
      mayExtra: prefetch * workers,
      utilisation: times.length / (burst + (spanMs * perSecond) / 1000),
      ...end,
    };
  } finally {
    await server.stop();
  }
}

/** How many more there are than fit, in whatever stretch of time has most too many. */
function mostBeyond(times, perMs, burst) {
  // From the first of a stretch to its last: n + 1 - burst - (end - begin) × perMs, at its largest.
  let [most, lowest] = [0, Infinity];
  for (const [n, at] of times.entries()) {
    lowest = Math.min(lowest, n - at * perMs);
    most = Math.max(most, n - at * perMs - lowest + 1 - burst);
  }
  return Math.ceil(most);
}
