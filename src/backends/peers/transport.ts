/**
 * What carries datagrams between nodes: the least there is to it.
 *
 * It may lose, double, delay and reorder them; it must not cut them, and a datagram of
 * `MAX_DATAGRAM_BYTES` bytes and its seal must fit. Nothing here is ever awaited by a decision.
 */

/** How nodes of a fleet reach each other: `udp`, `nats`, `redisChannel`, or one of your own. */
export interface Transport {
  /** For people: `udp 239.0.0.1:7613`. */
  readonly name: string;
  /** True if nobody but this machine can take part. Without a key, nothing else is allowed. */
  readonly isLoopback: boolean;
  readonly counts: Readonly<TransportCounts>;
  /** Begins to listen. `onDatagram` gets every datagram and where to answer it; it never throws. */
  open(onDatagram: DatagramHandler): Promise<void>;
  /**
   * To everybody; whether that includes the sender is up to the transport. Never throws, and the bytes
   * must not change any more.
   */
  broadcast(bytes: Uint8Array): void;
  /** To whoever sent something from there; a transport that knows only everybody tells everybody. */
  send(to: string, bytes: Uint8Array): void;
  /** Nothing is heard after it, and sending does nothing. */
  close(): Promise<void>;
}

/** Takes in a datagram. The bytes are good until it returns. */
export type DatagramHandler = (bytes: Uint8Array, from: string) => void;

/** Datagrams from the start on. What goes to several places counts for each of them. */
export interface TransportCounts {
  sent: number;
  received: number;
  /** The network, or whoever stands between, would not take them. */
  failed: number;
  /** Not even tried: nobody was connected, or too much was on its way already. */
  dropped: number;
}

export const zeroCounts = (): TransportCounts => ({ sent: 0, received: 0, failed: 0, dropped: 0 });

/** Bytes on their way out at most. Beyond it datagrams are dropped: peers ask for what they miss. */
export const MAX_SEND_QUEUE_BYTES = 1024 * 1024;
