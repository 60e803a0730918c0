/**
 * Lists of reports in pages of a state transfer: they determine which page can be merged, which reports must still be
 * requested, and which reports a page of this node includes.
 */

import type { Millis } from '../../core/clock.ts';
import { setsThatFit } from './codec.ts';
import type { PeerContext } from './context.ts';
import {
  type IncludedReports,
  MAX_ORIGINS,
  type PageContents,
  type ReportSet,
} from './included-reports.ts';
import type { Peer } from './peer-table.ts';

/**
 * How long a new node that cannot merge a page exactly waits for a later one. A node whose reports cannot be listed
 * refuses requests for as long. Then they continue: without state, a node admits too much.
 */
export const MAX_JOIN_WAIT_MS: Millis = 1000;

export function createPageLists(context: PeerContext) {
  const { mergedPages, peers, reorderBuffer, reportLog, retransmitBuffer, sender } = context;

  /** Whether the page includes all reports that are counted here, except those in the log. */
  const canMerge = (contents: PageContents, now: Millis): boolean =>
    reorderBuffer.isEmpty &&
    reportLog.isCovered(contents, sender.id, 0) &&
    peers.all.every(
      (peer) =>
        now - peer.lastSeenAt > MAX_JOIN_WAIT_MS || // the peer may be gone, together with its last report
        canMergeReports(contents, peer),
    );

  const canMergeReports = (contents: PageContents, peer: Peer): boolean => {
    const { id, received, lacksHistory } = peer;
    const canRequest = received.canRewindTo(contents.contiguousTo(id));
    return reportLog.isCovered(contents, id, lacksHistory && canRequest ? 0 : received.countedTo);
  };

  /**
   * Whether reports that the page includes have not arrived here yet, so that they count for its keys only. A node that
   * was silent for longer than `silentMs` may be gone, and so may an unknown node.
   */
  const isAhead = (
    contents: PageContents,
    mergedAt: Millis,
    now: Millis,
    silentMs: Millis,
  ): boolean => {
    for (const set of contents.sets) {
      const peer = peers.get(set.origin);
      const isExpected = now - (peer?.lastSeenAt ?? mergedAt) <= silentMs;
      if (isExpected && !(peer ? peer.received.hasAll(set) : isSettled(set))) return true;
    }
    return false;
  };

  const isSettled = ({ origin }: ReportSet): boolean =>
    origin === sender.id || mergedPages.isSettled(origin);

  /** Requests reports that the page includes and this node misses, and earlier reports that are in neither. */
  const requestReports = (contents: PageContents, now: Millis): void => {
    for (const { origin, highest } of contents.sets)
      peers.get(origin)?.received.noteHighest(highest);
    for (const peer of peers.all) {
      if (peer.lacksHistory && contents.isKnown(peer.id))
        peer.received.rewindTo(contents.contiguousTo(peer.id));
      peers.updateGaps(peer, now);
    }
  };

  /** The reports counted here, those of this node and the requester first; undefined if they cannot be listed. */
  const includedReports = (
    requester: Peer,
    buckets: number,
    now: Millis,
  ): IncludedReports | undefined => {
    const own = { origin: sender.id, highest: retransmitBuffer.lastSeq, missing: [] };
    const others = peers.reporting.filter((peer) => peer !== requester);
    const sets: ReportSet[] = [own];
    for (const { id, received, lacksHistory } of [requester, ...others].slice(0, MAX_ORIGINS)) {
      const set = received.setOf(id, lacksHistory);
      if (!set || (lacksHistory && mergedPages.hasReportsOf(id, now))) return undefined; // some keys include more reports
      sets.push(set);
    }
    const isUnlisted = ({ origin }: ReportSet): boolean =>
      origin !== sender.id && !peers.get(origin);
    return setsThatFit([...sets, ...mergedPages.settledSets(now).filter(isUnlisted)], buckets);
  };

  return { canMerge, isAhead, requestReports, includedReports };
}
