/** How a node speaks: under its own name, and each datagram with a number of its own. */

import { again, encode, type NodeId, type Said } from './wire.ts';

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
}

export type PeerCounts = Readonly<Counts>;

export class Voice {
  readonly id: NodeId;
  readonly #counts: Counts;
  readonly #send: Send;

  constructor(id: NodeId, counts: Counts, send: Send) {
    this.id = id;
    this.#counts = counts;
    this.#send = send;
  }

  /** Says it, and gives back the bytes: they can be said again. */
  say(to: NodeId, said: Said): Uint8Array {
    const bytes = encode({ from: this.id, to, count: ++this.#counts.sent, ...said });
    this.#put(to, bytes);
    return bytes;
  }

  /** Says to one node what was said before. */
  sayAgain(to: NodeId, bytes: Uint8Array): void {
    this.#put(to, again(bytes, to, ++this.#counts.sent));
  }

  #put(to: NodeId, bytes: Uint8Array): void {
    this.#counts.sentBytes += bytes.length;
    this.#send(to, bytes);
  }
}
