/**
 * State transfer: a new node gets the bucket levels of a peer, limit by limit and page by page.
 *
 *     state-request, cursor 0 ───▶
 *                             ◀─── state, next 80
 *                             ◀─── state, next 160      (several pages per request)
 *     state-request, cursor 160 ─▶
 *                             ◀─── state, next 0: end
 *
 * Pages are applied in any order, each once (`received-pages.ts`); a request starts at the first gap. Pages of other
 * requests are ignored. A source that stops replying is replaced, and the transfer continues with the pending limits.
 *
 * Reports continue meanwhile, and a page lists those that it includes (`included-reports.ts`). So each hit counts once:
 *
 *     in the page and counted here        the level of the page includes it
 *     counted here, not in the page       added to the page (`report-log.ts`)
 *     in the page, not arrived yet        does not count again when it arrives (`merged-pages.ts`)
 *     in neither                          requested from its node
 *
 * A page of version 3 has no list: levels are raised to those of the page, and hits in transit may count twice.
 *
 * The longest-running peer knows most, so it is the source; an older peer that is found later replaces it. Nodes that
 * start together have no state. A node that is not synced, or is catching up, replies only to its source.
 */

import type { Millis } from '../../core/clock.ts';
import { keysPerPage } from './codec.ts';
import type { PeerContext } from './context.ts';
import { type IncludedReports, PageContents } from './included-reports.ts';
import { FIELD_SINCE, type MessageOf, type NodeId, random48 } from './messages.ts';
import { createPageLists, MAX_JOIN_WAIT_MS } from './page-lists.ts';
import { type Peer, REORDER_GRACE_MS } from './peer-table.ts';
import { ReceivedPages } from './received-pages.ts';
import { versionFor } from './wire-versions.ts';

/** Interval of requests without a reply. */
const REQUEST_INTERVAL_MS: Millis = 50;

/** A source is replaced after this time without a reply. */
const SOURCE_TIMEOUT_MS: Millis = 1000;

/** How long missing reports of the source are awaited: its state includes them, so they would count twice. */
const MAX_GAP_WAIT_MS: Millis = 5000;

/** The most sources, used one after the other: each has counted the reports of all nodes. */
const MAX_SOURCES = 2;

/** Pages per request; after the last one, the next request follows at once. */
const PAGES_PER_REQUEST = 16;

const EMPTY_PAGE = { refillTimes: [], next: 0 };

export type StateTransfer = ReturnType<typeof createStateTransfer>;

export function createStateTransfer(context: PeerContext) {
  const { limits, peers, sender, random, reorderBuffer, pendingHits, prediction } = context;
  const { reportLog, mergedPages, retransmitBuffer, catchUp, flush, options } = context;
  const { canMerge, isAhead, requestReports, includedReports } = createPageLists(context);
  /** Ids of limits that are not transferred yet; the first one is in progress. */
  let pendingLimits: number[] = [];
  /** Longest-running first; the first one is in use. */
  let sources: Peer[] = [];
  const failedSources = new Set<NodeId>();
  let nonce = 0;
  /** Merged pages of the first pending limit. */
  let receivedPages = new ReceivedPages();
  /** Pages since the last request. */
  let pagesReceived = 0;
  let startedAt: Millis = 0;
  let repliedAt: Millis = 0;
  let mergedAt: Millis = 0;
  /** True if waiting for this source has failed: its other pages are merged as they are. */
  let hasGivenUp = false;
  let requestAt: Millis = Infinity;
  let isSynced = false;
  /** True if some keys have the state of the source and others do not have it yet. */
  let isPartlyMerged = false;

  const countedReports = (): (readonly [origin: NodeId, seq: number])[] => [
    [sender.id, retransmitBuffer.lastSeq],
    ...peers.all.map(({ id, received }) => [id, received.highest] as const),
  ];

  const wakeAt = (): Millis => (sources.length === 0 ? Infinity : requestAt);

  /** Starts at the first page of the first pending limit. */
  const resetRequest = (now: Millis): void => {
    nonce = random48(random);
    receivedPages = new ReceivedPages();
    startedAt = now;
    mergedAt = now;
    hasGivenUp = false;
    repliedAt = now;
    requestAt = now;
    if (!reportLog.isOpen) reportLog.open(countedReports());
  };

  const transferAll = (now: Millis): void => {
    pendingLimits = limits.ids;
    mergedPages.begin(true);
    resetRequest(now);
  };

  /** Chooses a source. `addSource` names the first; others are the longest-running peers that have not failed. */
  const chooseSource = (now: Millis): void => {
    if (pendingLimits.length === 0) return;
    const source = peers.longestLived(failedSources, now);
    if (source) {
      sources = [source];
      if (isSynced) mergedPages.begin(false);
      resetRequest(now);
    } else failedSources.clear(); // all have failed: the next call starts over
  };

  /** A new node needs one source; a synced node transfers from all, to recover lost reports. */
  const completeSource = (now: Millis): void => {
    sources = isSynced ? sources.slice(1) : [];
    setSynced();
    catchUp.onState();
    failedSources.clear();
    for (const peer of peers.all) peer.lacksHistory = false;
    if (sources.length > 0) transferAll(now);
  };

  /** Continues the log if another source follows. */
  const setSynced = (): void => {
    isSynced = true;
    isPartlyMerged = false;
    if (sources.length === 0) reportLog.close();
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

  /**
   * If a page lists its reports, no report may be in the reorder buffer: it would be neither counted nor missing.
   * Without the list, the source must have no gaps. A new node counts only new reports, so it sees none.
   */
  const isAwaitingRetransmits = (source: Peer, now: Millis): boolean => {
    const hasGaps = listsReports(source)
      ? !reorderBuffer.isEmpty
      : isSynced && (!source.received.isComplete || reorderBuffer.has(source));
    if (!hasGaps || now - startedAt > MAX_GAP_WAIT_MS) return false;
    repliedAt = now; // no request was sent, so there is no reply to miss
    return true;
  };

  /** Must be called for each page: the next request follows the last page, or the first pause. */
  const scheduleRequest = (now: Millis): void => {
    pagesReceived++;
    const isLast = receivedPages.isComplete || pagesReceived >= PAGES_PER_REQUEST;
    requestAt = isLast ? now : now + REORDER_GRACE_MS;
    if (!receivedPages.isComplete) return;
    pendingLimits.shift();
    receivedPages = new ReceivedPages();
  };

  const mergePage = (
    { limit, buckets, refillTimes }: MessageOf<'state'>,
    contents: PageContents | undefined,
    now: Millis,
  ): void => {
    const width = 2 + buckets;
    const hitsBeyond = contents ? reportLog.hitsBeyond(contents, limit) : () => 0;
    prediction.releaseAll(); // a later release would also release transferred hits
    for (let at = 0; at < refillTimes.length; at += width) {
      const [low, high] = [refillTimes[at], refillTimes[at + 1]];
      const pending = pendingHits.pendingFor(limit, low, high); // not in the source's state
      const fullInMs = refillTimes.slice(at + 2, at + width);
      limits.raiseLevel(limit, low, high, fullInMs, pending + hitsBeyond(low, high));
    }
    if (!contents) return;
    requestReports(contents, now);
    mergedPages.note(contents, now);
    if (isAhead(contents, now, now, options.peerTimeoutMs))
      mergedPages.add(limit, contents, { refillTimes, width }, now);
    reportLog.prune(contents);
  };

  const versionOf = ({ newest }: Peer): number => versionFor(options.versions, newest);

  const listsReports = (peer: Peer): boolean => versionOf(peer) >= FIELD_SINCE.included;

  /** Sends pages that include exactly the listed reports; none while the reports here cannot be listed. */
  const sendListed = (
    to: Peer,
    buckets: number,
    send: (included: IncludedReports) => void,
    now: Millis,
  ): void => {
    if (!reorderBuffer.isEmpty) return; // some reports have arrived and are not counted
    const isForSomeKeys =
      (isPartlyMerged && now - startedAt <= MAX_JOIN_WAIT_MS) ||
      mergedPages.some((contents, at) => isAhead(contents, at, now, MAX_JOIN_WAIT_MS));
    if (isForSomeKeys) return; // for a bounded time: two such nodes would wait for each other
    flush(now);
    const included = includedReports(to, buckets, now);
    if (included) prediction.suspendWhile(now, () => send(included));
  };

  return {
    /** The next time to call `tick`. */
    wakeAt,

    /** Whether a transfer from a peer is running. */
    isRunning: (): boolean => sources.length > 0,

    /** True if a transfer was completed, or there was no peer to transfer from. */
    isSynced: (): boolean => isSynced,

    addLimit(id: number): void {
      if (!pendingLimits.includes(id)) pendingLimits.push(id);
    },

    /** Transfers all limits from a peer, after any longer-running source. */
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
      setSynced();
    },

    stop(): void {
      sources = [];
      isPartlyMerged = false;
      reportLog.close();
      mergedPages.clear();
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
      const { cursor } = receivedPages;
      const request = { kind: 'state-request', nonce, limit: pendingLimits[0], cursor } as const;
      sender.send(source.id, request, versionOf(source));
    },

    /** Applies a page of the open request, in any order; any other page is ignored. */
    applyPage(state: MessageOf<'state'>, now: Millis): void {
      const { refillTimes, buckets, cursor, next } = state;
      const isFromSource = sources.at(0)?.id === state.from && nonce === state.nonce;
      const limit = limits.byId(state.limit);
      if (!limit || !isFromSource || pendingLimits[0] !== state.limit) return;
      if (refillTimes.length > 0 && limit.buckets !== buckets) return;
      repliedAt = now;
      if (!receivedPages.accepts(cursor, next)) {
        scheduleRequest(now);
        return;
      }
      const contents = state.included && new PageContents(state.included);
      if (contents && !canMerge(contents, now)) {
        const maxWaitMs = isSynced ? MAX_GAP_WAIT_MS : MAX_JOIN_WAIT_MS;
        if (!hasGivenUp && now - mergedAt <= maxWaitMs) return; // requested again after the interval
        hasGivenUp = true;
      }
      mergePage(state, contents, now);
      mergedAt = now;
      isPartlyMerged = true;
      receivedPages.add(cursor, next);
      scheduleRequest(now);
    },

    /** Sends pages to a peer, unless this node waits for state itself. */
    sendPages(to: Peer, request: MessageOf<'state-request'>, now: Millis): void {
      const { from, nonce, limit: id, version } = request;
      const source = sources.at(0);
      const isWaiting = catchUp.isActive || (!isSynced && source !== undefined);
      if (isWaiting && source?.id !== from) return;
      const limit = limits.byId(id);
      const buckets = limit?.buckets ?? 0;
      let { cursor } = request;
      const send = (included?: IncludedReports): void => {
        const keys = keysPerPage(buckets, included);
        for (let n = 0; n < PAGES_PER_REQUEST && (n === 0 || cursor > 0); n++) {
          const page = limit?.readPage(cursor, keys) ?? EMPTY_PAGE;
          const body = { kind: 'state', nonce, limit: id, cursor, buckets, included } as const;
          sender.send(from, { ...body, ...page }, version);
          cursor = page.next;
        }
      };
      if (version < FIELD_SINCE.included) send();
      else sendListed(to, buckets, send, now);
    },
  };
}
