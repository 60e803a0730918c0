import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../random.ts';
import { type FleetOptions, simulatePeers } from './fleet.ts';

describe('a fleet that tells promptly', () => {
  test.each([8, 32])('of %i keeps a limit as one bucket would', (nodes) => {
    const figures = simulatePeers({ nodes });
    expect(figures.worst[1000]).toBeLessThanOrEqual(1.05);
    expect(figures.worst[60_000]).toBeLessThanOrEqual(1.005);
    expect(figures.utilisation).toBeGreaterThanOrEqual(0.98);
    expect(Math.abs(figures.mean - 1)).toBeLessThanOrEqual(0.005);
  });

  test.each([8, 32])('of %i does so when one in ten datagrams is lost', (nodes) => {
    const figures = simulatePeers({ nodes, network: { loss: 0.1 } });
    expect(figures.worst[1000]).toBeLessThanOrEqual(1.1);
    expect(figures.worst[60_000]).toBeLessThanOrEqual(1.01);
  });

  test('hands out no fresh burst when a node comes back', () => {
    const crash = { node: 2, atMs: 5000, backMs: 8000 };
    expect(simulatePeers({ nodes: 8, spanMs: 12_000, crash }).excess).toBeLessThan(15);
  });

  test('makes up for a split when it is healed', () => {
    const split = { fromMs: 5000, toMs: 10_000, nodes: 4 };
    const figures = simulatePeers({ nodes: 8, spanMs: 40_000, network: { split } });
    expect(figures.utilisation).toBeLessThan(1.01); // what was too much then is missing afterwards
    expect(figures.utilisation).toBeGreaterThan(0.98);
  });
});

describe('a fleet that tells at intervals', () => {
  test('swings as the plain rule does, and is right in the long run at a short interval', () => {
    const slow = simulatePeers({ nodes: 8, peers: { exchange: 'interval', intervalMs: 1000 } });
    expect(slow.worst[1000]).toBeGreaterThan(4);
    const fast = simulatePeers({ nodes: 8, peers: { exchange: 'interval', intervalMs: 50 } });
    expect(fast.worst[1000]).toBeLessThan(1.12);
  });
});

describe('any fleet', () => {
  /** Some fleet, made up by the seed alone. */
  function someFleet(seed: number): FleetOptions & { readonly boundMs: number } {
    const random = seededRandom(seed);
    const below = (n: number): number => Math.floor(random() * n);
    const nodes = 2 + below(15);
    const rate = 1 + below(200);
    const intervalMs = 20 + below(500);
    const delayMs = below(40);
    const jitterMs = below(40);
    const loss = below(4) * 0.1;
    const spanMs = 8000;
    const split =
      below(3) === 0
        ? { fromMs: 2000, toMs: 2500 + below(2000), nodes: 1 + below(nodes - 1) }
        : undefined;
    const crash =
      below(3) === 0
        ? { node: below(nodes), atMs: 1000 + below(2000), backMs: 3500 + below(2000) }
        : undefined;
    const exchange = below(2) ? ('prompt' as const) : ('interval' as const);
    const splitMs = split ? split.toMs - split.fromMs : 0;
    // From being served to being heard: the interval, the way, and each loss another question and answer.
    const repairMs = loss > 0 || split ? 20 * (60 + 2 * (delayMs + jitterMs)) : 0;
    return {
      nodes,
      rate,
      burst: 1 + below(200),
      load: 0.5 + random() * 10,
      spanMs,
      seed,
      clients: 1 + below(3),
      skew: below(2) ? 0 : random(),
      peers: { exchange, intervalMs },
      network: { delayMs, jitterMs, loss, duplicates: below(2) * 0.2, ...(split && { split }) },
      ...(crash && { crash }),
      boundMs: intervalMs + delayMs + jitterMs + repairMs + splitMs + 1000,
    };
  }

  /** `SEEDS=1000 npx vitest run src/sim/peers` plays as many; a seed that fails is in its name. */
  const seeds = Array.from({ length: Number(process.env.SEEDS ?? 40) }, (_, n) => n + 1);

  test.each(seeds)('stays within its bound: seed %i', (seed) => {
    const fleet = someFleet(seed);
    const { nodes, rate, burst, boundMs } = fleet;
    const bound = (nodes - 1) * (burst + (rate * boundMs) / 1000) + 1;
    expect(simulatePeers(fleet).excess).toBeLessThanOrEqual(bound);
  });
});
