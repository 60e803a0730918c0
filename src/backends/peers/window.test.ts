import { describe, expect, test } from 'vitest';
import { createTestPeer, type TestPeer } from '../../../test/support/fleet.ts';
import { type LoggedCall, mostInAnyWindow } from '../../../test/support/window-oracle.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { PEER_DEFAULTS } from './context.ts';
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

  test.each<[number, Limit]>([
    [20, { window: { limit: 20, per: '1m' } }],
    [100, { window: { limit: 100, per: '10m' } }],
    [1000, { window: { limit: 1000, per: '1h' } }],
    [1000, { bucket: { rate: '1/h', burst: 1000 } }],
  ])(
    'one node serves, then another: a caller that waits as told gets all %d soon, of %j',
    async (most, limit) => {
      for (const gapMs of [0, 2000 / most]) {
        const { clock, join, pass } = fleetWith(limit);
        const [a, b] = [await join(), await join()];
        await pass(1500);
        let admitted = 0;
        for (; admitted < 0.4 * most; admitted++) {
          expect(a.backend.check('alice', 1).verdict).toBe('allow');
          await pass(gapMs);
        }
        await pass(200);
        const until = clock.now() + most * gapMs + 3000;
        while (clock.now() < until) {
          const decision = b.backend.check('alice', 1);
          if (decision.verdict === 'allow') admitted++;
          await pass(decision.verdict === 'deny' ? decision.retryAfterMs : gapMs);
        }
        expect(admitted).toBe(most);
      }
    },
  );

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
    for (let run = 0; run < 4; run++) {
      const { clock, join, pass } = fleetWith({ window: { limit: most, per: perMs } });
      const fleet: TestPeer[] = [];
      for (let n = 0; n < nodes; n++) fleet.push(await join());
      await pass(2500);
      const log: LoggedCall[] = [];
      const periods = 8;
      for (let n = 0; n < (periods * perMs) / everyMs; n++) {
        for (const { backend } of fleet)
          if (backend.check('alice', 1).verdict === 'allow')
            log.push({ at: clock.now(), units: 1 });
        await pass(everyMs);
      }
      const servedElsewhere = (nodes - 1) * (PEER_DEFAULTS.intervalMs / everyMs);
      expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(most + servedElsewhere);
      expect(log.length / periods).toBeGreaterThan(0.97 * most);
    }
  });

  test('light load on all nodes: the whole limit is used, and not more', async () => {
    const [most, perMs, nodes, everyMs] = [60, 60_000, 4, 100];
    const { clock, join, pass } = fleetWith({ window: { limit: most, per: perMs } });
    const fleet: TestPeer[] = [];
    for (let n = 0; n < nodes; n++) fleet.push(await join());
    await pass(2500);
    const log: LoggedCall[] = [];
    for (let n = 0; n < (2 * perMs) / everyMs; n++) {
      const { backend } = fleet[n % nodes];
      if (backend.check('alice', 1).verdict === 'allow') log.push({ at: clock.now(), units: 1 });
      await pass(everyMs);
    }
    expect(mostInAnyWindow(log, perMs)).toBe(most);
    expect(log.length).toBe(2 * most);
  });
});
