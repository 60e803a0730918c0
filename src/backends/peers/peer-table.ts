import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { MAX_NACK_RANGES, MAX_PEERS, type NodeId } from './messages.ts';
import { ReceivedSequences } from './received-sequences.ts';
import { ReplayWindow } from './replay-window.ts';
import type { Requester } from './response-limiter.ts';

/** Datagrams may be reordered: a gap is not a loss before this time. */
export const REORDER_GRACE_MS: Millis = 10;

const NACK_INTERVAL_MS: Millis = 50;

/** With more missing reports than this, the loss is not random: a node was partitioned. */
const MAX_TRANSIENT_GAP = 16;

export interface Peer extends Requester {
  readonly id: NodeId;
  readonly name: string;
  /** The newest wire version that the peer speaks. */
  readonly newest: number;
  /** Start of the peer, on the local clock. */
  readonly startedAt: Millis;
  lastSeenAt: Millis;
  readonly received: ReceivedSequences;
  readonly replayWindow: ReplayWindow;
  reportsReceived: number;
  nackAt: Millis;
  /** True if its earlier reports are not counted here, because a state transfer is to include them. */
  lacksHistory: boolean;
}

/** Data of the handshake. */
type VerifiedPeer = Pick<Peer, 'id' | 'name' | 'newest' | 'startedAt'> & {
  readonly datagramSeq: number;
};

/** One peer in this node's view. */
export interface PeerView {
  readonly id: NodeId;
  readonly name: string;
  /** The newest wire version that the peer speaks. */
  readonly version: number;
  /** Time since its last datagram. */
  readonly ageMs: Millis;
  /** Number of reports that were received, are missing (requested again), and are lost. */
  readonly reportsReceived: number;
  readonly missing: number;
  readonly lost: number;
}

export class PeerTable {
  readonly #timeoutMs: Millis;
  readonly #peers = new Map<NodeId, Peer>();
  readonly #withGaps = new Set<Peer>();

  constructor(timeoutMs: Millis) {
    this.#timeoutMs = timeoutMs;
  }

  get size(): number {
    return this.#peers.size;
  }

  get isFull(): boolean {
    return this.#peers.size >= MAX_PEERS;
  }

  get(id: NodeId): Peer | undefined {
    return this.#peers.get(id);
  }

  /** Adds a peer. Reports up to `countedTo` are counted, up to `highest` they exist. */
  add(verified: VerifiedPeer, countedTo: number, highest: number, now: Millis): Peer {
    const received = new ReceivedSequences(countedTo);
    received.noteHighest(highest);
    const { datagramSeq, ...rest } = verified;
    const replayWindow = new ReplayWindow(datagramSeq);
    const times = { lastSeenAt: now, nackAt: now, replyBudgetUntil: -Infinity };
    const peer = {
      ...{ ...rest, replayWindow, received, reportsReceived: 0, ...times },
      lacksHistory: countedTo > 0,
    };
    this.#peers.set(verified.id, peer);
    this.updateGaps(peer, now);
    return peer;
  }

  get all(): readonly Peer[] {
    return [...this.#peers.values()];
  }

  /** Peers that have sent reports, the most recently seen first. */
  get reporting(): readonly Peer[] {
    return this.all
      .filter(({ received }) => received.highest > 0)
      .sort((a, b) => b.lastSeenAt - a.lastSeenAt);
  }

  isAlive(peer: Peer | undefined, now: Millis): peer is Peer {
    return peer !== undefined && now - peer.lastSeenAt <= this.#timeoutMs;
  }

  hasGaps(peer: Peer): boolean {
    return this.#withGaps.has(peer);
  }

  /** Whether too many reports are missing for the levels here to be compared. */
  hasLargeGap(now: Millis): boolean {
    for (const peer of this.#withGaps) {
      if (peer.received.missingCount > MAX_TRANSIENT_GAP && this.isAlive(peer, now)) return true;
    }
    return false;
  }

  /** A random peer without gaps; undefined if the chosen peer is not alive. */
  randomWithoutGaps(random: Random, now: Millis): Peer | undefined {
    let skip = Math.floor(random() * (this.#peers.size - this.#withGaps.size));
    for (const peer of this.#peers.values()) {
      if (!peer.received.isComplete || skip-- > 0) continue;
      return this.isAlive(peer, now) ? peer : undefined;
    }
    return undefined;
  }

  /** The longest-running peer that is alive, except those given. */
  longestLived(except: ReadonlySet<NodeId>, now: Millis): Peer | undefined {
    let oldest: Peer | undefined;
    for (const peer of this.#peers.values()) {
      if (except.has(peer.id) || !this.isAlive(peer, now)) continue;
      if (!oldest || peer.startedAt < oldest.startedAt) oldest = peer;
    }
    return oldest;
  }

  idsByAge(now: Millis): NodeId[] {
    const alive = [...this.#peers.values()].filter((peer) => this.isAlive(peer, now));
    return alive.sort((a, b) => a.startedAt - b.startedAt).map(({ id }) => id);
  }

  /** Must be called when a report of the peer arrives or is known to exist. */
  updateGaps(peer: Peer, now: Millis): void {
    if (peer.received.isComplete) {
      if (this.#withGaps.size > 0) this.#withGaps.delete(peer);
    } else if (!this.#withGaps.has(peer)) {
      this.#withGaps.add(peer);
      peer.nackAt = now + REORDER_GRACE_MS;
    }
  }

  get nackAt(): Millis {
    let at = Infinity;
    for (const { nackAt } of this.#withGaps) at = Math.min(at, nackAt);
    return at;
  }

  /** Sends NACKs for the gaps of all alive peers, within the NACK interval. */
  requestRetransmits(now: Millis, nack: (id: NodeId, ranges: readonly number[]) => void): void {
    for (const peer of this.#withGaps) {
      if (now < peer.nackAt) continue;
      peer.nackAt = now + NACK_INTERVAL_MS;
      if (this.isAlive(peer, now)) nack(peer.id, peer.received.missingRanges(MAX_NACK_RANGES));
    }
  }

  /** The newest wire version that all peers speak, including silent ones, which may return. */
  get commonVersion(): number {
    let version = Infinity;
    for (const { newest } of this.#peers.values()) version = Math.min(version, newest);
    return version;
  }

  clear(): void {
    this.#peers.clear();
    this.#withGaps.clear();
  }

  /** Removes peers that were silent for longer than `silentMs`. */
  evictSilent(now: Millis, silentMs: Millis): void {
    for (const [id, peer] of this.#peers) {
      if (now - peer.lastSeenAt <= silentMs) continue;
      this.#peers.delete(id);
      this.#withGaps.delete(peer);
    }
  }

  /** Peers from which a datagram arrived within the peer timeout. */
  views(now: Millis): PeerView[] {
    return this.#viewsOf(now, (peer) => this.isAlive(peer, now));
  }

  /** Peers with a longer silence that are not evicted yet. A node that restarted under its name is not gone. */
  goneViews(now: Millis): PeerView[] {
    const present = new Set(this.views(now).map(({ name }) => name));
    const isSilent = (peer: Peer): boolean => !this.isAlive(peer, now);
    return this.#viewsOf(now, (peer) => isSilent(peer) && !present.has(peer.name));
  }

  #viewsOf(now: Millis, isListed: (peer: Peer) => boolean): PeerView[] {
    return [...this.#peers.values()]
      .filter(isListed)
      .map(({ id, name, newest, lastSeenAt, reportsReceived, received }) => ({
        id,
        name,
        version: newest,
        ageMs: now - lastSeenAt,
        reportsReceived,
        missing: received.missingCount,
        lost: received.lost,
      }));
  }
}
