/**
 * When a response is over, and how it ended.
 *
 * Node says `close` on a response, whether it was finished or its client left. There is one that
 * never hears it: a client may send a second request before the first is answered, and until its turn
 * comes the second response has no connection of its own.
 *
 *     socket ──▶ response 1 (writes)    the client leaves: Node closes this one,
 *                response 2 (in line)   and forgets these: whoever waits for `close`
 *                response 3 (in line)   on them waits for ever
 *
 * For those in line the connection itself is watched.
 */

import { ConfigError } from '../../core/errors.ts';
import type { Permit } from '../../limiter/permit.ts';
import type { DisconnectSignal, Guard, GuardResult } from './guard.ts';

interface CloseEmitter {
  once(event: 'close', act: () => void): unknown;
}

/** A response that somebody will finish or leave. */
export interface ClosableResponse extends CloseEmitter {
  readonly statusCode: number;
  readonly headersSent: boolean;
  readonly destroyed?: boolean;
  readonly writableEnded: boolean;
  readonly writableFinished?: boolean;
  /** Null while another response is ahead of it on the same connection. */
  readonly socket?: object | null;
  readonly req?: { readonly socket?: object | null };
  /** HTTP/2 keeps it here. */
  readonly stream?: { readonly destroyed: boolean } | undefined;
  destroy?(): unknown;
  removeListener(event: 'close', act: () => void): unknown;
}

type Connection = CloseEmitter & { readonly destroyed?: boolean };

/** The connection of a response that is in line for it. */
function pipelinedConnection({ socket, req }: ClosableResponse): Connection | undefined {
  if (socket) return undefined;
  const ahead = req?.socket as Partial<Connection> | null | undefined;
  return typeof ahead?.once === 'function' ? (ahead as Connection) : undefined;
}

/** Whoever has closed before we listened will not say so again. */
const isClosed = (response: ClosableResponse): boolean =>
  (response.destroyed ?? response.stream?.destroyed ?? false) ||
  (pipelinedConnection(response)?.destroyed ?? false);

/** True if its client left before anything was said: there is nobody to count, and nobody to tell. */
export const isAbandoned = (response: ClosableResponse): boolean =>
  isClosed(response) && !response.writableEnded;

/**
 * Whether all of it went out. HTTP/2 calls finished what was never begun, so it must have ended too;
 * what tests inject has no connection that could say anything.
 */
function isFullySent({
  writableEnded,
  writableFinished = true,
  socket,
}: ClosableResponse): boolean {
  const isPretended = socket != null && !('remoteAddress' in socket);
  return writableEnded && (writableFinished || isPretended);
}

/** Acts once, when the response is over; what comes back calls that off. */
function onClose(response: ClosableResponse, act: () => void): () => void {
  if (isClosed(response)) {
    act();
    return () => {};
  }
  const over = (): void => {
    stop();
    act();
  };
  const connection = pipelinedConnection(response);
  const forget = connection && onDisconnect(connection, over);
  const stop = (): void => {
    response.removeListener('close', over);
    forget?.();
  };
  response.once('close', over);
  return stop;
}

/** One listener a connection, however many responses are in line for it. */
const closeListeners = new WeakMap<Connection, Set<() => void>>();

function onDisconnect(connection: Connection, act: () => void): () => void {
  const acts = closeListeners.get(connection) ?? watchConnection(connection);
  acts.add(act);
  return () => acts.delete(act);
}

function watchConnection(connection: Connection): Set<() => void> {
  const acts = new Set<() => void>();
  closeListeners.set(connection, acts);
  connection.once('close', () => {
    for (const act of acts) act();
  });
  return acts;
}

/** Aborts when the client goes before the answer. */
export function disconnectSignalOf(response: ClosableResponse): DisconnectSignal {
  const gone = new AbortController();
  return { signal: gone.signal, dispose: onClose(response, () => gone.abort()) };
}

/** Gives the permit back when the response is over, and says how that went. */
export function settleOnClose<Request>(
  own: Guard<Request>,
  permit: Permit,
  request: Request,
  response: ClosableResponse,
): void {
  onClose(response, () => {
    if (isRefused(response)) own.settle(permit, 'ignored');
    else if (isFullySent(response)) own.settle(permit, own.outcomeOf(request, response.statusCode));
    else own.settle(permit, 'failed');
  });
}

/** Whether somebody who waited is still there when its turn comes; if not, it is somebody else's. */
export function isStillConnected<Request>(
  own: Guard<Request>,
  answer: GuardResult,
  response: ClosableResponse,
): boolean {
  if (!isAbandoned(response)) return true;
  if (answer.isAllowed && answer.permit) own.settle(answer.permit, 'ignored');
  return false;
}

/**
 * Responses that a limit of ours refused. A limit further out, which let the request through, learns
 * nothing from that: it says how often a client asks, not how the service is.
 */
const refusedResponses = new WeakSet<object>();

export const markRefused = (response: object): void => void refusedResponses.add(response);
export const isRefused = (response: object): boolean => refusedResponses.has(response);

/**
 * Whether a refusal can still be told. Whoever was answered already, or has gone, is told nothing.
 *
 * A response that has begun cannot be taken back. A refusal behind it would look like a part of it, and
 * going on would serve who was refused. So it is broken off, which its reader notices, and reported:
 * the limit stands too far back.
 */
export function canRefuse<Request>(own: Guard<Request>, response: ClosableResponse): boolean {
  if (response.writableEnded || isClosed(response)) return false;
  markRefused(response);
  if (!response.headersSent) return true;
  own.reportLateRefusal(
    new ConfigError('response', 'not begun when the limit is asked', 'one that has begun'),
  );
  response.destroy?.();
  return false;
}
