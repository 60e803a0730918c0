/** Random regions to test the overshoot bound: late replies, repeated partitions, tiny and large bursts. */

import { seededRandom } from '../../core/random.ts';
import type { RegionsOptions } from './run.ts';

export function randomRegions(seed: number): RegionsOptions {
  const random = seededRandom(seed);
  const between = (min: number, max: number): number => min + random() * (max - min);
  const names = ['a', 'b', 'c', 'd', 'e'].slice(0, 2 + Math.floor(random() * 4));
  const rate = between(5, 200);
  const spanMs = 8000;
  return {
    regions: names.map((name) => ({
      name,
      load: rate * between(0, 1.5),
      pulse: { everyMs: between(500, 3000), forMs: between(20, 400), times: between(1, 30) },
      weight: between(0.2, 3),
      min: random() < 0.3 ? 0.1 : 0,
    })),
    rate,
    burst: 100 + rate * between(0, 2),
    rttMs: between(1, 900),
    links: [{ between: ['a', 'b'], rttMs: between(1, 900) }],
    jitter: between(0, 1),
    reserve: random(),
    deadlineMs: between(50, 1000),
    outages: Array.from({ length: Math.floor(random() * 6) }, () => {
      const fromMs = between(0, spanMs);
      return { region: names[0], fromMs, toMs: fromMs + between(10, 3000) };
    }),
    spanMs,
    seed,
  };
}
