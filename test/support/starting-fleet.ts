/** A fleet whose nodes start at about the same time with traffic: on virtual time, the same run for the same seed. */

import type { PeerNetwork, PeersBackend } from '../../src/backends/peers/backend.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../src/backends/peers/context.ts';
import { createPeersBackend } from '../../src/backends/peers/factory.ts';
import type { PeerLimit } from '../../src/backends/peers/limits.ts';
import { MemoryHub } from '../../src/backends/peers/memory-transport.ts';
import { PeerNode } from '../../src/backends/peers/node.ts';
import type { WireVersions } from '../../src/backends/peers/wire-versions.ts';
import { seededRandom } from '../../src/core/random.ts';
import { createPolicy } from '../../src/policies/limit.ts';
import { VirtualClock } from '../../src/testing/index.ts';

/** By default no call is refused. Hardly a token is refilled: what a node has spent is what it has counted. */
const MAX_BURST = 1_000_000;
const RATE = '1/d';
const STEP_MS = 5;

export interface StartingFleet {
  readonly seed: number;
  /** The wire versions of each node. */
  readonly versions: readonly WireVersions[];
  readonly loss?: number;
  readonly duplication?: number;
  /** Nodes start within this time. */
  readonly spreadMs?: number;
  /** The longest delay of a datagram; the shortest is 1 ms. */
  readonly maxDelayMs?: number;
  readonly keys?: number;
  /** Of each key. */
  readonly burst?: number;
  /** Nodes that are closed and started again, each at a random time while there is traffic. */
  readonly restarts?: number;
  readonly peers?: Partial<PeerOptions>;
  /** When the first call comes: by default as soon as a node has started. */
  readonly firstCallMs?: number;
  /** How long each node gets a call every 5 to 45 ms, and how long it then has to converge. */
  readonly trafficMs?: number;
  readonly settleMs?: number;
}

interface StartedFleet {
  /** Of each node, the sum over all keys: what it has counted beyond what the fleet has served; below 0 is too little. */
  readonly errors: number[];
  /** How long after its last start each node had the state of its peers. */
  readonly syncedAfterMs: number[];
  readonly served: number;
  readonly sentBytes: number;
}

interface StartedNode {
  readonly node: PeerNode;
  readonly backend: PeersBackend;
  /** The units that a key has spent. `inspect` has whole tokens only. */
  readonly spentOf: (key: string) => number;
  readonly startMs: number;
  nextCallMs: number;
}

export async function runStartingFleet(fleet: StartingFleet): Promise<StartedFleet> {
  const { seed, versions, loss = 0, duplication = 0, spreadMs = 400, maxDelayMs = 20 } = fleet;
  const {
    restarts = 0,
    burst = MAX_BURST,
    keys = 3,
    firstCallMs = 0,
    trafficMs = 2000,
    settleMs = 4000,
    peers = {},
  } = fleet;
  const limit = { bucket: { rate: RATE, burst } } as const;
  const clock = new VirtualClock(1_000_000);
  const random = seededRandom(seed);
  const hub = new MemoryHub({ clock, seed, loss, duplication, delayMs: [1, maxDelayMs] });
  const startMs = versions.map((_, n) => (n === 0 ? 0 : Math.floor(random() * spreadMs)));
  const syncedAfterMs = versions.map(() => Infinity);
  const nodes: StartedNode[] = [];
  let served = 0;
  let starts = 0;
  const start = async (n: number, atMs: number): Promise<void> => {
    const options = { ...PEER_DEFAULTS, versions: versions[n], ...peers };
    const transport = hub.transport(`${n}`);
    const own = seededRandom(1000 * seed + 10 * starts++ + n); // a new id at each start
    const node = new PeerNode({
      ...{ options, transport, key: undefined, clock, random: own, onNoKey: () => {} },
    });
    const startedAt = clock.now();
    syncedAfterMs[n] = Infinity;
    void node.synced.then(() => {
      syncedAfterMs[n] = clock.now() - startedAt;
    });
    const context = { name: 'api', clock, random: own, maxKeys: 10_000 };
    const { hasher } = node;
    let level: PeerLimit['level'] = () => 0;
    const addLimit = (added: PeerLimit): void => {
      level = added.level;
      node.addLimit(added);
    };
    const network: PeerNetwork = {
      ...{ hasher, addLimit, removeLimit: (removed) => node.removeLimit(removed) },
      recordHits: (...hits) => node.recordHits(...hits),
      retractHits: (...hits) => node.retractHits(...hits),
      msUntilReleased: (...held) => node.msUntilReleased(...held),
      isCatchingUp: () => node.isCatchingUp(),
    };
    const backend = createPeersBackend(createPolicy(limit, own), context, network);
    const spentOf = (key: string): number => {
      hasher.hash(key);
      return level(hasher.low, hasher.high);
    };
    await node.open();
    nodes[n] = { node, backend, spentOf, startMs: atMs, nextCallMs: Math.max(atMs, firstCallMs) };
  };
  const restartAt = Array.from({ length: restarts }, () => [
    spreadMs + STEP_MS * Math.floor((random() * trafficMs) / STEP_MS),
    Math.floor(random() * versions.length),
  ]);
  for (let atMs = 0; atMs < Math.max(spreadMs, firstCallMs) + trafficMs; atMs += STEP_MS) {
    for (const [n, ms] of startMs.entries()) if (!nodes[n] && ms <= atMs) await start(n, atMs);
    for (const [ms, n] of restartAt) {
      if (ms !== atMs) continue;
      await nodes[n].node.close();
      await start(n, atMs);
    }
    for (const started of nodes) {
      if (!started || started.nextCallMs > atMs) continue;
      const cost = 1 + Math.floor(random() * 3);
      const key = `key ${Math.floor(random() * keys)}`;
      if (started.backend.check(key, cost).verdict === 'allow') served += cost;
      started.nextCallMs += STEP_MS + random() * 40;
    }
    await clock.advanceAsync(STEP_MS);
  }
  await clock.advanceAsync(settleMs);
  const spent = ({ spentOf }: StartedNode): number => {
    let sum = 0;
    for (let n = 0; n < keys; n++) sum += spentOf(`key ${n}`);
    return Math.round(sum);
  };
  const sentBytes = nodes.reduce((sum, { node }) => sum + node.view().counts.sentBytes, 0);
  const errors = nodes.map((node) => spent(node) - served);
  for (const { node } of nodes) await node.close();
  return { errors, syncedAfterMs, served, sentBytes };
}
