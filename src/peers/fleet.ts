/**
 * A node of a fleet, alive: the engine of `share/peers`, with a clock, a transport and a seal.
 */

import { alarm, type Clock, endOfTick, type Millis } from '../clock.ts';
import type { Random } from '../random.ts';
import { type Hasher, hasher } from '../share/hash.ts';
import {
  PEERS_MAX,
  type PeerCounts,
  PeerEngine,
  type PeerLimit,
  type PeerOptions,
  type PeerView,
} from '../share/peers/engine.ts';
import type { Fleet } from '../share/peers/share.ts';
import { ALL, decode, type NodeId } from '../share/peers/wire.ts';
import { fleetSeed, type Seal, sealWith } from './seal.ts';
import type { Transport } from './transport.ts';

/** So long after its start a node that met nobody takes itself for the first. */
const ALONE_AFTER_MS: Millis = 1000;

export interface NodeSetting {
  readonly options: PeerOptions;
  readonly transport: Transport;
  readonly key: string | undefined;
  readonly clock: Clock;
  readonly random: Random;
  /** Default: one by the fleet's key. */
  readonly hasher?: Hasher;
}

/** What a node knows of its fleet. */
export interface FleetView {
  readonly id: NodeId;
  readonly name: string;
  readonly transport: string;
  readonly peers: readonly PeerView[];
  readonly counts: PeerCounts;
  /** Datagrams whose seal was not ours. */
  readonly forged: number;
}

export class FleetNode implements Fleet {
  readonly hasher: Hasher;
  readonly #setting: NodeSetting;
  readonly #engine: PeerEngine;
  readonly #seal: Seal;
  /** Where nodes were heard from last. */
  readonly #addresses = new Map<NodeId, string>();
  #isOpen = false;
  #isTickDue = false;
  #wakeAt: Millis = Infinity;
  #cancel = (): void => {};
  #forged = 0;

  constructor(setting: NodeSetting) {
    const { options, key, clock, random } = setting;
    this.#setting = setting;
    this.#seal = sealWith(key);
    this.hasher = setting.hasher ?? hasher(fleetSeed(key));
    this.#engine = new PeerEngine(
      options,
      random,
      (to, bytes) => this.#send(to, bytes),
      clock.now(),
    );
  }

  async open(): Promise<void> {
    const { transport, clock } = this.#setting;
    await transport.open((bytes, from) => this.#hear(bytes, from));
    this.#isOpen = true;
    alarm(clock, clock.now() + ALONE_AFTER_MS, () => this.#engine.startAlone(), false);
    this.#tick();
  }

  /** Tells what nobody was told of yet, and leaves. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#engine.flush(this.#setting.clock.now());
    this.#isOpen = false;
    this.#cancel();
    await this.#setting.transport.close();
  }

  view(): FleetView {
    const { options, transport, clock } = this.#setting;
    return {
      id: this.#engine.id,
      name: options.name,
      transport: transport.name,
      peers: this.#engine.peers(clock.now()),
      counts: { ...this.#engine.counts },
      forged: this.#forged,
    };
  }

  // For the limits.

  join(limit: PeerLimit): number {
    return this.#engine.join(limit);
  }

  served(limit: number, low: number, high: number, hits: number): void {
    if (this.#engine.served(limit, low, high, hits)) this.#tickSoon();
  }

  unserved(limit: number, low: number, high: number, hits: number): void {
    this.#engine.unserved(limit, low, high, hits);
  }

  // For the network.

  #hear(bytes: Uint8Array, from: string): void {
    const inside = this.#seal.open(bytes);
    if (inside === undefined) {
      this.#forged++;
      return;
    }
    const message = decode(inside);
    if (message) this.#learnAddress(message.from, from);
    this.#engine.take(message, this.#setting.clock.now());
    this.#wakeLater();
  }

  #learnAddress(id: NodeId, from: string): void {
    if (this.#addresses.get(id) === from) return;
    if (this.#addresses.size >= 2 * PEERS_MAX) this.#addresses.clear(); // who is there is soon heard again
    this.#addresses.set(id, from);
  }

  #send(to: NodeId, bytes: Uint8Array): void {
    if (!this.#isOpen) return;
    const { transport } = this.#setting;
    const sealed = this.#seal.close(bytes);
    const address = to === ALL ? undefined : this.#addresses.get(to);
    if (address === undefined) transport.broadcast(sealed);
    else transport.send(address, sealed);
  }

  // For the clock.

  /** When everything that is being decided now is decided: one report tells of all of it. */
  #tickSoon(): void {
    if (this.#isTickDue) return;
    this.#isTickDue = true;
    endOfTick(() => {
      this.#isTickDue = false;
      this.#tick();
    });
  }

  #tick(): void {
    if (!this.#isOpen) return;
    this.#engine.tick(this.#setting.clock.now());
    this.#wakeAt = Infinity;
    this.#wakeLater();
  }

  #wakeLater(): void {
    const { clock } = this.#setting;
    const at = this.#engine.wakeAt(clock.now());
    if (!this.#isOpen || at >= this.#wakeAt) return;
    this.#cancel();
    this.#wakeAt = at;
    this.#cancel = alarm(clock, at, () => this.#tick(), false);
  }
}
