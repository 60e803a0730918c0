/**
 * How nodes meet. Whoever is heard for the first time is asked to prove that it is there now; once it has, it is a
 * peer, and what it tells counts from a report on that both agree on.
 *
 *     hello, how old I am ───▶
 *                         ◀─── welcome, how old I am, and which of my reports you can have
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { PendingHandshakes } from './handshake.ts';
import type { ReorderBuffer } from './late-reports.ts';
import { BROADCAST, type Message, type MessageOf, type NodeId } from './messages.ts';
import type { PeerTable } from './peer-table.ts';
import { allowReply } from './response-limiter.ts';
import type { RetransmitBuffer } from './retransmit-buffer.ts';
import type { DatagramSender } from './sender.ts';
import type { PeerOptions } from './settings.ts';
import type { StateTransfer } from './state-transfer.ts';

/** Nodes that are so alike in age have begun together. */
const SIMULTANEOUS_START_MS: Millis = 500;

/** What a node knows, as far as meeting others needs it. */
interface MembershipContext {
  readonly sender: DatagramSender;
  readonly peers: PeerTable;
  readonly retransmitBuffer: RetransmitBuffer;
  readonly stateTransfer: StateTransfer;
  readonly reorderBuffer: ReorderBuffer;
  readonly random: Random;
}

export class Membership {
  readonly #context: MembershipContext;
  readonly #options: PeerOptions;
  readonly #handshakes: PendingHandshakes;
  /** Since when it takes part: since it was started, or woke up. */
  #joinedAt: Millis;

  constructor(context: MembershipContext, options: PeerOptions, now: Millis) {
    this.#context = context;
    this.#options = options;
    this.#handshakes = new PendingHandshakes(context.random, options.peerTimeoutMs);
    this.#joinedAt = now;
  }

  /** From now on it is a newcomer, and what was asked so far proves nothing any more. */
  rejoin(now: Millis): void {
    this.#joinedAt = now;
    this.#handshakes.clear();
  }

  /** Asks everybody, where it knows nobody. */
  announce(now: Millis): void {
    this.#sendHello(BROADCAST, now);
  }

  /** A node that was not heard before has to prove that it is there now. True if it did. */
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

  /** It never seems older than it is. */
  #ageMs(now: Millis): Millis {
    return Math.max(0, Math.floor(now - this.#joinedAt));
  }

  /** The answer to whoever asks. */
  sendHelloAck({ from: to, nonce, ageMs: theirs }: MessageOf<'hello'>, now: Millis): void {
    const { retransmitBuffer, sender } = this.#context;
    retransmitBuffer.evict(now);
    const { lastSeq: seq } = retransmitBuffer;
    const first = retransmitBuffer.firstSeqSince(now - theirs);
    const [ageMs, { name }] = [this.#ageMs(now), this.#options];
    sender.send(to, { kind: 'hello-ack', nonce, seq, first, ageMs, name });
  }

  /**
   * From now on it is heard. One that has just begun itself is told by a neighbour how keys stand, and
   * hears what comes from here on; others want everything the newcomer still has, and nothing from before.
   */
  #admit(ack: MessageOf<'hello-ack'>, now: Millis): boolean {
    const { from: id, datagramSeq, seq, first, ageMs, name } = ack;
    if (this.#context.peers.isFull) return false;
    this.#handshakes.remove(id);
    const ownAgeMs = now - this.#joinedAt;
    // One that was there before, and was only met late: most of what it told, the neighbour has told.
    const isOlder = ageMs > ownAgeMs && ownAgeMs < this.#options.peerTimeoutMs;
    // Those that begin together have nothing to learn from each other: each wants all that the other told.
    const areTwins = !isOlder && ownAgeMs - ageMs < SIMULTANEOUS_START_MS;
    const isWhole = !isOlder && (this.#context.stateTransfer.isSynced || areTwins);
    const who = { id, name, datagramSeq, startedAt: now - ageMs };
    const peer = this.#context.peers.add(who, isWhole ? Math.min(first - 1, seq) : seq, seq, now);
    if (!peer.received.isComplete)
      this.#context.reorderBuffer.addIfApart(peer, Math.min(ageMs, ownAgeMs), now);
    if (!isWhole || first > 1) this.#context.stateTransfer.addSource(peer, now);
    return true;
  }
}
