/**
 * The backends of a scenario: the state that nodes share, each through production code.
 *
 *     local    nothing
 *     redis    one state behind a round trip (central-backend.ts)
 *     peers    the gossip protocol and its backend, on a network of datagrams
 *     pool     members, agreement and its backend, with the store in memory behind a round trip
 *     groups   every node is a group that borrows from the others
 */

import type { BackendFactory } from '../../backends/backend.ts';
import { Group } from '../../backends/groups/group.ts';
import type { LocalBackend } from '../../backends/local/backend.ts';
import { decode } from '../../backends/peers/codec.ts';
import { PEER_DEFAULTS } from '../../backends/peers/context.ts';
import { createPeersBackend } from '../../backends/peers/factory.ts';
import { BROADCAST } from '../../backends/peers/messages.ts';
import type { PeerProtocol } from '../../backends/peers/protocol.ts';
import { PoolBackend } from '../../backends/pool/backend.ts';
import { memoryStore } from '../../backends/pool/memory-store.ts';
import { Pool } from '../../backends/pool/pool.ts';
import type { PoolStore } from '../../backends/pool/store.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { createPeer } from '../peers/peer.ts';
import { centralFactory, createCentralServer } from './central-backend.ts';
import type { Links } from './links.ts';
import type { NodeClock } from './node-clock.ts';
import type { BackendSpec, ScenarioLimit } from './scenario.ts';

/** The shared state of one limit. */
export interface SharedBackend {
  /** The backend of a node that starts now; undefined: local state. */
  join(node: number, clock: NodeClock): BackendFactory | RemoteBackendFactory | undefined;
  /** The node stops in an orderly way. */
  leave(node: number): void;
}

export interface Surroundings {
  /** The clock of servers. */
  readonly clock: Clock;
  readonly random: Random;
  readonly links: Links;
  readonly nodes: number;
}

export function createSharedBackend(limit: ScenarioLimit, around: Surroundings): SharedBackend {
  const { backend } = limit;
  switch (backend.kind) {
    case 'local':
      return { join: () => undefined, leave() {} };
    case 'redis':
      return central(createCentralServer(limit, around.clock, around.random), backend, around);
    case 'peers':
      return new Mesh(backend, around);
    case 'pool':
      return poolOf(backend, around);
    case 'groups':
      return groupsOf(backend, around);
  }
}

type SpecOf<Kind extends BackendSpec['kind']> = Extract<BackendSpec, { kind: Kind }>;

const central = (
  server: LocalBackend,
  spec: SpecOf<'redis'>,
  { links }: Surroundings,
): SharedBackend => ({
  join: (node, clock) => centralFactory(server, spec, links, node, clock),
  leave() {},
});

interface Peer {
  readonly node: number;
  readonly clock: NodeClock;
  readonly protocol: PeerProtocol;
  /** When its next tick is due; Infinity: none is scheduled. */
  wakeAt: Millis;
}

class Mesh implements SharedBackend {
  readonly #spec: SpecOf<'peers'>;
  readonly #around: Surroundings;
  /** The running peer of each node. */
  readonly #peers: (Peer | undefined)[] = [];

  constructor(spec: SpecOf<'peers'>, around: Surroundings) {
    this.#spec = spec;
    this.#around = around;
  }

  join(node: number, clock: NodeClock): BackendFactory {
    const { random } = this.#around;
    const { protocol, connection } = createPeer({
      options: { ...PEER_DEFAULTS, ...this.#spec.peers, name: `node ${node + 1}` },
      clock,
      random,
      send: (to, bytes) => this.#send(peer, to, bytes),
      onPendingHits: () => this.#schedule(peer),
    });
    const peer: Peer = { node, clock, protocol, wakeAt: Infinity };
    this.#peers[node] = peer;
    this.#schedule(peer);
    return {
      isRemote: false,
      create: (policy, context) => createPeersBackend(policy, context, connection),
    };
  }

  leave(): void {}

  #schedule(peer: Peer): void {
    const { clock, protocol } = peer;
    const at = Math.max(clock.now(), protocol.wakeAt(clock.now()));
    if (at >= peer.wakeAt) return;
    peer.wakeAt = at;
    clock.wakeAt(at, () => this.#tick(peer));
  }

  #tick(peer: Peer): void {
    const now = peer.clock.now();
    if (now < peer.wakeAt) return; // replaced by an earlier tick, which has run
    peer.wakeAt = Infinity;
    peer.protocol.tick(now);
    this.#schedule(peer);
  }

  #send(from: Peer, to: number, bytes: Uint8Array): void {
    const { clock, links } = this.#around;
    const message = decode(bytes); // once for all receivers
    const now = clock.now();
    for (const peer of this.#peers) {
      if (!peer || peer === from || (to !== BROADCAST && peer.protocol.id !== to)) continue;
      links.datagram(from.node, peer.node, now, (afterMs) => {
        peer.clock.wakeAt(now + afterMs, () => {
          peer.protocol.receive(message, peer.clock.now());
          this.#schedule(peer);
        });
      });
    }
  }
}

function poolOf(spec: SpecOf<'pool'>, { clock, random, links }: Surroundings): SharedBackend {
  const memory = memoryStore(clock);
  const members = new Map<number, Pool>();
  const { kind: _, ...options } = spec;
  return {
    join(node, nodeClock) {
      const isConnected = (): boolean => links.canReachServer(node);
      const store: PoolStore = {
        ...memory,
        sync: (...args) =>
          links.request(nodeClock, isConnected, undefined, () => memory.sync(...args)),
        leave: (...args) =>
          links.request(nodeClock, isConnected, undefined, () => memory.leave(...args)),
      };
      const id = `node ${node + 1}`;
      const member = new Pool(store, { name: 'scenario', id, ...options }, nodeClock, random);
      member.opened.catch(() => {}); // the store may be unavailable at first; syncs go on
      member.on(() => {}); // without a listener it would warn of an unavailable store
      member.open();
      members.set(node, member);
      return {
        isRemote: false,
        create: (policy, context) => new PoolBackend(policy, context, member),
      };
    },
    leave(node) {
      void members.get(node)?.close();
    },
  };
}

function groupsOf(spec: SpecOf<'groups'>, { nodes, links }: Surroundings): SharedBackend {
  const nameOf = (node: number): string => `node ${node + 1}`;
  const names = Array.from({ length: nodes }, (_, node) => nameOf(node));
  const weights = new Map(names.map((name) => [name, { weight: 1, min: 0 }]));
  const running = new Map<string, { readonly group: Group; readonly clock: NodeClock }>();
  const { reserve, deadlineMs } = spec;
  return {
    join(node, clock) {
      const self = nameOf(node);
      const resolved = { self, groups: weights, reserve, deadlineMs };
      const transport = {
        borrow: (to: string, requests: Parameters<Group['lend']>[0]) =>
          links.request(
            clock,
            () => links.areConnected(node, names.indexOf(to)),
            undefined,
            async () => {
              const lender = running.get(to);
              await lender?.clock.sleep(0); // a frozen lender replies late, a crashed one never
              return (await lender?.group.lend(requests)) ?? requests.map(() => 0);
            },
          ),
      };
      const group = new Group(resolved, transport, clock);
      running.set(self, { group, clock });
      return group.createLocalFactory();
    },
    leave(node) {
      running.get(nameOf(node))?.group.close();
    },
  };
}
