/**
 * Anti-entropy: once a second, a node compares bucket levels with one random peer that it has no gaps from.
 * `level-comparison.ts` says how a reply is applied.
 *
 * After a network partition heals, one node may have all reports of a third and another may still lack them. A
 * comparison would correct for these hits, and they would count again on arrival. So a node with a large gap
 * neither sends requests nor replies.
 */

import type { Millis } from '../../core/clock.ts';
import type { PeerContext } from './context.ts';
import { LevelComparison, MAX_COMPARED_KEYS, RecentKeys } from './level-comparison.ts';
import { ENTRY_WIDTH, type Entries, type MessageOf, type NodeId, random48 } from './messages.ts';
import type { Peer } from './peer-table.ts';

/** Interval between two successful comparisons. */
const ANTI_ENTROPY_INTERVAL_MS: Millis = 1000;

/**
 * A failed comparison is repeated after this multiple of the last reply time, within bounds. Where datagrams are
 * lost, most comparisons fail. The peer that is ahead is the hardest to compare with: it reports so often that
 * one of its reports is always missing.
 */
const REPLY_TIMEOUT_FACTOR = 4;
const MIN_REPLY_TIMEOUT_MS: Millis = 20;
const MAX_REPLY_TIMEOUT_MS: Millis = 200;

export class AntiEntropy {
  readonly #context: PeerContext;
  readonly #recentKeys = new RecentKeys();
  #comparison: LevelComparison | undefined;
  #requestedAt: Millis;
  #replyTimeoutMs: Millis = MAX_REPLY_TIMEOUT_MS;
  /** When to call `sendRequest` next. */
  requestAt: Millis;

  constructor(context: PeerContext, now: Millis) {
    this.#context = context;
    this.#requestedAt = now;
    this.requestAt = now + ANTI_ENTROPY_INTERVAL_MS * (1 + context.random()); // jitter: nodes do not compare in step
  }

  /** To be called for every report that this node sends. */
  recordReported(seq: number, entries: Entries): void {
    this.#comparison?.recordReported(seq, entries);
    this.#recentKeys.sample(entries);
  }

  /** To be called for every report that is counted. */
  recordReceived(from: NodeId, entries: Entries): void {
    if (this.#comparison?.peerId === from) this.#comparison.recordReceived(entries);
    this.#recentKeys.sample(entries);
  }

  /** Requests the levels of recently served keys from a random peer. */
  sendRequest(now: Millis): void {
    this.#requestedAt = now;
    this.requestAt = now + this.#replyTimeoutMs;
    this.#comparison = undefined; // a later reply would compare outdated levels
    const { peers, random, sender, retransmitBuffer } = this.#context;
    if (this.#recentKeys.isEmpty || peers.hasLargeGap(now)) return;
    const peer = peers.randomWithoutGaps(random, now);
    if (!peer) return;
    const comparison = new LevelComparison(peer.id, random48(random), retransmitBuffer.lastSeq);
    this.#forEachLevel(this.#recentKeys.drain(), (limit, low, high, level) =>
      comparison.add(limit, low, high, level),
    );
    const { nonce, entries } = comparison;
    if (entries.length === 0) return;
    this.#comparison = comparison;
    sender.send(peer.id, { kind: 'levels-request', nonce, entries });
  }

  /** Replies if all reports of the requesting peer were counted here. */
  reply(
    { id, received }: Peer,
    { nonce, entries: requested }: MessageOf<'levels-request'>,
    now: Millis,
  ): void {
    if (!received.isComplete || this.#context.peers.hasLargeGap(now)) return;
    const entries: number[] = [];
    this.#forEachLevel(requested.slice(0, MAX_COMPARED_KEYS * ENTRY_WIDTH), (...entry) =>
      entries.push(...entry),
    );
    if (entries.length === 0) return;
    const counted = { seq: this.#context.retransmitBuffer.lastSeq, receivedSeq: received.highest };
    this.#context.sender.send(id, { kind: 'levels', nonce, ...counted, entries });
  }

  /** Applies the reply to the open request, once; ignores any other reply. */
  applyReply(
    peer: Peer,
    { nonce, seq, receivedSeq, entries }: MessageOf<'levels'>,
    now: Millis,
  ): void {
    const comparison = this.#comparison;
    if (comparison?.peerId !== peer.id || comparison.nonce !== nonce) return;
    this.#comparison = undefined;
    const timeoutMs = REPLY_TIMEOUT_FACTOR * (now - this.#requestedAt);
    this.#replyTimeoutMs = Math.min(
      MAX_REPLY_TIMEOUT_MS,
      Math.max(MIN_REPLY_TIMEOUT_MS, timeoutMs),
    );
    if (!peer.received.isComplete || peer.received.highest !== seq) return; // its level includes missing reports
    const isCompared = comparison.applyCorrections(
      entries,
      receivedSeq,
      (limit, low, high) => this.#levelOf(limit, low, high),
      (limit, low, high, by) => this.#context.limits.byId(limit)?.adjustLevel(low, high, by),
    );
    if (isCompared) this.requestAt = now + ANTI_ENTROPY_INTERVAL_MS;
  }

  /** Visits those of the keys whose level is above 0. */
  #forEachLevel(
    keys: Entries,
    act: (limit: number, low: number, high: number, level: number) => void,
  ): void {
    for (let at = 0; at < keys.length; at += ENTRY_WIDTH) {
      const [limit, low, high] = keys.slice(at, at + ENTRY_WIDTH);
      const level = this.#levelOf(limit, low, high);
      if (level > 0) act(limit, low, high, level);
    }
  }

  /** Units spent of a key, without pending and predicted hits. */
  #levelOf(id: number, low: number, high: number): number {
    const limit = this.#context.limits.byId(id);
    if (!limit) return 0;
    const pending = this.#context.pendingHits.pendingFor(id, low, high);
    return limit.level(low, high) - pending - this.#context.prediction.predictedFor(id, low, high);
  }
}
