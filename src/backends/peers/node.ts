/**
 * A running node of a fleet: the peer protocol with a clock, a transport and datagram authentication.
 *
 * A peer's address is taken only from its latest datagram, never from a replayed one. So resending a recorded datagram
 * from another address cannot redirect the replies.
 */

import { type Clock, coarseClock, type Millis, onNextTick, schedule } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { createHasher, type Hasher } from '../../core/hash.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import { type Random, secretRandom } from '../../core/random.ts';
import { ALONE_AFTER_MS } from './catch-up.ts';
import { decode, otherVersionOf } from './codec.ts';
import type { PeerOptions } from './context.ts';
import {
  createDatagramAuth,
  type DatagramAuth,
  type FleetSecrets,
  fleetHashSeed,
} from './datagram-auth.ts';
import type { PeerLimit } from './limits.ts';
import { BROADCAST, MAX_PEERS, type Message, type NodeId, type OtherVersion } from './messages.ts';
import type { PeerView } from './peer-table.ts';
import { PeerProtocol } from './protocol.ts';
import { REJECT_MESSAGES, type RejectedSource, RejectedSources } from './rejected-sources.ts';
import type { PeerCounts } from './sender.ts';
import type { Transport, TransportCounts } from './transport.ts';
import type { WireVersions } from './wire-versions.ts';

/** The most verified addresses. For other nodes, replies go to the source of the current datagram. */
const MAX_VERIFIED_ADDRESSES = 2 * MAX_PEERS;

/**
 * Fraction of the replies to an unverified node that is broadcast instead of sent to the datagram's source. If every
 * datagram of that node is a replay from another source, the broadcasts still reach it.
 */
const BROADCAST_PROBABILITY = 1 / 8;

interface PeerNodeConfig extends FleetSecrets {
  readonly options: PeerOptions;
  readonly transport: Transport;
  readonly clock: Clock;
  readonly random: Random;
  /** Default: a hasher seeded by `seed`. */
  readonly hasher?: Hasher;
  /** Called if there is no key. Default: a process warning. */
  readonly onNoKey?: (warning: string) => void;
  /** Called after a suspension for longer than the peer timeout. */
  readonly onResume?: (suspendedMs: Millis) => void;
  /** Called once an hour for each source of rejected datagrams. Default: a process warning. */
  readonly onRejected?: (source: RejectedSource) => void;
}

/** A node's view of its fleet. */
export interface FleetView {
  /** Id of this node; a new one at each start. */
  readonly id: NodeId;
  /** Display name. */
  readonly name: string;
  /** Name of the transport. */
  readonly transport: string;
  /** Whether the transport is open. Otherwise the node decides from its own count. */
  readonly isOpen: boolean;
  /** Peers from which a datagram arrived within the peer timeout. */
  readonly peers: readonly PeerView[];
  /** Peers with a longer silence, until their state is dropped: 65 s after the last datagram by default. */
  readonly gone: readonly PeerView[];
  /** Message counters since the start. */
  readonly counts: PeerCounts;
  /** The wire version that this node sends (the newest that all peers speak), and the versions that it can read. */
  readonly version: number;
  readonly versions: WireVersions;
  /** Datagrams that failed authentication. */
  readonly authFailed: number;
  /** Datagrams that were accepted with a key other than the first. */
  readonly otherKey: number;
  /** Sources of rejected datagrams in the last hour; their number is bounded. */
  readonly rejected: readonly RejectedSource[];
  /** Datagram counters of the transport. */
  readonly transportCounts: Readonly<TransportCounts>;
}

export class PeerNode {
  /** The hasher, equal on all nodes of a fleet. */
  readonly hasher: Hasher;
  readonly #config: PeerNodeConfig;
  readonly #protocol: PeerProtocol;
  /** Clock that is read for every decision. */
  readonly #checkClock: Clock;
  readonly #auth: DatagramAuth;
  readonly #addresses = new Map<NodeId, string>();
  /** Sender of the datagram being handled, and its source address. */
  #currentSender: { readonly id: NodeId; readonly from: string } | undefined;
  #isOpen = false;
  #isClosed = false;
  #isTickDue = false;
  #wakeAt: Millis = Infinity;
  #cancelWake = (): void => {};
  #authFailed = 0;
  readonly #authFailures: RejectedSources;
  readonly #otherVersions: RejectedSources;
  #resolveSynced = (): void => {};
  /** Resolves when the state transfer is done, or if there is no peer to transfer from. */
  readonly synced = new Promise<void>((resolve) => {
    this.#resolveSynced = resolve;
  });

  /** @throws {ConfigError} if there is no key and the transport reaches beyond this machine. */
  constructor(config: PeerNodeConfig) {
    const { options, key, seed, clock, random, transport, onNoKey = warnOnce } = config;
    const { onRejected = warnRejected } = config;
    if (key === undefined) requireLoopback(transport, onNoKey);
    this.#config = config;
    this.#checkClock = coarseClock(clock);
    this.#auth = createDatagramAuth(key, seed);
    this.hasher = config.hasher ?? createHasher(fleetHashSeed(seed ?? [key].flat()[0]));
    this.#authFailures = new RejectedSources('auth_failed', onRejected);
    this.#otherVersions = new RejectedSources('other_version', onRejected);
    this.#protocol = new PeerProtocol(
      options,
      secretRandom(random), // a guessable nonce would allow forged handshakes
      (to, bytes) => this.#send(to, bytes),
      clock.now(),
    );
  }

  async open(): Promise<void> {
    const { transport } = this.#config;
    this.#protocol.onControls = (text, from) => this.channel.onText?.(text, from);
    this.#protocol.onResume = (suspendedMs) => {
      this.#config.onResume?.(suspendedMs);
      return this.channel.onResume?.();
    };
    await transport.open((bytes, from) => this.#onDatagram(bytes, from));
    if (this.#isClosed) return void (await transport.close()); // closed while opening
    this.#protocol.start(this.#config.clock.now());
    this.#isOpen = true;
    this.#scheduleSoloStart();
    this.#tick();
  }

  /** Starts without peers if none is found; repeats while a state transfer is running. */
  #scheduleSoloStart(): void {
    const { clock } = this.#config;
    const startSolo = (): void => {
      this.#protocol.startWithoutPeers();
      if (this.#protocol.isSynced) this.#resolveSynced();
      else if (!this.#isClosed) this.#scheduleSoloStart();
    };
    schedule(clock, clock.now() + ALONE_AFTER_MS, startSolo, false);
  }

  /** Sends the pending hits and leaves the fleet. */
  async close(): Promise<void> {
    if (this.#isOpen) this.#protocol.flush(this.#config.clock.now());
    this.#isOpen = false;
    this.#isClosed = true;
    this.#cancelWake();
    await this.#config.transport.close();
  }

  view(): FleetView {
    const { options, transport, clock } = this.#config;
    const now = clock.now();
    return {
      id: this.#protocol.id,
      name: options.name,
      transport: transport.name,
      isOpen: this.#isOpen,
      version: this.#protocol.version,
      versions: options.versions,
      peers: this.#protocol.peers(now),
      gone: this.#protocol.gonePeers(now),
      counts: { ...this.#protocol.counts },
      authFailed: this.#authFailed,
      otherKey: this.#auth.otherKey,
      rejected: [...this.#otherVersions.views(now), ...this.#authFailures.views(now)],
      transportCounts: { ...transport.counts },
    };
  }

  /** Sends texts between the daemons of the fleet, best effort. */
  readonly channel = {
    onText: undefined as ((text: string, from: NodeId) => void) | undefined,
    onResume: undefined as (() => Promise<unknown>) | undefined,
    send: (text: string, to?: NodeId): void => {
      if (this.#isOpen) this.#protocol.sendControls(text, to);
    },
    peers: (): readonly NodeId[] => this.#protocol.peerIds(this.#config.clock.now()),
    nameOf: (peer: NodeId): string | undefined =>
      this.#protocol.peers(this.#config.clock.now()).find(({ id }) => id === peer)?.name,
  };

  // Limits

  addLimit(limit: PeerLimit): void {
    this.#protocol.addLimit(limit);
  }

  /** Stops reports for a limit. Hits recorded before are still reported. */
  removeLimit(limit: PeerLimit): void {
    this.#protocol.removeLimit(limit);
  }

  /** True if calls must be denied: the node was suspended and has not received the state of its peers yet. */
  isCatchingUp(): boolean {
    return this.#isOpen && this.#protocol.isCatchingUp(this.#checkClock.now());
  }

  recordHits(limit: PeerLimit, low: number, high: number, hits: number): void {
    if (this.#protocol.recordHits(limit, low, high, hits)) this.#scheduleTick();
  }

  /** Removes the hits of a recorded call that did not happen. */
  retractHits(limit: PeerLimit, low: number, high: number, hits: number): void {
    this.#protocol.retractHits(limit, low, high, hits);
  }

  /** Time until this number of predicted hits of a key is released; Infinity if fewer are held. */
  msUntilReleased(limit: PeerLimit, low: number, high: number, units: number): Millis {
    const now = this.#config.clock.now();
    return this.#protocol.msUntilReleased(limit, low, high, units, now);
  }

  // Network

  #onDatagram(bytes: Uint8Array, from: string): void {
    const now = this.#config.clock.now();
    const payload = this.#auth.decrypt(bytes);
    const { versions } = this.#config.options;
    const isReadable = payload !== undefined || this.#auth.isVersion2(bytes);
    const other = isReadable ? otherVersionOf(payload ?? bytes, versions) : undefined;
    if (other) this.#onOtherVersion(other, from, now);
    else if (payload) this.#onMessage(decode(payload, versions), from, now);
    else {
      this.#authFailed++;
      this.#authFailures.record(from, 0, now);
    }
  }

  #onMessage(message: Message | undefined, from: string, now: Millis): void {
    this.#currentSender = message && { id: message.from, from };
    const isLatest = this.#protocol.receive(message, now);
    this.#currentSender = undefined;
    if (message && isLatest) this.#verifyAddress(message.from, from);
    this.#scheduleWake();
  }

  #onOtherVersion(other: OtherVersion, from: string, now: Millis): void {
    this.#currentSender = { id: other.from, from };
    const hasNoCommonVersion = this.#protocol.receiveOtherVersion(other, now);
    this.#currentSender = undefined;
    if (hasNoCommonVersion)
      this.#otherVersions.record(from || `node ${other.from}`, other.newest, now);
    this.#scheduleWake();
  }

  #verifyAddress(id: NodeId, from: string): void {
    if (this.#addresses.get(id) === from) return;
    if (this.#addresses.size >= MAX_VERIFIED_ADDRESSES && !this.#addresses.has(id)) {
      const [oldest] = this.#addresses.keys();
      this.#addresses.delete(oldest); // its next datagram restores it if the node is alive
    }
    this.#addresses.set(id, from);
  }

  #send(to: NodeId, bytes: Uint8Array): void {
    if (!this.#isOpen) return;
    const { transport } = this.#config;
    const encrypted = this.#auth.encrypt(bytes);
    const address =
      to === BROADCAST ? undefined : (this.#addresses.get(to) ?? this.#unverifiedAddressOf(to));
    if (address === undefined) transport.broadcast(encrypted);
    else transport.send(address, encrypted);
  }

  /** The source of the current datagram, if `to` has sent it. */
  #unverifiedAddressOf(to: NodeId): string | undefined {
    if (this.#currentSender?.id !== to || this.#config.random() < BROADCAST_PROBABILITY)
      return undefined;
    return this.#currentSender.from;
  }

  // Timers

  /** Runs a tick after the current batch of decisions, so that one report contains all of them. */
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

/** Without a key, any host that can send a datagram can change every bucket: only loopback is allowed. */
function requireLoopback(transport: Transport, onNoKey: (warning: string) => void): void {
  const { name, isLoopback } = transport;
  if (!isLoopback) {
    const reason = `as ${name} reaches beyond this machine`;
    const expected = `a secret shared by the fleet, ${reason}; or use loopback addresses only`;
    throw new ConfigError('key', expected, undefined);
  }
  const risk = 'any program on this machine can change every limit';
  onNoKey(`peers without a key (${name}): ${risk}. Set a key, except in development.`);
}

const warnRejected = ({ reason, from }: RejectedSource): void =>
  emitProcessWarning(
    'PEERS',
    `${REJECT_MESSAGES[reason]} (${from || 'unknown source'})`,
    `${reason} ${from}`,
  );

const warnOnce = (warning: string): void => emitProcessWarning('PEERS', warning, 'no key');
