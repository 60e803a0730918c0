/** How many asks a second a cluster decides, and how long one takes: for one key and for many, by one worker and by six. */

import { once } from 'node:events';
import { startProcess, turned } from './workers.mjs';

const LASTS_MS = 5000;
/** Asks that each worker has under way. */
const AT_ONCE = 16;

const CASES = [1, 6].flatMap((workers) => [1, 1000].map((keys) => ({ workers, keys })));

export const SPEED_COLUMNS = {
  workers: ({ workers }) => workers,
  keys: ({ keys }) => keys,
  'asks a second': ({ perSecond }) => Math.round(perSecond),
  'refused, as nobody could decide': ({ fallback }) => fallback,
  p50: ({ p50 }) => `${p50.toFixed(1)} ms`,
  p99: ({ p99 }) => `${p99.toFixed(1)} ms`,
};

export async function speed(endpoints, within, tell) {
  const results = [];
  for (const { workers, keys } of CASES) {
    tell(`${workers} workers, ${keys} keys …`);
    const told = [];
    const children = await Promise.all(
      Array.from({ length: workers }, (_, n) => {
        const own = { endpoints: turned(endpoints, n), keys, atOnce: AT_ONCE, lastsMs: LASTS_MS };
        return startProcess(within, './speed-worker.mjs', own, (news) => {
          if (news.type === 'over') told.push(news);
        });
      }),
    );
    const gone = children.map((child) => once(child, 'exit'));
    for (const child of children) child.send('go');
    await Promise.all(gone);
    const times = told.flatMap((news) => news.times).toSorted((a, b) => a - b);
    results.push({
      workers,
      keys,
      perSecond: (times.length * 1000) / LASTS_MS,
      fallback: told.reduce((sum, news) => sum + news.fallback, 0),
      p50: times[Math.floor(times.length * 0.5)],
      p99: times[Math.floor(times.length * 0.99)],
    });
  }
  return results;
}
