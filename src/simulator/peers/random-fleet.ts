import { seededRandom } from '../../core/random.ts';
import { FLEET_DEFAULTS, type FleetOptions } from './fleet.ts';

export function randomFleet(seed: number): FleetOptions {
  const random = seededRandom(seed);
  const below = (n: number): number => Math.floor(random() * n);
  const nodes = 2 + below(below(4) === 0 ? 63 : 15);
  const split = { fromMs: 2000, toMs: 2500 + below(2000), nodes: 1 + below(nodes - 1) };
  const crash = { node: below(nodes), atMs: 1000 + below(2000), backMs: 3500 + below(2000) };
  const clockStep = { node: below(nodes), atMs: 1000 + below(4000), byMs: below(4000) - 2000 };
  const loadStep = { atMs: 1000 + below(5000), load: (1 + below(100)) / 10 };
  return {
    ...FLEET_DEFAULTS,
    nodes,
    rate: 1 + below(200),
    burst: 1 + below(200),
    load: (5 + below(100)) / 10,
    spanMs: 8000,
    seed,
    clients: 1 + below(3),
    skew: below(2) * (below(100) / 100),
    peers: {
      exchange: below(3) ? 'eager' : 'periodic',
      intervalMs: 20 + below(500),
      flushThreshold: 1 + below(2) * below(5),
      maxReports: 10 + below(100),
    },
    network: {
      delayMs: below(40),
      jitterMs: below(2) * below(40),
      loss: below(2) * below(4) * 0.1,
      duplicates: below(2) * 0.2,
      ...(below(3) === 0 && { split }),
    },
    ...(below(3) === 0 && { crash }),
    ...(below(3) === 0 && { clockStep }),
    ...(below(3) === 0 && { loadStep }),
  };
}
