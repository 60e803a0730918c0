/**
 * The transport interface: carries datagrams between nodes.
 *
 * It may lose, duplicate, delay and reorder datagrams. It must not split them, and must accept datagrams of
 * `MAX_DATAGRAM_BYTES` plus the MAC. No decision waits for a transport.
 */

/** The network of a fleet: `udp`, `nats`, `redisChannel`, or a custom transport. */
export interface Transport {
  /** Display name, such as `udp 239.0.0.1:7613`. */
  readonly name: string;
  /** True if only processes on this machine can take part. Any other transport requires a key. */
  readonly isLoopback: boolean;
  readonly counts: Readonly<TransportCounts>;
  /** Starts to listen. `onDatagram` gets every datagram with the address for replies, and never throws. */
  open(onDatagram: DatagramHandler): Promise<void>;
  /** Sends to all nodes, including the sender or not. Never throws; the caller must not change the bytes afterwards. */
  broadcast(bytes: Uint8Array): void;
  /** Sends to the source of an earlier datagram; a transport without addresses broadcasts. */
  send(to: string, bytes: Uint8Array): void;
  /** Closes the transport: nothing is received after that, and sending has no effect. */
  close(): Promise<void>;
}

/** Handles a datagram. The bytes are valid until it returns. */
export type DatagramHandler = (bytes: Uint8Array, from: string) => void;

/** Datagrams since the start. A datagram to several addresses counts once for each. */
export interface TransportCounts {
  sent: number;
  received: number;
  /** Rejected by the network or by an intermediate server. */
  failed: number;
  /** Not sent: no connection, or the send queue was full. */
  dropped: number;
}

export const zeroCounts = (): TransportCounts => ({ sent: 0, received: 0, failed: 0, dropped: 0 });

/** Bytes in the send queue. Beyond it datagrams are dropped (back-pressure): peers request missing reports. */
export const MAX_SEND_QUEUE_BYTES = 1024 * 1024;

export const CLOSED_BEFORE_OPEN = 'closed before it was open';
