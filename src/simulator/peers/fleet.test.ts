import { describe, expect, test } from 'vitest';
import { commandLineOf } from '../../../test/support/fleet-command.ts';
import { runs } from '../../../test/support/runs.ts';
import { runCliAt } from '../../../test/support/terminal.ts';
import { simulatePeers } from './fleet.ts';
import { randomFleet } from './random-fleet.ts';

describe('peers simulation: eager exchange', () => {
  test.each([8, 32])('%i nodes stay close to one central bucket', (nodes) => {
    const figures = simulatePeers({ nodes });
    expect(figures.worst[1000]).toBeLessThanOrEqual(1.05);
    expect(figures.worst[60_000]).toBeLessThanOrEqual(1.005);
    expect(figures.utilisation).toBeGreaterThanOrEqual(0.98);
    expect(Math.abs(figures.mean - 1)).toBeLessThanOrEqual(0.005);
  });

  test.each([8, 32])('%i nodes stay close to it with 10 % datagram loss', (nodes) => {
    const figures = simulatePeers({ nodes, network: { loss: 0.1 } });
    expect(figures.worst[1000]).toBeLessThanOrEqual(1.1);
    expect(figures.worst[60_000]).toBeLessThanOrEqual(1.01);
  });

  test('a restarted node gets no fresh burst', () => {
    const crash = { node: 2, atMs: 5000, backMs: 8000 };
    expect(simulatePeers({ nodes: 8, spanMs: 12_000, crash }).overshootCalls).toBeLessThan(15);
  });

  test('overshoot of a network partition is paid back after it heals', () => {
    const split = { fromMs: 5000, toMs: 10_000, nodes: 4 };
    const figures = simulatePeers({ nodes: 8, spanMs: 40_000, network: { split } });
    expect(figures.utilisation).toBeLessThan(1.01); // debt
    expect(figures.utilisation).toBeGreaterThan(0.98);
  });
});

describe('peers simulation: 50 ms network delay', () => {
  test.each([1, 2, 3])('prediction prevents oscillation: seed %i', (seed) => {
    const figures = simulatePeers({ nodes: 8, seed, network: { delayMs: 50 } });
    expect(figures.worst[1000]).toBeLessThanOrEqual(1.05);
    expect(figures.fairNodes).toBeGreaterThan(0.97);
    expect(figures.utilisation).toBeGreaterThan(0.98);
    const later = figures.timeline.admitted.slice(50); // slices of 100 ms
    expect(Math.max(...later)).toBeLessThan(25); // the even rate is 10
  });
});

test('peers simulation: nodes get fair shares with 30 % datagram loss', () => {
  const seeds = [1, 2, 3, 4, 5, 6, 7, 8];
  const runs = seeds.map((seed) => simulatePeers({ nodes: 8, seed, network: { loss: 0.3 } }));
  const fair = runs.reduce((sum, { fairNodes }) => sum + fairNodes, 0) / seeds.length;
  expect(fair).toBeGreaterThan(0.93);
  for (const { worst } of runs) expect(worst[1000]).toBeLessThanOrEqual(1.05);
});

describe('peers simulation: a restarted node', () => {
  const crash = { node: 2, atMs: 20_000, backMs: 25_000 };

  test.each([1, 2, 3])(
    'gets its fair share and no more, while the bucket is never full: seed %i',
    (seed) => {
      const figures = simulatePeers({ nodes: 8, crash, seed });
      expect(figures.fairNodes).toBeGreaterThan(0.9);
      expect(figures.worst[1000]).toBeLessThanOrEqual(1.05);
      expect(figures.worst[60_000]).toBeLessThanOrEqual(1.005);
      expect(Math.abs(figures.mean - 1)).toBeLessThanOrEqual(0.005);
    },
  );

  test('gets its fair share with 10 % datagram loss', () => {
    const figures = simulatePeers({ nodes: 8, crash, network: { loss: 0.1 } });
    expect(figures.fairNodes).toBeGreaterThan(0.9);
    expect(figures.utilisation).toBeGreaterThan(0.98);
  });
});

describe('peers simulation: figures', () => {
  test('age of view is the network delay, plus half an interval with periodic exchange', () => {
    const { age } = simulatePeers({ nodes: 8, spanMs: 5000, network: { delayMs: 5 } });
    expect(age.meanMs).toBeCloseTo(5, 1);
    expect(age.maxMs).toBeLessThanOrEqual(15); // in the burst, one more interval of the report budget
    const peers = { exchange: 'periodic', intervalMs: 100 } as const;
    const slow = simulatePeers({ nodes: 8, load: 0.5, spanMs: 5000, peers }).age;
    expect(slow.meanMs).toBeGreaterThan(45);
    expect(slow.meanMs).toBeLessThan(60);
    expect(slow.maxMs).toBeLessThanOrEqual(102.01);
    expect(slow.p99Ms).toBeLessThanOrEqual(slow.maxMs);
  });

  test('convergence after a partition takes as long as the partition lasted', () => {
    const split = { fromMs: 5000, toMs: 10_000, nodes: 4 };
    const { convergence } = simulatePeers({ nodes: 8, spanMs: 30_000, network: { split } });
    expect(convergence.map(({ what }) => what)).toEqual(['start', 'split', 'healed']);
    const [start, during, healed] = convergence.map(({ afterMs }) => afterMs);
    expect(start).toBeLessThanOrEqual(200);
    expect(during).toBe(Infinity);
    expect(healed).toBeGreaterThanOrEqual(4500);
    expect(healed).toBeLessThanOrEqual(6000);
  });

  test('a load step uses the burst, then the rate is kept', () => {
    const loadStep = { atMs: 5000, load: 10 };
    const fleet = { nodes: 8, load: 0.2, spanMs: 20_000, loadStep };
    const { convergence, worst, calls } = simulatePeers(fleet);
    expect(convergence).toHaveLength(1); // before the step the limit is not reached
    expect(convergence[0]).toMatchObject({ what: 'load step', atMs: 5000 });
    expect(convergence[0].afterMs).toBeLessThanOrEqual(300);
    expect(worst[1000]).toBeLessThanOrEqual(1.05);
    expect(calls).toBeGreaterThan(14_000);
  });

  test('a clock that jumps ahead adds the rate over the jump at most, once', () => {
    const clockStep = { node: 1, atMs: 5000, byMs: 500 };
    const { overshootCalls, bound, convergence } = simulatePeers({
      nodes: 8,
      spanMs: 20_000,
      clockStep,
    });
    expect(overshootCalls).toBeGreaterThan(10);
    expect(overshootCalls).toBeLessThan(60); // 100/s for half a second, and hits in flight
    expect(overshootCalls).toBeLessThanOrEqual(bound);
    expect(convergence[1]).toMatchObject({ what: 'clock step', atMs: 5000 });
    expect(convergence[1].afterMs).toBeLessThan(5000);
  });

  test('the report budget holds for any number of keys', () => {
    const peers = { maxReports: 20 };
    const fleet = { nodes: 4, clients: 1000, rate: 1, burst: 5, load: 2, spanMs: 5000, peers };
    const { datagramsPerSecond, overshootCalls, bound } = simulatePeers(fleet);
    expect(datagramsPerSecond).toBeLessThan(30); // reports, and one anti-entropy exchange per second
    expect(overshootCalls).toBeLessThanOrEqual(bound);
  });
});

describe('peers simulation: periodic exchange', () => {
  test('overshoots at a long interval, and is close to the limit at a short one', () => {
    const slow = simulatePeers({ nodes: 8, peers: { exchange: 'periodic', intervalMs: 1000 } });
    expect(slow.worst[1000]).toBeGreaterThan(4);
    const fast = simulatePeers({ nodes: 8, peers: { exchange: 'periodic', intervalMs: 50 } });
    expect(fast.worst[1000]).toBeLessThan(1.12);
  });
});

describe('peers simulation: random fleets', () => {
  /** The first seed, from FIRST_SEED. */
  const first = Number(process.env.FIRST_SEED ?? 1);
  const seeds = Array.from({ length: runs(20) }, (_, n) => first + n);

  test.each(seeds)('overshoot stays within the bound: seed %i', (seed) => {
    const fleet = randomFleet(seed);
    const { overshootCalls, bound } = simulatePeers(fleet);
    expect(overshootCalls, `reproduce with: ${commandLineOf(fleet)}`).toBeLessThanOrEqual(bound);
  });

  test('a run can be reproduced on the command line', () => {
    for (const seed of [3, 4, 5, 6]) {
      const fleet = randomFleet(seed);
      const args = commandLineOf(fleet)
        .replace(/^sluice /, '')
        .split(' ');
      const { out } = runCliAt(80, [...args, '--json']);
      expect(JSON.parse(out[0]).admitted).toBe(simulatePeers(fleet).admitted);
    }
  });
});
