/**
 * A fleet of peers on virtual time: the production protocol and backend, on a simulated network.
 *
 *     calls ──▶ random node ──▶ its own bucket ──▶ allowed or denied
 *                                 ▲        │
 *                   remote hits ──┘        └─ reports ──▶ network ──▶ all other nodes
 *
 * An oracle runs in parallel: one central bucket that sees all calls in order. Where the fleet decides differently, the
 * decision is a wrong allow or a wrong deny.
 */

import { LocalBackend } from '../../backends/local/backend.ts';
import { PeersBackend } from '../../backends/peers/backend.ts';
import { decode } from '../../backends/peers/codec.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../backends/peers/context.ts';
import { BROADCAST, ENTRY_WIDTH, type Message } from '../../backends/peers/messages.ts';
import type { PeerProtocol } from '../../backends/peers/protocol.ts';
import type { PeerCounts } from '../../backends/peers/sender.ts';
import type { Millis } from '../../core/clock.ts';
import { Heap } from '../../core/heap.ts';
import { exponentialVariate, type Random, seededRandom } from '../../core/random.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { overshootBound, PeakCounter, peersOf, propagationBoundMs } from './bound.ts';
import {
  type AdmittedCall,
  AgeHistogram,
  type Disturbance,
  figuresOf,
  type PeersFigures,
} from './figures.ts';
import { Network, type NetworkOptions, networkOf } from './network.ts';
import { createPeer } from './peer.ts';

export interface FleetOptions {
  readonly nodes: number;
  /** Limit of the fleet, in calls per second. */
  readonly rate: number;
  readonly burst: number;
  /** Demand as a multiple of the rate. */
  readonly load: number;
  readonly spanMs: Millis;
  readonly seed: number;
  /** Clients that share the load; each has its own key with the whole limit. */
  readonly clients: number;
  /** How unevenly calls are spread: 0 is even; with 1 the first node gets half, the next half of the rest, … */
  readonly skew: number;
  readonly peers: Partial<PeerOptions>;
  readonly network: Partial<NetworkOptions>;
  /** The load changes to this multiple of the rate. */
  readonly loadStep?: { readonly atMs: Millis; readonly load: number };
  /** A node crashes and restarts later, without state and with a new id. */
  readonly crash?: { readonly node: number; readonly atMs: Millis; readonly backMs: Millis };
  /** A node's clock jumps ahead; with a negative value it stops for that long. */
  readonly clockStep?: { readonly node: number; readonly atMs: Millis; readonly byMs: Millis };
}

/** Called at intervals with the simulated fraction of the run. */
type Progress = (part: number) => void;

export const FLEET_DEFAULTS: FleetOptions = {
  nodes: 8,
  rate: 100,
  burst: 100,
  load: 10,
  spanMs: 60_000,
  seed: 1,
  clients: 1,
  skew: 0,
  peers: {},
  network: {},
};

interface SimulatedNode {
  readonly index: number;
  protocol: PeerProtocol;
  backend: PeersBackend;
  isUp: boolean;
  /** Time of the next wake event; later ones are ignored. */
  wakeAt: Millis;
  served: number;
  /** The offset of its clock and the last reading; readings never go back. */
  aheadMs: Millis;
  lastNow: Millis;
  /** Times of the calls that are not reported yet. */
  unreported: Millis[];
  /** Times of the calls in each report, by sequence number. */
  reported: Millis[][];
  /** A list of this node, for events of one node. */
  onlySelf: readonly SimulatedNode[];
}

/** One event type with the same fields for all kinds: a run has millions of events. */
interface SimulationEvent {
  readonly at: Millis;
  readonly order: number;
  readonly kind: 'call' | 'wake' | 'arrive' | 'crash' | 'back' | 'step' | 'begin';
  readonly nodes: readonly SimulatedNode[];
  readonly message: Message | undefined;
}

/** Defaults of the protocol, for the command line. */
export { PEER_DEFAULTS };

/** Time for the handshakes before the first call. */
const WARM_UP_MS: Millis = 2000;

/** A realistic wall-clock time: policies must handle large numbers. */
const EPOCH_MS: Millis = 1_700_000_000_000;

const PROGRESS_CALLS = 1000;

export function simulatePeers(options: Partial<FleetOptions>, progress?: Progress): PeersFigures {
  return new SimulatedFleet({ ...FLEET_DEFAULTS, ...options }, progress).run();
}

class SimulatedFleet {
  readonly #options: FleetOptions;
  readonly #random: Random;
  readonly #network: Network;
  readonly #nodes: SimulatedNode[] = [];
  readonly #byId = new Map<number, SimulatedNode>();
  readonly #events = new Heap<SimulationEvent>(
    (a, b) => a.at < b.at || (a.at === b.at && a.order < b.order),
  );
  readonly #limit: Limit;
  readonly #oracle: LocalBackend;
  readonly #totals = {
    calls: 0,
    oracleAdmitted: 0,
    falseAllows: 0,
    falseDenials: 0,
    admitted: [] as AdmittedCall[],
    ages: new AgeHistogram(),
  };
  readonly #demandPeak: PeakCounter;
  readonly #progress: Progress | undefined;
  /** Whether the current message changed a bucket. */
  #wasApplied = false;
  /** Counters of the nodes at the first call. */
  #countsAtStart: readonly PeerCounts[] = [];
  readonly #startMs = EPOCH_MS + WARM_UP_MS;
  #now: Millis = EPOCH_MS;
  #order = 0;

  constructor(options: FleetOptions, progress?: Progress) {
    this.#options = options;
    this.#progress = progress;
    this.#demandPeak = new PeakCounter(propagationBoundMs(options), options.clients);
    this.#random = seededRandom(options.seed);
    this.#network = new Network(withAbsoluteSplit(networkOf(options)), this.#random);
    this.#limit = { bucket: { rate: options.rate, burst: options.burst } };
    const clock = { now: () => this.#now };
    const random = this.#random;
    const policy = createPolicy(this.#limit, random);
    this.#oracle = new LocalBackend(policy, { clock, random, maxKeys: 1_000_000 });
    for (let index = 0; index < options.nodes; index++) {
      const node = { index, served: 0, aheadMs: 0, lastNow: EPOCH_MS } as SimulatedNode;
      node.onlySelf = [node];
      this.#nodes.push(node);
      this.#start(node);
    }
  }

  #start(node: SimulatedNode): void {
    const clock = { now: () => this.#nodeNow(node) };
    const { protocol, connection } = createPeer({
      options: { ...peersOf(this.#options), name: `node ${node.index}` },
      clock,
      random: this.#random,
      send: (to, bytes) => this.#send(node, to, bytes),
      onPendingHits: () => this.#scheduleWake(node),
      onRemoteHits: () => {
        this.#wasApplied = true;
      },
    });
    const context = { name: 'limit', clock, random: this.#random, maxKeys: 1_000_000 };
    node.protocol = protocol;
    node.backend = new PeersBackend(createPolicy(this.#limit, this.#random), context, connection);
    node.isUp = true;
    node.wakeAt = Infinity;
    node.unreported = [];
    node.reported = [];
    this.#byId.set(protocol.id, node);
    this.#scheduleWake(node);
  }

  /** Monotonic reading of a node's clock. */
  #nodeNow(node: SimulatedNode): Millis {
    const now = this.#now + node.aheadMs;
    if (now > node.lastNow) node.lastNow = now;
    return node.lastNow;
  }

  run(): PeersFigures {
    const { spanMs, crash, clockStep } = this.#options;
    const startMs = this.#startMs;
    const endMs = startMs + spanMs;
    this.#schedule(startMs, 'begin');
    this.#schedule(startMs + this.#interarrivalMs(), 'call');
    if (crash) {
      this.#schedule(startMs + crash.atMs, 'crash');
      this.#schedule(startMs + crash.backMs, 'back');
    }
    if (clockStep) this.#schedule(startMs + clockStep.atMs, 'step');
    for (let event = this.#events.pop(); event && event.at < endMs; event = this.#events.pop()) {
      this.#now = event.at;
      this.#handle(event);
    }
    return figuresOf(this.#options, {
      ...this.#totals,
      startMs,
      intervalMs: peersOf(this.#options).intervalMs,
      servedBy: this.#nodes.map(({ served }) => served),
      sent: this.#sum(({ sent }) => sent),
      sentBytes: this.#sum(({ sentBytes }) => sentBytes),
      bound: overshootBound(this.#options, this.#demandPeak.peak),
      disturbances: this.#disturbances(),
    });
  }

  /** Counter total of all nodes since the first call. */
  #sum(read: (counts: PeerCounts) => number): number {
    return this.#nodes.reduce(
      (total, { protocol: { counts } }, n) =>
        total + read(counts) - read(this.#countsAtStart[n] ?? counts),
      0,
    );
  }

  #disturbances(): Disturbance[] {
    const { crash, clockStep, loadStep, network } = this.#options;
    const times: Readonly<Record<string, Millis | undefined>> = {
      start: 0,
      split: network.split?.fromMs,
      healed: network.split?.toMs,
      crash: crash?.atMs,
      return: crash?.backMs,
      'clock step': clockStep?.atMs,
      'load step': loadStep?.atMs,
    };
    return Object.entries(times)
      .flatMap(([what, atMs]) =>
        atMs === undefined ? [] : [{ what, atMs, load: this.#loadAt(atMs) }],
      )
      .sort((a, b) => a.atMs - b.atMs);
  }

  #handle(event: SimulationEvent): void {
    switch (event.kind) {
      case 'call':
        this.#simulateCall();
        this.#schedule(this.#now + this.#interarrivalMs(), 'call');
        break;
      case 'wake':
        for (const node of event.nodes) {
          if (node.isUp && event.at >= node.wakeAt) this.#tick(node);
        }
        break;
      case 'arrive':
        for (const node of event.nodes) this.#deliver(node, event.message);
        break;
      case 'begin':
        this.#countsAtStart = this.#nodes.map(({ protocol }) => ({ ...protocol.counts }));
        break;
      case 'crash':
        this.#nodes[this.#options.crash?.node ?? 0].isUp = false;
        break;
      case 'back':
        this.#restart(this.#nodes[this.#options.crash?.node ?? 0]);
        break;
      case 'step':
        this.#stepClock();
        break;
    }
  }

  /** Restarts a node; its traffic from before the crash stays in the totals. */
  #restart(node: SimulatedNode): void {
    const { sent, sentBytes } = node.protocol.counts;
    const before = this.#countsAtStart[node.index];
    this.#start(node);
    const adjusted = { sent: before.sent - sent, sentBytes: before.sentBytes - sentBytes };
    this.#countsAtStart = this.#countsAtStart.map((counts, n) =>
      n === node.index ? { ...counts, ...adjusted } : counts,
    );
  }

  #stepClock(): void {
    const { node: index, byMs } = this.#options.clockStep ?? { node: 0, byMs: 0 };
    const node = this.#nodes[index];
    this.#nodeNow(node); // a clock that is set back stops at its last reading
    node.aheadMs += byMs;
    node.wakeAt = Infinity;
    if (node.isUp) this.#scheduleWake(node);
  }

  #simulateCall(): void {
    const { nodes, clients, spanMs } = this.#options;
    const totals = this.#totals;
    totals.calls++;
    if (this.#progress && totals.calls % PROGRESS_CALLS === 0) {
      this.#progress((this.#now - this.#startMs) / spanMs);
    }
    const client = Math.floor(this.#random() * clients);
    this.#demandPeak.add(client, this.#now);
    const key = `client ${client}`;
    const node = this.#nodes[this.#pickNode(nodes)];
    const oracleAllows = this.#oracle.check(key, 1).verdict === 'allow';
    const fleetAllows = node.isUp && node.backend.check(key, 1).verdict === 'allow';
    if (oracleAllows) totals.oracleAdmitted++;
    if (fleetAllows && !oracleAllows) totals.falseAllows++;
    if (!fleetAllows && oracleAllows) totals.falseDenials++;
    if (!fleetAllows) return;
    node.served++;
    node.unreported.push(this.#now);
    totals.admitted.push({ at: this.#now, client });
  }

  #pickNode(nodes: number): number {
    const { skew } = this.#options;
    if (skew === 0) return Math.floor(this.#random() * nodes);
    for (let n = 0; n < nodes - 1; n++) if (this.#random() < skew / 2) return n;
    return nodes - 1;
  }

  #interarrivalMs(): Millis {
    const { rate, clients } = this.#options;
    const load = this.#loadAt(this.#now - this.#startMs);
    return (exponentialVariate(this.#random) * 1000) / (rate * load * clients);
  }

  #loadAt(ms: Millis): number {
    const { load, loadStep } = this.#options;
    return loadStep && ms >= loadStep.atMs ? loadStep.load : load;
  }

  #tick(node: SimulatedNode): void {
    node.wakeAt = Infinity;
    node.protocol.tick(this.#nodeNow(node));
    this.#scheduleWake(node);
  }

  /** Schedules the node's next tick, unless an earlier one is scheduled. */
  #scheduleWake(node: SimulatedNode): void {
    const nodeNow = this.#nodeNow(node);
    const behindMs = nodeNow - node.aheadMs - this.#now; // above 0 while the clock stands still
    const dueMs = node.protocol.wakeAt(nodeNow) - nodeNow;
    const at = dueMs > 0 ? this.#now + behindMs + dueMs : this.#now;
    if (at >= node.wakeAt) return;
    node.wakeAt = at;
    this.#schedule(at, 'wake', node.onlySelf);
  }

  #deliver(node: SimulatedNode, message: Message | undefined): void {
    if (!node.isUp) return;
    this.#wasApplied = false;
    node.protocol.receive(message, this.#nodeNow(node));
    if (this.#wasApplied && message?.kind === 'report') this.#recordAges(message.from, message.seq);
    this.#scheduleWake(node);
  }

  #recordAges(from: number, seq: number): void {
    const times = this.#byId.get(from)?.reported[seq];
    if (times) for (const at of times) this.#totals.ages.add(this.#now - at);
  }

  /** Assigns the oldest unreported calls to a report. */
  #recordReport(node: SimulatedNode, message: Message | undefined): void {
    if (message?.kind !== 'report' || node.reported[message.seq]) return;
    let hits = 0;
    for (let at = 0; at < message.entries.length; at += ENTRY_WIDTH)
      hits += message.entries[at + 3];
    node.reported[message.seq] = node.unreported.splice(0, hits);
  }

  /** Receivers with the same delay share one event. */
  #send(from: SimulatedNode, to: number, bytes: Uint8Array): void {
    const message = decode(bytes); // once for all receivers
    if (to === BROADCAST) this.#recordReport(from, message);
    const target = this.#byId.get(to);
    const receivers = to === BROADCAST ? this.#nodes : target ? [target] : [];
    const together = new Map<Millis, SimulatedNode[]>();
    let receiver = from;
    let lastMs = Number.NaN;
    let last: SimulatedNode[] = [];
    const arrive = (afterMs: Millis): void => {
      if (afterMs !== lastMs) {
        lastMs = afterMs;
        last = together.get(afterMs) ?? [];
        if (last.length === 0) together.set(afterMs, last);
      }
      last.push(receiver);
    };
    for (receiver of receivers) {
      if (receiver === from) continue;
      this.#network.transmit(from.index, receiver.index, this.#now, arrive);
    }
    for (const [afterMs, nodes] of together)
      this.#schedule(this.#now + afterMs, 'arrive', nodes, message);
  }

  #schedule(
    at: Millis,
    kind: SimulationEvent['kind'],
    nodes = NO_NODES,
    message?: Message | undefined,
  ): void {
    this.#events.push({ at, order: this.#order++, kind, nodes, message });
  }
}

const NO_NODES: readonly SimulatedNode[] = [];

/** Converts the partition times, which count from the first call. */
function withAbsoluteSplit(network: NetworkOptions): NetworkOptions {
  const { split } = network;
  if (!split) return network;
  const startMs = EPOCH_MS + WARM_UP_MS;
  return {
    ...network,
    split: { ...split, fromMs: startMs + split.fromMs, toMs: startMs + split.toMs },
  };
}
