/** How a node speaks: under its own name, and each datagram with a number of its own. */

import type { Millis } from '../../core/clock.ts';
import { again, encode } from './codec.ts';
import type { NodeId, Said } from './messages.ts';

/** Sends a datagram to a node that was heard before, or to everybody. */
export type Send = (to: NodeId, bytes: Uint8Array) => void;

/** What has been sent and what came, from the start on. */
export class Counts {
  reports = 0;
  sent = 0;
  sentBytes = 0;
  received = 0;
  senseless = 0;
  duplicates = 0;
  repaired = 0;
  /** Keys with hits of limits that are not known here. */
  unknown = 0;
}

/** Messages of a fleet as one node has seen them, from the start on. */
export interface PeerCounts extends Readonly<Counts> {}

export class Voice {
  readonly id: NodeId;
  readonly #counts: Counts;
  readonly #send: Send;

  constructor(id: NodeId, counts: Counts, send: Send) {
    this.id = id;
    this.#counts = counts;
    this.#send = send;
  }

  /** Says it, and gives back the bytes: a report can be said again. */
  say(to: NodeId, said: Said): Uint8Array {
    const bytes = encode({ from: this.id, to, count: ++this.#counts.sent, ...said });
    this.#put(to, bytes);
    return bytes;
  }

  /** Says a report again to one node, so long after it was made. */
  sayAgain(to: NodeId, report: Uint8Array, agoMs: Millis): void {
    this.#put(to, again(report, to, ++this.#counts.sent, agoMs));
  }

  #put(to: NodeId, bytes: Uint8Array): void {
    this.#counts.sentBytes += bytes.length;
    this.#send(to, bytes);
  }
}
