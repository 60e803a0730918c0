/**
 * What a surface on a stream is: bytes in, answers out. It meets no socket, so that a test, or a
 * million random bytes, can talk to it directly.
 */

import type { ResponseQueue } from './response-queue.ts';

export interface ProtocolHandler {
  /**
   * Takes in what came and answers what can be answered. False: what came makes no sense to go on
   * with; whatever was answered by then is sent, and the connection ends. The chunk is good until this
   * returns. Once the answers are full it keeps the rest and is behind, until it hears more or nothing.
   */
  onData(chunk: Buffer): boolean;

  /** True if there are questions that it has kept for when there is room for answers. */
  readonly hasBacklog: boolean;

  /** True once the client has ended it in so many words: then there was nothing wrong. */
  readonly isClosedByClient?: boolean;
}

/** Begins to talk with somebody new. */
export type ProtocolFactory = (responses: ResponseQueue) => ProtocolHandler;
