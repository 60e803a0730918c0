/**
 * A fleet of peers on virtual time: the engine and the share of production, in a network made up here.
 *
 *     calls ──▶ some node ──▶ its own bucket ──▶ served or not
 *                               ▲        │
 *                  what others  │        └─ reports ──▶ network ──▶ all other nodes
 *                  served ──────┘
 *
 * Beside it runs an oracle: one central bucket that sees all calls in their order. What the fleet does
 * differently is what it gets wrong.
 */

import { LocalBackend } from '../../backends/local/backend.ts';
import { PeersBackend } from '../../backends/peers/backend.ts';
import { decode } from '../../backends/peers/codec.ts';
import type { PeerLimit } from '../../backends/peers/limits.ts';
import { BROADCAST, ENTRY_WIDTH, type Message } from '../../backends/peers/messages.ts';
import { PeerProtocol } from '../../backends/peers/protocol.ts';
import type { PeerCounts } from '../../backends/peers/sender.ts';
import { PEER_DEFAULTS, type PeerOptions } from '../../backends/peers/context.ts';
import type { Millis } from '../../core/clock.ts';
import { createHasher } from '../../core/hash.ts';
import { Heap } from '../../core/heap.ts';
import { exponentialVariate, type Random, seededRandom } from '../../core/random.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { overshootBound, PeakCounter, propagationBoundMs } from './bound.ts';
import {
  type AdmittedCall,
  AgeHistogram,
  type Disturbance,
  type FleetFigures,
  figuresOf,
} from './figures.ts';
import { DEFAULT_NETWORK, Network, type NetworkOptions } from './network.ts';

export interface FleetOptions {
  readonly nodes: number;
  /** Calls a second, over all of the fleet. */
  readonly rate: number;
  readonly burst: number;
  /** How many times the rate is asked for. */
  readonly load: number;
  readonly spanMs: Millis;
  readonly seed: number;
  /** How many clients share the load; each has the whole limit for itself. */
  readonly clients: number;
  /** How uneven calls are spread: 0 evenly, 1 the first node gets half, the next half of the rest, … */
  readonly skew: number;
  readonly peers: Partial<PeerOptions>;
  readonly network: Partial<NetworkOptions>;
  /** From then on so many times the rate is asked for. */
  readonly loadStep?: { readonly atMs: Millis; readonly load: number };
  /** A node dies and is back later, with nothing but a new name. */
  readonly crash?: { readonly node: number; readonly atMs: Millis; readonly backMs: Millis };
  /** A node's clock jumps ahead by so much; below zero it stands still for so long. */
  readonly clockStep?: { readonly node: number; readonly atMs: Millis; readonly byMs: Millis };
}

/** What part of the calls has been made, every now and then. */
export type Progress = (part: number) => void;

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
  /** When it will be woken next; later ones are forgotten. */
  wakeAt: Millis;
  served: number;
  /** What its clock is ahead, and where it stood last: it never goes back. */
  aheadMs: Millis;
  lastNow: Millis;
  /** When the calls were served that nobody was told of yet. */
  unreported: Millis[];
  /** The same of its reports, by their number. */
  reported: Millis[][];
  /** Itself, as those whom something happens to. */
  onlySelf: readonly SimulatedNode[];
}

/** Something that happens at its time. All have the same fields, so that millions of them are cheap. */
interface SimulationEvent {
  readonly at: Millis;
  readonly order: number;
  readonly kind: 'call' | 'wake' | 'arrive' | 'crash' | 'back' | 'step' | 'begin';
  /** To whom. */
  readonly nodes: readonly SimulatedNode[];
  readonly message: Message | undefined;
}

/** What the engine does unless told otherwise. */
export const PEERS: PeerOptions = PEER_DEFAULTS;

/** Nodes know each other before the first call comes. */
const WARM_UP_MS: Millis = 2000;

/** An instant as systems know it: a rule must not mind that it is large. */
const EPOCH_MS: Millis = 1_700_000_000_000;

/** Progress is told so often. */
const PROGRESS_CALLS = 1000;

export function simulatePeers(given: Partial<FleetOptions>, progress?: Progress): FleetFigures {
  return new SimulatedFleet({ ...FLEET_DEFAULTS, ...given }, progress).run();
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
  readonly #admitted: AdmittedCall[] = [];
  readonly #ages = new AgeHistogram();
  readonly #demandPeak: PeakCounter;
  readonly #progress: Progress | undefined;
  /** Whether what arrived was counted. */
  #wasApplied = false;
  /** What had been sent when the first call came. */
  #countsAtStart: readonly PeerCounts[] = [];
  readonly #startMs = EPOCH_MS + WARM_UP_MS;
  #now: Millis = EPOCH_MS;
  #order = 0;
  #calls = 0;
  #falseAllows = 0;
  #falseDenials = 0;
  #oracleAdmitted = 0;

  constructor(options: FleetOptions, progress?: Progress) {
    this.#options = options;
    this.#progress = progress;
    this.#demandPeak = new PeakCounter(propagationBoundMs(options), options.clients);
    this.#random = seededRandom(options.seed);
    this.#network = new Network(
      withAbsoluteSplit({ ...DEFAULT_NETWORK, ...options.network }),
      this.#random,
    );
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
    const peers = { ...PEER_DEFAULTS, ...this.#options.peers, name: `node ${node.index}` };
    const protocol = new PeerProtocol(
      peers,
      this.#random,
      (to, bytes) => this.#send(node, to, bytes),
      clock.now(),
    );
    const peerNetwork = {
      hasher: createHasher([1, 2]),
      addLimit: (limit: PeerLimit): void =>
        protocol.addLimit({
          ...limit,
          applyRemoteHits: (low, high, hits, agoMs) => {
            this.#wasApplied = true;
            limit.applyRemoteHits(low, high, hits, agoMs);
          },
        }),
      removeLimit: protocol.removeLimit.bind(protocol),
      recordHits: (limit: PeerLimit, low: number, high: number, hits: number): void => {
        if (protocol.recordHits(limit, low, high, hits)) this.#scheduleWake(node);
      },
      retractHits: protocol.retractHits.bind(protocol),
    };
    const context = { name: 'limit', clock, random: this.#random, maxKeys: 1_000_000 };
    node.protocol = protocol;
    node.backend = new PeersBackend(createPolicy(this.#limit, this.#random), context, peerNetwork);
    node.isUp = true;
    node.wakeAt = Infinity;
    node.unreported = [];
    node.reported = [];
    this.#byId.set(protocol.id, node);
    this.#scheduleWake(node);
  }

  /** What a node's clock says: never less than before. */
  #nodeNow(node: SimulatedNode): Millis {
    const now = this.#now + node.aheadMs;
    if (now > node.lastNow) node.lastNow = now;
    return node.lastNow;
  }

  run(): FleetFigures {
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
      startMs,
      intervalMs: this.#options.peers.intervalMs ?? PEER_DEFAULTS.intervalMs,
      admitted: this.#admitted,
      calls: this.#calls,
      oracleAdmitted: this.#oracleAdmitted,
      falseAllows: this.#falseAllows,
      falseDenials: this.#falseDenials,
      servedBy: this.#nodes.map(({ served }) => served),
      sent: this.#sum(({ sent }) => sent),
      sentBytes: this.#sum(({ sentBytes }) => sentBytes),
      ages: this.#ages,
      bound: overshootBound(this.#options, this.#demandPeak.peak),
      disturbances: this.#disturbances(),
    });
  }

  /** What all nodes did since the first call came; of one that came back, since it did. */
  #sum(read: (counts: PeerCounts) => number): number {
    return this.#nodes.reduce(
      (total, { protocol: { counts } }, n) =>
        total + read(counts) - read(this.#countsAtStart[n] ?? counts),
      0,
    );
  }

  /** When something changes that the fleet has to come to terms with. */
  #disturbances(): Disturbance[] {
    const { crash, clockStep, loadStep, network } = this.#options;
    const turns = [
      { what: 'start', atMs: 0 },
      ...(network.split ? [{ what: 'split', atMs: network.split.fromMs }] : []),
      ...(network.split ? [{ what: 'healed', atMs: network.split.toMs }] : []),
      ...(crash ? [{ what: 'crash', atMs: crash.atMs }] : []),
      ...(crash ? [{ what: 'return', atMs: crash.backMs }] : []),
      ...(clockStep ? [{ what: 'clock step', atMs: clockStep.atMs }] : []),
      ...(loadStep ? [{ what: 'load step', atMs: loadStep.atMs }] : []),
    ];
    return turns
      .sort((a, b) => a.atMs - b.atMs)
      .map((turn) => ({ ...turn, load: this.#loadAt(turn.atMs) }));
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

  /** What it sent before is not forgotten. */
  #restart(node: SimulatedNode): void {
    const { sent, sentBytes } = node.protocol.counts;
    const before = this.#countsAtStart[node.index];
    this.#start(node);
    const more = { sent: before.sent - sent, sentBytes: before.sentBytes - sentBytes };
    this.#countsAtStart = this.#countsAtStart.map((own, n) =>
      n === node.index ? { ...own, ...more } : own,
    );
  }

  #stepClock(): void {
    const { node: index, byMs } = this.#options.clockStep ?? { node: 0, byMs: 0 };
    const node = this.#nodes[index];
    this.#nodeNow(node); // where it stands, it stands until the others are there too
    node.aheadMs += byMs;
    node.wakeAt = Infinity;
    if (node.isUp) this.#scheduleWake(node);
  }

  #simulateCall(): void {
    const { nodes, clients, spanMs } = this.#options;
    this.#calls++;
    if (this.#progress && this.#calls % PROGRESS_CALLS === 0) {
      this.#progress((this.#now - this.#startMs) / spanMs);
    }
    const client = Math.floor(this.#random() * clients);
    this.#demandPeak.add(client, this.#now);
    const key = `client ${client}`;
    const node = this.#nodes[this.#pickNode(nodes)];
    const isCentral = this.#oracle.check(key, 1).verdict === 'allow';
    const isServed = node.isUp && node.backend.check(key, 1).verdict === 'allow';
    if (isCentral) this.#oracleAdmitted++;
    if (isServed && !isCentral) this.#falseAllows++;
    if (!isServed && isCentral) this.#falseDenials++;
    if (!isServed) return;
    node.served++;
    node.unreported.push(this.#now);
    this.#admitted.push({ at: this.#now, client });
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

  /** Arranges for the node to be woken when it wants to be, unless it will be sooner anyway. */
  #scheduleWake(node: SimulatedNode): void {
    const nodeNow = this.#nodeNow(node);
    const behindMs = nodeNow - node.aheadMs - this.#now; // a clock that stands still has to be waited for
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
    if (times) for (const at of times) this.#ages.add(this.#now - at);
  }

  /** Which calls a report tells of: those that waited longest. */
  #recordReport(node: SimulatedNode, message: Message | undefined): void {
    if (message?.kind !== 'report' || node.reported[message.seq]) return;
    let hits = 0;
    for (let at = 0; at < message.entries.length; at += ENTRY_WIDTH)
      hits += message.entries[at + 3];
    node.reported[message.seq] = node.unreported.splice(0, hits);
  }

  /** Whoever hears it at the same time hears it in one event. */
  #send(from: SimulatedNode, to: number, bytes: Uint8Array): void {
    const message = decode(bytes); // once for all who hear it
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

/** A split is told from the first call on. */
function withAbsoluteSplit(network: NetworkOptions): NetworkOptions {
  const { split } = network;
  if (!split) return network;
  const startMs = EPOCH_MS + WARM_UP_MS;
  return {
    ...network,
    split: { ...split, fromMs: startMs + split.fromMs, toMs: startMs + split.toMs },
  };
}
