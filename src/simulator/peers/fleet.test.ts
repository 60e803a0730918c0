import { describe, expect, test } from 'vitest';
import { runCliAt } from '../../../test/support/terminal.ts';
import { commandLineOf } from '../../cli/simulate/peers.ts';
import { simulatePeers } from './fleet.ts';
import { arbitraryFleet } from './random-fleet.ts';

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
    expect(simulatePeers({ nodes: 8, spanMs: 12_000, crash }).overshootCalls).toBeLessThan(15);
  });

  test('makes up for a split when it is healed', () => {
    const split = { fromMs: 5000, toMs: 10_000, nodes: 4 };
    const figures = simulatePeers({ nodes: 8, spanMs: 40_000, network: { split } });
    expect(figures.utilisation).toBeLessThan(1.01); // what was too much then is missing afterwards
    expect(figures.utilisation).toBeGreaterThan(0.98);
  });
});

describe('a fleet that is far apart', () => {
  test.each([1, 2, 3])('does not swing, as each expects the others to go on: seed %i', (seed) => {
    const figures = simulatePeers({ nodes: 8, seed, network: { delayMs: 50 } });
    expect(figures.worst[1000]).toBeLessThanOrEqual(1.05);
    expect(figures.fairNodes).toBeGreaterThan(0.97);
    expect(figures.utilisation).toBeGreaterThan(0.98);
    const later = figures.timeline.admitted.slice(50); // 100 ms each
    expect(Math.max(...later)).toBeLessThan(25); // ten would be even
  });
});

test('a fleet that loses three in ten datagrams is fair nevertheless', () => {
  const seeds = [1, 2, 3, 4, 5, 6, 7, 8];
  const runs = seeds.map((seed) => simulatePeers({ nodes: 8, seed, network: { loss: 0.3 } }));
  const fair = runs.reduce((sum, { fairNodes }) => sum + fairNodes, 0) / seeds.length;
  expect(fair).toBeGreaterThan(0.93);
  for (const { worst } of runs) expect(worst[1000]).toBeLessThanOrEqual(1.05);
});

describe('a node that comes back', () => {
  const crash = { node: 2, atMs: 20_000, backMs: 25_000 };

  test.each([1, 2, 3])(
    'gets its share and no more, though the bucket is never full: seed %i',
    (seed) => {
      const figures = simulatePeers({ nodes: 8, crash, seed });
      expect(figures.fairNodes).toBeGreaterThan(0.9);
      expect(figures.worst[1000]).toBeLessThanOrEqual(1.05);
      expect(figures.worst[60_000]).toBeLessThanOrEqual(1.005);
      expect(Math.abs(figures.mean - 1)).toBeLessThanOrEqual(0.005);
    },
  );

  test('does so when one in ten datagrams is lost', () => {
    const figures = simulatePeers({ nodes: 8, crash, network: { loss: 0.1 } });
    expect(figures.fairNodes).toBeGreaterThan(0.9);
    expect(figures.utilisation).toBeGreaterThan(0.98);
  });
});

describe('what is told of a fleet', () => {
  test('news is as old as the way is long, and with intervals half of one older', () => {
    const { age } = simulatePeers({ nodes: 8, spanMs: 5000, network: { delayMs: 5 } });
    expect(age.meanMs).toBeCloseTo(5, 1);
    expect(age.maxMs).toBeLessThanOrEqual(15); // or one turn of the budget more, in the burst
    const peers = { exchange: 'periodic', intervalMs: 100 } as const;
    const slow = simulatePeers({ nodes: 8, load: 0.5, spanMs: 5000, peers }).age;
    expect(slow.meanMs).toBeGreaterThan(45);
    expect(slow.meanMs).toBeLessThan(60);
    expect(slow.maxMs).toBeLessThanOrEqual(102.01);
    expect(slow.p99Ms).toBeLessThanOrEqual(slow.maxMs);
  });

  test('a split is paid back for as long as it lasted, and then the rate is kept', () => {
    const split = { fromMs: 5000, toMs: 10_000, nodes: 4 };
    const { convergence } = simulatePeers({ nodes: 8, spanMs: 30_000, network: { split } });
    expect(convergence.map(({ what }) => what)).toEqual(['start', 'split', 'healed']);
    const [start, during, healed] = convergence.map(({ afterMs }) => afterMs);
    expect(start).toBeLessThanOrEqual(200);
    expect(during).toBe(Infinity);
    expect(healed).toBeGreaterThanOrEqual(4500);
    expect(healed).toBeLessThanOrEqual(6000);
  });

  test('a load that comes at once finds the burst, and then the rate is kept', () => {
    const loadStep = { atMs: 5000, load: 10 };
    const fleet = { nodes: 8, load: 0.2, spanMs: 20_000, loadStep };
    const { convergence, worst, calls } = simulatePeers(fleet);
    expect(convergence).toHaveLength(1); // before it, there is no limit to be seen
    expect(convergence[0]).toMatchObject({ what: 'load step', atMs: 5000 });
    expect(convergence[0].afterMs).toBeLessThanOrEqual(300);
    expect(worst[1000]).toBeLessThanOrEqual(1.05);
    expect(calls).toBeGreaterThan(14_000);
  });

  test('a clock that jumps ahead lets in what it jumped at most, once', () => {
    const clockStep = { node: 1, atMs: 5000, byMs: 500 };
    const { overshootCalls, bound, convergence } = simulatePeers({
      nodes: 8,
      spanMs: 20_000,
      clockStep,
    });
    expect(overshootCalls).toBeGreaterThan(10);
    expect(overshootCalls).toBeLessThan(60); // a rate of 100 for half a second, and what is unheard
    expect(overshootCalls).toBeLessThanOrEqual(bound);
    expect(convergence[1]).toMatchObject({ what: 'clock step', atMs: 5000 });
    expect(convergence[1].afterMs).toBeLessThan(5000);
  });

  test('a budget of reports holds, however many keys there are', () => {
    const peers = { maxReports: 20 };
    const fleet = { nodes: 4, clients: 1000, rate: 1, burst: 5, load: 2, spanMs: 5000, peers };
    const { datagramsPerSecond, overshootCalls, bound } = simulatePeers(fleet);
    expect(datagramsPerSecond).toBeLessThan(30); // reports, and a question and an answer a second
    expect(overshootCalls).toBeLessThanOrEqual(bound);
  });
});

describe('a fleet that tells at intervals', () => {
  test('swings as the plain rule does, and is right in the long run at a short interval', () => {
    const slow = simulatePeers({ nodes: 8, peers: { exchange: 'periodic', intervalMs: 1000 } });
    expect(slow.worst[1000]).toBeGreaterThan(4);
    const fast = simulatePeers({ nodes: 8, peers: { exchange: 'periodic', intervalMs: 50 } });
    expect(fast.worst[1000]).toBeLessThan(1.12);
  });
});

describe('any fleet', () => {
  /** `SEEDS=1000 npx vitest run src/simulator/peers` plays as many, from FIRST_SEED on. */
  const first = Number(process.env.FIRST_SEED ?? 1);
  const seeds = Array.from({ length: Number(process.env.SEEDS ?? 40) }, (_, n) => first + n);

  test.each(seeds)('stays within its bound: seed %i', (seed) => {
    const fleet = arbitraryFleet(seed);
    const { overshootCalls, bound } = simulatePeers(fleet);
    expect(overshootCalls, `play it again: ${commandLineOf(fleet)}`).toBeLessThanOrEqual(bound);
  });

  test('that fails can be played again on the command line', () => {
    for (const seed of [3, 4, 5, 6]) {
      const fleet = arbitraryFleet(seed);
      const words = commandLineOf(fleet)
        .replace(/^sluice /, '')
        .split(' ');
      const { out } = runCliAt(80, [...words, '--json']);
      expect(JSON.parse(out[0]).admitted).toBe(simulatePeers(fleet).admitted);
    }
  });
});
