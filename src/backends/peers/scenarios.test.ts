/** Fleets on virtual time that something happens to, and how they stand afterwards. */

import { describe, expect, test } from 'vitest';
import {
  createTestPeer,
  type TestPeer,
  type TestPeerOptions,
} from '../../../test/support/fleet.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub } from './memory-transport.ts';

const EXCHANGES = ['eager', 'periodic'] as const;

/** A fleet to be. Its limit is one for all. */
function fleetWith(
  limit: TestPeerOptions['limit'],
  peers: TestPeerOptions['peers'] = {},
  seed = 1,
) {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, seed, delayMs: [1, 3], isLoopback: false });
  let members = 0;
  const join = (own: Partial<TestPeerOptions> = {}): Promise<TestPeer> =>
    createTestPeer(hub.transport(`${members++}`), {
      ...{ clock, key: 'a key for the tests', limit, peers, maxKeys: 100_000 },
      ...own,
    });
  return { clock, join, pass: (ms: number): Promise<void> => clock.advanceAsync(ms) };
}

/** What is left of a key's buckets. */
const left = ({ backend }: TestPeer, key = 'alice'): number[] =>
  backend.inspect(key).rules.map(({ remaining }) => remaining);

const served = ({ backend }: TestPeer, key = 'alice'): number =>
  backend.check(key, 1).verdict === 'allow' ? 1 : 0;

describe.each(EXCHANGES)('a newcomer (%s)', (exchange) => {
  test('finds each bucket of `all` as it stands, and shuts nobody out', async () => {
    const [fast, slow] = [
      { rate: '10/s', burst: 10 },
      { rate: '3600/h', burst: 3600 },
    ];
    const { join, pass } = fleetWith({ all: [{ bucket: fast }, { bucket: slow }] }, { exchange });
    const old = await join();
    await pass(1500);
    for (let n = 0; n < 300; n++) {
      served(old);
      await pass(200); // half of what the fast one allows, for a minute
    }
    const late = await join();
    await pass(1000);
    for (let n = 0; n < 2; n++) {
      expect(Math.abs(left(late)[n] - left(old)[n])).toBeLessThanOrEqual(1);
    }
    let calls = 0;
    for (let n = 0; n < 40; n++) {
      calls += served(old) + served(late);
      await pass(250);
    }
    expect(calls).toBe(80);
  });
});

const SLOW = { bucket: { rate: 0.001, burst: 100 } };

/** What somebody served is in nobody's history any more: it can only be learned. */
const HISTORY_MS = 70_000;

describe('who learns', () => {
  const seeds = Array.from({ length: 10 }, (_, n) => n + 1);

  test.each(seeds)('with another at once learns from the one that knows: seed %i', async (seed) => {
    const { join, pass } = fleetWith(SLOW, {}, seed);
    const old = await join();
    await pass(1500);
    for (let n = 0; n < 100; n++) served(old);
    await pass(HISTORY_MS);
    const late = [await join(), await join()];
    await pass(1000);
    for (const own of late) expect(left(own)[0]).toBeLessThanOrEqual(1);
  });

  test('learns from another when its neighbour dies while it tells', async () => {
    const { join, pass } = fleetWith(SLOW);
    const old = [await join(), await join()];
    await pass(2500);
    for (let k = 0; k < 40_000; k++) {
      old[k % 2].backend.check(`${k}`, 50);
      if (k % 1000 === 0) await pass(100);
    }
    await pass(HISTORY_MS);
    const late = await join();
    await pass(100);
    const known = late.backend.keys;
    expect(known).toBeGreaterThan(0);
    expect(known).toBeLessThan(40_000);
    await old[0].node.close(); // the oldest of them
    await pass(10_000);
    expect(late.backend.keys).toBe(40_000);
  });

  test('also learns when it missed more reports than it can ask for', async () => {
    const { join, pass } = fleetWith(SLOW, { intervalMs: 10 });
    const one = await join();
    const other = await join();
    await pass(2500);
    other.transport.isPartitioned = true;
    for (let k = 0; k < 5000; k++) {
      one.backend.check(`${k}`, 50);
      await pass(11); // a report each
    }
    other.transport.isPartitioned = false;
    await pass(10_000);
    expect(other.node.view().peers[0].lost).toBeGreaterThan(0);
    const all = Array.from({ length: 5000 }, (_, k) => Math.round(left(other, `${k}`)[0]));
    expect(new Set(all)).toEqual(new Set([50])); // each once
  });
});

describe.each(EXCHANGES)('parts of a fleet that meet (%s)', (exchange) => {
  const LIMIT = { bucket: { rate: 10, burst: 10 } };

  /** Calls to all of them, twice the rate each. */
  const load = async (
    members: readonly TestPeer[],
    ms: number,
    pass: (ms: number) => Promise<void>,
  ): Promise<number> => {
    let calls = 0;
    for (let n = 0; n < ms; n += 50) {
      for (const own of members) calls += served(own);
      await pass(50);
    }
    return calls;
  };

  test('owe what they served apart, and nothing from before', async () => {
    const { join, pass } = fleetWith(LIMIT, { exchange });
    const old = await join();
    await load([old], 60_000, pass);
    const late = await join({ isPartitioned: true });
    const both = [old, late];
    await load(both, 6000, pass);
    late.transport.isPartitioned = false;
    await load(both, 500, pass);
    // One served 60 of its rate meanwhile, the other 70 with its burst.
    for (const own of both) {
      expect(left(own, 'bob')[0]).toBe(10);
      const owed = -own.backend.inspect('alice').state.remaining;
      expect(owed).toBeGreaterThan(45);
      expect(owed).toBeLessThan(75);
    }
    await pass(8000);
    const calls = await load(both, 10_000, pass);
    expect(calls).toBeGreaterThan(90); // it is paid
    expect(calls).toBeLessThan(130);
  });

  test('owe nothing that has flowed back in by then', async () => {
    const { join, pass } = fleetWith(LIMIT, { exchange });
    const [busy, idle] = [await join(), await join()];
    await pass(1500);
    served(idle, 'carol');
    idle.transport.isPartitioned = true;
    await load([busy], 20_000, pass);
    idle.transport.isPartitioned = false;
    await load([busy], 1500, pass);
    const remaining = idle.backend.inspect('alice').state.remaining;
    expect(remaining).toBeGreaterThanOrEqual(-1);
    expect(Math.abs(remaining - busy.backend.inspect('alice').state.remaining)).toBeLessThanOrEqual(
      2,
    );
  });
});
