/**
 * What carries datagrams between nodes: the least there is to it.
 *
 * It may lose, double, delay and reorder them; it must not cut them, and a datagram of
 * `DATAGRAM_BYTES_MAX` bytes and its seal must fit. Nothing here is ever awaited by a decision.
 */

export interface Transport {
  /** For people: `udp 239.0.0.1:7613`. */
  readonly name: string;
  /** True if nobody but this machine can take part. Without a key, nothing else is allowed. */
  readonly isLoopback: boolean;
  /** Begins to listen. `hear` gets every datagram and where to answer it; it never throws. */
  open(hear: (bytes: Uint8Array, from: string) => void): Promise<void>;
  /** To everybody. */
  broadcast(bytes: Uint8Array): void;
  /** To whoever sent something from there; a transport that knows only everybody tells everybody. */
  send(to: string, bytes: Uint8Array): void;
  close(): Promise<void>;
}
