/** Encodes and sends this node's messages; every datagram gets the next sequence number. */

import type { Millis } from '../../core/clock.ts';
import { encode, retransmitCopyOf } from './codec.ts';
import type { MessageBody, NodeId } from './messages.ts';

/** Sends a datagram to a known node, or to `BROADCAST`. */
export type SendDatagram = (to: NodeId, bytes: Uint8Array) => void;

/** Message counters since the start. */
export class MessageCounts {
  reports = 0;
  sent = 0;
  sentBytes = 0;
  received = 0;
  /** Datagrams that could not be decoded. */
  protocolErrors = 0;
  /** Replayed datagrams, and reports that arrived twice. */
  duplicates = 0;
  /** Missing reports that arrived after all. */
  repaired = 0;
  /** Entries of received reports whose limit does not exist here. */
  unknownLimits = 0;
}

/** Message counters of one node since its start. */
export interface PeerCounts extends Readonly<MessageCounts> {}

export class DatagramSender {
  readonly id: NodeId;
  readonly #counts: MessageCounts;
  readonly #send: SendDatagram;

  constructor(id: NodeId, counts: MessageCounts, send: SendDatagram) {
    this.id = id;
    this.#counts = counts;
    this.#send = send;
  }

  /** Returns the bytes: a report is kept for retransmission. */
  send(to: NodeId, body: MessageBody): Uint8Array {
    const bytes = encode({ from: this.id, to, datagramSeq: ++this.#counts.sent, ...body });
    this.#transmit(to, bytes);
    return bytes;
  }

  /** Sends a report again to one node, `agoMs` after it was made. */
  retransmit(to: NodeId, report: Uint8Array, agoMs: Millis): void {
    this.#transmit(to, retransmitCopyOf(report, to, ++this.#counts.sent, agoMs));
  }

  #transmit(to: NodeId, bytes: Uint8Array): void {
    this.#counts.sentBytes += bytes.length;
    this.#send(to, bytes);
  }
}
