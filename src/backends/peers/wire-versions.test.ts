import { describe, expect, test } from 'vitest';
import { createTestPeer, type TestPeer } from '../../../test/support/fleet.ts';
import { VirtualClock } from '../../testing/index.ts';
import { PEER_DEFAULTS } from './context.ts';
import { MemoryHub } from './memory-transport.ts';
import type { RejectedSource } from './rejected-sources.ts';

const LIMIT = { bucket: { rate: '1/h', burst: 100 } } as const;
const KEY = 'a key for the tests';
const FORGOTTEN_AFTER_MS = PEER_DEFAULTS.retransmitBufferMs + PEER_DEFAULTS.peerTimeoutMs + 2000;

type Spoken = readonly [oldest: number, newest: number];

/** A fleet on virtual time whose nodes speak different versions. */
function fleet(network: { readonly loss?: number; readonly seed?: number } = {}) {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, delayMs: [1, 5], isLoopback: false, ...network });
  const reports: RejectedSource[] = [];
  const join = async (address: string, [oldest, newest]: Spoken): Promise<TestPeer> => {
    const peers = { versions: { oldest, newest } };
    const onRejected = (source: RejectedSource) => reports.push(source);
    const setup = { clock, key: KEY, limit: LIMIT, peers, onRejected };
    const peer = await createTestPeer(hub.transport(address), setup);
    await clock.advanceAsync(2000);
    return peer;
  };
  return { clock, join, reports, pass: (ms: number) => clock.advanceAsync(ms) };
}

const peerCount = ({ node }: TestPeer): number => node.view().peers.length;
const remaining = ({ backend }: TestPeer): number =>
  Math.round(backend.inspect('C').state.remaining);

describe('wire versions', () => {
  test.each<[Spoken, Spoken, number]>([
    [[3, 3], [3, 3], 3],
    [[3, 3], [3, 4], 3],
    [[3, 4], [3, 4], 4],
    [[3, 4], [4, 5], 4],
    [[4, 5], [3, 4], 4],
    [[4, 5], [2, 5], 5],
    [[2, 9], [3, 4], 4],
  ])('nodes that speak %j and %j count together in version %j', async (one, other, version) => {
    const { join, pass, reports } = fleet();
    const a = await join('a', one);
    const b = await join('b', other);
    expect([a, b].map(peerCount)).toEqual([1, 1]);
    a.backend.check('C', 10);
    b.backend.check('C', 20);
    await pass(3000);
    expect([a, b].map(remaining)).toEqual([70, 70]);
    expect([a, b].map(({ node }) => node.view().version)).toEqual([version, version]);
    expect(reports).toEqual([]);
  });

  test.each<[Spoken, Spoken]>([
    [
      [3, 3],
      [4, 4],
    ],
    [
      [3, 3],
      [5, 6],
    ],
    [
      [5, 6],
      [3, 4],
    ],
  ])(
    'nodes that speak %j and %j: each node reports each of the others once',
    async (one, other) => {
      const { join, pass, reports } = fleet();
      const a = await join('a', one);
      const c = await join('c', one); // nodes with peers announce nothing
      const b = await join('b', other);
      const before = [a, c].map(({ transport }) => transport.sentDatagrams.length);
      for (let n = 0; n < 1000; n++) {
        for (const { backend } of [a, c, b]) backend.check(`${n}`, 1);
        await pass(10);
      }
      expect([a, c, b].map(peerCount)).toEqual([1, 1, 0]);
      const of = (from: string) => reports.filter((report) => report.from === from);
      expect(['a', 'c', 'b'].map((from) => of(from).length)).toEqual([1, 1, 2]);
      expect(of('a')[0]).toMatchObject({ reason: 'other_version', version: one[1] });
      expect(of('b')[0]).toMatchObject({ reason: 'other_version', version: other[1] });
      for (const [n, { transport }] of [a, c].entries()) {
        const toB = transport.sentDatagrams.slice(before[n]).filter(({ to }) => to === 'b');
        expect(toB.length).toBeLessThan(20); // of a thousand reports in 10 s
      }
      expect(
        b.node
          .view()
          .rejected.map(({ from }) => from)
          .sort(),
      ).toEqual(['a', 'c']);
    },
  );

  test.each([1, 2, 3])(
    'rolling upgrade over two versions with datagram loss, seed %i: all nodes count together',
    async (seed) => {
      const { join, pass, reports } = fleet({ loss: 0.2, seed });
      const members: TestPeer[] = [];
      const addresses = ['a', 'b', 'c', 'd', 'e'];
      let served = 0;
      for (const spoken of [
        [3, 3],
        [3, 4],
        [4, 5],
      ] as const)
        for (const [n, address] of addresses.entries()) {
          await members[n]?.node.close();
          members[n] = await join(address, spoken);
          for (const { backend } of members)
            served += backend.check('C', 1).verdict === 'allow' ? 1 : 0;
          await pass(1000);
        }
      expect(members.map(peerCount).every((count) => count >= 4)).toBe(true);
      // Equal to a fleet of one version, where it is up to 3; a split would be 20 and more.
      for (const member of members)
        expect(Math.abs(remaining(member) - (100 - served))).toBeLessThan(8);
      expect(reports).toEqual([]);
    },
  );

  test('a fleet uses the next version once the last node without it is forgotten', async () => {
    const { join, pass } = fleet();
    const old = await join('old', [3, 3]);
    const a = await join('a', [3, 4]);
    const b = await join('b', [3, 4]);
    const versions = () => [a, b].map(({ node }) => node.view().version);
    expect(versions()).toEqual([3, 3]);
    await old.node.close();
    await pass(FORGOTTEN_AFTER_MS);
    expect(versions()).toEqual([4, 4]);
    a.backend.check('C', 10);
    await pass(100);
    expect(remaining(b)).toBe(90);
  });

  test('a node of the older version joins late: it gets state, and missing reports in its version', async () => {
    const { join, pass, reports } = fleet();
    const a = await join('a', [3, 4]);
    const b = await join('b', [3, 4]);
    a.backend.check('C', 30);
    await pass(100);
    const old = await join('old', [3, 3]);
    expect(remaining(old)).toBeGreaterThanOrEqual(70);
    expect(remaining(old)).toBe(remaining(a));
    expect([a, b, old].map(({ node }) => node.view().version)).toEqual([3, 3, 3]);
    old.transport.isPartitioned = true;
    b.backend.check('C', 20);
    await pass(500);
    old.transport.isPartitioned = false;
    await pass(2500);
    expect(remaining(old)).toBe(remaining(a));
    expect(reports).toEqual([]);
  });

  test('a report made in the newer version is sent again in the older one', async () => {
    const { join, pass } = fleet();
    const a = await join('a', [3, 4]);
    await join('b', [3, 4]);
    const old = await join('old', [3, 3]);
    old.transport.isPartitioned = true;
    await pass(FORGOTTEN_AFTER_MS);
    expect(a.node.view().version).toBe(4);
    a.backend.check('C', 50);
    await pass(100);
    old.transport.isPartitioned = false;
    await pass(3000);
    expect(a.node.view().version).toBe(3);
    expect(old.node.view().peers).toMatchObject([{ missing: 0 }, { missing: 0 }]);
    expect(remaining(old)).toBe(remaining(a));
  });

  test.each([1, 2, 3])(
    'rolling upgrade and roll-back under load, seed %i: the fleet admits the calls of one bucket',
    async (seed) => {
      const { join, pass, reports } = fleet({ loss: 0.05, seed });
      const members: TestPeer[] = [];
      const addresses = ['a', 'b', 'c', 'd', 'e'];
      let [calls, admitted] = [0, 0];
      /** Every node has a call each 20 ms, so that the fleet has many times the calls that one bucket admits. */
      const callAll = async (ms: number): Promise<void> => {
        for (let at = 0; at < ms; at += 20) {
          for (const { backend } of members) {
            calls++;
            if (backend.check('C', 1).verdict === 'allow') admitted++;
          }
          await pass(20);
        }
      };
      for (const [n, address] of addresses.entries()) members[n] = await join(address, [3, 3]);
      const [upgrade, rollBack]: Spoken[] = [
        [3, 4],
        [3, 3],
      ];
      for (const spoken of [upgrade, rollBack, upgrade])
        for (const [n, address] of addresses.entries()) {
          await members[n].node.close();
          members[n] = await join(address, spoken);
          await callAll(500);
        }
      expect(calls).toBeGreaterThan(1500);
      // One bucket of 100. A fleet that splits in two allows 200, one whose nodes lose their state 100 per start.
      expect(admitted).toBeGreaterThanOrEqual(100);
      expect(admitted).toBeLessThanOrEqual(110);
      for (const count of members.map(peerCount)) expect(count).toBeGreaterThanOrEqual(4); // the former nodes too
      expect(reports).toEqual([]);
    },
  );
});
