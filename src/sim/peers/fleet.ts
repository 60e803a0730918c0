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

import type { Millis } from '../../clock.ts';
import { Heap } from '../../heap.ts';
import { type Limit, policyOf } from '../../policy/limit.ts';
import { exponential, type Random, seededRandom } from '../../random.ts';
import { hasher } from '../../share/hash.ts';
import { LocalShare } from '../../share/local.ts';
import { PEER_DEFAULTS, PeerEngine, type PeerOptions } from '../../share/peers/engine.ts';
import { PeersShare } from '../../share/peers/share.ts';
import { ALL, decode, type Message } from '../../share/peers/wire.ts';
import { type Admitted, type FleetFigures, figuresOf } from './figures.ts';
import { Network, type NetworkOptions, QUIET_NETWORK } from './network.ts';

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
  /** A node dies and is back later, with nothing but a new name. */
  readonly crash?: { readonly node: number; readonly atMs: Millis; readonly backMs: Millis };
}

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

interface Node {
  readonly index: number;
  engine: PeerEngine;
  share: PeersShare;
  isUp: boolean;
  /** When it will be woken next; later ones are forgotten. */
  wakeAt: Millis;
  served: number;
  /** Itself, as those whom something happens to. */
  alone: readonly Node[];
}

/** Something that happens at its time. All have the same fields, so that millions of them are cheap. */
interface Event {
  readonly at: Millis;
  readonly order: number;
  readonly kind: 'call' | 'wake' | 'arrive' | 'crash' | 'back';
  /** To whom. */
  readonly nodes: readonly Node[];
  readonly message: Message | undefined;
}

/** Nodes know each other before the first call comes. */
const WARM_UP_MS: Millis = 2000;

/** An instant as systems know it: a rule must not mind that it is large. */
const EPOCH_MS: Millis = 1_700_000_000_000;

export function simulatePeers(given: Partial<FleetOptions>): FleetFigures {
  return new SimulatedFleet({ ...FLEET_DEFAULTS, ...given }).run();
}

class SimulatedFleet {
  readonly #options: FleetOptions;
  readonly #random: Random;
  readonly #network: Network;
  readonly #nodes: Node[] = [];
  readonly #byId = new Map<number, Node>();
  readonly #events = new Heap<Event>((a, b) => a.at < b.at || (a.at === b.at && a.order < b.order));
  readonly #limit: Limit;
  readonly #oracle: LocalShare;
  readonly #admitted: Admitted[] = [];
  #now: Millis = EPOCH_MS;
  #order = 0;
  #calls = 0;
  #tooMany = 0;
  #tooFew = 0;
  #central = 0;

  constructor(options: FleetOptions) {
    this.#options = options;
    this.#random = seededRandom(options.seed);
    this.#network = new Network(shifted({ ...QUIET_NETWORK, ...options.network }), this.#random);
    this.#limit = { bucket: { rate: options.rate, burst: options.burst } };
    const clock = { now: () => this.#now };
    const random = this.#random;
    const policy = policyOf(this.#limit, random);
    this.#oracle = new LocalShare(policy, { clock, random, keysMax: 1_000_000 });
    for (let index = 0; index < options.nodes; index++) {
      const node = { index, isUp: true, wakeAt: Infinity, served: 0 } as Node;
      node.alone = [node];
      this.#nodes.push(node);
      this.#start(node);
    }
  }

  #start(node: Node): void {
    const clock = { now: () => this.#now };
    const peers = { ...PEER_DEFAULTS, ...this.#options.peers, name: `node ${node.index}` };
    const engine = new PeerEngine(
      peers,
      this.#random,
      (to, bytes) => this.#send(node, to, bytes),
      this.#now,
    );
    const fleet = {
      hasher: hasher([1, 2]),
      join: engine.join.bind(engine),
      served: (limit: number, low: number, high: number, hits: number): void => {
        if (engine.served(limit, low, high, hits)) this.#wake(node);
      },
      unserved: engine.unserved.bind(engine),
    };
    const setting = { name: 'limit', clock, random: this.#random, keysMax: 1_000_000 };
    node.engine = engine;
    node.share = new PeersShare(policyOf(this.#limit, this.#random), setting, fleet);
    node.isUp = true;
    node.wakeAt = Infinity;
    this.#byId.set(engine.id, node);
    this.#wake(node);
  }

  run(): FleetFigures {
    const { spanMs, crash } = this.#options;
    const startMs = EPOCH_MS + WARM_UP_MS;
    const endMs = startMs + spanMs;
    this.#at(startMs + this.#gap(), 'call');
    if (crash) {
      this.#at(startMs + crash.atMs, 'crash');
      this.#at(startMs + crash.backMs, 'back');
    }
    for (let event = this.#events.pop(); event && event.at < endMs; event = this.#events.pop()) {
      this.#now = event.at;
      this.#happen(event);
    }
    const { nodes, ...options } = this.#options;
    return figuresOf(options, {
      nodes,
      startMs,
      admitted: this.#admitted,
      calls: this.#calls,
      central: this.#central,
      tooMany: this.#tooMany,
      tooFew: this.#tooFew,
      servedBy: this.#nodes.map(({ served }) => served),
      counts: this.#nodes.map(({ engine }) => engine.counts),
      seconds: (spanMs + WARM_UP_MS) / 1000,
    });
  }

  #happen(event: Event): void {
    switch (event.kind) {
      case 'call':
        this.#call();
        this.#at(this.#now + this.#gap(), 'call');
        break;
      case 'wake':
        for (const node of event.nodes) {
          if (node.isUp && event.at >= node.wakeAt) this.#tick(node);
        }
        break;
      case 'arrive':
        for (const node of event.nodes) this.#arrive(node, event.message);
        break;
      case 'crash':
        this.#nodes[this.#options.crash?.node ?? 0].isUp = false;
        break;
      case 'back':
        this.#start(this.#nodes[this.#options.crash?.node ?? 0]);
        break;
    }
  }

  #call(): void {
    const { nodes, clients } = this.#options;
    this.#calls++;
    const client = Math.floor(this.#random() * clients);
    const key = `client ${client}`;
    const node = this.#nodes[this.#pick(nodes)];
    const isCentral = this.#oracle.ask(key, 1).verdict === 'allow';
    const isServed = node.isUp && node.share.ask(key, 1).verdict === 'allow';
    if (isCentral) this.#central++;
    if (isServed && !isCentral) this.#tooMany++;
    if (!isServed && isCentral) this.#tooFew++;
    if (!isServed) return;
    node.served++;
    this.#admitted.push({ at: this.#now, client });
  }

  #pick(nodes: number): number {
    const { skew } = this.#options;
    if (skew === 0) return Math.floor(this.#random() * nodes);
    for (let n = 0; n < nodes - 1; n++) if (this.#random() < skew / 2) return n;
    return nodes - 1;
  }

  #gap(): Millis {
    const { rate, load, clients } = this.#options;
    return (exponential(this.#random) * 1000) / (rate * load * clients);
  }

  #tick(node: Node): void {
    node.wakeAt = Infinity;
    node.engine.tick(this.#now);
    this.#wake(node);
  }

  /** Arranges for the node to be woken when it wants to be, unless it will be sooner anyway. */
  #wake(node: Node): void {
    const at = Math.max(this.#now, node.engine.wakeAt(this.#now));
    if (at >= node.wakeAt) return;
    node.wakeAt = at;
    this.#at(at, 'wake', node.alone);
  }

  #arrive(node: Node, message: Message | undefined): void {
    if (!node.isUp) return;
    node.engine.take(message, this.#now);
    this.#wake(node);
  }

  /** Whoever hears it at the same time hears it in one event. */
  #send(from: Node, to: number, bytes: Uint8Array): void {
    const message = decode(bytes); // once for all who hear it
    const target = this.#byId.get(to);
    const receivers = to === ALL ? this.#nodes : target ? [target] : [];
    const together = new Map<Millis, Node[]>();
    for (const node of receivers) {
      if (node === from) continue;
      this.#network.carry(from.index, node.index, this.#now, (afterMs) => {
        const others = together.get(afterMs);
        if (others) others.push(node);
        else together.set(afterMs, [node]);
      });
    }
    for (const [afterMs, nodes] of together) this.#at(this.#now + afterMs, 'arrive', nodes, message);
  }

  #at(at: Millis, kind: Event['kind'], nodes = NOBODY, message?: Message | undefined): void {
    this.#events.push({ at, order: this.#order++, kind, nodes, message });
  }
}

const NOBODY: readonly Node[] = [];

/** A split is told from the first call on. */
function shifted(network: NetworkOptions): NetworkOptions {
  const { split } = network;
  if (!split) return network;
  const startMs = EPOCH_MS + WARM_UP_MS;
  return {
    ...network,
    split: { ...split, fromMs: startMs + split.fromMs, toMs: startMs + split.toMs },
  };
}
