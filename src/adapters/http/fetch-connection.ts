/**
 * The connection behind a request of a fetch handler: whether its client is still there, and when its response is over.
 *
 * Hono's server for Node passes Node's own request and response beside a fetch request. They know more than the signal of
 * the request: when the response is sent completely, and that a pipelined request has lost its client.
 */

import type { DisconnectSignal } from './request-limiter.ts';
import type { NodeMessage } from './request-reader.ts';
import { type ClosableResponse, disconnectSignalOf, isAbandoned } from './response-close.ts';

/** The bindings that `@hono/node-server` passes beside a request. */
export interface NodeBindings {
  readonly incoming?: NodeMessage;
  readonly outgoing?: ClosableResponse;
}

export const nodeBindingsOf = (connection: unknown): NodeBindings =>
  (connection ?? {}) as NodeBindings;

export function hasDisconnected({ outgoing }: NodeBindings, signal: AbortSignal): boolean {
  return outgoing ? isAbandoned(outgoing) : signal.aborted;
}

export const disconnectSignalFor = (
  { outgoing }: NodeBindings,
  signal: AbortSignal,
): DisconnectSignal => (outgoing ? disconnectSignalOf(outgoing) : { signal, dispose: () => {} });
