/**
 * A node of a fleet, alive: the engine of `share/peers`, with a clock, a transport and a seal.
 *
 * Where a node is, is learned only from what it has certainly said just now: somebody who sends again
 * what he recorded cannot have its answers sent to himself.
 */

import { type Clock, type Millis, onNextTick, schedule } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { createHasher, type Hasher } from '../../core/hash.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import { cryptoRandom, type Random, systemRandom } from '../../core/random.ts';
import type { PeerNetwork } from './backend.ts';
import { decode } from './codec.ts';
import { createDatagramAuth, type DatagramAuth, fleetHashSeed } from './datagram-auth.ts';
import type { PeerLimit } from './limits.ts';
import { BROADCAST, type NodeId } from './messages.ts';
import { MAX_PEERS, type PeerView } from './peer-table.ts';
import { PeerProtocol } from './protocol.ts';
import type { PeerCounts } from './sender.ts';
import type { PeerOptions } from './settings.ts';
import type { Transport, TransportCounts } from './transport.ts';

/** So long after its start a node that met nobody takes itself for the first. */
const SOLO_START_AFTER_MS: Millis = 1000;

/** Nodes whose address is remembered; of one that is not, what came last says where to answer. */
const MAX_ADDRESSES = 2 * MAX_PEERS;

/**
 * Of what is said to a node that has not proved where it is, this part goes to everybody: should what came
 * last always come from somebody who only repeats it, the node itself hears of it nevertheless.
 */
const BROADCAST_PROBABILITY = 1 / 8;

export interface PeerNodeConfig {
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
  readonly authFailed: number;
  /** Where the last of them came from, if the transport knows; empty if there was none. */
  readonly authFailedFrom: string;
  /** What the transport carried. */
  readonly transportCounts: Readonly<TransportCounts>;
}

export class PeerNode implements PeerNetwork {
  readonly hasher: Hasher;
  readonly #config: PeerNodeConfig;
  readonly #protocol: PeerProtocol;
  readonly #auth: DatagramAuth;
  /** Where nodes have proved to be. */
  readonly #addresses = new Map<NodeId, string>();
  /** Whom we hear at the moment, and from where. */
  #currentSender: { readonly id: NodeId; readonly from: string } | undefined;
  #isOpen = false;
  #isClosed = false;
  #isTickDue = false;
  #wakeAt: Millis = Infinity;
  #cancelWake = (): void => {};
  #authFailed = 0;
  #authFailedFrom = '';
  #resolveSynced = (): void => {};
  /** Resolves when others have told how keys stand, or when it is clear that nobody does. */
  readonly synced = new Promise<void>((resolve) => {
    this.#resolveSynced = resolve;
  });

  /** @throws {ConfigError} if others could take part and there is no key to know them by. */
  constructor(config: PeerNodeConfig) {
    const { options, key, clock, random, transport, onNoKey = warnOnce } = config;
    if (key === undefined) requireLoopback(transport, onNoKey);
    this.#config = config;
    this.#auth = createDatagramAuth(key);
    this.hasher = config.hasher ?? createHasher(fleetHashSeed(key));
    this.#protocol = new PeerProtocol(
      options,
      random === systemRandom ? cryptoRandom : random, // who can guess a nonce can answer for another
      (to, bytes) => this.#send(to, bytes),
      clock.now(),
    );
  }

  async open(): Promise<void> {
    const { transport } = this.#config;
    await transport.open((bytes, from) => this.#onDatagram(bytes, from));
    if (this.#isClosed) return void (await transport.close()); // nobody waited for it
    this.#isOpen = true;
    this.#scheduleSoloStart();
    this.#tick();
  }

  /** Unless somebody is telling it how keys stand. */
  #scheduleSoloStart(): void {
    const { clock } = this.#config;
    const goOn = (): void => {
      this.#protocol.startWithoutPeers();
      if (this.#protocol.isSynced) this.#resolveSynced();
      else if (!this.#isClosed) this.#scheduleSoloStart();
    };
    schedule(clock, clock.now() + SOLO_START_AFTER_MS, goOn, false);
  }

  /** Tells what nobody was told of yet, and leaves. */
  async close(): Promise<void> {
    if (this.#isOpen) this.#protocol.flush(this.#config.clock.now());
    this.#isOpen = false;
    this.#isClosed = true;
    this.#cancelWake();
    await this.#config.transport.close();
  }

  view(): FleetView {
    const { options, transport, clock } = this.#config;
    return {
      id: this.#protocol.id,
      name: options.name,
      transport: transport.name,
      isOpen: this.#isOpen,
      peers: this.#protocol.peers(clock.now()),
      counts: { ...this.#protocol.counts },
      authFailed: this.#authFailed,
      authFailedFrom: this.#authFailedFrom,
      transportCounts: { ...transport.counts },
    };
  }

  // For the limits.

  addLimit(limit: PeerLimit): void {
    this.#protocol.addLimit(limit);
  }

  removeLimit(limit: PeerLimit): void {
    this.#protocol.removeLimit(limit);
  }

  recordHits(limit: PeerLimit, low: number, high: number, hits: number): void {
    if (this.#protocol.recordHits(limit, low, high, hits)) this.#scheduleTick();
  }

  retractHits(limit: PeerLimit, low: number, high: number, hits: number): void {
    this.#protocol.retractHits(limit, low, high, hits);
  }

  // For the network.

  #onDatagram(bytes: Uint8Array, from: string): void {
    const inside = this.#auth.verify(bytes);
    if (inside === undefined) {
      this.#authFailed++;
      this.#authFailedFrom = from;
      return;
    }
    const message = decode(inside);
    const now = this.#config.clock.now();
    this.#currentSender = message && { id: message.from, from };
    const isNew = this.#protocol.receiveMessage(message, now);
    this.#currentSender = undefined;
    if (message && isNew) this.#learnAddress(message.from, from);
    this.#scheduleWake();
  }

  #learnAddress(id: NodeId, from: string): void {
    if (this.#addresses.get(id) === from) return;
    if (this.#addresses.size >= MAX_ADDRESSES && !this.#addresses.has(id)) {
      const [oldest] = this.#addresses.keys();
      this.#addresses.delete(oldest); // should it still be there, it is soon heard again
    }
    this.#addresses.set(id, from);
  }

  #send(to: NodeId, bytes: Uint8Array): void {
    if (!this.#isOpen) return;
    const { transport } = this.#config;
    const signed = this.#auth.sign(bytes);
    const address =
      to === BROADCAST ? undefined : (this.#addresses.get(to) ?? this.#unverifiedAddressOf(to));
    if (address === undefined) transport.broadcast(signed);
    else transport.send(address, signed);
  }

  /** Where what we are hearing came from, which may be the node itself. */
  #unverifiedAddressOf(to: NodeId): string | undefined {
    if (this.#currentSender?.id !== to || this.#config.random() < BROADCAST_PROBABILITY)
      return undefined;
    return this.#currentSender.from;
  }

  // For the clock.

  /** When everything that is being decided now is decided: one report tells of all of it. */
  #scheduleTick(): void {
    if (this.#isTickDue) return;
    this.#isTickDue = true;
    onNextTick(() => {
      this.#isTickDue = false;
      this.#tick();
    });
  }

  #tick(): void {
    if (!this.#isOpen) return;
    this.#protocol.tick(this.#config.clock.now());
    if (this.#protocol.isSynced) this.#resolveSynced();
    this.#wakeAt = Infinity;
    this.#scheduleWake();
  }

  #scheduleWake(): void {
    const { clock } = this.#config;
    const at = this.#protocol.wakeAt(clock.now());
    if (!this.#isOpen || at >= this.#wakeAt) return;
    this.#cancelWake();
    this.#wakeAt = at;
    this.#cancelWake = schedule(clock, at, () => this.#tick(), false);
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

const warnOnce = (warning: string): void => emitProcessWarning('PEERS', warning, 'no key');
