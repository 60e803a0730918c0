/** The nodes that have proved to be there, and of which of them something is missing. */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { NodeId } from './messages.ts';
import { ReceivedSequences } from './received-sequences.ts';
import { ReplayWindow } from './replay-window.ts';
import type { Requester } from './response-limiter.ts';

/** Peers known at once; more are not heard. */
export const MAX_PEERS = 4096;

/** A report out of order is not missing yet. */
const REORDER_GRACE_MS: Millis = 10;

/** How often a peer is asked for what is missing. */
const NACK_INTERVAL_MS: Millis = 50;

/** What is missing is asked for in so many ranges at once. */
const MAX_RANGES = 32;

/** More reports of one peer than this are not missing by chance: it, or this node, was cut off. */
const MAX_TRANSIENT_GAP = 16;

export interface Peer extends Requester {
  readonly id: NodeId;
  readonly name: string;
  /** When it was started, as it said, by the clock here. */
  readonly startedAt: Millis;
  lastSeenAt: Millis;
  readonly received: ReceivedSequences;
  /** Which of its datagrams have come. */
  readonly replayWindow: ReplayWindow;
  reportsReceived: number;
  /** When it may be asked again. */
  nackAt: Millis;
}

/** What a node said of itself when it proved to be there. */
type VerifiedPeer = Pick<Peer, 'id' | 'name' | 'startedAt'> & { readonly datagramSeq: number };

/** What is known of another node. */
export interface PeerView {
  readonly id: NodeId;
  readonly name: string;
  /** How long ago it was heard last. */
  readonly ageMs: Millis;
  /** Reports that were heard, asked for again, given up. */
  readonly reportsReceived: number;
  readonly missing: number;
  readonly lost: number;
}

export class PeerTable {
  readonly #timeoutMs: Millis;
  readonly #peers = new Map<NodeId, Peer>();
  /** Those of them of whom something is missing. */
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

  /**
   * From now on it is heard: what it says after its datagram `count`, and of its reports those after `from`,
   * of which there is something up to `last`.
   */
  add(who: VerifiedPeer, from: number, last: number, now: Millis): Peer {
    const received = new ReceivedSequences(from);
    received.noteHighest(last);
    const { datagramSeq, ...rest } = who;
    const replayWindow = new ReplayWindow(datagramSeq);
    const times = { lastSeenAt: now, nackAt: now, replyBudgetUntil: -Infinity };
    const peer = { ...rest, replayWindow, received, reportsReceived: 0, ...times };
    this.#peers.set(who.id, peer);
    this.updateGaps(peer, now);
    return peer;
  }

  isAlive(peer: Peer | undefined, now: Millis): peer is Peer {
    return peer !== undefined && now - peer.lastSeenAt <= this.#timeoutMs;
  }

  hasGaps(peer: Peer): boolean {
    return this.#withGaps.has(peer);
  }

  /** Whether so much is yet to come that how keys stand here says nothing. */
  hasLargeGap(now: Millis): boolean {
    for (const peer of this.#withGaps) {
      if (peer.received.missingCount > MAX_TRANSIENT_GAP && this.isAlive(peer, now)) return true;
    }
    return false;
  }

  /** Any node that is there, and of whom nothing is missing. */
  randomWithoutGaps(random: Random, now: Millis): Peer | undefined {
    let left = Math.floor(random() * (this.#peers.size - this.#withGaps.size));
    for (const peer of this.#peers.values()) {
      if (!peer.received.isComplete || left-- > 0) continue;
      return this.isAlive(peer, now) ? peer : undefined;
    }
    return undefined;
  }

  /** Who has been there longest and still is, but for these. */
  longestLived(except: ReadonlySet<NodeId>, now: Millis): Peer | undefined {
    let oldest: Peer | undefined;
    for (const peer of this.#peers.values()) {
      if (except.has(peer.id) || !this.isAlive(peer, now)) continue;
      if (!oldest || peer.startedAt < oldest.startedAt) oldest = peer;
    }
    return oldest;
  }

  /** To be called whenever something of it came, or is known to exist. */
  updateGaps(peer: Peer, now: Millis): void {
    if (peer.received.isComplete) {
      if (this.#withGaps.size > 0) this.#withGaps.delete(peer);
    } else if (!this.#withGaps.has(peer)) {
      this.#withGaps.add(peer);
      peer.nackAt = now + REORDER_GRACE_MS;
    }
  }

  /** When somebody is to be asked for what is missing. */
  get nackAt(): Millis {
    let at = Infinity;
    for (const { nackAt } of this.#withGaps) at = Math.min(at, nackAt);
    return at;
  }

  /** Asks for what is missing whoever is there and was not asked a moment ago. */
  requestRetransmits(now: Millis, ask: (id: NodeId, ranges: readonly number[]) => void): void {
    for (const peer of this.#withGaps) {
      if (now < peer.nackAt) continue;
      peer.nackAt = now + NACK_INTERVAL_MS;
      if (this.isAlive(peer, now)) ask(peer.id, peer.received.missingRanges(MAX_RANGES));
    }
  }

  /** Forgets everybody. */
  clear(): void {
    this.#peers.clear();
    this.#withGaps.clear();
  }

  /** Forgets who was silent for so long. */
  evictSilent(now: Millis, silentMs: Millis): void {
    for (const [id, peer] of this.#peers) {
      if (now - peer.lastSeenAt <= silentMs) continue;
      this.#peers.delete(id);
      this.#withGaps.delete(peer);
    }
  }

  /** Everybody who was heard lately. */
  views(now: Millis): PeerView[] {
    return [...this.#peers.values()]
      .filter((peer) => this.isAlive(peer, now))
      .map(({ id, name, lastSeenAt, reportsReceived, received }) => ({
        id,
        name,
        ageMs: now - lastSeenAt,
        reportsReceived,
        missing: received.missingCount,
        lost: received.lost,
      }));
  }
}
