/** Nodes of the peer protocol on a virtual network that loses and delays chosen datagrams. */

import { PeersBackend } from '../../src/backends/peers/backend.ts';
import { decode } from '../../src/backends/peers/codec.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../src/backends/peers/context.ts';
import { BROADCAST, type Message } from '../../src/backends/peers/messages.ts';
import { PeerProtocol } from '../../src/backends/peers/protocol.ts';
import { createHasher } from '../../src/core/hash.ts';
import { seededRandom } from '../../src/core/random.ts';
import type { BucketOptions } from '../../src/policies/bucket.ts';
import { createPolicy } from '../../src/policies/limit.ts';
import { VirtualClock } from '../../src/testing/virtual-clock.ts';

const BUCKET: BucketOptions = { rate: 1, burst: 1000 };

export interface Node {
  readonly protocol: PeerProtocol;
  readonly backend: PeersBackend;
}

/**
 * Nodes on one network: `isCarried` selects the datagrams that arrive, `delayMs` says when; `seen` is everything sent.
 */
export function network() {
  const clock = new VirtualClock(1_000_000);
  const nodes: Node[] = [];
  let queue: { readonly at: number; readonly deliver: () => void }[] = [];
  const seen: { message: Message; bytes: Uint8Array }[] = [];
  const rules = {
    isCarried: (_message: Message): boolean => true,
    delayMs: (_message: Message): number => 0,
  };
  /** Suspended nodes, and the datagrams that wait for them. */
  const suspendedNodes = new Map<PeerProtocol, (() => void)[]>();
  const start = (options: Partial<PeerOptions> = {}, bucket: BucketOptions = BUCKET) => {
    const random = seededRandom(nodes.length + 1);
    const send = (to: number, bytes: Uint8Array): void => {
      const message = decode(bytes);
      if (message) seen.push({ message, bytes });
      if (!message || !rules.isCarried(message)) return;
      for (const { protocol: other } of nodes) {
        if (other !== protocol && (to === BROADCAST || to === other.id)) {
          const arrive = (): unknown => other.receive(message, clock.now());
          queue.push({
            at: clock.now() + rules.delayMs(message),
            deliver: () => suspendedNodes.get(other)?.push(arrive) ?? arrive(),
          });
        }
      }
    };
    const protocol = new PeerProtocol({ ...PEER_DEFAULTS, ...options }, random, send, clock.now());
    const peerNetwork = {
      hasher: createHasher([1, 2]),
      addLimit: protocol.addLimit.bind(protocol),
      removeLimit: protocol.removeLimit.bind(protocol),
      recordHits: protocol.recordHits.bind(protocol),
      retractHits: protocol.retractHits.bind(protocol),
    };
    const policy = createPolicy({ bucket }, random);
    const node = {
      protocol,
      backend: new PeersBackend(policy, { name: 'api', clock, random, maxKeys: 2000 }, peerNetwork),
    };
    nodes.push(node);
    return node;
  };
  /** With the replies that arrive in the same millisecond. */
  const deliverDue = (): void => {
    for (;;) {
      const due = queue.filter(({ at }) => at <= clock.now());
      if (due.length === 0) return;
      queue = queue.filter(({ at }) => at > clock.now());
      for (const { deliver } of due) deliver();
    }
  };
  const pass = (ms: number): void => {
    for (let n = 0; n < ms; n++) {
      clock.advance(1);
      for (const { protocol } of nodes) {
        if (suspendedNodes.has(protocol)) continue;
        if (protocol.wakeAt(clock.now()) <= clock.now()) protocol.tick(clock.now());
      }
      deliverDue();
    }
  };
  const suspend = ({ protocol }: Node): unknown => suspendedNodes.set(protocol, []);
  const resume = ({ protocol }: Node): void => {
    const late = suspendedNodes.get(protocol) ?? [];
    suspendedNodes.delete(protocol);
    for (const arrive of late) arrive();
  };
  return { clock, nodes, start, pass, seen, rules, suspend, resume };
}
