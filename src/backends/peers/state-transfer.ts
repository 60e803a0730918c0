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

export type StateTransfer = ReturnType<typeof createStateTransfer>;

export function createStateTransfer(context: PeerContext) {
  const { limits, peers, sender, random, reorderBuffer, pendingHits, prediction } = context;
  /** Ids of limits that are not transferred yet; the first one is in progress. */
  let pendingLimits: number[] = [];
  /** Longest-lived first; the first one is in use. */
  let sources: Peer[] = [];
  const failedSources = new Set<NodeId>();
  let nonce = 0;
  let cursor = 0;
  let pagesReceived = 0;
  let startedAt: Millis = 0;
  let repliedAt: Millis = 0;
  let requestAt: Millis = Infinity;
  let isSynced = false;

  const wakeAt = (): Millis => (sources.length === 0 ? Infinity : requestAt);

  /** Starts with the first page of the first pending limit. */
  const resetRequest = (now: Millis): void => {
    nonce = random48(random);
    cursor = 0;
    startedAt = now;
    repliedAt = now;
    requestAt = now;
  };

  const transferAll = (now: Millis): void => {
    pendingLimits = limits.ids;
    resetRequest(now);
  };

  /** The first source comes from `addSource`; further ones are the longest-lived peers that have not failed. */
  const chooseSource = (now: Millis): void => {
    if (pendingLimits.length === 0) return;
    const source = peers.longestLived(failedSources, now);
    if (source) {
      sources = [source];
      resetRequest(now);
    } else failedSources.clear(); // all failed: the next call starts over
  };

  /** A new node needs one source; a synced node transfers from all, to recover lost reports. */
  const completeSource = (now: Millis): void => {
    sources = isSynced ? sources.slice(1) : [];
    isSynced = true;
    failedSources.clear();
    if (sources.length > 0) transferAll(now);
  };

  const hasTimedOut = (source: Peer, now: Millis): boolean =>
    now - repliedAt > SOURCE_TIMEOUT_MS || !peers.isAlive(source, now);

  /** Continues with the next source, if there is one. */
  const dropSource = (now: Millis): void => {
    const [failed, ...rest] = sources;
    failedSources.add(failed.id);
    sources = rest;
    if (rest.length > 0) resetRequest(now);
    else chooseSource(now);
  };

  /** A new node counts only new reports, so it has no gaps to wait for. */
  const isAwaitingRetransmits = (source: Peer, now: Millis): boolean => {
    const hasGaps = !source.received.isComplete || reorderBuffer.has(source);
    if (!isSynced || !hasGaps || now - startedAt > MAX_GAP_WAIT_MS) return false;
    repliedAt = now; // no request was sent, so there is no reply to miss
    return true;
  };

  return {
    /** When to call `tick` next. */
    wakeAt,

    /** True once a transfer was completed, or there was no peer to transfer from. */
    isSynced: (): boolean => isSynced,

    addLimit(id: number): void {
      if (!pendingLimits.includes(id)) pendingLimits.push(id);
    },

    /** Transfers all limits from a peer, after any source that has run longer. */
    addSource(from: Peer, now: Millis): void {
      if (sources.includes(from)) return;
      const sorted = [...sources, from].sort((a, b) => a.startedAt - b.startedAt);
      sources = sorted.slice(0, MAX_SOURCES);
      if (sources[0] === from) transferAll(now);
    },

    /** Marks this node as synced, unless a transfer is running. */
    startWithoutPeers(): void {
      if (sources.length > 0) return;
      pendingLimits = [];
      isSynced = true;
    },

    stop(): void {
      sources = [];
    },

    tick(now: Millis): void {
      pendingLimits = pendingLimits.filter((id) => limits.byId(id));
      if (sources.length === 0) chooseSource(now);
      if (now < wakeAt()) return;
      if (pendingLimits.length === 0) completeSource(now);
      if (sources.length > 0 && hasTimedOut(sources[0], now)) dropSource(now);
      const [source] = sources;
      if (!source) return;
      requestAt = now + REQUEST_INTERVAL_MS;
      if (isAwaitingRetransmits(source, now)) return;
      pagesReceived = 0;
      sender.send(source.id, { kind: 'state-request', nonce, limit: pendingLimits[0], cursor });
    },

    /** Applies the next page of the open request; any other page is ignored. */
    applyPage(state: MessageOf<'state'>, now: Millis): void {
      const { refillTimes, buckets, next } = state;
      const isFromSource = sources.at(0)?.id === state.from && nonce === state.nonce;
      const isNext = pendingLimits[0] === state.limit && cursor === state.cursor;
      const limit = limits.byId(state.limit);
      if (!limit || !isFromSource || !isNext) return;
      if (refillTimes.length > 0 && limit.buckets !== buckets) return;
      prediction.releaseAll(); // a later release would give back transferred hits
      for (let at = 0; at < refillTimes.length; at += 2 + buckets) {
        const [low, high] = [refillTimes[at], refillTimes[at + 1]];
        const pending = pendingHits.pendingFor(limit.id, low, high); // not in the source's state
        const fullInMs = refillTimes.slice(at + 2, at + 2 + buckets);
        limits.raiseLevel(limit.id, low, high, fullInMs, pending);
      }
      cursor = next;
      repliedAt = now;
      pagesReceived++;
      requestAt = next > 0 && pagesReceived < PAGES_PER_REQUEST ? now + REORDER_GRACE_MS : now;
      if (next === 0) pendingLimits.shift();
    },

    /** Sends pages to a peer, unless this node is waiting for state itself. */
    sendPages(request: MessageOf<'state-request'>): void {
      const { from, nonce, limit: id } = request;
      const source = sources.at(0);
      if (!isSynced && source && source.id !== from) return;
      const limit = limits.byId(id);
      const buckets = limit?.buckets ?? 0;
      let { cursor } = request;
      for (let n = 0; n < PAGES_PER_REQUEST && (n === 0 || cursor > 0); n++) {
        const page = limit?.readPage(cursor, keysPerPage(buckets)) ?? EMPTY_PAGE;
        sender.send(from, { kind: 'state', nonce, limit: id, cursor, buckets, ...page });
        cursor = page.next;
      }
    },
  };
}
