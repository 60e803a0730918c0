import type { Millis } from '../../core/clock.ts';
import { decode, encode, retransmitCopyOf } from './codec.ts';
import type { Message, MessageBody, NodeId } from './messages.ts';
import { versionFor, type WireVersions } from './wire-versions.ts';

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
  /** Datagrams of a wire version that this node does not speak. */
  otherVersion = 0;
  /** Replayed datagrams, and reports that arrived twice. */
  duplicates = 0;
  /** Missing reports that arrived later. */
  repaired = 0;
  /** Entries of received reports whose limit does not exist here. */
  unknownLimits = 0;
}

/** Message counters of one node since its start. */
export interface PeerCounts extends Readonly<MessageCounts> {}

export class DatagramSender {
  readonly id: NodeId;
  readonly #counts: MessageCounts;
  readonly #versions: WireVersions;
  readonly #send: SendDatagram;
  #version: number;

  constructor(id: NodeId, counts: MessageCounts, versions: WireVersions, send: SendDatagram) {
    this.id = id;
    this.#counts = counts;
    this.#versions = versions;
    this.#send = send;
    this.#version = versions.newest;
  }

  /** The wire version of datagrams to peers. */
  get version(): number {
    return this.#version;
  }

  /** Switches to the newest version that all nodes can read; the oldest of them speaks up to `newest`. */
  useVersionFor(newest: number): void {
    this.#version = versionFor(this.#versions, newest);
  }

  /** Sends a message and returns its bytes: a report is kept for retransmission. */
  send(to: NodeId, body: MessageBody, version = this.#version): Uint8Array {
    const message = { from: this.id, to, datagramSeq: ++this.#counts.sent, ...body };
    const bytes = encode(message, version, this.#versions.newest);
    this.#transmit(to, bytes);
    return bytes;
  }

  /** Retransmits a report to one node, `agoMs` after it was made. */
  retransmit(to: NodeId, report: Uint8Array, agoMs: Millis): void {
    const [madeFor] = report;
    const readable = madeFor > this.#version ? this.#inCurrentVersion(report) : report;
    this.#transmit(to, retransmitCopyOf(readable, to, ++this.#counts.sent, agoMs));
  }

  /** Converts a report that was made before a peer joined that speaks only older versions. */
  #inCurrentVersion(report: Uint8Array): Uint8Array {
    const message = decode(report, this.#versions) as Message;
    return encode(message, this.#version, this.#versions.newest);
  }

  #transmit(to: NodeId, bytes: Uint8Array): void {
    this.#counts.sentBytes += bytes.length;
    this.#send(to, bytes);
  }
}
