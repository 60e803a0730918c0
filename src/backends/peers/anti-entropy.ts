/**
 * Who is asked how keys stand, and when: once a second somebody, by chance, of whom nothing is missing. What
 * is made of the answer is told in `recent-keys.ts`.
 *
 * After a split that is healed, one has all that a third told meanwhile and the other has yet to hear it. If
 * they compared then, what was made even would be counted once more when it comes: so whoever waits for a lot
 * neither asks nor answers.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { PeerLimits } from './limits.ts';
import { ENTRY_WIDTH, type Entries, type MessageOf, type NodeId, random48 } from './messages.ts';
import type { Peer, PeerTable } from './peer-table.ts';
import type { PendingHits } from './pending-hits.ts';
import type { PeerPrediction } from './prediction.ts';
import { LevelComparison, MAX_COMPARED_KEYS, RecentKeys } from './recent-keys.ts';
import type { RetransmitBuffer } from './retransmit-buffer.ts';
import type { DatagramSender } from './sender.ts';

/** How often it compares how keys stand with another node. */
const ANTI_ENTROPY_INTERVAL_MS: Millis = 1000;

/**
 * If that comes to nothing it tries again, after so many times as an answer took last, within bounds. Where
 * datagrams are lost most questions come to nothing, and the node that is ahead is the hardest to compare
 * with: it tells so often that something of it is always missing.
 */
const REPLY_TIMEOUT_FACTOR = 4;
const MIN_REPLY_TIMEOUT_MS: Millis = 20;
const MAX_REPLY_TIMEOUT_MS: Millis = 200;

/** What a node knows, as far as comparing needs it. */
export interface AntiEntropyContext {
  readonly sender: DatagramSender;
  readonly limits: PeerLimits;
  readonly pendingHits: PendingHits;
  readonly prediction: PeerPrediction;
  readonly peers: PeerTable;
  readonly retransmitBuffer: RetransmitBuffer;
  readonly random: Random;
}

export class AntiEntropy {
  readonly #context: AntiEntropyContext;
  /** What was served lately, and with whom that is compared. */
  readonly #recentKeys = new RecentKeys();
  #comparison: LevelComparison | undefined;
  #requestedAt: Millis;
  #replyTimeoutMs: Millis = MAX_REPLY_TIMEOUT_MS;
  /** When `ask` is to be called. */
  requestAt: Millis;

  constructor(context: AntiEntropyContext, now: Millis) {
    this.#context = context;
    this.#requestedAt = now;
    this.requestAt = now + ANTI_ENTROPY_INTERVAL_MS * (1 + context.random()); // not all of a fleet at once
  }

  /** This node told so much. */
  recordReported(seq: number, entries: Entries): void {
    this.#comparison?.recordReported(seq, entries);
    this.#recentKeys.sample(entries);
  }

  /** Another one did. */
  recordReceived(from: NodeId, entries: Entries): void {
    if (this.#comparison?.peerId === from) this.#comparison.recordReceived(entries);
    this.#recentKeys.sample(entries);
  }

  /** Asks somebody, by chance, how keys stand there that were served lately. */
  sendRequest(now: Millis): void {
    this.#requestedAt = now;
    this.requestAt = now + this.#replyTimeoutMs;
    this.#comparison = undefined; // an answer that took so long says nothing any more
    const { peers, random, sender, retransmitBuffer } = this.#context;
    if (this.#recentKeys.isEmpty || peers.hasLargeGap(now)) return;
    const other = peers.randomWithoutGaps(random, now);
    if (!other) return;
    const comparison = new LevelComparison(other.id, random48(random), retransmitBuffer.lastSeq);
    this.#forEachLevel(this.#recentKeys.drain(), (limit, low, high, level) =>
      comparison.add(limit, low, high, level),
    );
    const { nonce, entries } = comparison;
    if (entries.length === 0) return;
    this.#comparison = comparison;
    sender.send(other.id, { kind: 'levels-request', nonce, entries });
  }

  /** Answers another node's question, if everything that it told was counted here. */
  reply(
    { id, received }: Peer,
    { nonce, entries: asked }: MessageOf<'levels-request'>,
    now: Millis,
  ): void {
    if (!received.isComplete || this.#context.peers.hasLargeGap(now)) return;
    const entries: number[] = [];
    this.#forEachLevel(asked.slice(0, MAX_COMPARED_KEYS * ENTRY_WIDTH), (...entry) =>
      entries.push(...entry),
    );
    if (entries.length === 0) return;
    const counted = { seq: this.#context.retransmitBuffer.lastSeq, receivedSeq: received.highest };
    this.#context.sender.send(id, { kind: 'levels', nonce, ...counted, entries });
  }

  /** Each answer counts once, and only the one to the question that is open. True if it is that. */
  applyReply(
    peer: Peer,
    { nonce, seq, receivedSeq, entries }: MessageOf<'levels'>,
    now: Millis,
  ): boolean {
    const comparison = this.#comparison;
    if (comparison?.peerId !== peer.id || comparison.nonce !== nonce) return false;
    this.#comparison = undefined;
    const replyTimeoutMs = Math.max(
      MIN_REPLY_TIMEOUT_MS,
      REPLY_TIMEOUT_FACTOR * (now - this.#requestedAt),
    );
    this.#replyTimeoutMs = Math.min(MAX_REPLY_TIMEOUT_MS, replyTimeoutMs);
    if (!peer.received.isComplete || peer.received.highest !== seq) return true; // what it counted has yet to come
    const isCompared = comparison.applyCorrections(
      entries,
      receivedSeq,
      (limit, low, high) => this.#levelOf(limit, low, high),
      (limit, low, high, by) => this.#context.limits.byId(limit)?.adjustLevel(low, high, by),
    );
    if (isCompared) this.requestAt = now + ANTI_ENTROPY_INTERVAL_MS;
    return true;
  }

  /** Of these keys, those of which something is spent. */
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

  /** What is spent of a key, but for what nobody was told of and what nobody has served yet. */
  #levelOf(id: number, low: number, high: number): number {
    const limit = this.#context.limits.byId(id);
    if (!limit) return 0;
    const { pendingHits, prediction } = this.#context;
    return (
      limit.level(low, high) -
      pendingHits.pendingFor(id, low, high) -
      prediction.predictedFor(id, low, high)
    );
  }
}
