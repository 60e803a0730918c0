/**
 * What every transport of peers has to do, whatever carries its datagrams.
 *
 * Real networks lose and double, so everything is said again until it is heard; nothing sleeps for a
 * fixed time but to see that something does not come.
 */

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { MAX_DATAGRAM_BYTES } from '../../src/backends/peers/bytes.ts';
import type { Transport } from '../../src/backends/peers/transport.ts';
import type { Service } from './services.ts';

/** Somewhere to meet: everybody made here hears everybody else. */
export interface TransportHarness {
  /** The n-th node, from 0 to 2, not yet open. */
  node(n: number): Promise<Transport> | Transport;
  /** Who stands between the nodes, if anybody does. */
  readonly server?: Service;
  stop(): Promise<void> | void;
}

export interface TransportTraits {
  /** Whether an answer goes to one node only. */
  readonly isAddressed: boolean;
  readonly isLoopback: boolean;
}

const AUTH_TAG_BYTES = 16;
const TIMEOUT_MS = 10_000;
/** So long after somebody else has heard it, nobody will hear it any more. */
const QUIET_MS = 50;

const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Does it again and again until it is so. */
export async function waitUntil(what: string, isSo: () => boolean, act = (): void => {}) {
  const deadline = performance.now() + TIMEOUT_MS;
  for (;;) {
    act();
    for (let n = 0; n < 5; n++) {
      if (isSo()) return;
      await sleep(10);
    }
    if (performance.now() > deadline) throw new Error(`waited ${TIMEOUT_MS} ms until ${what}`);
  }
}

export interface ReceivedDatagram {
  readonly bytes: Buffer;
  readonly from: string;
}

/** An open node, and all it has heard. */
export interface OpenNode {
  readonly transport: Transport;
  readonly received: ReceivedDatagram[];
}

export async function openNode(transport: Transport): Promise<OpenNode> {
  const heard: ReceivedDatagram[] = [];
  await transport.open((bytes, from) => heard.push({ bytes: Buffer.from(bytes), from }));
  return { transport, received: heard };
}

export const hasReceived = ({ received }: OpenNode, bytes: Uint8Array): boolean =>
  received.some((own) => own.bytes.equals(bytes));

/** How many sockets would keep this process from ending. */
const openSocketCount = (): number =>
  process.getActiveResourcesInfo().filter((own) => /^(?:UDP|TCPSocket|Pipe)Wrap$/.test(own)).length;

export function transportContract(
  name: string,
  { isAddressed, isLoopback }: TransportTraits,
  start: () => Promise<TransportHarness> | TransportHarness,
): void {
  describe(`${name} carries datagrams`, () => {
    let place: TransportHarness;
    let nodes: OpenNode[] = [];
    let texts = 0;
    const fresh = (): Buffer => Buffer.from(`${name} ${texts++}`);

    beforeEach(async () => {
      place = await start();
      nodes = [];
      for (let n = 0; n < 3; n++) nodes.push(await openNode(await place.node(n)));
    });

    afterEach(async () => {
      for (const { transport } of nodes) await transport.close();
      await place.stop();
    });

    const reaches = async (from: OpenNode, bytes: Uint8Array, others: readonly OpenNode[]) => {
      const isThere = (): boolean => others.every((other) => hasReceived(other, bytes));
      await waitUntil('it is heard', isThere, () => from.transport.broadcast(bytes));
    };

    test('to all others, from each of them', async () => {
      for (const node of nodes) {
        const others = nodes.filter((other) => other !== node);
        await reaches(node, fresh(), others);
      }
      expect(nodes[0].transport.counts.sent).toBeGreaterThan(0);
      expect(nodes[0].transport.counts.received).toBeGreaterThan(0);
    });

    test('says whether somebody elsewhere could take part', () => {
      expect(nodes.map(({ transport }) => transport.isLoopback)).toEqual(Array(3).fill(isLoopback));
    });

    test('of the largest size, whole', async () => {
      const bytes = Buffer.alloc(MAX_DATAGRAM_BYTES + AUTH_TAG_BYTES, 'x');
      bytes.write('begin');
      bytes.write('end', bytes.length - 3);
      await reaches(nodes[0], bytes, nodes.slice(1));
    });

    test('to the byte, whatever the bytes are', async () => {
      await reaches(nodes[0], Buffer.from(Array.from({ length: 256 }, (_, n) => n)), [nodes[1]]);
      for (const one of [0, 10, 13, 128, 255]) {
        await reaches(nodes[0], Buffer.from([one]), [nodes[1]]);
      }
    });

    test('back to whoever sent one', async () => {
      const [asker, other, third] = nodes;
      const question = fresh();
      await reaches(asker, question, [other, third]);
      const { from } = other.received.find((own) => own.bytes.equals(question)) as ReceivedDatagram;
      const answer = fresh();
      await waitUntil(
        'the answer is heard',
        () => hasReceived(asker, answer),
        () => other.transport.send(from, answer),
      );
      await sleep(QUIET_MS);
      if (isAddressed) expect(hasReceived(third, answer)).toBe(false);
    });

    test('to nowhere, if that is what it was told, without complaint', async () => {
      for (const to of ['', 'nowhere', '1:2:3', 'a:99999', '\0']) {
        nodes[0].transport.send(to, fresh());
      }
      await reaches(nodes[0], fresh(), nodes.slice(1));
    });

    test('too large for it, at the risk of not arriving', async () => {
      nodes[0].transport.broadcast(Buffer.alloc(100_000));
      await reaches(nodes[0], fresh(), nodes.slice(1));
    });

    test('until it is closed: then nothing is heard, and nothing is sent', async () => {
      const [first, second, third] = nodes;
      await reaches(first, fresh(), [second, third]);
      const { from } = second.received[0];
      await second.transport.close();
      const heard = second.received.length;
      await reaches(first, fresh(), [third]);
      const unsaid = fresh();
      const { sent, failed } = second.transport.counts;
      second.transport.broadcast(unsaid);
      second.transport.send(from, unsaid);
      await reaches(first, fresh(), [third]);
      await sleep(QUIET_MS);
      expect(second.received.length).toBe(heard);
      expect(hasReceived(first, unsaid) || hasReceived(third, unsaid)).toBe(false);
      expect(second.transport.counts).toMatchObject({ sent, failed });
      await second.transport.close();
    });

    test('and keeps no process from ending once it is closed', async () => {
      for (const { transport } of nodes) await transport.close();
      await sleep(QUIET_MS); // what was closed is soon gone
      const another = await place.node(0);
      const before = openSocketCount();
      const node = await openNode(another);
      node.transport.broadcast(fresh());
      await node.transport.close();
      await waitUntil('nothing is left open', () => openSocketCount() <= before);
    });

    test('again after its server was gone', { timeout: 40_000 }, async () => {
      const { server } = place;
      if (!server) return; // nobody stands between
      await reaches(nodes[0], fresh(), nodes.slice(1));
      await server.kill();
      const lost = fresh();
      for (let n = 0; n < 20; n++) {
        for (const { transport } of nodes) transport.broadcast(lost);
        await sleep(10);
      }
      await server.restart();
      await reaches(nodes[0], fresh(), nodes.slice(1));
      await reaches(nodes[2], fresh(), nodes.slice(0, 2));
    });

    test('and holds back only so much for a server that is stuck', async () => {
      const { server } = place;
      if (!server) return; // nobody stands between
      server.pause();
      const { transport } = nodes[0];
      const bytes = Buffer.alloc(MAX_DATAGRAM_BYTES);
      for (let n = 0; n < 5000; n++) {
        transport.broadcast(bytes);
        if (n % 100 === 0) await sleep(0);
      }
      const { dropped } = transport.counts;
      server.resume();
      expect(dropped).toBeGreaterThan(3000);
      await reaches(nodes[0], fresh(), nodes.slice(1));
    });
  });
}
