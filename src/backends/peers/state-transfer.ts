/**
 * State transfer: a new node gets the bucket levels of a peer, limit by limit and page by page.
 *
 *     state-request, cursor 0 ───▶
 *                             ◀─── state, next 80
 *                             ◀─── state, next 160      (several pages per request)
 *     state-request, cursor 160 ─▶
 *                             ◀─── state, next 0: end
 *
 * Only pages of the open request are applied, each once: a late page would count hits twice. A source that stops
 * answering is replaced, and the transfer continues with the limits that are still pending.
 *
 * The peer that has run longest knows most, so it is the source; an older one that is found later replaces it. Nodes
 * that start together have no state. A node that is not synced answers only its source.
 */

import type { Millis } from '../../core/clock.ts';
import { keysPerPage } from './codec.ts';
import type { PeerContext } from './context.ts';
import { type MessageOf, type NodeId, random48 } from './messages.ts';
import { type Peer, REORDER_GRACE_MS } from './peer-table.ts';

/** Interval of requests while no reply comes. */
const REQUEST_INTERVAL_MS: Millis = 50;

/** A source that does not reply for this long is replaced. */
const SOURCE_TIMEOUT_MS: Millis = 1000;

/** Missing reports of the source are awaited for this long: its state includes them, so they would count twice. */
const MAX_GAP_WAIT_MS: Millis = 5000;

/** Sources, one after the other: each has counted the reports of all. */
const MAX_SOURCES = 2;

/** Pages per request; after the last one, the next request follows at once. */
const PAGES_PER_REQUEST = 16;

const EMPTY_PAGE = { refillTimes: [], next: 0 };

export class StateTransfer {
  readonly #context: PeerContext;
  /** Ids of limits that are not transferred yet; the first one is in progress. */
  #pendingLimits: number[] = [];
  /** Longest-lived first; the first one is in use. */
  #sources: Peer[] = [];
  readonly #failedSources = new Set<NodeId>();
  #nonce = 0;
  #cursor = 0;
  #pagesReceived = 0;
  #startedAt: Millis = 0;
  #repliedAt: Millis = 0;
  #requestAt: Millis = Infinity;
  /** True once a transfer was completed, or there was no peer to transfer from. */
  isSynced = false;

  constructor(context: PeerContext) {
    this.#context = context;
  }

  /** When to call `tick` next. */
  get wakeAt(): Millis {
    return this.#sources.length === 0 ? Infinity : this.#requestAt;
  }

  addLimit(id: number): void {
    if (!this.#pendingLimits.includes(id)) this.#pendingLimits.push(id);
  }

  /** Transfers all limits from a peer, after any source that has run longer. */
  addSource(from: Peer, now: Millis): void {
    if (this.#sources.includes(from)) return;
    const sources = [...this.#sources, from].sort((a, b) => a.startedAt - b.startedAt);
    this.#sources = sources.slice(0, MAX_SOURCES);
    if (this.#sources[0] === from) this.#transferAll(now);
  }

  /** Marks this node as synced, unless a transfer is running. */
  startWithoutPeers(): void {
    if (this.#sources.length > 0) return;
    this.#pendingLimits = [];
    this.isSynced = true;
  }

  stop(): void {
    this.#sources = [];
  }

  #transferAll(now: Millis): void {
    this.#pendingLimits = this.#context.limits.ids;
    this.#resetRequest(now);
  }

  /** Starts with the first page of the first pending limit. */
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
    const page = { limit: this.#pendingLimits[0], cursor: this.#cursor };
    this.#context.sender.send(source.id, { kind: 'state-request', nonce: this.#nonce, ...page });
  }

  /** A new node needs one source; a synced node transfers from all, to recover lost reports. */
  #completeSource(now: Millis): void {
    this.#sources = this.isSynced ? this.#sources.slice(1) : [];
    this.isSynced = true;
    this.#failedSources.clear();
    if (this.#sources.length > 0) this.#transferAll(now);
  }

  #hasSourceTimedOut(now: Millis): boolean {
    const [source] = this.#sources;
    const isLate = now - this.#repliedAt > SOURCE_TIMEOUT_MS;
    return source !== undefined && (isLate || !this.#context.peers.isAlive(source, now));
  }

  /** Continues with the next source, if there is one. */
  #dropSource(now: Millis): void {
    const [failed, ...rest] = this.#sources;
    this.#failedSources.add(failed.id);
    this.#sources = rest;
    if (rest.length > 0) this.#resetRequest(now);
    else this.#chooseSource(now);
  }

  /** The first source comes from `addSource`; further ones are the longest-lived peers that have not failed. */
  #chooseSource(now: Millis): void {
    if (this.#pendingLimits.length === 0) return;
    const source = this.#context.peers.longestLived(this.#failedSources, now);
    if (source) {
      this.#sources = [source];
      this.#resetRequest(now);
    } else this.#failedSources.clear(); // all failed: the next call starts over
  }

  /** A new node counts only new reports, so it has no gaps to wait for. */
  #isAwaitingRetransmits(source: Peer, now: Millis): boolean {
    const { reorderBuffer } = this.#context;
    const hasGaps = !source.received.isComplete || reorderBuffer.has(source);
    const isBehind = this.isSynced && hasGaps;
    if (!isBehind || now - this.#startedAt > MAX_GAP_WAIT_MS) return false;
    this.#repliedAt = now; // no request was sent, so there is no reply to miss
    return true;
  }

  /** Applies the next page of the open request; any other page is ignored. */
  applyPage(state: MessageOf<'state'>, now: Millis): void {
    const { refillTimes, buckets, next } = state;
    const isFromSource = this.#sources.at(0)?.id === state.from && this.#nonce === state.nonce;
    const isNext = this.#pendingLimits[0] === state.limit && this.#cursor === state.cursor;
    const limit = this.#context.limits.byId(state.limit);
    if (!limit || !isFromSource || !isNext) return;
    if (refillTimes.length > 0 && limit.buckets !== buckets) return;
    this.#context.prediction.releaseAll(); // a later release would give back transferred hits
    for (let at = 0; at < refillTimes.length; at += 2 + buckets) {
      const [low, high] = [refillTimes[at], refillTimes[at + 1]];
      const pending = this.#context.pendingHits.pendingFor(limit.id, low, high); // not in the source's state
      const fullInMs = refillTimes.slice(at + 2, at + 2 + buckets);
      this.#context.limits.raiseLevel(limit.id, low, high, fullInMs, pending);
    }
    this.#cursor = next;
    this.#repliedAt = now;
    this.#pagesReceived++;
    this.#requestAt =
      next > 0 && this.#pagesReceived < PAGES_PER_REQUEST ? now + REORDER_GRACE_MS : now;
    if (next === 0) this.#pendingLimits.shift();
  }

  /** Sends pages to a peer, unless this node is waiting for state itself. */
  sendPages({ from, nonce, limit: id, cursor: first }: MessageOf<'state-request'>): void {
    const source = this.#sources.at(0);
    if (!this.isSynced && source && source.id !== from) return;
    const limit = this.#context.limits.byId(id);
    const buckets = limit?.buckets ?? 0;
    let cursor = first;
    for (let n = 0; n < PAGES_PER_REQUEST && (n === 0 || cursor > 0); n++) {
      const page = limit?.readPage(cursor, keysPerPage(buckets)) ?? EMPTY_PAGE;
      const request = { nonce, limit: id, cursor };
      this.#context.sender.send(from, { kind: 'state', ...request, buckets, ...page });
      cursor = page.next;
    }
  }
}
