/**
 * What every transport of peers has to do, whatever carries its datagrams.
 *
 * Real networks lose and double, so everything is said again until it is heard; nothing sleeps for a
 * fixed time but to see that something does not come.
 */

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { DATAGRAM_BYTES_MAX } from '../../src/backends/peers/bytes.ts';
import type { Transport } from '../../src/backends/peers/transport.ts';
import type { Service } from './services.ts';

/** Somewhere to meet: everybody made here hears everybody else. */
export interface Place {
  /** The n-th node, from 0 to 2, not yet open. */
  node(n: number): Promise<Transport> | Transport;
  /** Who stands between the nodes, if anybody does. */
  readonly server?: Service;
  stop(): Promise<void> | void;
}

export interface ContractSetting {
  /** Whether an answer goes to one node only. */
  readonly isAddressed: boolean;
  readonly isLoopback: boolean;
}

const SEAL_BYTES = 16;
const WITHIN_MS = 10_000;
/** So long after somebody else has heard it, nobody will hear it any more. */
const SILENCE_MS = 50;

const later = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Does it again and again until it is so. */
export async function until(what: string, isSo: () => boolean, act = (): void => {}) {
  const deadline = performance.now() + WITHIN_MS;
  for (;;) {
    act();
    for (let n = 0; n < 5; n++) {
      if (isSo()) return;
      await later(10);
    }
    if (performance.now() > deadline) throw new Error(`waited ${WITHIN_MS} ms until ${what}`);
  }
}

export interface Heard {
  readonly bytes: Buffer;
  readonly from: string;
}

/** An open node, and all it has heard. */
export interface Node {
  readonly transport: Transport;
  readonly heard: Heard[];
}

export async function openNode(transport: Transport): Promise<Node> {
  const heard: Heard[] = [];
  await transport.open((bytes, from) => heard.push({ bytes: Buffer.from(bytes), from }));
  return { transport, heard };
}

export const has = ({ heard }: Node, bytes: Uint8Array): boolean =>
  heard.some((own) => own.bytes.equals(bytes));

/** How many sockets would keep this process from ending. */
const openSockets = (): number =>
  process.getActiveResourcesInfo().filter((own) => /^(?:UDP|TCPSocket|Pipe)Wrap$/.test(own)).length;

export function transportContract(
  name: string,
  { isAddressed, isLoopback }: ContractSetting,
  start: () => Promise<Place> | Place,
): void {
  describe(`${name} carries datagrams`, () => {
    let place: Place;
    let nodes: Node[] = [];
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

    const reaches = async (from: Node, bytes: Uint8Array, others: readonly Node[]) => {
      const isThere = (): boolean => others.every((other) => has(other, bytes));
      await until('it is heard', isThere, () => from.transport.broadcast(bytes));
    };

    test('to all others, from each of them', async () => {
      for (const node of nodes) {
        const others = nodes.filter((other) => other !== node);
        await reaches(node, fresh(), others);
      }
      expect(nodes[0].transport.counts.sent).toBeGreaterThan(0);
      expect(nodes[0].transport.counts.heard).toBeGreaterThan(0);
    });

    test('says whether somebody elsewhere could take part', () => {
      expect(nodes.map(({ transport }) => transport.isLoopback)).toEqual(Array(3).fill(isLoopback));
    });

    test('of the largest size, whole', async () => {
      const bytes = Buffer.alloc(DATAGRAM_BYTES_MAX + SEAL_BYTES, 'x');
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
      const { from } = other.heard.find((own) => own.bytes.equals(question)) as Heard;
      const answer = fresh();
      await until(
        'the answer is heard',
        () => has(asker, answer),
        () => other.transport.send(from, answer),
      );
      await later(SILENCE_MS);
      if (isAddressed) expect(has(third, answer)).toBe(false);
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
      const { from } = second.heard[0];
      await second.transport.close();
      const heard = second.heard.length;
      await reaches(first, fresh(), [third]);
      const unsaid = fresh();
      const { sent, failed } = second.transport.counts;
      second.transport.broadcast(unsaid);
      second.transport.send(from, unsaid);
      await reaches(first, fresh(), [third]);
      await later(SILENCE_MS);
      expect(second.heard.length).toBe(heard);
      expect(has(first, unsaid) || has(third, unsaid)).toBe(false);
      expect(second.transport.counts).toMatchObject({ sent, failed });
      await second.transport.close();
    });

    test('and keeps no process from ending once it is closed', async () => {
      for (const { transport } of nodes) await transport.close();
      await later(SILENCE_MS); // what was closed is soon gone
      const another = await place.node(0);
      const before = openSockets();
      const node = await openNode(another);
      node.transport.broadcast(fresh());
      await node.transport.close();
      await until('nothing is left open', () => openSockets() <= before);
    });

    test('again after its server was gone', { timeout: 40_000 }, async () => {
      const { server } = place;
      if (!server) return; // nobody stands between
      await reaches(nodes[0], fresh(), nodes.slice(1));
      await server.kill();
      const lost = fresh();
      for (let n = 0; n < 20; n++) {
        for (const { transport } of nodes) transport.broadcast(lost);
        await later(10);
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
      const bytes = Buffer.alloc(DATAGRAM_BYTES_MAX);
      for (let n = 0; n < 5000; n++) {
        transport.broadcast(bytes);
        if (n % 100 === 0) await later(0);
      }
      const { dropped } = transport.counts;
      server.resume();
      expect(dropped).toBeGreaterThan(3000);
      await reaches(nodes[0], fresh(), nodes.slice(1));
    });
  });
}
