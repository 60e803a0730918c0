/**
 * Detects when a response is over, how it ended, and whether it can still be refused.
 *
 * Node emits `close` on a response when it is finished or its client disconnects, except on pipelined responses: a client
 * may send a second request before the first is answered, and until then the second response has no socket.
 *
 *     socket ──▶ response 1 (writing)   on disconnect Node closes this one
 *                response 2 (queued)    and drops these: their `close` never comes
 *                response 3 (queued)    so the socket is watched
 */

import { ConfigError } from '../../core/errors.ts';
import { HOLD, type Permit } from '../../limiter/permit.ts';
import { type HeaderAccessor, mergeHeaders } from './headers.ts';
import type { RefusalStatus } from './refusal.ts';
import type { DisconnectSignal, RequestDecision, RequestLimiter } from './request-limiter.ts';

interface CloseEmitter {
  once(event: 'close', listener: () => void): unknown;
}

/** The members of a Node response that tell how it ended. */
export interface ClosableResponse extends CloseEmitter {
  readonly statusCode: number;
  readonly headersSent: boolean;
  readonly destroyed?: boolean;
  readonly writableEnded: boolean;
  readonly writableFinished?: boolean;
  /** Null while another response is ahead of it on the same connection. */
  readonly socket?: object | null;
  readonly req?: { readonly socket?: object | null };
  /** Where HTTP/2 has `destroyed`. */
  readonly stream?: { readonly destroyed: boolean } | undefined;
  destroy?(): unknown;
  removeListener(event: 'close', listener: () => void): unknown;
}

type Connection = CloseEmitter & { readonly destroyed?: boolean };

/** The socket that a queued response will get. */
function pipelinedConnection({ socket, req }: ClosableResponse): Connection | undefined {
  if (socket) return undefined;
  const next = req?.socket as Partial<Connection> | null | undefined;
  return typeof next?.once === 'function' ? (next as Connection) : undefined;
}

/** True if `close` was emitted before we listened. */
const isClosed = (response: ClosableResponse): boolean =>
  (response.destroyed ?? response.stream?.destroyed ?? false) ||
  (pipelinedConnection(response)?.destroyed ?? false);

/** True if the client disconnected before it was answered: the request is neither counted nor answered. */
export const isAbandoned = (response: ClosableResponse): boolean =>
  isClosed(response) && !response.writableEnded;

/**
 * True if the whole response was sent. HTTP/2 reports responses as finished that never began, so it must have ended as
 * well. Injected responses of tests have no real socket and never report it.
 */
function isFullySent({
  writableEnded,
  writableFinished = true,
  socket,
}: ClosableResponse): boolean {
  const isInjected = socket != null && !('remoteAddress' in socket);
  return writableEnded && (writableFinished || isInjected);
}

/** Calls `listener` once when the response is over; the returned function cancels that. */
function onClose(response: ClosableResponse, listener: () => void): () => void {
  if (isClosed(response)) {
    listener();
    return () => {};
  }
  const closed = (): void => {
    stop();
    listener();
  };
  const connection = pipelinedConnection(response);
  const stopWatching = connection && onDisconnect(connection, closed);
  const stop = (): void => {
    response.removeListener('close', closed);
    stopWatching?.();
  };
  response.once('close', closed);
  return stop;
}

/** One `close` listener per connection, however many responses are queued on it. */
const closeListeners = new WeakMap<Connection, Set<() => void>>();

function onDisconnect(connection: Connection, listener: () => void): () => void {
  const listeners = closeListeners.get(connection) ?? watchConnection(connection);
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function watchConnection(connection: Connection): Set<() => void> {
  const listeners = new Set<() => void>();
  closeListeners.set(connection, listeners);
  connection.once('close', () => {
    for (const listener of listeners) listener();
  });
  return listeners;
}

/** A signal that aborts when the client disconnects before it is answered. */
export function disconnectSignalOf(response: ClosableResponse): DisconnectSignal {
  const controller = new AbortController();
  return { signal: controller.signal, dispose: onClose(response, () => controller.abort()) };
}

/** Settles the permit when the response is over, with its outcome. Until then it does not expire. */
export function settleOnClose<Request>(
  limit: RequestLimiter<Request>,
  permit: Permit,
  request: Request,
  response: ClosableResponse,
): void {
  permit[HOLD](response);
  onClose(response, () => {
    if (isRefused(response)) limit.settle(permit, 'ignored');
    else if (isFullySent(response))
      limit.settle(permit, limit.outcomeOf(request, response.statusCode));
    else limit.settle(permit, 'failed');
  });
}

/** Whether the client of a request that waited is still connected; if not, its permit is returned. */
export function isStillConnected<Request>(
  limit: RequestLimiter<Request>,
  decision: RequestDecision,
  response: ClosableResponse,
): boolean {
  if (!isAbandoned(response)) return true;
  if (decision.isAllowed && decision.permit) limit.settle(decision.permit, 'ignored');
  return false;
}

/** How a framework on `node:http` is handled; `Response` is the framework's own. */
export interface NodeFramework<Response> extends HeaderAccessor<Response> {
  /** Node's response behind the framework's. */
  raw(response: Response): ClosableResponse;
  send(response: Response, status: RefusalStatus, body: string): void;
}

/** Checks a request, then sends the refusal or calls `next`; neither if its client has disconnected. */
export function limitNodeRequest<Request, Response>(
  limit: RequestLimiter<Request>,
  framework: NodeFramework<Response>,
  request: Request,
  response: Response,
  next: () => void,
): void {
  const raw = framework.raw(response);
  if (isAbandoned(raw)) return;
  const apply = (decision: RequestDecision): void => {
    if (!decision.isAllowed && !canRefuse(limit, raw)) return;
    if (decision.headers && !raw.headersSent) mergeHeaders(framework, response, decision.headers);
    if (decision.isAllowed) {
      if (decision.permit) settleOnClose(limit, decision.permit, request, raw);
      next();
    } else framework.send(response, decision.status, decision.body);
  };
  const decision = limit.check(request, limit.canWait ? () => disconnectSignalOf(raw) : undefined);
  const applyLate = (late: RequestDecision): void => {
    // Outside the promise: what `next` throws must be uncaught, as without this middleware, and not a rejection.
    if (isStillConnected(limit, late, raw)) queueMicrotask(() => apply(late));
  };
  if (decision instanceof Promise) decision.then(applyLate);
  else apply(decision);
}

/**
 * Responses that one of our limits refused. An outer limit that admitted the request must not learn from the refusal: it
 * tells how often a client sends requests, not how the service is doing.
 */
const refusedResponses = new WeakSet<object>();

export const markRefused = (response: object): void => void refusedResponses.add(response);
export const isRefused = (response: object): boolean => refusedResponses.has(response);

/**
 * Whether a refusal can still be sent. A response that is complete or closed is left as it is.
 *
 * A response that has begun cannot be replaced: a refusal would look like a part of it, and continuing would serve a
 * refused request. It is destroyed, which its client notices, and reported: the limit runs too late.
 */
function canRefuse<Request>(limit: RequestLimiter<Request>, response: ClosableResponse): boolean {
  if (response.writableEnded || isClosed(response)) return false;
  markRefused(response);
  if (!response.headersSent) return true;
  limit.reportLateRefusal(
    new ConfigError('response', 'not begun when the limit is checked', 'a response that has begun'),
  );
  response.destroy?.();
  return false;
}
