/** Nodes of a fleet for tests: each with one limit and a recording transport. */

import type { PeersBackend } from '../../src/backends/peers/backend.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../src/backends/peers/context.ts';
import type { FleetKey } from '../../src/backends/peers/datagram-auth.ts';
import { createPeersBackend } from '../../src/backends/peers/factory.ts';
import { PeerNode } from '../../src/backends/peers/node.ts';
import type { RejectedSource } from '../../src/backends/peers/rejected-sources.ts';
import type { DatagramHandler, Transport } from '../../src/backends/peers/transport.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import { seededRandom, systemRandom } from '../../src/core/random.ts';
import { createPolicy, type Limit } from '../../src/policies/limit.ts';

/** Records every datagram that the node sends; `receive` hands any datagram to the node. */
export class RecordingTransport implements Transport {
  readonly sentDatagrams: { readonly to: string | undefined; readonly bytes: Uint8Array }[] = [];
  readonly #inner: Transport;
  receive: DatagramHandler = () => {};
  /** While true, no datagram passes in either direction. */
  isPartitioned = false;

  constructor(inner: Transport) {
    this.#inner = inner;
  }

  get name(): string {
    return this.#inner.name;
  }

  get isLoopback(): boolean {
    return this.#inner.isLoopback;
  }

  get counts(): Transport['counts'] {
    return this.#inner.counts;
  }

  async open(onDatagram: DatagramHandler): Promise<void> {
    this.receive = onDatagram;
    await this.#inner.open((bytes, from) => {
      if (!this.isPartitioned) this.receive(bytes, from);
    });
  }

  broadcast(bytes: Uint8Array): void {
    this.sentDatagrams.push({ to: undefined, bytes });
    if (!this.isPartitioned) this.#inner.broadcast(bytes);
  }

  send(to: string, bytes: Uint8Array): void {
    this.sentDatagrams.push({ to, bytes });
    if (!this.isPartitioned) this.#inner.send(to, bytes);
  }

  close(): Promise<void> {
    return this.#inner.close();
  }
}

export interface TestPeer {
  readonly transport: RecordingTransport;
  readonly node: PeerNode;
  readonly backend: PeersBackend;
}

export interface TestPeerOptions {
  readonly clock: Clock;
  readonly key?: FleetKey | undefined;
  readonly seed?: string;
  readonly onRejected?: (source: RejectedSource) => void;
  readonly limit: Limit;
  readonly peers?: Partial<PeerOptions>;
  readonly maxKeys?: number;
  readonly isPartitioned?: boolean;
}

let nextSeed = 1;

export async function createTestPeer(inner: Transport, setup: TestPeerOptions): Promise<TestPeer> {
  const { clock, key, limit, peers, maxKeys = 1000, isPartitioned = false } = setup;
  const transport = new RecordingTransport(inner);
  transport.isPartitioned = isPartitioned;
  const random = clock === systemClock ? systemRandom : seededRandom(nextSeed++);
  const options = { ...PEER_DEFAULTS, name: inner.name, ...peers };
  const { seed, onRejected = () => {} } = setup;
  const node = new PeerNode({ options, transport, key, seed, clock, random, onRejected });
  const backend = createPeersBackend(
    createPolicy(limit, random),
    { name: 'api', clock, random, maxKeys },
    node,
  );
  await node.open();
  return { transport, node, backend };
}
