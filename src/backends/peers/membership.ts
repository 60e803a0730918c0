/**
 * Membership: a new node has to prove its presence by a handshake. Then it is a peer, and its reports count from
 * a sequence number that both sides agree on.
 *
 *     hello, own age ───▶
 *                    ◀─── hello-ack, own age, last report, first report that can be retransmitted
 */

import type { Millis } from '../../core/clock.ts';
import type { PeerContext } from './context.ts';
import { PendingHandshakes } from './handshake.ts';
import { BROADCAST, type Message, type MessageOf, type NodeId } from './messages.ts';
import { allowReply } from './response-limiter.ts';
import type { StateTransfer } from './state-transfer.ts';

/** Nodes whose ages differ by less than this have started together. */
const SIMULTANEOUS_START_MS: Millis = 500;

export class Membership {
  readonly #context: PeerContext;
  readonly #stateTransfer: StateTransfer;
  readonly #handshakes: PendingHandshakes;
  /** When this node started, or resumed after a suspension. */
  #joinedAt: Millis;

  constructor(context: PeerContext, stateTransfer: StateTransfer, now: Millis) {
    this.#context = context;
    this.#stateTransfer = stateTransfer;
    this.#handshakes = new PendingHandshakes(context.random, context.options.peerTimeoutMs);
    this.#joinedAt = now;
  }

  /** Resets the age of this node and invalidates all nonces. */
  rejoin(now: Millis): void {
    this.#joinedAt = now;
    this.#handshakes.clear();
  }

  announce(now: Millis): void {
    this.#sendHello(BROADCAST, now);
  }

  /** Handles a message of a node that is not a peer. True if it completes the handshake. */
  handleUnverified(message: Message, now: Millis): boolean {
    const { from } = message;
    if (message.kind === 'hello-ack' && this.#handshakes.isValidReply(from, message.nonce, now)) {
      return this.#admit(message, now);
    }
    const handshake = this.#handshakes.getOrCreate(from);
    if (message.kind === 'hello' && allowReply(handshake, 'hello', now)) {
      this.sendHelloAck(message, now);
    }
    if (this.#context.peers.isFull || now < handshake.helloAt) return false;
    this.#sendHello(from, now);
    return false;
  }

  #sendHello(to: NodeId, now: Millis): void {
    const nonce = this.#handshakes.issueNonce(to, now);
    this.#context.sender.send(to, { kind: 'hello', nonce, ageMs: this.#ageMs(now) });
  }

  /** Rounded down, so that the node never seems older than it is. */
  #ageMs(now: Millis): Millis {
    return Math.max(0, Math.floor(now - this.#joinedAt));
  }

  sendHelloAck({ from: to, nonce, ageMs: peerAgeMs }: MessageOf<'hello'>, now: Millis): void {
    const { retransmitBuffer, sender } = this.#context;
    retransmitBuffer.evict(now);
    const { lastSeq: seq } = retransmitBuffer;
    const first = retransmitBuffer.firstSeqSince(now - peerAgeMs);
    const [ageMs, { name }] = [this.#ageMs(now), this.#context.options];
    sender.send(to, { kind: 'hello-ack', nonce, seq, first, ageMs, name });
  }

  /**
   * Adds a peer. A node that has just started gets the levels by state transfer and counts only new reports. A
   * synced node requests all reports that the new peer still has.
   */
  #admit(ack: MessageOf<'hello-ack'>, now: Millis): boolean {
    const { from: id, datagramSeq, seq, first, ageMs, name } = ack;
    const { peers, reorderBuffer, options } = this.#context;
    if (peers.isFull) return false;
    this.#handshakes.remove(id);
    const ownAgeMs = now - this.#joinedAt;
    // An older peer that was found late: the state transfer covers most of its reports.
    const isOlder = ageMs > ownAgeMs && ownAgeMs < options.peerTimeoutMs;
    // Nodes that start together have no state to transfer: each needs all reports of the other.
    const startedTogether = !isOlder && ownAgeMs - ageMs < SIMULTANEOUS_START_MS;
    const needsAllReports = !isOlder && (this.#stateTransfer.isSynced || startedTogether);
    const verified = { id, name, datagramSeq, startedAt: now - ageMs };
    const countedTo = needsAllReports ? Math.min(first - 1, seq) : seq;
    const peer = peers.add(verified, countedTo, seq, now);
    if (!peer.received.isComplete) reorderBuffer.addIfApart(peer, Math.min(ageMs, ownAgeMs), now);
    if (!needsAllReports || first > 1) this.#stateTransfer.addSource(peer, now);
    return true;
  }
}
