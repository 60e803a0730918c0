import { createSocket, type Socket } from 'node:dgram';
import { afterEach, describe, expect, test } from 'vitest';
import {
  createTestPeer,
  type RecordingTransport,
  type TestPeer,
} from '../../../test/support/fleet.ts';
import { waitUntil } from '../../../test/support/transport-contract.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { seededRandom, systemRandom } from '../../core/random.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MAX_MESSAGE_BYTES } from './bytes.ts';
import { decode, encode } from './codec.ts';
import { PEER_DEFAULTS } from './context.ts';
import { createDatagramAuth } from './datagram-auth.ts';
import { MemoryHub } from './memory-transport.ts';
import { PeerNode } from './node.ts';
import type { Transport } from './transport.ts';
import { udp } from './udp-transport.ts';

const KEY = 'a key for the tests';
const LIMIT = { bucket: { rate: 1, burst: 100 } };
const KEYS = ['alice', 'bob', 'carol'];

const member = (inner: Transport, clock: Clock, key?: string): Promise<TestPeer> =>
  createTestPeer(inner, { clock, key, limit: LIMIT });

/** The exact state of all buckets of a node. */
const bucketsOf = ({ backend }: TestPeer): string => {
  const { entries, debtUntil } = backend.snapshot();
  return JSON.stringify([[...entries], debtUntil && [...debtUntil]]);
};

const remainingOf = ({ backend }: TestPeer): number[] =>
  KEYS.map((key) => backend.inspect(key).state.remaining);

/** A fleet on virtual time with some hits. */
async function fleet(count: number, clock = new VirtualClock(1_000_000)) {
  const hub = new MemoryHub({ clock, delayMs: [1, 1], isLoopback: false });
  const members: TestPeer[] = [];
  const join = async (n: number): Promise<TestPeer> => {
    const peer = await member(hub.transport(`${n}`), clock, KEY);
    members[n] = peer;
    return peer;
  };
  const pass = (ms: number): Promise<void> => clock.advanceAsync(ms);
  for (let n = 0; n < count; n++) {
    await join(n);
    await pass(1500); // the first is alone for a while
  }
  const serve = async (): Promise<void> => {
    for (const { backend } of members) for (const key of KEYS) backend.check(key, 2);
    await pass(500);
  };
  await serve();
  await serve();
  return { clock, hub, members, join, pass, serve };
}

const kindOf = ({ bytes }: { bytes: Uint8Array }): string | undefined =>
  decode(createDatagramAuth(KEY).decrypt(bytes) ?? bytes)?.kind;

/** The datagrams of a node that changed a bucket or admitted the node. */
const effectiveDatagramsOf = ({ transport }: TestPeer): RecordingTransport['sentDatagrams'] =>
  transport.sentDatagrams.filter((sent) =>
    ['report', 'state', 'hello-ack'].includes(kindOf(sent) ?? ''),
  );

/** Replays datagrams to a node, each twice, from another address; expects unchanged buckets. */
function replay(sent: RecordingTransport['sentDatagrams'], to: TestPeer): void {
  const before = bucketsOf(to);
  for (const { bytes } of [...sent, ...sent.toReversed()]) to.transport.receive(bytes, 'evil');
  expect(bucketsOf(to)).toBe(before);
}

describe('peers with a key', () => {
  test('nodes exchange hits', async () => {
    const { members } = await fleet(3);
    expect(members.map(({ node }) => node.view().peers.length)).toEqual([2, 2, 2]);
    for (const peer of members)
      for (const remaining of remainingOf(peer)) expect(remaining).toBeLessThan(90);
    expect(remainingOf(members[0])).toEqual(remainingOf(members[1]));
  });

  test('a datagram with another key or none changes nothing', async () => {
    const { members } = await fleet(2);
    const [one, other] = members;
    const before = bucketsOf(one);
    const report = other.transport.sentDatagrams.map(
      ({ bytes }) => createDatagramAuth(KEY).decrypt(bytes) as Uint8Array,
    );
    const { authFailed } = one.node.view();
    for (const message of report) {
      one.transport.receive(message, '1');
      one.transport.receive(createDatagramAuth('another key for tests').encrypt(message), '1');
    }
    expect(bucketsOf(one)).toBe(before);
    expect(one.node.view().authFailed).toBe(authFailed + 2 * report.length);
  });

  test('a modified or truncated datagram changes nothing', async () => {
    const { members } = await fleet(2);
    const [one, other] = members;
    const fresh = encode({
      ...{
        kind: 'report',
        from: other.node.view().id,
        to: 0,
        datagramSeq: 1000,
        agoMs: 0,
        seq: 1000,
      },
      entries: [1, 2, 3, 4],
    });
    const signed = createDatagramAuth(KEY).encrypt(fresh);
    const before = one.node.view();
    const buckets = bucketsOf(one);
    for (let bit = 0; bit < signed.length * 8; bit++) {
      const changed = Uint8Array.from(signed);
      changed[bit >> 3] ^= 1 << (bit & 7);
      one.transport.receive(changed, '1');
    }
    for (let length = 0; length < signed.length; length++) {
      one.transport.receive(signed.subarray(0, length), '1');
      one.transport.receive(signed.subarray(signed.length - length), '1');
    }
    const { authFailed, counts } = one.node.view();
    expect(authFailed - before.authFailed).toBe(signed.length * 10);
    expect(counts.received).toBe(before.counts.received);
    expect(bucketsOf(one)).toBe(buckets);
    one.transport.receive(signed, '1');
    expect(one.node.view().counts.received).toBe(before.counts.received + 1);
  });

  test('a datagram longer than any message is refused before its MAC is computed', () => {
    const auth = createDatagramAuth(KEY);
    for (const size of [MAX_MESSAGE_BYTES + 1, 60_000]) {
      expect(auth.decrypt(auth.encrypt(new Uint8Array(size)))).toBeUndefined();
    }
    expect(auth.decrypt(auth.encrypt(new Uint8Array(MAX_MESSAGE_BYTES)))).toHaveLength(
      MAX_MESSAGE_BYTES,
    );
  });

  test('a node ignores its own datagrams', async () => {
    const { members, pass } = await fleet(2);
    const [one] = members;
    const { received } = one.node.view().counts;
    replay(one.transport.sentDatagrams, one);
    expect(one.node.view().counts.received).toBe(received);
    await pass(100);
    expect(one.node.view().peers.length).toBe(1);
  });

  test('replayed datagrams of an alive peer change nothing', async () => {
    const { members, pass, serve } = await fleet(3);
    const [one, other] = members;
    replay(other.transport.sentDatagrams, one);
    await pass(30_000);
    await serve();
    replay(other.transport.sentDatagrams, one);
    await pass(1000);
    replay(other.transport.sentDatagrams, one);
    await pass(1000);
    expect(remainingOf(one)).toEqual(remainingOf(members[2]));
  });

  test('replayed datagrams of a gone peer change nothing, at any time', async () => {
    const { members, pass } = await fleet(2);
    const [one, other] = members;
    await other.node.close();
    for (const ms of [100, 4000, 30_000, 60_000, 100_000, 1000, 10]) {
      await pass(ms);
      replay(other.transport.sentDatagrams, one);
    }
    await pass(6000);
    expect(one.node.view().peers).toEqual([]);
    expect(remainingOf(one)).toEqual([100, 100, 100]);
  });

  test('a replayed hello-ack does not admit a node again', async () => {
    const { members, pass } = await fleet(1);
    const [one] = members;
    const to = one.node.view().id;
    const hello = one.transport.sentDatagrams.findLast((sent) => kindOf(sent) === 'hello')
      ?.bytes as Uint8Array;
    const request = decode(createDatagramAuth(KEY).decrypt(hello) as Uint8Array);
    const { nonce } = request as Extract<typeof request, { kind: 'hello' }>;
    // The node's own report contains the id of its limit.
    const sentReport = one.transport.sentDatagrams.find((sent) => kindOf(sent) === 'report')
      ?.bytes as Uint8Array;
    const report = decode(createDatagramAuth(KEY).decrypt(sentReport) as Uint8Array);
    const { entries } = report as Extract<typeof report, { kind: 'report' }>;
    const recorded = [
      encode({
        ...{ kind: 'hello-ack', from: 777, to, datagramSeq: 1, nonce },
        ...{ seq: 0, first: 1, ageMs: 0, name: 'once' },
      }),
      encode({ kind: 'report', from: 777, to: 0, datagramSeq: 2, agoMs: 0, seq: 1, entries }),
    ].map((bytes) => createDatagramAuth(KEY).encrypt(bytes));
    const before = remainingOf(one)[0];
    for (const bytes of recorded) one.transport.receive(bytes, '777');
    expect(remainingOf(one)[0]).toBeLessThan(before);
    for (let s = 0; s < 200; s++) {
      await pass(1000);
      replay(
        recorded.map((bytes) => ({ to: undefined, bytes })),
        one,
      );
    }
  });

  test('replayed datagrams do not keep a gone peer alive', async () => {
    const { members, pass } = await fleet(2);
    const [one, other] = members;
    await other.node.close();
    for (let s = 0; s < 10; s++) {
      await pass(1000);
      replay(other.transport.sentDatagrams, one);
    }
    expect(one.node.view().peers).toEqual([]);
  });

  test('datagrams from before the handshake do not keep a gone peer alive', async () => {
    const { members, pass, join } = await fleet(2);
    const [one, other] = members;
    await pass(60_000);
    const old = [...one.transport.sentDatagrams];
    await other.node.close();
    const again = await join(1);
    await pass(30);
    expect(again.node.view().peers.length).toBe(1);
    await one.node.close(); // before its next datagram
    const from = again.transport.sentDatagrams.length;
    for (let s = 0; s < 50; s++) {
      for (const { bytes } of old.slice(s * 3, s * 3 + 3)) again.transport.receive(bytes, 'evil');
      await pass(1000);
      again.backend.check('alice', 1);
    }
    expect(again.node.view().peers).toEqual([]);
    expect(again.transport.sentDatagrams.slice(from).filter(({ to }) => to === 'evil')).toEqual([]);
  });

  test('a replayed hello does not slow down retransmission', async () => {
    const maxMissing = async (isAttacked: boolean): Promise<number> => {
      const clock = new VirtualClock(1_000_000);
      const hub = new MemoryHub({ clock, seed: 5, delayMs: [1, 1], loss: 0.1, isLoopback: false });
      const one = await member(hub.transport('one'), clock, KEY);
      const other = await member(hub.transport('other'), clock, KEY);
      await clock.advanceAsync(3000);
      const hello = other.transport.sentDatagrams.find((sent) => kindOf(sent) === 'hello')
        ?.bytes as Uint8Array;
      let max = 0;
      for (let ms = 0; ms < 10_000; ms++) {
        if (ms % 100 === 0) one.backend.check('alice', 1);
        if (isAttacked) for (let n = 0; n < 2; n++) one.transport.receive(hello, 'evil');
        await clock.advanceAsync(1);
        max = Math.max(max, other.node.view().peers.at(0)?.missing ?? 0);
      }
      return max;
    };
    expect(await maxMissing(true)).toBeLessThanOrEqual(2 * (await maxMissing(false)));
  });

  test('datagrams from before a restart change nothing', async () => {
    const { members, pass, join, serve } = await fleet(3);
    const [one, other] = members;
    await one.node.close();
    const again = await join(0);
    replay(other.transport.sentDatagrams, again);
    await pass(1500);
    expect(again.node.view().peers.length).toBe(2);
    replay(other.transport.sentDatagrams, again);
    await serve();
    replay(other.transport.sentDatagrams, again);
    await pass(1000);
    // State transfer rounds up to milliseconds, so that it never adds tokens.
    const [restarted, reference] = [remainingOf(again)[0], remainingOf(members[2])[0]];
    expect(reference - restarted).toBeLessThanOrEqual(1);
    expect(restarted).toBeLessThanOrEqual(reference);
  });

  test('old datagrams change nothing when a node that started alone gets a peer', async () => {
    const { members, pass, join } = await fleet(2);
    const [one, other] = members;
    await one.node.close();
    await pass(100_000); // the hits of the other node are refilled, and its reports are evicted
    other.transport.isPartitioned = true;
    const again = await join(0);
    await pass(3000);
    const old = effectiveDatagramsOf(other);
    other.transport.isPartitioned = false;
    for (let n = 0; n < 500; n++) {
      await pass(3);
      replay(old, again);
    }
    expect(again.node.view().peers.length).toBe(1);
    expect(remainingOf(again)).toEqual([100, 100, 100]);
  });

  test('old datagrams change nothing when a peer returns after a long silence', async () => {
    const { members, pass } = await fleet(2);
    const [one, other] = members;
    other.transport.isPartitioned = true;
    await pass(200_000);
    expect(one.node.view().peers).toEqual([]);
    const old = effectiveDatagramsOf(other);
    other.transport.isPartitioned = false;
    for (let n = 0; n < 500; n++) {
      await pass(3);
      replay(old, one);
    }
    expect(one.node.view().peers.length).toBe(1);
    expect(remainingOf(one)).toEqual([100, 100, 100]);
  });

  test('state pages are applied only after a request', async () => {
    const { members, pass, join } = await fleet(2);
    for (let n = 0; n < 10; n++) for (const key of KEYS) members[0].backend.check(key, 5);
    await pass(200);
    const late = await join(2);
    await pass(1500);
    const states = [
      ...members[0].transport.sentDatagrams,
      ...members[1].transport.sentDatagrams,
    ].filter((sent) => kindOf(sent) === 'state');
    expect(states.length).toBeGreaterThan(0);
    expect(remainingOf(late)[0]).toBeLessThan(60);
    await pass(100_000);
    expect(remainingOf(late)).toEqual([100, 100, 100]);
    replay(states, late);
    expect(remainingOf(late)).toEqual([100, 100, 100]);
  });

  test('replies go to the address of the node, not to the source of a replay', async () => {
    const { members, pass, serve } = await fleet(2);
    const [one, other] = members;
    const from = one.transport.sentDatagrams.length;
    for (let n = 0; n < 20; n++) {
      replay(other.transport.sentDatagrams, one);
      await pass(20);
      await serve();
    }
    expect(one.transport.sentDatagrams.slice(from).filter(({ to }) => to === 'evil')).toEqual([]);
    expect(one.transport.sentDatagrams.slice(from).some(({ to }) => to === '1')).toBe(true);
  });

  test('a node is admitted although its datagrams are replayed faster than it sends', async () => {
    const { members, hub, clock, pass } = await fleet(2);
    const [one] = members;
    const late = await member(hub.transport('late'), clock, KEY);
    for (let ms = 0; ms < 3000; ms++) {
      for (const { bytes } of late.transport.sentDatagrams.slice(-3))
        one.transport.receive(bytes, 'evil');
      await pass(1);
    }
    expect(one.node.view().peers.length).toBe(2);
  });

  test('replayed requests cause a bounded number of replies', async () => {
    const { members, clock } = await fleet(2);
    const [one, other] = members;
    const from = other.node.view().id;
    const to = one.node.view().id;
    const auth = createDatagramAuth(KEY);
    const requests = [
      encode({ kind: 'nack', from, to, datagramSeq: 1001, ranges: [1, 1000] }),
      encode({ kind: 'hello', from, to, datagramSeq: 1002, nonce: 7, ageMs: 0 }),
      encode({ kind: 'state-request', from, to, datagramSeq: 1003, nonce: 7, limit: 1, cursor: 0 }),
      encode({ kind: 'hello', from: 12345, to: 0, datagramSeq: 1, nonce: 7, ageMs: 0 }),
    ].map((message) => auth.encrypt(message));
    const before = one.transport.sentDatagrams.length;
    for (const request of requests.slice(0, 3)) one.transport.receive(request, 'evil');
    const replies = one.transport.sentDatagrams.length - before;
    expect(replies).toBeGreaterThanOrEqual(3);
    for (let n = 0; n < 10_000; n++)
      for (const request of requests) one.transport.receive(request, 'evil');
    // A peer's request gets one reply; that of an unverified node up to twenty in a burst.
    expect(one.transport.sentDatagrams.length - before).toBeLessThanOrEqual(replies + 21);
    clock.advance(1000);
  });

  test('more unverified nodes than pending handshakes do not keep a node from joining', async () => {
    const { members, pass, join } = await fleet(2);
    const [one] = members;
    const auth = createDatagramAuth(KEY);
    for (let id = 1; id <= 5000; id++) {
      one.transport.receive(
        auth.encrypt(
          encode({ kind: 'hello', from: id, to: 0, datagramSeq: 1, nonce: 7, ageMs: 0 }),
        ),
        'evil',
      );
    }
    await join(2);
    await pass(1500);
    expect(members.map(({ node }) => node.view().peers.length)).toEqual([2, 2, 2]);
  });
});

describe('peers without a key', () => {
  const configOf = (transport: Transport) => ({
    ...{ options: PEER_DEFAULTS, transport, key: undefined },
    ...{ clock: systemClock, random: systemRandom },
  });

  test('are refused on a transport that reaches beyond this machine', () => {
    const far = new MemoryHub({ clock: systemClock, isLoopback: false }).transport('far');
    const expected = /`key` to be a secret shared by the fleet, as memory far reaches beyond this/;
    expect(() => new PeerNode(configOf(far))).toThrow(expected);
    for (const transport of [
      udp({ peers: '10.0.0.1:7613' }),
      udp({ peers: 'fleet.test:7613' }),
      udp({ group: '239.0.0.1:7613' }),
    ]) {
      expect(() => new PeerNode(configOf(transport))).toThrow(/or use loopback addresses only/);
    }
  });

  test('cause one warning on loopback', async () => {
    const warnings: string[] = [];
    const collect = (warning: Error): unknown => warnings.push(warning.message);
    process.on('warning', collect);
    new PeerNode(configOf(udp({ peers: '127.0.0.1:7613' })));
    new PeerNode(configOf(udp({ peers: '127.0.0.1:7613' })));
    await waitUntil('a warning is emitted', () => warnings.length > 0);
    process.off('warning', collect);
    expect(warnings).toEqual([expect.stringMatching(/^peers without a key .*Set a key/)]);
  });
});

describe('peers over UDP', () => {
  const members: TestPeer[] = [];
  let evil: Socket | undefined;
  afterEach(async () => {
    for (const { node } of members.splice(0)) await node.close();
    evil?.close();
    evil = undefined;
  });

  async function ports(count: number): Promise<number[]> {
    const sockets = Array.from({ length: count }, () => createSocket('udp4'));
    await Promise.all(
      sockets.map((socket) => new Promise<void>((ready) => socket.bind(0, '127.0.0.1', ready))),
    );
    const found = sockets.map((socket) => socket.address().port);
    await Promise.all(sockets.map((socket) => new Promise<void>((end) => socket.close(end))));
    return found;
  }

  test('nodes share a limit; replayed, modified and random datagrams change nothing', async () => {
    const found = await ports(2);
    const peers = found.map((port) => `127.0.0.1:${port}`);
    for (const bind of peers) members.push(await member(udp({ peers, bind }), systemClock, KEY));
    const [one, other] = members;
    await waitUntil('the nodes are peers', () =>
      members.every(({ node }) => node.view().peers.length === 1),
    );
    other.backend.check('alice', 50);
    await waitUntil('the hits arrive', () => one.backend.inspect('alice').state.remaining < 60);

    const socket = createSocket('udp4');
    evil = socket;
    const inject = (bytes: Uint8Array): Promise<void> =>
      new Promise((done) => socket.send(bytes, found[0], '127.0.0.1', () => done()));
    const random = seededRandom(3);
    const { transportCounts, authFailed } = one.node.view();
    const before = other.transport.sentDatagrams.length;
    let injected = 0;
    for (let n = 0; n < 1000; n++) {
      const { bytes } = other.transport.sentDatagrams[n % before];
      const flipped = Uint8Array.from(bytes);
      flipped[n % flipped.length] ^= 1 << (n % 8);
      const noise = Uint8Array.from({ length: n }, () => random() * 256);
      for (const datagram of [bytes, flipped, noise, bytes.subarray(0, n % bytes.length)]) {
        await inject(datagram);
        injected++;
      }
    }
    await waitUntil(
      'the injected datagrams arrive',
      () => one.node.view().transportCounts.received >= transportCounts.received + injected * 0.9,
    );
    expect(one.node.view().authFailed - authFailed).toBeGreaterThan(injected * 0.6);
    expect(one.backend.inspect('alice').state.remaining).toBeGreaterThanOrEqual(50);
    expect(remainingOf(one).slice(1)).toEqual([100, 100]);
    const from = one.transport.sentDatagrams.length;
    other.backend.check('bob', 30);
    await waitUntil('new hits arrive', () => one.backend.inspect('bob').state.remaining < 80);
    expect(
      one.transport.sentDatagrams
        .slice(from)
        .filter(({ to }) => to !== undefined && to !== peers[1]),
    ).toEqual([]);
  });
});
