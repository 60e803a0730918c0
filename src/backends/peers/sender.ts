/** How a node speaks: under its own name, and each datagram with a number of its own. */

import type { Millis } from '../../core/clock.ts';
import { encode, retransmitCopyOf } from './codec.ts';
import type { MessageBody, NodeId } from './messages.ts';

/** Sends a datagram to a node that was heard before, or to everybody. */
export type SendDatagram = (to: NodeId, bytes: Uint8Array) => void;

/** What has been sent and what came, from the start on. */
export class MessageCounts {
  reports = 0;
  sent = 0;
  sentBytes = 0;
  received = 0;
  protocolErrors = 0;
  duplicates = 0;
  repaired = 0;
  /** Keys with hits of limits that are not known here. */
  unknownLimits = 0;
}

/** Messages of a fleet as one node has seen them, from the start on. */
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

  /** Says it, and gives back the bytes: a report can be said again. */
  send(to: NodeId, body: MessageBody): Uint8Array {
    const bytes = encode({ from: this.id, to, datagramSeq: ++this.#counts.sent, ...body });
    this.#transmit(to, bytes);
    return bytes;
  }

  /** Says a report again to one node, so long after it was made. */
  retransmit(to: NodeId, report: Uint8Array, agoMs: Millis): void {
    this.#transmit(to, retransmitCopyOf(report, to, ++this.#counts.sent, agoMs));
  }

  #transmit(to: NodeId, bytes: Uint8Array): void {
    this.#counts.sentBytes += bytes.length;
    this.#send(to, bytes);
  }
}
