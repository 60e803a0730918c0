/**
 * Membership: a new node has to prove its presence by a handshake. Then it is a peer, and its reports count from a
 * sequence number on which both sides agree.
 *
 *     hello, own age ───▶
 *                    ◀─── hello-ack, own age, last report, first report that can be retransmitted
 */

import type { Millis } from '../../core/clock.ts';
import type { PeerContext } from './context.ts';
import { PendingHandshakes } from './handshake.ts';
import {
  BROADCAST,
  type Envelope,
  type Message,
  type MessageOf,
  type NodeId,
  type OtherVersion,
} from './messages.ts';
import { allowReply } from './response-limiter.ts';
import type { StateTransfer } from './state-transfer.ts';
import { hasNoCommonVersion, versionFor } from './wire-versions.ts';

/** Nodes whose ages differ by less than this have started together. */
const SIMULTANEOUS_START_MS: Millis = 500;

export function createMembership(context: PeerContext, stateTransfer: StateTransfer, now: Millis) {
  const { options, mergedPages, peers, random, reorderBuffer, retransmitBuffer, sender } = context;
  const { peerTimeoutMs, name: ownName, versions } = options;
  const handshakes = new PendingHandshakes(random, peerTimeoutMs);
  /** Time at which this node started, or resumed after a suspension. */
  let joinedAt = now;

  /** Rounded down, so that the node never appears older than it is. */
  const ageMsAt = (now: Millis): Millis => Math.max(0, Math.floor(now - joinedAt));

  const sendHello = (to: NodeId, version: number, now: Millis): void => {
    const nonce = handshakes.issueNonce(to, now);
    sender.send(to, { kind: 'hello', nonce, ageMs: ageMsAt(now) }, version);
  };

  /** Sends a `hello` in the newest version that both nodes speak, unless that node has just got one. */
  const challenge = ({ from, newest }: Envelope, now: Millis): void => {
    if (peers.isFull || now < handshakes.getOrCreate(from).helloAt) return;
    sendHello(from, versionFor(versions, newest), now);
  };

  const sendHelloAck = (hello: MessageOf<'hello'>, now: Millis): void => {
    const { from: to, nonce, ageMs: peerAgeMs, version } = hello;
    retransmitBuffer.evict(now);
    const { lastSeq: seq } = retransmitBuffer;
    const first = retransmitBuffer.firstSeqSince(now - peerAgeMs);
    const own = { ageMs: ageMsAt(now), name: ownName };
    sender.send(to, { kind: 'hello-ack', nonce, seq, first, ...own }, version);
  };

  /**
   * Adds a peer. A node that has just started gets the levels by state transfer and counts only new reports. A synced
   * node requests all reports that the new peer still has.
   */
  const admit = (ack: MessageOf<'hello-ack'>, now: Millis): boolean => {
    const { from: id, datagramSeq, newest, seq, first, ageMs, name } = ack;
    if (peers.isFull) return false;
    handshakes.remove(id);
    const ownAgeMs = now - joinedAt;
    // An older peer that was found late: the state transfer covers most of its reports.
    const isOlder = ageMs > ownAgeMs && ownAgeMs < peerTimeoutMs;
    // Nodes that start together have no state to transfer: each needs all reports of the other.
    const startedTogether = !isOlder && ownAgeMs - ageMs < SIMULTANEOUS_START_MS;
    const needsAllReports = !isOlder && (stateTransfer.isSynced() || startedTogether);
    // The transferred state of another peer includes these reports, and the peer still has the others.
    const mergedTo = mergedPages.countedTo(id, now) ?? -1;
    const isMerged = mergedTo >= first - 1;
    const verified = { id, name, newest, datagramSeq, startedAt: now - ageMs };
    const countedTo = needsAllReports ? Math.min(first - 1, seq) : seq;
    const peer = peers.add(verified, isMerged ? mergedTo : countedTo, seq, now);
    if (!peer.received.isComplete) reorderBuffer.addIfApart(peer, Math.min(ageMs, ownAgeMs), now);
    if (isMerged) peer.lacksHistory = false;
    else if (!needsAllReports || first > 1) stateTransfer.addSource(peer, now);
    return true;
  };

  return {
    /** Resets the age of this node and invalidates all nonces. */
    rejoin(now: Millis): void {
      joinedAt = now;
      handshakes.clear();
    },

    announce: (now: Millis): void => sendHello(BROADCAST, versions.oldest, now),

    sendHelloAck,

    /** Handles a message of a node that is not a peer. Returns true if it completes the handshake. */
    handleUnverified(message: Message, now: Millis): boolean {
      const { from } = message;
      if (message.kind === 'hello-ack' && handshakes.isValidReply(from, message.nonce, now))
        return admit(message, now);
      const handshake = handshakes.getOrCreate(from);
      if (message.kind === 'hello' && allowReply(handshake, 'hello', now))
        sendHelloAck(message, now);
      challenge(message, now);
      return false;
    },

    /**
     * Handles a datagram of a version that this node does not speak. Returns true if there is no common version. A
     * newer node gets no reply to its `hello`: two such nodes would reply to each other for ever.
     */
    handleOtherVersion(other: OtherVersion, now: Millis): boolean {
      if (!other.isHello || other.version < versions.oldest) challenge(other, now);
      const isIncompatible = hasNoCommonVersion(versions, other);
      if (isIncompatible) handshakes.markIncompatible(other.from);
      return isIncompatible;
    },
  };
}
