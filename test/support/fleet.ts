/** Nodes of a fleet for tests: each with one limit, and somebody who listens in on it. */

import { PeersShare } from '../../src/backends/peers/backend.ts';
import { FleetNode } from '../../src/backends/peers/node.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../src/backends/peers/settings.ts';
import type { Hear, Transport } from '../../src/backends/peers/transport.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import { seededRandom, systemRandom } from '../../src/core/random.ts';
import { type Limit, policyOf } from '../../src/policies/limit.ts';

/** Everything a node ever said, and a way to say anything to it. */
export class Tap implements Transport {
  readonly said: { readonly to: string | undefined; readonly bytes: Uint8Array }[] = [];
  readonly #own: Transport;
  hear: Hear = () => {};
  /** Whether anything gets through. */
  isCut = false;

  constructor(own: Transport) {
    this.#own = own;
  }

  get name(): string {
    return this.#own.name;
  }

  get isLoopback(): boolean {
    return this.#own.isLoopback;
  }

  get counts(): Transport['counts'] {
    return this.#own.counts;
  }

  async open(hear: Hear): Promise<void> {
    this.hear = hear;
    await this.#own.open((bytes, from) => {
      if (!this.isCut) this.hear(bytes, from);
    });
  }

  broadcast(bytes: Uint8Array): void {
    this.said.push({ to: undefined, bytes });
    if (!this.isCut) this.#own.broadcast(bytes);
  }

  send(to: string, bytes: Uint8Array): void {
    this.said.push({ to, bytes });
    if (!this.isCut) this.#own.send(to, bytes);
  }

  close(): Promise<void> {
    return this.#own.close();
  }
}

export interface Member {
  readonly tap: Tap;
  readonly node: FleetNode;
  readonly share: PeersShare;
}

export interface MemberSetting {
  readonly clock: Clock;
  readonly key?: string | undefined;
  readonly limit: Limit;
  readonly peers?: Partial<PeerOptions>;
  readonly keysMax?: number;
  readonly isCut?: boolean;
}

let seeds = 1;

export async function memberOf(own: Transport, setting: MemberSetting): Promise<Member> {
  const { clock, key, limit, peers, keysMax = 1000, isCut = false } = setting;
  const tap = new Tap(own);
  tap.isCut = isCut;
  const random = clock === systemClock ? systemRandom : seededRandom(seeds++);
  const options = { ...PEER_DEFAULTS, name: own.name, ...peers };
  const node = new FleetNode({ options, transport: tap, key, clock, random });
  const share = new PeersShare(
    policyOf(limit, random),
    { name: 'api', clock, random, keysMax },
    node,
  );
  await node.open();
  return { tap, node, share };
}
