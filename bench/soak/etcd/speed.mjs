/** Checks per second and latency of an etcd cluster: one key and many, one worker and six. */

import { once } from 'node:events';
import { rotated, startProcess } from './workers.mjs';

const DURATION_MS = 5000;
/** Checks in flight for each worker. */
const IN_FLIGHT = 16;

const CASES = [1, 6].flatMap((workers) => [1, 1000].map((keys) => ({ workers, keys })));

export const SPEED_COLUMNS = {
  workers: ({ workers }) => workers,
  keys: ({ keys }) => keys,
  'checks per second': ({ perSecond }) => Math.round(perSecond),
  'refused as unavailable': ({ fallback }) => fallback,
  p50: ({ p50 }) => `${p50.toFixed(1)} ms`,
  p99: ({ p99 }) => `${p99.toFixed(1)} ms`,
};

export async function speed(endpoints, within, log) {
  const results = [];
  for (const { workers, keys } of CASES) {
    log(`${workers} workers, ${keys} keys …`);
    const ends = [];
    const children = await Promise.all(
      Array.from({ length: workers }, (_, n) => {
        const setting = {
          endpoints: rotated(endpoints, n),
          keys,
          inFlight: IN_FLIGHT,
          durationMs: DURATION_MS,
        };
        return startProcess(within, './speed-worker.mjs', setting, (message) => {
          if (message.type === 'over') ends.push(message);
        });
      }),
    );
    const exits = children.map((child) => once(child, 'exit'));
    for (const child of children) child.send('go');
    await Promise.all(exits);
    const times = ends.flatMap(({ times }) => times).toSorted((a, b) => a - b);
    results.push({
      workers,
      keys,
      perSecond: (times.length * 1000) / DURATION_MS,
      fallback: ends.reduce((sum, { fallback }) => sum + fallback, 0),
      p50: times[Math.floor(times.length * 0.5)],
      p99: times[Math.floor(times.length * 0.99)],
    });
  }
  return results;
}
