/**
 * Contract of every peer transport.
 *
 * Real networks lose and duplicate datagrams, so each one is sent repeatedly until it arrives. Fixed waits are only
 * used to check that something does not arrive.
 */

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { MAX_DATAGRAM_BYTES } from '../../src/backends/peers/bytes.ts';
import type { Transport } from '../../src/backends/peers/transport.ts';
import type { Service } from './services.ts';

/** A network: all nodes made here reach each other. */
export interface TransportHarness {
  /** The n-th node, from 0 to 2, not yet open. */
  node(n: number): Promise<Transport> | Transport;
  /** The server between the nodes, if there is one. */
  readonly server?: Service;
  stop(): Promise<void> | void;
}

export interface TransportTraits {
  /** Whether a reply goes to one node only. */
  readonly isAddressed: boolean;
  readonly isLoopback: boolean;
}

const MAC_BYTES = 16;
const TIMEOUT_MS = 10_000;
/** A datagram that has not arrived this long after another node got it will not arrive. */
const QUIET_MS = 50;

const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Repeats `act` until the condition holds. */
export async function waitUntil(what: string, condition: () => boolean, act = (): void => {}) {
  const deadline = performance.now() + TIMEOUT_MS;
  for (;;) {
    act();
    for (let n = 0; n < 5; n++) {
      if (condition()) return;
      await sleep(10);
    }
    if (performance.now() > deadline)
      throw new Error(`timeout: waited ${TIMEOUT_MS} ms until ${what}`);
  }
}

export interface ReceivedDatagram {
  readonly bytes: Buffer;
  readonly from: string;
}

/** An open transport, and all datagrams it has received. */
export interface OpenNode {
  readonly transport: Transport;
  readonly received: ReceivedDatagram[];
}

export async function openNode(transport: Transport): Promise<OpenNode> {
  const received: ReceivedDatagram[] = [];
  await transport.open((bytes, from) => received.push({ bytes: Buffer.from(bytes), from }));
  return { transport, received };
}

export const hasReceived = ({ received }: OpenNode, bytes: Uint8Array): boolean =>
  received.some((datagram) => datagram.bytes.equals(bytes));

/** Sockets that keep this process alive. */
const openSocketCount = (): number =>
  process.getActiveResourcesInfo().filter((type) => /^(?:UDP|TCPSocket|Pipe)Wrap$/.test(type))
    .length;

export function transportContract(
  name: string,
  { isAddressed, isLoopback }: TransportTraits,
  start: () => Promise<TransportHarness> | TransportHarness,
): void {
  describe(`${name}: transport contract`, () => {
    let harness: TransportHarness;
    let nodes: OpenNode[] = [];
    let texts = 0;
    const fresh = (): Buffer => Buffer.from(`${name} ${texts++}`);

    beforeEach(async () => {
      harness = await start();
      nodes = [];
      for (let n = 0; n < 3; n++) nodes.push(await openNode(await harness.node(n)));
    });

    afterEach(async () => {
      for (const { transport } of nodes) await transport.close();
      await harness.stop();
    });

    const reaches = async (from: OpenNode, bytes: Uint8Array, others: readonly OpenNode[]) => {
      const isReceived = (): boolean => others.every((other) => hasReceived(other, bytes));
      await waitUntil('the datagram arrives', isReceived, () => from.transport.broadcast(bytes));
    };

    test('a broadcast of any node reaches all other nodes', async () => {
      for (const node of nodes) {
        const others = nodes.filter((other) => other !== node);
        await reaches(node, fresh(), others);
      }
      expect(nodes[0].transport.counts.sent).toBeGreaterThan(0);
      expect(nodes[0].transport.counts.received).toBeGreaterThan(0);
    });

    test('isLoopback says whether other machines can take part', () => {
      expect(nodes.map(({ transport }) => transport.isLoopback)).toEqual(Array(3).fill(isLoopback));
    });

    test('a datagram of the largest size arrives whole', async () => {
      const bytes = Buffer.alloc(MAX_DATAGRAM_BYTES + MAC_BYTES, 'x');
      bytes.write('begin');
      bytes.write('end', bytes.length - 3);
      await reaches(nodes[0], bytes, nodes.slice(1));
    });

    test('any byte values arrive unchanged', async () => {
      await reaches(nodes[0], Buffer.from(Array.from({ length: 256 }, (_, n) => n)), [nodes[1]]);
      for (const one of [0, 10, 13, 128, 255]) {
        await reaches(nodes[0], Buffer.from([one]), [nodes[1]]);
      }
    });

    test('a reply reaches the sender of a datagram', async () => {
      const [requester, replier, third] = nodes;
      const request = fresh();
      await reaches(requester, request, [replier, third]);
      const { from } = replier.received.find(({ bytes }) =>
        bytes.equals(request),
      ) as ReceivedDatagram;
      const reply = fresh();
      await waitUntil(
        'the reply arrives',
        () => hasReceived(requester, reply),
        () => replier.transport.send(from, reply),
      );
      await sleep(QUIET_MS);
      if (isAddressed) expect(hasReceived(third, reply)).toBe(false);
    });

    test('sending to an invalid address does not throw', async () => {
      for (const to of ['', 'nowhere', '1:2:3', 'a:99999', '\0']) {
        nodes[0].transport.send(to, fresh());
      }
      await reaches(nodes[0], fresh(), nodes.slice(1));
    });

    test('a datagram that is too large does not break later ones', async () => {
      nodes[0].transport.broadcast(Buffer.alloc(100_000));
      await reaches(nodes[0], fresh(), nodes.slice(1));
    });

    test('after close, nothing is received and nothing is sent', async () => {
      const [first, second, third] = nodes;
      await reaches(first, fresh(), [second, third]);
      const { from } = second.received[0];
      await second.transport.close();
      const before = second.received.length;
      await reaches(first, fresh(), [third]);
      const unsent = fresh();
      const { sent, failed } = second.transport.counts;
      second.transport.broadcast(unsent);
      second.transport.send(from, unsent);
      await reaches(first, fresh(), [third]);
      await sleep(QUIET_MS);
      expect(second.received.length).toBe(before);
      expect(hasReceived(first, unsent) || hasReceived(third, unsent)).toBe(false);
      expect(second.transport.counts).toMatchObject({ sent, failed });
      await second.transport.close();
    });

    test('after close, no socket keeps the process alive', async () => {
      for (const { transport } of nodes) await transport.close();
      await sleep(QUIET_MS); // closed sockets are released asynchronously
      const another = await harness.node(0);
      const before = openSocketCount();
      const node = await openNode(another);
      node.transport.broadcast(fresh());
      await node.transport.close();
      await waitUntil('no socket is open', () => openSocketCount() <= before);
    });

    test('datagrams arrive again after a server restart', async () => {
      const { server } = harness;
      if (!server) return; // no server between the nodes
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

    test('the send queue is bounded while the server is stuck', async () => {
      const { server } = harness;
      if (!server) return; // no server between the nodes
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
