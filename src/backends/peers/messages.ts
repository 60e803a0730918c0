/**
 * The messages of the peer protocol. `codec.ts` encodes them.
 *
 *     hello ──▶  ◀── hello-ack             handshake, membership
 *     report, heartbeat ──▶ broadcast      gossip of hits; liveness
 *     nack ──▶  ◀── report, evicted        retransmission of missing reports
 *     state-request ──▶  ◀── state         state transfer to a new node
 *     levels-request ──▶  ◀── levels       anti-entropy
 */

import type { Random } from '../../core/random.ts';

/** Identifies a node while it runs: an integer from 1 to 2^48 - 1. */
export type NodeId = number;

/** 48 random bits, never 0: collisions are negligible. */
export const random48 = (random: Random): number => 1 + Math.floor(random() * (2 ** 48 - 1));

/** Recipient of a message for all nodes. */
export const BROADCAST: NodeId = 0;

/** Peers known at once; further ones are not admitted. */
export const MAX_PEERS = 4096;

/** Ranges in one NACK. */
export const MAX_NACK_RANGES = 32;

/** Hits: limit id, low and high half of the key's hash, hits; four numbers per entry, concatenated. */
export type Entries = readonly number[];
export const ENTRY_WIDTH = 4;

/** Bucket state: low and high half of the key's hash, then the milliseconds until each bucket is full. */
export type KeyRefillTimes = readonly number[];

interface Envelope {
  readonly from: NodeId;
  readonly to: NodeId;
  readonly datagramSeq: number;
}

export type MessageBody =
  | Hello
  | HelloAck
  | Report
  | Heartbeat
  | Nack
  | Evicted
  | StateRequest
  | StatePage
  | LevelsRequest
  | LevelsReply;

export type Message = Envelope & MessageBody;

export type MessageOf<K extends MessageKind> = Extract<Message, { kind: K }>;

/** Requests a `hello-ack` with the same nonce. `ageMs`: time since the sender joined. */
interface Hello {
  readonly kind: 'hello';
  readonly nonce: number;
  readonly ageMs: number;
}

/** Proof of presence. Last report: `seq`; of those made since the receiver joined, `first` is the oldest kept. */
interface HelloAck {
  readonly kind: 'hello-ack';
  readonly nonce: number;
  readonly seq: number;
  readonly first: number;
  readonly ageMs: number;
  readonly name: string;
}

/** Hits since the sender's previous report; `agoMs` is above 0 in a retransmission. */
interface Report {
  readonly kind: 'report';
  readonly agoMs: number;
  readonly seq: number;
  readonly entries: Entries;
}

/** Liveness; the sender's last report is `seq`. */
interface Heartbeat {
  readonly kind: 'heartbeat';
  readonly seq: number;
}

/** Missing reports: pairs of first sequence number and count. */
interface Nack {
  readonly kind: 'nack';
  readonly ranges: readonly number[];
}

/** The sender's reports up to `seq` are no longer in its retransmit buffer. */
interface Evicted {
  readonly kind: 'evicted';
  readonly seq: number;
}

/** Requests the keys of a limit from a cursor on; the reply repeats the nonce. */
interface StateRequest {
  readonly kind: 'state-request';
  readonly nonce: number;
  readonly limit: number;
  readonly cursor: number;
}

/** One page of bucket state. */
interface StatePage {
  readonly kind: 'state';
  readonly nonce: number;
  readonly limit: number;
  readonly cursor: number;
  /** Cursor of the next page; 0 at the end. */
  readonly next: number;
  /** Buckets per key. */
  readonly buckets: number;
  readonly refillTimes: KeyRefillTimes;
}

/** Requests the levels of these keys; the hits of the entries are ignored. */
interface LevelsRequest {
  readonly kind: 'levels-request';
  readonly nonce: number;
  readonly entries: Entries;
}

/** Levels in place of hits: units spent, without hits that the sender has not reported. */
interface LevelsReply {
  readonly kind: 'levels';
  readonly nonce: number;
  /** The sender's last report. */
  readonly seq: number;
  /** The receiver's last report that the sender has counted, with all before it. */
  readonly receivedSeq: number;
  readonly entries: Entries;
}

export type MessageKind = Message['kind'];
