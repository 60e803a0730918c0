/**
 * Prefetch: workers that hold prefetched tokens are killed. Their tokens are lost, and the overshoot in any span of time
 * is at most `prefetch` for each process.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';

const CASES = [
  { perSecond: 200, burst: 20, prefetch: 20 },
  { perSecond: 1000, burst: 100, prefetch: 50 },
];

export async function prefetch({ isShort }) {
  const results = [];
  for (const one of isShort ? CASES.slice(0, 1) : CASES) results.push(await run(one, isShort));
  return results;
}

async function run({ perSecond, burst, prefetch }, isShort) {
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
    const totals = await fleet.stop();
    const times = fleet.grants.map(({ at }) => at).toSorted((a, b) => a - b);
    const spanMs = times.at(-1) - times[0];
    return {
      ...{ perSecond, burst, prefetch, workers, kills, grants: times.length },
      extra: maxOvershoot(times, perSecond / 1000, burst),
      maxExtra: prefetch * workers,
      utilisation: times.length / (burst + (spanMs * perSecond) / 1000),
      ...totals,
    };
  } finally {
    await server.stop();
  }
}

/** The largest overshoot of a bucket in any span of time. */
function maxOvershoot(times, perMs, burst) {
  // Of a span from its first call to its last: n + 1 - burst - (end - start) × perMs, maximised.
  let [most, lowest] = [0, Infinity];
  for (const [n, at] of times.entries()) {
    lowest = Math.min(lowest, n - at * perMs);
    most = Math.max(most, n - at * perMs - lowest + 1 - burst);
  }
  return Math.ceil(most);
}
