/** The nodes that have proved to be there, and of which of them something is missing. */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { NodeId } from './messages.ts';
import { Heard } from './received-sequences.ts';
import { Window } from './replay-window.ts';
import type { Asker } from './response-limiter.ts';

/** Peers known at once; more are not heard. */
export const PEERS_MAX = 4096;

/** A report out of order is not missing yet. */
const OVERTAKEN_MS: Millis = 10;

/** How often a peer is asked for what is missing. */
const ASK_AGAIN_MS: Millis = 50;

/** What is missing is asked for in so many ranges at once. */
const RANGES_MAX = 32;

/** More reports of one peer than this are not missing by chance: it, or this node, was cut off. */
const MISSING_BY_CHANCE = 16;

export interface Peer extends Asker {
  readonly id: NodeId;
  readonly name: string;
  /** When it was started, as it said, by the clock here. */
  readonly bornAt: Millis;
  heardAt: Millis;
  readonly heard: Heard;
  /** Which of its datagrams have come. */
  readonly window: Window;
  reports: number;
  /** When it may be asked again. */
  askAt: Millis;
}

/** What a node said of itself when it proved to be there. */
type Proved = Pick<Peer, 'id' | 'name' | 'bornAt'> & { readonly count: number };

/** What is known of another node. */
export interface PeerView {
  readonly id: NodeId;
  readonly name: string;
  /** How long ago it was heard last. */
  readonly ageMs: Millis;
  /** Reports that were heard, asked for again, given up. */
  readonly heard: number;
  readonly missing: number;
  readonly lost: number;
}

export class Peers {
  readonly #goneMs: Millis;
  readonly #peers = new Map<NodeId, Peer>();
  /** Those of them of whom something is missing. */
  readonly #behind = new Set<Peer>();

  constructor(goneMs: Millis) {
    this.#goneMs = goneMs;
  }

  get size(): number {
    return this.#peers.size;
  }

  get isFull(): boolean {
    return this.#peers.size >= PEERS_MAX;
  }

  get(id: NodeId): Peer | undefined {
    return this.#peers.get(id);
  }

  /**
   * From now on it is heard: what it says after its datagram `count`, and of its reports those after `from`,
   * of which there is something up to `last`.
   */
  add(who: Proved, from: number, last: number, now: Millis): Peer {
    const heard = new Heard(from);
    heard.noteLast(last);
    const { count, ...rest } = who;
    const window = new Window(count);
    const times = { heardAt: now, askAt: now, answeredTo: -Infinity };
    const peer = { ...rest, window, heard, reports: 0, ...times };
    this.#peers.set(who.id, peer);
    this.noteMissing(peer, now);
    return peer;
  }

  isThere(peer: Peer | undefined, now: Millis): peer is Peer {
    return peer !== undefined && now - peer.heardAt <= this.#goneMs;
  }

  isBehind(peer: Peer): boolean {
    return this.#behind.has(peer);
  }

  /** Whether so much is yet to come that how keys stand here says nothing. */
  isFarBehind(now: Millis): boolean {
    for (const peer of this.#behind) {
      if (peer.heard.behindBy > MISSING_BY_CHANCE && this.isThere(peer, now)) return true;
    }
    return false;
  }

  /** Any node that is there, and of whom nothing is missing. */
  somebody(random: Random, now: Millis): Peer | undefined {
    let left = Math.floor(random() * (this.#peers.size - this.#behind.size));
    for (const peer of this.#peers.values()) {
      if (!peer.heard.isComplete || left-- > 0) continue;
      return this.isThere(peer, now) ? peer : undefined;
    }
    return undefined;
  }

  /** Who has been there longest and still is, but for these. */
  oldest(except: ReadonlySet<NodeId>, now: Millis): Peer | undefined {
    let oldest: Peer | undefined;
    for (const peer of this.#peers.values()) {
      if (except.has(peer.id) || !this.isThere(peer, now)) continue;
      if (!oldest || peer.bornAt < oldest.bornAt) oldest = peer;
    }
    return oldest;
  }

  /** To be called whenever something of it came, or is known to exist. */
  noteMissing(peer: Peer, now: Millis): void {
    if (peer.heard.isComplete) {
      if (this.#behind.size > 0) this.#behind.delete(peer);
    } else if (!this.#behind.has(peer)) {
      this.#behind.add(peer);
      peer.askAt = now + OVERTAKEN_MS;
    }
  }

  /** When somebody is to be asked for what is missing. */
  get askAt(): Millis {
    let at = Infinity;
    for (const { askAt } of this.#behind) at = Math.min(at, askAt);
    return at;
  }

  /** Asks for what is missing whoever is there and was not asked a moment ago. */
  askForMissing(now: Millis, ask: (id: NodeId, ranges: readonly number[]) => void): void {
    for (const peer of this.#behind) {
      if (now < peer.askAt) continue;
      peer.askAt = now + ASK_AGAIN_MS;
      if (this.isThere(peer, now)) ask(peer.id, peer.heard.missing(RANGES_MAX));
    }
  }

  /** Forgets everybody. */
  clear(): void {
    this.#peers.clear();
    this.#behind.clear();
  }

  /** Forgets who was silent for so long. */
  forget(now: Millis, silentMs: Millis): void {
    for (const [id, peer] of this.#peers) {
      if (now - peer.heardAt <= silentMs) continue;
      this.#peers.delete(id);
      this.#behind.delete(peer);
    }
  }

  /** Everybody who was heard lately. */
  views(now: Millis): PeerView[] {
    return [...this.#peers.values()]
      .filter((peer) => this.isThere(peer, now))
      .map(({ id, name, heardAt, reports, heard }) => ({
        id,
        name,
        ageMs: now - heardAt,
        heard: reports,
        missing: heard.behindBy,
        lost: heard.lost,
      }));
  }
}
