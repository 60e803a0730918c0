/** Sliding windows that peers share, on virtual time. */

import { describe, expect, test } from 'vitest';
import { createTestPeer, type TestPeer } from '../../../test/support/fleet.ts';
import { type LoggedCall, mostInAnyWindow } from '../../../test/support/window-oracle.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub } from './memory-transport.ts';

function fleetWith(limit: Limit) {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, seed: 1, delayMs: [1, 3], isLoopback: false });
  let members = 0;
  const join = (): Promise<TestPeer> =>
    createTestPeer(hub.transport(`${members++}`), {
      ...{ clock, key: 'a key for the tests', limit, peers: {}, maxKeys: 1000 },
    });
  return { clock, join, pass: (ms: number): Promise<void> => clock.advanceAsync(ms) };
}

const remainingOf = ({ backend }: TestPeer, key = 'alice'): number[] =>
  backend.inspect(key).rules.map(({ remaining }) => remaining);

describe('peers: sliding window', () => {
  test('hits of one node count on the others until they leave the window', async () => {
    const { join, pass } = fleetWith({ window: { limit: 10, per: '10s' } });
    const [a, b] = [await join(), await join()];
    await pass(1500);
    a.backend.check('alice', 6);
    await pass(200);
    expect(remainingOf(b)).toEqual([4]);
    expect(b.backend.check('alice', 5).verdict).toBe('deny');
    expect(b.backend.check('alice', 4).verdict).toBe('allow');
    await pass(200);
    expect(remainingOf(a)).toEqual([0]);
    await pass(9600); // a period, and less than a step
    await pass(625);
    expect([remainingOf(a), remainingOf(b)]).toEqual([[10], [10]]);
  });

  test('a new node gets what still counts, of each rule of `all`', async () => {
    const limit = {
      all: [{ window: { limit: 100, per: '10m' } }, { bucket: { rate: 0.001, burst: 80 } }],
    } as const;
    const { join, pass } = fleetWith(limit);
    const old = await join();
    await pass(1500);
    for (let n = 0; n < 30; n++) old.backend.check('alice', 1);
    await pass(120_000);
    const late = await join();
    await pass(1000);
    expect(remainingOf(late)).toEqual(remainingOf(old));
    expect(remainingOf(late)).toEqual([70, 50]);
  });

  test('overshoot in any period is at most what other nodes serve until a report arrives', async () => {
    const [most, perMs, nodes, everyMs] = [60, 2000, 4, 5];
    const { clock, join, pass } = fleetWith({ window: { limit: most, per: perMs } });
    const fleet: TestPeer[] = [];
    for (let n = 0; n < nodes; n++) fleet.push(await join());
    await pass(2500);
    const log: LoggedCall[] = [];
    const seconds = 20;
    for (let n = 0; n < (seconds * 1000) / everyMs; n++) {
      for (const { backend } of fleet)
        if (backend.check('alice', 1).verdict === 'allow') log.push({ at: clock.now(), units: 1 });
      await pass(everyMs);
    }
    const perPeriod = log.length / ((seconds * 1000) / perMs);
    const reportMs = 50;
    const servedElsewhere = (nodes - 1) * (reportMs / everyMs);
    expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(most + servedElsewhere);
    expect(perPeriod).toBeGreaterThan(0.85 * most);
    expect(perPeriod).toBeLessThan(1.02 * most);
  });
});
