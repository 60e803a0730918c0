/**
 * A node of a fleet, alive: the engine of `share/peers`, with a clock, a transport and a seal.
 *
 * Where a node is, is learned only from what it has certainly said just now: somebody who sends again
 * what he recorded cannot have its answers sent to himself.
 */

import { alarm, type Clock, endOfTick, type Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { type Hasher, hasher } from '../../core/hash.ts';
import { warn } from '../../core/process-warning.ts';
import { type Random, secretRandom, systemRandom } from '../../core/random.ts';
import type { Fleet } from './backend.ts';
import { decode } from './codec.ts';
import { fleetSeed, type Seal, sealWith } from './datagram-auth.ts';
import type { PeerLimit } from './limits.ts';
import { ALL, type NodeId } from './messages.ts';
import { PEERS_MAX, type PeerView } from './peer-table.ts';
import { PeerEngine } from './protocol.ts';
import type { PeerCounts } from './sender.ts';
import type { PeerOptions } from './settings.ts';
import type { Transport, TransportCounts } from './transport.ts';

/** So long after its start a node that met nobody takes itself for the first. */
const ALONE_AFTER_MS: Millis = 1000;

/** Nodes whose address is remembered; of one that is not, what came last says where to answer. */
const ADDRESSES_MAX = 2 * PEERS_MAX;

/**
 * Of what is said to a node that has not proved where it is, this part goes to everybody: should what came
 * last always come from somebody who only repeats it, the node itself hears of it nevertheless.
 */
const TO_EVERYBODY = 1 / 8;

export interface NodeSetting {
  readonly options: PeerOptions;
  readonly transport: Transport;
  readonly key: string | undefined;
  readonly clock: Clock;
  readonly random: Random;
  /** Default: one by the fleet's key. */
  readonly hasher?: Hasher;
  /** Hears that there is no key. Default: a warning of the process. */
  readonly onNoKey?: (warning: string) => void;
}

/** What a node knows of its fleet. */
export interface FleetView {
  /** What others know it by; another one each time it is started. */
  readonly id: NodeId;
  /** What people call it. */
  readonly name: string;
  /** How it reaches the others. */
  readonly transport: string;
  /** Whether it listens: until then, and after it was closed, it decides alone. */
  readonly isOpen: boolean;
  /** Those it has heard lately. */
  readonly peers: readonly PeerView[];
  /** What was told and heard, from the start on. */
  readonly counts: PeerCounts;
  /** Datagrams whose seal was not ours. */
  readonly forged: number;
  /** Where the last of them came from, if the transport knows; empty if there was none. */
  readonly forgedFrom: string;
  /** What the transport carried. */
  readonly carried: Readonly<TransportCounts>;
}

export class FleetNode implements Fleet {
  readonly hasher: Hasher;
  readonly #setting: NodeSetting;
  readonly #engine: PeerEngine;
  readonly #seal: Seal;
  /** Where nodes have proved to be. */
  readonly #addresses = new Map<NodeId, string>();
  /** Whom we hear at the moment, and from where. */
  #hearing: { readonly id: NodeId; readonly from: string } | undefined;
  #isOpen = false;
  #isClosed = false;
  #isTickDue = false;
  #wakeAt: Millis = Infinity;
  #cancel = (): void => {};
  #forged = 0;
  #forgedFrom = '';
  #hasLearned = (): void => {};
  /** Resolves when others have told how keys stand, or when it is clear that nobody does. */
  readonly learned = new Promise<void>((resolve) => {
    this.#hasLearned = resolve;
  });

  /** @throws {ConfigError} if others could take part and there is no key to know them by. */
  constructor(setting: NodeSetting) {
    const { options, key, clock, random, transport, onNoKey = warnOnce } = setting;
    if (key === undefined) requireLoopback(transport, onNoKey);
    this.#setting = setting;
    this.#seal = sealWith(key);
    this.hasher = setting.hasher ?? hasher(fleetSeed(key));
    this.#engine = new PeerEngine(
      options,
      random === systemRandom ? secretRandom : random, // who can guess a nonce can answer for another
      (to, bytes) => this.#send(to, bytes),
      clock.now(),
    );
  }

  async open(): Promise<void> {
    const { transport } = this.#setting;
    await transport.open((bytes, from) => this.#hear(bytes, from));
    if (this.#isClosed) return void (await transport.close()); // nobody waited for it
    this.#isOpen = true;
    this.#goOnAloneLater();
    this.#tick();
  }

  /** Unless somebody is telling it how keys stand. */
  #goOnAloneLater(): void {
    const { clock } = this.#setting;
    const goOn = (): void => {
      this.#engine.startAlone();
      if (this.#engine.hasLearned) this.#hasLearned();
      else if (!this.#isClosed) this.#goOnAloneLater();
    };
    alarm(clock, clock.now() + ALONE_AFTER_MS, goOn, false);
  }

  /** Tells what nobody was told of yet, and leaves. */
  async close(): Promise<void> {
    if (this.#isOpen) this.#engine.flush(this.#setting.clock.now());
    this.#isOpen = false;
    this.#isClosed = true;
    this.#cancel();
    await this.#setting.transport.close();
  }

  view(): FleetView {
    const { options, transport, clock } = this.#setting;
    return {
      id: this.#engine.id,
      name: options.name,
      transport: transport.name,
      isOpen: this.#isOpen,
      peers: this.#engine.peers(clock.now()),
      counts: { ...this.#engine.counts },
      forged: this.#forged,
      forgedFrom: this.#forgedFrom,
      carried: { ...transport.counts },
    };
  }

  // For the limits.

  join(limit: PeerLimit): void {
    this.#engine.join(limit);
  }

  leave(limit: PeerLimit): void {
    this.#engine.leave(limit);
  }

  served(limit: PeerLimit, low: number, high: number, hits: number): void {
    if (this.#engine.served(limit, low, high, hits)) this.#tickSoon();
  }

  unserved(limit: PeerLimit, low: number, high: number, hits: number): void {
    this.#engine.unserved(limit, low, high, hits);
  }

  // For the network.

  #hear(bytes: Uint8Array, from: string): void {
    const inside = this.#seal.open(bytes);
    if (inside === undefined) {
      this.#forged++;
      this.#forgedFrom = from;
      return;
    }
    const message = decode(inside);
    const now = this.#setting.clock.now();
    this.#hearing = message && { id: message.from, from };
    const isNew = this.#engine.take(message, now);
    this.#hearing = undefined;
    if (message && isNew) this.#learnAddress(message.from, from);
    this.#wakeLater();
  }

  #learnAddress(id: NodeId, from: string): void {
    if (this.#addresses.get(id) === from) return;
    if (this.#addresses.size >= ADDRESSES_MAX && !this.#addresses.has(id)) {
      const [oldest] = this.#addresses.keys();
      this.#addresses.delete(oldest); // should it still be there, it is soon heard again
    }
    this.#addresses.set(id, from);
  }

  #send(to: NodeId, bytes: Uint8Array): void {
    if (!this.#isOpen) return;
    const { transport } = this.#setting;
    const sealed = this.#seal.close(bytes);
    const address = to === ALL ? undefined : (this.#addresses.get(to) ?? this.#guess(to));
    if (address === undefined) transport.broadcast(sealed);
    else transport.send(address, sealed);
  }

  /** Where what we are hearing came from, which may be the node itself. */
  #guess(to: NodeId): string | undefined {
    if (this.#hearing?.id !== to || this.#setting.random() < TO_EVERYBODY) return undefined;
    return this.#hearing.from;
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
    if (this.#engine.hasLearned) this.#hasLearned();
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

/** Without a key everybody who can send a datagram can change every bucket. */
function requireLoopback(transport: Transport, onNoKey: (warning: string) => void): void {
  const { name, isLoopback } = transport;
  if (!isLoopback) {
    const why = `as ${name} reaches further than this machine`;
    const instead = 'or use loopback addresses only';
    throw new ConfigError(
      'key',
      `a secret that all of the fleet know, ${why}; ${instead}`,
      undefined,
    );
  }
  const who = 'any program on this machine can change every limit';
  onNoKey(`peers without a key (${name}): ${who}. Set a key, except for trying things out.`);
}

const warnOnce = (warning: string): void => warn('PEERS', warning, 'no key');
