/** Nodes of a fleet for tests: each with one limit, and somebody who listens in on it. */

import { PeersShare } from '../../src/backends/peers/backend.ts';
import { PeerNode } from '../../src/backends/peers/node.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../src/backends/peers/settings.ts';
import type { DatagramHandler, Transport } from '../../src/backends/peers/transport.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import { seededRandom, systemRandom } from '../../src/core/random.ts';
import { createPolicy, type Limit } from '../../src/policies/limit.ts';

/** Everything a node ever said, and a way to say anything to it. */
export class RecordingTransport implements Transport {
  readonly sentDatagrams: { readonly to: string | undefined; readonly bytes: Uint8Array }[] = [];
  readonly #inner: Transport;
  receive: DatagramHandler = () => {};
  /** Whether anything gets through. */
  isPartitioned = false;

  constructor(own: Transport) {
    this.#inner = own;
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

  async open(hear: DatagramHandler): Promise<void> {
    this.receive = hear;
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
  readonly backend: PeersShare;
}

export interface TestPeerOptions {
  readonly clock: Clock;
  readonly key?: string | undefined;
  readonly limit: Limit;
  readonly peers?: Partial<PeerOptions>;
  readonly maxKeys?: number;
  readonly isPartitioned?: boolean;
}

let nextSeed = 1;

export async function createTestPeer(own: Transport, setting: TestPeerOptions): Promise<TestPeer> {
  const { clock, key, limit, peers, maxKeys = 1000, isPartitioned = false } = setting;
  const transport = new RecordingTransport(own);
  transport.isPartitioned = isPartitioned;
  const random = clock === systemClock ? systemRandom : seededRandom(nextSeed++);
  const options = { ...PEER_DEFAULTS, name: own.name, ...peers };
  const node = new PeerNode({ options, transport, key, clock, random });
  const share = new PeersShare(
    createPolicy(limit, random),
    { name: 'api', clock, random, maxKeys },
    node,
  );
  await node.open();
  return { transport, node, backend: share };
}
