import type { ResponseQueue } from './response-queue.ts';
import type { Slice } from './turns.ts';

export interface ProtocolHandler {
  /**
   * Processes a chunk, which is valid until this returns. False ends the connection after the responses
   * written so far: the client quit, or the bytes violate the protocol. With a full response queue, or once
   * its slice is over, the handler keeps the rest as backlog, until it gets another chunk, possibly empty.
   */
  onData(chunk: Buffer): boolean;

  /** True if requests are kept until the response queue has capacity, or until the connection's next turn. */
  readonly hasBacklog: boolean;

  /** Tells the beginning of a request or transaction, whose end has not come, from those of others; 0: there is none. */
  readonly incompleteRequest: number;

  /** Bytes kept between chunks: an incomplete request, queued commands, the backlog. */
  readonly heldBytes: number;

  /** Drops them, and writes why the connection ends, if the protocol can tell. */
  refuse(): void;

  /** The client has closed its end: requests that wait leave their queues. */
  onDisconnect?(): void;

  /** True once the client has quit by a command: no protocol error. */
  readonly isClosedByClient?: boolean;
}

export type ProtocolFactory = (responses: ResponseQueue, slice?: Slice) => ProtocolHandler;
