import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { DEFAULT_NETWORK, Network } from '../peers/network.ts';
import type { NodeClock } from './node-clock.ts';
import type { ScenarioNetwork } from './scenario.ts';

export class Links {
  readonly #options: ScenarioNetwork;
  readonly #random: Random;
  readonly #datagrams: Network;
  /** The active partitions that cut the node off, by node. */
  readonly #cuts: number[][];
  #outages = 0;

  constructor(options: ScenarioNetwork, nodes: number, random: Random) {
    this.#options = options;
    this.#random = random;
    this.#datagrams = new Network({ ...DEFAULT_NETWORK, ...options }, random);
    this.#cuts = Array.from({ length: nodes }, () => []);
  }

  /** Partitions the network: these nodes reach each other, but neither the other nodes nor a server. */
  partition(id: number, nodes: readonly number[]): void {
    for (const node of nodes) this.#cuts[node].push(id);
  }

  heal(id: number): void {
    for (const cuts of this.#cuts) if (cuts.includes(id)) cuts.splice(cuts.indexOf(id), 1);
  }

  /** Counts outages of a backend's server, which is unavailable while their number is above 0. */
  changeOutages(by: 1 | -1): void {
    this.#outages += by;
  }

  areConnected(one: number, other: number): boolean {
    const [a, b] = [this.#cuts[one], this.#cuts[other]];
    return a.length === b.length && a.every((id) => b.includes(id));
  }

  canReachServer(node: number): boolean {
    return this.#outages === 0 && this.#cuts[node].length === 0;
  }

  /** Sends a datagram: calls `arrive` with the delay of each copy. */
  datagram(from: number, to: number, now: Millis, arrive: (afterMs: Millis) => void): void {
    if (this.areConnected(from, to)) this.#datagrams.transmit(from, to, now, arrive);
  }

  /**
   * A request over a connection and its response, in the node's time. The transport retransmits lost packets, so only
   * delay and jitter count. Never settles while the node is cut off; a deadline ends it.
   */
  async request<T>(
    clock: NodeClock,
    isConnected: () => boolean,
    rttMs: Millis | undefined,
    work: () => T | Promise<T>,
  ): Promise<T> {
    if (!isConnected()) return neverSettles();
    await clock.sleep(this.#wayMs(rttMs));
    if (!isConnected()) return neverSettles();
    const result = await work();
    await clock.sleep(this.#wayMs(rttMs));
    return isConnected() ? result : neverSettles();
  }

  #wayMs(rttMs: Millis | undefined): Millis {
    const { delayMs, jitterMs } = this.#options;
    const jitter = jitterMs > 0 ? this.#random() * jitterMs : 0;
    return (rttMs === undefined ? delayMs : rttMs / 2) + jitter;
  }
}

const neverSettles = (): Promise<never> => new Promise(() => {});
