/**
 * How a newcomer learns from a neighbour how keys stand, limit by limit and page by page.
 *
 *     ask-state, cursor 0 ───▶
 *                         ◀─── state, next 80
 *                         ◀─── state, next 160      (several pages for one question)
 *     ask-state, cursor 160 ─▶
 *                         ◀─── state, next 0: that was all
 *
 * It is heard only from whoever was asked, while it is asked, each page once: later it would do harm. A
 * neighbour that falls silent is left, and another asked for what is still to be learned.
 *
 * Whoever has been there longest knows most, so the oldest is asked, and one that is met later and is older
 * still is asked in its place. Newcomers that begin at once have nothing to tell each other: who is learning
 * tells nobody, but for the one it learns from.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { keysPerPage } from './codec.ts';
import type { PeerLimits } from './limits.ts';
import { type MessageOf, type NodeId, random48 } from './messages.ts';
import type { Peer, PeerTable } from './peer-table.ts';
import type { PendingHits } from './pending-hits.ts';
import type { PeerPrediction } from './prediction.ts';
import type { DatagramSender } from './sender.ts';

/** How often it asks if no answer comes. */
const REQUEST_INTERVAL_MS: Millis = 50;

/** One that does not answer for so long is left. */
const SOURCE_TIMEOUT_MS: Millis = 1000;

/** More of the same answer may be on its way. */
const REORDER_GRACE_MS: Millis = 10;

/** What a neighbour told and is missing here is had first, if it comes so soon: else it would count twice. */
const MAX_GAP_WAIT_MS: Millis = 5000;

/** Neighbours to learn from, one after the other: each of them knows what all have told. */
const MAX_SOURCES = 2;

/** Pages for one question; when they have come, the next is asked at once. */
const PAGES_PER_REQUEST = 16;

const EMPTY_PAGE = { refillTimes: [], next: 0 };

/** What a node knows, as far as learning needs it. */
interface StateTransferContext {
  readonly sender: DatagramSender;
  readonly limits: PeerLimits;
  readonly pendingHits: PendingHits;
  readonly prediction: PeerPrediction;
  readonly peers: PeerTable;
  readonly random: Random;
  /** Whether everything that a peer told was counted. */
  isFullyReceived(peer: Peer): boolean;
}

export class StateTransfer {
  readonly #context: StateTransferContext;
  /** Ids of limits yet to be learned, the first of them at the moment. */
  #pendingLimits: number[] = [];
  /** From whom, the oldest first and at the moment. */
  #sources: Peer[] = [];
  /** Who was left because it did not answer. */
  readonly #failedSources = new Set<NodeId>();
  #nonce = 0;
  #cursor = 0;
  /** That came since the last question. */
  #pagesReceived = 0;
  #startedAt: Millis = 0;
  #repliedAt: Millis = 0;
  #requestAt: Millis = Infinity;
  /** Everything was learned once, or nobody was there to learn from. */
  isSynced = false;

  constructor(context: StateTransferContext) {
    this.#context = context;
  }

  /** When `tick` has something to do. */
  get wakeAt(): Millis {
    return this.#sources.length === 0 ? Infinity : this.#requestAt;
  }

  /** A limit that was taken on is to be learned as well. */
  addLimit(id: number): void {
    if (!this.#pendingLimits.includes(id)) this.#pendingLimits.push(id);
  }

  /** Learns all limits, also those that were learned before; after whoever is older, if it is at it. */
  addSource(from: Peer, now: Millis): void {
    if (this.#sources.includes(from)) return;
    const sources = [...this.#sources, from].sort((a, b) => a.startedAt - b.startedAt);
    this.#sources = sources.slice(0, MAX_SOURCES);
    if (this.#sources[0] === from) this.#transferAll(now);
  }

  /** Nobody was there to learn from: what is known here is all there is. */
  startWithoutPeers(): void {
    if (this.#sources.length > 0) return; // somebody is about to tell
    this.#pendingLimits = [];
    this.isSynced = true;
  }

  /** Asks nobody any more. */
  stop(): void {
    this.#sources = [];
  }

  #transferAll(now: Millis): void {
    this.#pendingLimits = this.#context.limits.ids;
    this.#resetRequest(now);
  }

  /** From the first of them, from the beginning of what is still wanted. */
  #resetRequest(now: Millis): void {
    this.#nonce = random48(this.#context.random);
    this.#cursor = 0;
    this.#startedAt = now;
    this.#repliedAt = now;
    this.#requestAt = now;
  }

  tick(now: Millis): void {
    this.#pendingLimits = this.#pendingLimits.filter((id) => this.#context.limits.byId(id));
    if (this.#sources.length === 0) this.#chooseSource(now);
    if (now < this.wakeAt) return;
    if (this.#pendingLimits.length === 0) this.#completeSource(now);
    if (this.#hasSourceTimedOut(now)) this.#dropSource(now);
    const [source] = this.#sources;
    if (!source) return;
    this.#requestAt = now + REQUEST_INTERVAL_MS;
    if (this.#isAwaitingRetransmits(source, now)) return;
    this.#pagesReceived = 0;
    const place = { limit: this.#pendingLimits[0], cursor: this.#cursor };
    this.#context.sender.send(source.id, { kind: 'state-request', nonce: this.#nonce, ...place });
  }

  /** A newcomer knows it all now; for others, what the next has to tell is why it is there. */
  #completeSource(now: Millis): void {
    this.#sources = this.isSynced ? this.#sources.slice(1) : [];
    this.isSynced = true;
    this.#failedSources.clear();
    if (this.#sources.length > 0) this.#transferAll(now);
  }

  #hasSourceTimedOut(now: Millis): boolean {
    if (this.#sources.length === 0) return false;
    return (
      !this.#context.peers.isAlive(this.#sources[0], now) ||
      now - this.#repliedAt > SOURCE_TIMEOUT_MS
    );
  }

  /** Goes on with another, if there is one. */
  #dropSource(now: Millis): void {
    const [silent, ...others] = this.#sources;
    this.#failedSources.add(silent.id);
    this.#sources = others;
    if (others.length > 0) this.#resetRequest(now);
    else this.#chooseSource(now);
  }

  /** The first is found by being met; later the oldest will do that was not asked in vain. */
  #chooseSource(now: Millis): void {
    if (this.#pendingLimits.length === 0) return;
    const source = this.#context.peers.longestLived(this.#failedSources, now);
    if (source) {
      this.#sources = [source];
      this.#resetRequest(now);
    } else this.#failedSources.clear(); // from the beginning, next time
  }

  /** A newcomer hears only what is told from now on, and misses nothing. */
  #isAwaitingRetransmits(source: Peer, now: Millis): boolean {
    const isBehind = this.isSynced && !this.#context.isFullyReceived(source);
    if (!isBehind || now - this.#startedAt > MAX_GAP_WAIT_MS) return false;
    this.#repliedAt = now; // it was not asked
    return true;
  }

  /** Only what was asked for, in its order: each of it counts once. */
  applyPage(state: MessageOf<'state'>, now: Millis): void {
    const { refillTimes, buckets, next } = state;
    const isAsked = this.#sources.at(0)?.id === state.from && this.#nonce === state.nonce;
    const isNext = this.#pendingLimits[0] === state.limit && this.#cursor === state.cursor;
    const limit = this.#context.limits.byId(state.limit);
    if (!limit || !isAsked || !isNext) return;
    if (refillTimes.length > 0 && limit.buckets !== buckets) return;
    this.#context.prediction.releaseAll(); // or what is learned would be given back
    for (let at = 0; at < refillTimes.length; at += 2 + buckets) {
      const [low, high] = [refillTimes[at], refillTimes[at + 1]];
      const untold = this.#context.pendingHits.pendingFor(limit.id, low, high); // the other one cannot have counted these
      const fullInMs = refillTimes.slice(at + 2, at + 2 + buckets);
      this.#context.limits.raiseLevel(limit.id, low, high, fullInMs, untold);
    }
    this.#cursor = next;
    this.#repliedAt = now;
    this.#pagesReceived++;
    this.#requestAt =
      next > 0 && this.#pagesReceived < PAGES_PER_REQUEST ? now + REORDER_GRACE_MS : now;
    if (next === 0) this.#pendingLimits.shift();
  }

  /** The other side of it: tells what it knows, unless it is about to know more. */
  sendPages({ from, nonce, limit: id, cursor: first }: MessageOf<'state-request'>): void {
    const source = this.#sources.at(0);
    if (!this.isSynced && source && source.id !== from) return;
    const limit = this.#context.limits.byId(id);
    const buckets = limit?.buckets ?? 0;
    let cursor = first;
    for (let n = 0; n < PAGES_PER_REQUEST && (n === 0 || cursor > 0); n++) {
      const page = limit?.readPage(cursor, keysPerPage(buckets)) ?? EMPTY_PAGE;
      this.#context.sender.send(from, {
        kind: 'state',
        nonce,
        limit: id,
        cursor,
        buckets,
        ...page,
      });
      cursor = page.next;
    }
  }
}
