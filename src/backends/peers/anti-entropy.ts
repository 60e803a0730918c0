/**
 * Anti-entropy: once a second, a node compares bucket levels with one random peer from which it misses no reports.
 * `level-comparison.ts` applies the reply.
 *
 * After a network partition heals, one node may have all reports of a third node while another still lacks them. A
 * comparison would correct for these hits, and they would count again on arrival. So a node with a large gap neither
 * sends requests nor replies.
 */

import type { Millis } from '../../core/clock.ts';
import type { PeerContext } from './context.ts';
import { LevelComparison, MAX_COMPARED_KEYS, RecentKeys } from './level-comparison.ts';
import { ENTRY_WIDTH, type Entries, type MessageOf, type NodeId, random48 } from './messages.ts';
import type { Peer } from './peer-table.ts';

/** Interval between two successful comparisons. */
const ANTI_ENTROPY_INTERVAL_MS: Millis = 1000;

/**
 * A failed comparison is repeated after this multiple of the last reply time, within bounds. If datagrams are lost,
 * most comparisons fail. The peer that is ahead is the hardest to compare with: it reports so often that one of its
 * reports is always missing.
 */
const REPLY_TIMEOUT_FACTOR = 4;
const MIN_REPLY_TIMEOUT_MS: Millis = 20;
const MAX_REPLY_TIMEOUT_MS: Millis = 200;

export function createAntiEntropy(context: PeerContext, now: Millis) {
  const { limits, peers, random, sender, retransmitBuffer, pendingHits, prediction } = context;
  const recentKeys = new RecentKeys();
  let comparison: LevelComparison | undefined;
  let requestedAt = now;
  let replyTimeoutMs: Millis = MAX_REPLY_TIMEOUT_MS;
  let requestAt = now + ANTI_ENTROPY_INTERVAL_MS * (1 + random()); // jitter: nodes do not compare at the same time

  /** Units spent of a key, excluding pending and predicted hits. */
  const levelOf = (id: number, low: number, high: number): number => {
    const limit = limits.byId(id);
    if (!limit?.isCompared) return 0;
    const pending = pendingHits.pendingFor(id, low, high);
    return limit.level(low, high) - pending - prediction.predictedFor(id, low, high);
  };

  /** Visits the keys whose level is above 0. */
  const forEachLevel = (
    keys: Entries,
    act: (limit: number, low: number, high: number, level: number) => void,
  ): void => {
    for (let at = 0; at < keys.length; at += ENTRY_WIDTH) {
      const [limit, low, high] = keys.slice(at, at + ENTRY_WIDTH);
      const level = levelOf(limit, low, high);
      if (level > 0) act(limit, low, high, level);
    }
  };

  return {
    /** The next time to call `sendRequest`. */
    requestAt: (): Millis => requestAt,

    /** Must be called for every report that this node sends. */
    recordReported(seq: number, entries: Entries): void {
      comparison?.recordReported(seq, entries);
      recentKeys.sample(entries);
    },

    /** Must be called for every report that is counted. */
    recordReceived(from: NodeId, entries: Entries): void {
      if (comparison?.peerId === from) comparison.recordReceived(entries);
      recentKeys.sample(entries);
    },

    /** Requests the levels of recently served keys from a random peer. */
    sendRequest(now: Millis): void {
      requestedAt = now;
      requestAt = now + replyTimeoutMs;
      comparison = undefined; // a later reply would compare outdated levels
      if (recentKeys.isEmpty || peers.hasLargeGap(now)) return;
      const peer = peers.randomWithoutGaps(random, now);
      if (!peer) return;
      const started = new LevelComparison(peer.id, random48(random), retransmitBuffer.lastSeq);
      forEachLevel(recentKeys.drain(), (...entry) => started.add(...entry));
      const { nonce, entries } = started;
      if (entries.length === 0) return;
      comparison = started;
      sender.send(peer.id, { kind: 'levels-request', nonce, entries });
    },

    /** Replies if all reports of the requesting peer were counted here. */
    reply({ id, received }: Peer, request: MessageOf<'levels-request'>, now: Millis): void {
      if (!received.isComplete || peers.hasLargeGap(now)) return;
      const { nonce, entries: requested } = request;
      const entries: number[] = [];
      forEachLevel(requested.slice(0, MAX_COMPARED_KEYS * ENTRY_WIDTH), (...entry) =>
        entries.push(...entry),
      );
      if (entries.length === 0) return;
      const counted = { seq: retransmitBuffer.lastSeq, receivedSeq: received.highest };
      sender.send(id, { kind: 'levels', nonce, ...counted, entries });
    },

    /** Applies the reply to the open request, once; ignores any other reply. */
    applyReply({ id, received }: Peer, reply: MessageOf<'levels'>, now: Millis): void {
      const open = comparison;
      if (open?.peerId !== id || open.nonce !== reply.nonce) return;
      comparison = undefined;
      const timeoutMs = REPLY_TIMEOUT_FACTOR * (now - requestedAt);
      replyTimeoutMs = Math.min(MAX_REPLY_TIMEOUT_MS, Math.max(MIN_REPLY_TIMEOUT_MS, timeoutMs));
      if (!received.isComplete || received.highest !== reply.seq) return; // its level includes reports that are missing here
      const isCompared = open.applyCorrections(
        reply.entries,
        reply.receivedSeq,
        levelOf,
        (limit, low, high, by) => limits.byId(limit)?.adjustLevel(low, high, by),
      );
      if (isCompared) requestAt = now + ANTI_ENTROPY_INTERVAL_MS;
    },
  };
}
