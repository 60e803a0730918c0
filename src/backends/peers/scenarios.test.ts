import { describe, expect, test } from 'vitest';
import {
  createTestPeer,
  type TestPeer,
  type TestPeerOptions,
} from '../../../test/support/fleet.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub } from './memory-transport.ts';

const EXCHANGES = ['eager', 'periodic'] as const;

/** A fleet with one shared limit. */
function fleetWith(
  limit: TestPeerOptions['limit'],
  peers: TestPeerOptions['peers'] = {},
  seed = 1,
) {
  const clock = new VirtualClock(1_000_000);
  const network = { loss: 0 };
  const hub = new MemoryHub({
    ...{ clock, seed, delayMs: [1, 3], isLoopback: false },
    get loss() {
      return network.loss;
    },
  });
  let members = 0;
  const join = (options: Partial<TestPeerOptions> = {}): Promise<TestPeer> =>
    createTestPeer(hub.transport(`${members++}`), {
      ...{ clock, key: 'a key for the tests', limit, peers, maxKeys: 100_000 },
      ...options,
    });
  return { clock, network, join, pass: (ms: number): Promise<void> => clock.advanceAsync(ms) };
}

/** Units remaining in each of a key's buckets. */
const remainingOf = ({ backend }: TestPeer, key = 'alice'): number[] =>
  backend.inspect(key).rules.map(({ remaining }) => remaining);

const served = ({ backend }: TestPeer, key = 'alice'): number =>
  backend.check(key, 1).verdict === 'allow' ? 1 : 0;

describe.each(EXCHANGES)('peers: a new node (%s)', (exchange) => {
  test('gets the state of each bucket of `all`, and denies no call within the limit', async () => {
    const [fast, slow] = [
      { rate: '10/s', burst: 10 },
      { rate: '3600/h', burst: 3600 },
    ] as const;
    const { join, pass } = fleetWith({ all: [{ bucket: fast }, { bucket: slow }] }, { exchange });
    const old = await join();
    await pass(1500);
    for (let n = 0; n < 300; n++) {
      served(old);
      await pass(200); // half of the fast rate, for a minute
    }
    const late = await join();
    await pass(1000);
    for (let n = 0; n < 2; n++) {
      expect(Math.abs(remainingOf(late)[n] - remainingOf(old)[n])).toBeLessThanOrEqual(1);
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

describe('peers: a node that falls silent', () => {
  const states = ({ node }: TestPeer): Record<'peers' | 'gone', string[]> => {
    const { peers, gone } = node.view();
    return { peers: peers.map(({ name }) => name), gone: gone.map(({ name }) => name) };
  };

  test('is gone after the peer timeout, with its age, and forgotten after 65 s', async () => {
    const { join, pass } = fleetWith(SLOW);
    const [one, other] = [await join(), await join()];
    await pass(1500);
    const name = other.transport.name;
    expect(states(one)).toEqual({ peers: [name], gone: [] });
    await other.node.close();
    await pass(4000);
    expect(states(one)).toEqual({ peers: [name], gone: [] });
    await pass(2000);
    expect(states(one)).toEqual({ peers: [], gone: [name] });
    expect(one.node.view().gone[0].ageMs).toBeGreaterThan(5000);
    await pass(57_000);
    expect(states(one)).toEqual({ peers: [], gone: [name] });
    await pass(5000);
    expect(states(one)).toEqual({ peers: [], gone: [] });
  });

  test('is present again when it restarts under its name', async () => {
    const { join, pass } = fleetWith(SLOW, { name: 'b' });
    const one = await join({ peers: { name: 'a' } });
    const other = await join();
    await pass(1500);
    await other.node.close();
    await pass(10_000);
    expect(states(one)).toEqual({ peers: [], gone: ['b'] });
    await join();
    await pass(1500);
    expect(states(one)).toEqual({ peers: ['b'], gone: [] });
  });
});

/** After this long a report is in no retransmit buffer: only state transfer carries its hits. */
const HISTORY_MS = 70_000;

describe('state transfer', () => {
  const seeds = Array.from({ length: 10 }, (_, n) => n + 1);

  test.each(seeds)(
    'two nodes that join together get the state of the older one: seed %i',
    async (seed) => {
      const { join, pass } = fleetWith(SLOW, {}, seed);
      const old = await join();
      await pass(1500);
      for (let n = 0; n < 100; n++) served(old);
      await pass(HISTORY_MS);
      const late = [await join(), await join()];
      await pass(1000);
      for (const node of late) expect(remainingOf(node)[0]).toBeLessThanOrEqual(1);
    },
  );

  test('continues with another source when the first one stops during the transfer', async () => {
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
    await old[0].node.close(); // the longest-lived one
    await pass(10_000);
    expect(late.backend.keys).toBe(40_000);
  });

  test.each([
    { loss: 0, maxMs: 500, maxPages: 180 },
    { loss: 0.2, maxMs: 1500, maxPages: 450 },
  ])('merges pages in any order, and requests those that are lost: loss $loss', async (row) => {
    const { clock, network, join, pass } = fleetWith(SLOW, { exchange: 'periodic' });
    const old = await join();
    await pass(1500);
    for (let k = 0; k < 10_000; k++) {
      old.backend.check(`${k}`, 1 + (k % 50));
      if (k % 1000 === 0) await pass(100);
    }
    await pass(HISTORY_MS);
    network.loss = row.loss;
    const { length: sentBefore } = old.transport.sentDatagrams;
    const startedAt = clock.now();
    const late = await join();
    let syncedAt = Infinity;
    void late.node.synced.then(() => {
      syncedAt = clock.now();
    });
    await pass(row.maxMs);
    expect(syncedAt - startedAt).toBeLessThanOrEqual(row.maxMs);
    expect(old.transport.sentDatagrams.length - sentBefore).toBeLessThanOrEqual(row.maxPages);
    for (let k = 0; k < 10_000; k++) {
      const [known] = remainingOf(late, `${k}`);
      if (Math.abs(known - remainingOf(old, `${k}`)[0]) > 0.01) expect([k, known]).toBe('equal');
    }
  });

  test('recovers reports that were lost because the gap was too large', async () => {
    const { join, pass } = fleetWith(SLOW, { intervalMs: 10 });
    const one = await join();
    const other = await join();
    await pass(2500);
    other.transport.isPartitioned = true;
    for (let k = 0; k < 5000; k++) {
      one.backend.check(`${k}`, 50);
      await pass(11); // one report each
    }
    other.transport.isPartitioned = false;
    await pass(10_000);
    expect(other.node.view().peers[0].lost).toBeGreaterThan(0);
    const all = Array.from({ length: 5000 }, (_, k) => Math.round(remainingOf(other, `${k}`)[0]));
    expect(new Set(all)).toEqual(new Set([50])); // each once
  });
});

describe.each(EXCHANGES)('peers: after a network partition (%s)', (exchange) => {
  const LIMIT = { bucket: { rate: 10, burst: 10 } };

  /** Sends each node twice the rate; returns the allowed calls. */
  const load = async (
    members: readonly TestPeer[],
    ms: number,
    pass: (ms: number) => Promise<void>,
  ): Promise<number> => {
    let calls = 0;
    for (let n = 0; n < ms; n += 50) {
      for (const member of members) calls += served(member);
      await pass(50);
    }
    return calls;
  };

  test('nodes owe the hits served during the partition, and none from before', async () => {
    const { join, pass } = fleetWith(LIMIT, { exchange });
    const old = await join();
    await load([old], 60_000, pass);
    const late = await join({ isPartitioned: true });
    const both = [old, late];
    await load(both, 6000, pass);
    late.transport.isPartitioned = false;
    await load(both, 500, pass);
    // One served 60 calls at its rate meanwhile, the other 70 with its burst.
    for (const member of both) {
      expect(remainingOf(member, 'bob')[0]).toBe(10);
      const owed = -member.backend.inspect('alice').state.remaining;
      expect(owed).toBeGreaterThan(45);
      expect(owed).toBeLessThan(75);
    }
    await pass(8000);
    const calls = await load(both, 10_000, pass);
    expect(calls).toBeGreaterThan(90); // the debt is paid
    expect(calls).toBeLessThan(130);
  });

  test('nodes owe no hits whose tokens were refilled during the partition', async () => {
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
