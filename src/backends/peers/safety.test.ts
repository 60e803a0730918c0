/**
 * What somebody on the network can do to a fleet that has a key: see it, and disturb it a little. Never
 * change a bucket.
 */

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
import { decode, encode } from './codec.ts';
import { createDatagramAuth } from './datagram-auth.ts';
import { MemoryHub } from './memory-transport.ts';
import { PeerNode } from './node.ts';
import { PEER_DEFAULTS } from './settings.ts';
import type { Transport } from './transport.ts';
import { udp } from './udp-transport.ts';

const KEY = 'a key for the tests';
const LIMIT = { bucket: { rate: 1, burst: 100 } };
const KEYS = ['alice', 'bob', 'carol'];

const member = (own: Transport, clock: Clock, key?: string): Promise<TestPeer> =>
  createTestPeer(own, { clock, key, limit: LIMIT });

/** All of a node's buckets, to the bit. */
const bucketsOf = ({ backend }: TestPeer): string => {
  const { entries, debtUntil } = backend.snapshot();
  return JSON.stringify([[...entries], debtUntil && [...debtUntil]]);
};

const left = ({ backend }: TestPeer): number[] =>
  KEYS.map((key) => backend.inspect(key).state.remaining);

/** A fleet on virtual time that has served a little. */
async function fleet(count: number, clock = new VirtualClock(1_000_000)) {
  const hub = new MemoryHub({ clock, delayMs: [1, 1], isLoopback: false });
  const members: TestPeer[] = [];
  const join = async (n: number): Promise<TestPeer> => {
    const own = await member(hub.transport(`${n}`), clock, KEY);
    members[n] = own;
    return own;
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
  decode(bytes.subarray(0, bytes.length - 16))?.kind;

/** What a node has said that was ever counted, or let it in. */
const countingOf = ({ transport }: TestPeer): RecordingTransport['sentDatagrams'] =>
  transport.sentDatagrams.filter((own) =>
    ['report', 'state', 'hello-ack'].includes(kindOf(own) ?? ''),
  );

/** Says all of it to a node, some of it twice, from elsewhere; its buckets must not notice. */
function replay(said: RecordingTransport['sentDatagrams'], to: TestPeer): void {
  const before = bucketsOf(to);
  for (const { bytes } of [...said, ...said.toReversed()]) to.transport.receive(bytes, 'evil');
  expect(bucketsOf(to)).toBe(before);
}

describe('a fleet with a key', () => {
  test('hears each other', async () => {
    const { members } = await fleet(3);
    expect(members.map(({ node }) => node.view().peers.length)).toEqual([2, 2, 2]);
    for (const own of members)
      for (const remaining of left(own)) expect(remaining).toBeLessThan(90);
    expect(left(members[0])).toEqual(left(members[1]));
  });

  test('does not hear who has another key, or none', async () => {
    const { members } = await fleet(2);
    const [one, other] = members;
    const before = bucketsOf(one);
    const report = other.transport.sentDatagrams.map(({ bytes }) =>
      bytes.subarray(0, bytes.length - 16),
    );
    const { authFailed } = one.node.view();
    for (const inside of report) {
      one.transport.receive(inside, '1');
      one.transport.receive(createDatagramAuth('another key for tests').sign(inside), '1');
    }
    expect(bucketsOf(one)).toBe(before);
    expect(one.node.view().authFailed).toBe(authFailed + 2 * report.length);
  });

  test('does not hear what was changed anywhere, or cut', async () => {
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
    const sealed = createDatagramAuth(KEY).sign(fresh);
    const before = one.node.view();
    const buckets = bucketsOf(one);
    for (let bit = 0; bit < sealed.length * 8; bit++) {
      const changed = Uint8Array.from(sealed);
      changed[bit >> 3] ^= 1 << (bit & 7);
      one.transport.receive(changed, '1');
    }
    for (let length = 0; length < sealed.length; length++) {
      one.transport.receive(sealed.subarray(0, length), '1');
      one.transport.receive(sealed.subarray(sealed.length - length), '1');
    }
    const { authFailed, counts } = one.node.view();
    expect(authFailed - before.authFailed).toBe(sealed.length * 10);
    expect(counts.received).toBe(before.counts.received);
    expect(bucketsOf(one)).toBe(buckets);
    one.transport.receive(sealed, '1');
    expect(one.node.view().counts.received).toBe(before.counts.received + 1);
  });

  test('does not hear its own words, whoever says them', async () => {
    const { members, pass } = await fleet(2);
    const [one] = members;
    const { received } = one.node.view().counts;
    replay(one.transport.sentDatagrams, one);
    expect(one.node.view().counts.received).toBe(received);
    await pass(100);
    expect(one.node.view().peers.length).toBe(1);
  });

  test('hears nothing twice from one that is there', async () => {
    const { members, pass, serve } = await fleet(3);
    const [one, other] = members;
    replay(other.transport.sentDatagrams, one);
    await pass(30_000);
    await serve();
    replay(other.transport.sentDatagrams, one);
    await pass(1000);
    replay(other.transport.sentDatagrams, one);
    await pass(1000);
    expect(left(one)).toEqual(left(members[2]));
  });

  test('hears nothing of one that is gone, however long ago', async () => {
    const { members, pass } = await fleet(2);
    const [one, other] = members;
    await other.node.close();
    for (const ms of [100, 4000, 30_000, 60_000, 100_000, 1000, 10]) {
      await pass(ms);
      replay(other.transport.sentDatagrams, one);
    }
    await pass(6000);
    expect(one.node.view().peers).toEqual([]);
    expect(left(one)).toEqual([100, 100, 100]);
  });

  test('lets nobody in twice by the same answer', async () => {
    const { members, pass } = await fleet(1);
    const [one] = members;
    const to = one.node.view().id;
    const hello = one.transport.sentDatagrams.findLast((own) => kindOf(own) === 'hello')
      ?.bytes as Uint8Array;
    const asked = decode(hello.subarray(0, hello.length - 16));
    const { nonce } = asked as Extract<typeof asked, { kind: 'hello' }>;
    // How its limit is called in datagrams, as its own reports tell.
    const own = one.transport.sentDatagrams.find((said) => kindOf(said) === 'report')
      ?.bytes as Uint8Array;
    const told = decode(own.subarray(0, own.length - 16));
    const { entries } = told as Extract<typeof told, { kind: 'report' }>;
    const said = [
      encode({
        ...{ kind: 'hello-ack', from: 777, to, datagramSeq: 1, nonce },
        ...{ seq: 0, first: 1, ageMs: 0, name: 'once' },
      }),
      encode({ kind: 'report', from: 777, to: 0, datagramSeq: 2, agoMs: 0, seq: 1, entries }),
    ].map((bytes) => createDatagramAuth(KEY).sign(bytes));
    const before = left(one)[0];
    for (const bytes of said) one.transport.receive(bytes, '777');
    expect(left(one)[0]).toBeLessThan(before);
    for (let s = 0; s < 200; s++) {
      await pass(1000);
      replay(
        said.map((bytes) => ({ to: undefined, bytes })),
        one,
      );
    }
  });

  test('does not take for alive who is only repeated', async () => {
    const { members, pass } = await fleet(2);
    const [one, other] = members;
    await other.node.close();
    for (let s = 0; s < 10; s++) {
      await pass(1000);
      replay(other.transport.sentDatagrams, one);
    }
    expect(one.node.view().peers).toEqual([]);
  });

  test('does not take for alive who is gone by what it said before they met', async () => {
    const { members, pass, join } = await fleet(2);
    const [one, other] = members;
    await pass(60_000);
    const old = [...one.transport.sentDatagrams];
    await other.node.close();
    const again = await join(1);
    await pass(30);
    expect(again.node.view().peers.length).toBe(1);
    await one.node.close(); // before it gave another sign of life
    const from = again.transport.sentDatagrams.length;
    for (let s = 0; s < 50; s++) {
      for (const { bytes } of old.slice(s * 3, s * 3 + 3)) again.transport.receive(bytes, 'evil');
      await pass(1000);
      again.backend.check('alice', 1);
    }
    expect(again.node.view().peers).toEqual([]);
    expect(again.transport.sentDatagrams.slice(from).filter(({ to }) => to === 'evil')).toEqual([]);
  });

  test('repairs what was lost as fast while somebody repeats a question', async () => {
    const mostMissing = async (isAttacked: boolean): Promise<number> => {
      const clock = new VirtualClock(1_000_000);
      const hub = new MemoryHub({ clock, seed: 5, delayMs: [1, 1], loss: 0.1, isLoopback: false });
      const one = await member(hub.transport('one'), clock, KEY);
      const other = await member(hub.transport('other'), clock, KEY);
      await clock.advanceAsync(3000);
      const hello = other.transport.sentDatagrams.find((own) => kindOf(own) === 'hello')
        ?.bytes as Uint8Array;
      let most = 0;
      for (let ms = 0; ms < 10_000; ms++) {
        if (ms % 100 === 0) one.backend.check('alice', 1);
        if (isAttacked) for (let n = 0; n < 2; n++) one.transport.receive(hello, 'evil');
        await clock.advanceAsync(1);
        most = Math.max(most, other.node.view().peers.at(0)?.missing ?? 0);
      }
      return most;
    };
    expect(await mostMissing(true)).toBeLessThanOrEqual(2 * (await mostMissing(false)));
  });

  test('hears nothing that was said before it was started again', async () => {
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
    // How keys stand is told to the millisecond, rounded so that nobody gains by it.
    const [own, others] = [left(again)[0], left(members[2])[0]];
    expect(others - own).toBeLessThanOrEqual(1);
    expect(own).toBeLessThanOrEqual(others);
  });

  test('hears nothing old from one it meets after it began alone', async () => {
    const { members, pass, join } = await fleet(2);
    const [one, other] = members;
    await one.node.close();
    await pass(100_000); // what the other served is paid back long ago, and its reports are thrown away
    other.transport.isPartitioned = true;
    const again = await join(0);
    await pass(3000);
    const old = countingOf(other);
    other.transport.isPartitioned = false;
    for (let n = 0; n < 500; n++) {
      await pass(3);
      replay(old, again);
    }
    expect(again.node.view().peers.length).toBe(1);
    expect(left(again)).toEqual([100, 100, 100]);
  });

  test('hears nothing old from one that comes back after a long silence', async () => {
    const { members, pass } = await fleet(2);
    const [one, other] = members;
    other.transport.isPartitioned = true;
    await pass(200_000);
    expect(one.node.view().peers).toEqual([]);
    const old = countingOf(other);
    other.transport.isPartitioned = false;
    for (let n = 0; n < 500; n++) {
      await pass(3);
      replay(old, one);
    }
    expect(one.node.view().peers.length).toBe(1);
    expect(left(one)).toEqual([100, 100, 100]);
  });

  test('learns how keys stand only when it asks', async () => {
    const { members, pass, join } = await fleet(2);
    for (let n = 0; n < 10; n++) for (const key of KEYS) members[0].backend.check(key, 5);
    await pass(200);
    const late = await join(2);
    await pass(1500);
    const states = [
      ...members[0].transport.sentDatagrams,
      ...members[1].transport.sentDatagrams,
    ].filter((own) => kindOf(own) === 'state');
    expect(states.length).toBeGreaterThan(0);
    expect(left(late)[0]).toBeLessThan(60);
    await pass(100_000);
    expect(left(late)).toEqual([100, 100, 100]);
    replay(states, late);
    expect(left(late)).toEqual([100, 100, 100]);
  });

  test('answers where a node is, not where somebody repeats it', async () => {
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

  test('meets a node although somebody repeats it faster than it speaks', async () => {
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

  test('is not made to flood anybody by one question sent again and again', async () => {
    const { members, clock } = await fleet(2);
    const [one, other] = members;
    const from = other.node.view().id;
    const to = one.node.view().id;
    const auth = createDatagramAuth(KEY);
    const questions = [
      encode({ kind: 'nack', from, to, datagramSeq: 1001, ranges: [1, 1000] }),
      encode({ kind: 'hello', from, to, datagramSeq: 1002, nonce: 7, ageMs: 0 }),
      encode({ kind: 'state-request', from, to, datagramSeq: 1003, nonce: 7, limit: 1, cursor: 0 }),
      encode({ kind: 'hello', from: 12345, to: 0, datagramSeq: 1, nonce: 7, ageMs: 0 }),
    ].map((own) => auth.sign(own));
    const said = one.transport.sentDatagrams.length;
    for (const own of questions.slice(0, 3)) one.transport.receive(own, 'evil');
    const answered = one.transport.sentDatagrams.length - said;
    expect(answered).toBeGreaterThanOrEqual(3);
    for (let n = 0; n < 10_000; n++)
      for (const own of questions) one.transport.receive(own, 'evil');
    // Whom it knows it answers once; whom it does not know, twenty times at once.
    expect(one.transport.sentDatagrams.length - said).toBeLessThanOrEqual(answered + 21);
    clock.advance(1000);
  });

  test('is not stopped by more strangers than it can remember', async () => {
    const { members, pass, join } = await fleet(2);
    const [one] = members;
    const auth = createDatagramAuth(KEY);
    for (let id = 1; id <= 5000; id++) {
      one.transport.receive(
        auth.sign(encode({ kind: 'hello', from: id, to: 0, datagramSeq: 1, nonce: 7, ageMs: 0 })),
        'evil',
      );
    }
    await join(2);
    await pass(1500);
    expect(members.map(({ node }) => node.view().peers.length)).toEqual([2, 2, 2]);
  });
});

describe('a fleet without a key', () => {
  const setting = (transport: Transport) => ({
    ...{ options: PEER_DEFAULTS, transport, key: undefined },
    ...{ clock: systemClock, random: systemRandom },
  });

  test('is refused where others could take part, and told what to do', () => {
    const far = new MemoryHub({ clock: systemClock, isLoopback: false }).transport('far');
    const wanted = /`key` to be a secret that all of the fleet know, as memory far reaches further/;
    expect(() => new PeerNode(setting(far))).toThrow(wanted);
    for (const transport of [
      udp({ peers: '10.0.0.1:7613' }),
      udp({ peers: 'fleet.test:7613' }),
      udp({ group: '239.0.0.1:7613' }),
    ]) {
      expect(() => new PeerNode(setting(transport))).toThrow(/or use loopback addresses only/);
    }
  });

  test('is warned about on this machine, once', async () => {
    const heard: string[] = [];
    const listen = (warning: Error): unknown => heard.push(warning.message);
    process.on('warning', listen);
    new PeerNode(setting(udp({ peers: '127.0.0.1:7613' })));
    new PeerNode(setting(udp({ peers: '127.0.0.1:7613' })));
    await waitUntil('it is told', () => heard.length > 0);
    process.off('warning', listen);
    expect(heard).toEqual([expect.stringMatching(/^peers without a key .*Set a key/)]);
  });
});

describe('over UDP', () => {
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
      sockets.map((own) => new Promise<void>((ready) => own.bind(0, '127.0.0.1', ready))),
    );
    const found = sockets.map((own) => own.address().port);
    await Promise.all(sockets.map((own) => new Promise<void>((end) => own.close(end))));
    return found;
  }

  test('a fleet keeps one limit, and nobody else has a say in it', async () => {
    const found = await ports(2);
    const peers = found.map((port) => `127.0.0.1:${port}`);
    for (const bind of peers) members.push(await member(udp({ peers, bind }), systemClock, KEY));
    const [one, other] = members;
    await waitUntil('they know each other', () =>
      members.every(({ node }) => node.view().peers.length === 1),
    );
    other.backend.check('alice', 50);
    await waitUntil('it is heard', () => one.backend.inspect('alice').state.remaining < 60);

    const socket = createSocket('udp4');
    evil = socket;
    const tell = (bytes: Uint8Array): Promise<void> =>
      new Promise((told) => socket.send(bytes, found[0], '127.0.0.1', () => told()));
    const random = seededRandom(3);
    const { transportCounts, authFailed } = one.node.view();
    const before = other.transport.sentDatagrams.length;
    let told = 0;
    for (let n = 0; n < 1000; n++) {
      const { bytes } = other.transport.sentDatagrams[n % before];
      const flipped = Uint8Array.from(bytes);
      flipped[n % flipped.length] ^= 1 << (n % 8);
      const noise = Uint8Array.from({ length: n }, () => random() * 256);
      for (const own of [bytes, flipped, noise, bytes.subarray(0, n % bytes.length)]) {
        await tell(own);
        told++;
      }
    }
    await waitUntil(
      'all of it came',
      () => one.node.view().transportCounts.received >= transportCounts.received + told * 0.9,
    );
    expect(one.node.view().authFailed - authFailed).toBeGreaterThan(told * 0.6);
    expect(one.backend.inspect('alice').state.remaining).toBeGreaterThanOrEqual(50);
    expect(left(one).slice(1)).toEqual([100, 100]);
    const from = one.transport.sentDatagrams.length;
    other.backend.check('bob', 30);
    await waitUntil('it is still heard', () => one.backend.inspect('bob').state.remaining < 80);
    expect(
      one.transport.sentDatagrams
        .slice(from)
        .filter(({ to }) => to !== undefined && to !== peers[1]),
    ).toEqual([]);
  });
});
