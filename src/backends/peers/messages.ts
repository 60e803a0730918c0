/**
 * The messages of the peer protocol. `codec.ts` encodes them.
 *
 *     hello ──▶  ◀── hello-ack             handshake, membership
 *     report, heartbeat ──▶ broadcast      gossip of hits; liveness
 *     nack ──▶  ◀── report, evicted        retransmission of missing reports
 *     state-request ──▶  ◀── state         state transfer to a new node
 *     levels-request ──▶  ◀── levels       anti-entropy
 *     controls ──▶ broadcast, or to one    bans, overrides and resets of operators
 */

import type { Random } from '../../core/random.ts';
import type { IncludedReports } from './included-reports.ts';

/** Identifies a running node: an integer from 1 to 2^48 - 1. */
export type NodeId = number;

/** 48 random bits, never 0: collisions are negligible. */
export const random48 = (random: Random): number => 1 + Math.floor(random() * (2 ** 48 - 1));

/** Recipient of a message to all nodes. */
export const BROADCAST: NodeId = 0;

/** The most peers that are known at once; further nodes are not admitted. */
export const MAX_PEERS = 4096;

/** The most ranges in one NACK. */
export const MAX_NACK_RANGES = 32;

/** Hits: limit id, low and high half of the key's hash, hits; four numbers per entry, concatenated. */
export type Entries = readonly number[];
export const ENTRY_WIDTH = 4;

/** Bucket state: low and high half of the key's hash, then the milliseconds until each bucket is full. */
export type KeyRefillTimes = readonly number[];

interface Address {
  readonly from: NodeId;
  readonly to: NodeId;
  readonly datagramSeq: number;
}

/** The header of a datagram, equal in every version. */
export interface Envelope extends Address {
  /** The version of this datagram, and the newest version that its sender speaks. */
  readonly version: number;
  readonly newest: number;
}

/** A datagram of a version that this node does not speak. */
export interface OtherVersion extends Envelope {
  readonly isHello: boolean;
}

/** A field has one meaning and one encoding (`codec.ts`) in all messages. */
export interface MessageFields {
  /** A random number that the reply repeats. */
  readonly nonce: number;
  /** Time since the sender joined. */
  readonly ageMs: number;
  /** The sender's last report; in a report its own number; in `evicted` the last report that is no longer kept. */
  readonly seq: number;
  /** The oldest kept report of those made since the receiver joined. */
  readonly first: number;
  /** Display name of the sender. */
  readonly name: string;
  readonly text: string;
  /** Above 0 in a retransmission. */
  readonly agoMs: number;
  /** Hits; in `levels` units spent instead, excluding hits that the sender has not reported. */
  readonly entries: Entries;
  /** Missing reports: pairs of first sequence number and count. */
  readonly ranges: readonly number[];
  /** The id of a limit. */
  readonly limit: number;
  readonly cursor: number;
  /** Cursor of the next page; 0 at the end. */
  readonly next: number;
  /** Buckets per key. */
  readonly buckets: number;
  readonly refillTimes: KeyRefillTimes;
  /** The reports of all nodes that a page includes; undefined in version 3. */
  readonly included: IncludedReports | undefined;
  /** The receiver's last report up to which the sender has counted all reports. */
  readonly receivedSeq: number;
}

/** The fields of each message, in wire order. A kind is sent as its position, so positions never change. */
export const MESSAGE_FIELDS = {
  /** Requests a `hello-ack`. */
  hello: ['nonce', 'ageMs'],
  /** Proof of presence. */
  'hello-ack': ['nonce', 'seq', 'first', 'ageMs', 'name'],
  /** Hits since the sender's previous report. */
  report: ['agoMs', 'seq', 'entries'],
  /** Liveness. */
  heartbeat: ['seq'],
  nack: ['ranges'],
  /** Reports up to `seq` are no longer in the sender's retransmit buffer. */
  evicted: ['seq'],
  /** Requests the keys of a limit, from a cursor on. */
  'state-request': ['nonce', 'limit', 'cursor'],
  /** One page of bucket state. */
  state: ['nonce', 'limit', 'cursor', 'next', 'buckets', 'included', 'refillTimes'],
  /** Requests the levels of these keys; the hits in the entries are ignored. */
  'levels-request': ['nonce', 'entries'],
  levels: ['nonce', 'seq', 'receivedSeq', 'entries'],
  /** Operator rules of the daemon: the protocol sends the text without reading it. */
  controls: ['text'],
} as const satisfies Readonly<Record<string, readonly (keyof MessageFields)[]>>;

/** The first version of fields that older versions do not have. */
export const FIELD_SINCE = { included: 4 } as const satisfies {
  readonly [F in keyof MessageFields]?: number;
};

export type MessageKind = keyof typeof MESSAGE_FIELDS;

export type MessageBody = {
  [K in MessageKind]: { readonly kind: K } & Pick<
    MessageFields,
    (typeof MESSAGE_FIELDS)[K][number]
  >;
}[MessageKind];

export type Message = Envelope & MessageBody;

/** A message before its version is chosen. */
export type OutgoingMessage = Address & MessageBody;

export type MessageOf<K extends MessageKind> = Extract<Message, { kind: K }>;
