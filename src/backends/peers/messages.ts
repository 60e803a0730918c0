/**
 * What peers say to each other, and what they say it of. `codec.ts` makes bytes of it.
 *
 *     hello ──▶  ◀── welcome            are you there? I am
 *     report, beat ──▶ everybody        what I served; that I am still here
 *     missing ──▶  ◀── report, gone     what I did not get
 *     ask-state ──▶  ◀── state          how a newcomer learns
 *     ask-levels ──▶  ◀── levels        how nodes compare
 */

import type { Random } from '../../core/random.ts';

/** A node, for as long as it runs: a whole number below 2^48. */
export type NodeId = number;

/** A number of 48 bits that nobody else has, and never 0. */
export const random48 = (random: Random): number => 1 + Math.floor(random() * (2 ** 48 - 1));

/** To everybody. */
export const BROADCAST: NodeId = 0;

/** Which hits: limit, the key's hash in two halves, how many; four numbers each, one behind the other. */
export type Entries = readonly number[];
export const ENTRY_WIDTH = 4;

/** How keys stand: a key's hash in two halves, then in how many milliseconds each of its buckets is full. */
export type KeyRefillTimes = readonly number[];

interface Envelope {
  readonly from: NodeId;
  readonly to: NodeId;
  readonly datagramSeq: number;
}

/** What a node says, whoever it is and whomever it says it to. */
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

/** One of a kind. */
export type MessageOf<K extends MessageKind> = Extract<Message, { kind: K }>;

/** Are you there? Whoever answers with the same nonce is. I am so old. */
interface Hello {
  readonly kind: 'hello';
  readonly nonce: number;
  readonly ageMs: number;
}

/** I am, and so old. My last report was `seq`; since you are there, I made those from `first` on that I have. */
interface HelloAck {
  readonly kind: 'hello-ack';
  readonly nonce: number;
  readonly seq: number;
  readonly first: number;
  readonly ageMs: number;
  readonly name: string;
}

/** What I served since my report before; so long ago, if I say it again. */
interface Report {
  readonly kind: 'report';
  readonly agoMs: number;
  readonly seq: number;
  readonly entries: Entries;
}

/** I am still here; my last report was `seq`. */
interface Heartbeat {
  readonly kind: 'heartbeat';
  readonly seq: number;
}

/** I did not get these reports of yours: pairs of the first and how many. */
interface Nack {
  readonly kind: 'nack';
  readonly ranges: readonly number[];
}

/** Of my reports, none up to `seq` can be had any more. */
interface Evicted {
  readonly kind: 'evicted';
  readonly seq: number;
}

/** Tell me how your keys of a limit stand, from this place on, and answer with the same nonce. */
interface StateRequest {
  readonly kind: 'state-request';
  readonly nonce: number;
  readonly limit: number;
  readonly cursor: number;
}

/** How keys stand, each bucket by itself. */
interface StatePage {
  readonly kind: 'state';
  readonly nonce: number;
  readonly limit: number;
  readonly cursor: number;
  /** Where to go on; 0: that was all. */
  readonly next: number;
  /** How many buckets a key has. */
  readonly buckets: number;
  readonly refillTimes: KeyRefillTimes;
}

/** How do these keys stand with you? Their hits say nothing. */
interface LevelsRequest {
  readonly kind: 'levels-request';
  readonly nonce: number;
  readonly entries: Entries;
}

/** How they stand: instead of hits, how many are spent, but for those I told nobody of. */
interface LevelsReply {
  readonly kind: 'levels';
  readonly nonce: number;
  /** My last report. */
  readonly seq: number;
  /** Your last report that I counted, as all before it. */
  readonly receivedSeq: number;
  readonly entries: Entries;
}

export type MessageKind = Message['kind'];
