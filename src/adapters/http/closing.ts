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
import type { Answer, Guard, Leaving } from './guard.ts';

interface Closes {
  once(event: 'close', act: () => void): unknown;
}

/** A response that somebody will finish or leave. */
export interface Closable extends Closes {
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

type Connection = Closes & { readonly destroyed?: boolean };

/** The connection of a response that is in line for it. */
function connectionAhead({ socket, req }: Closable): Connection | undefined {
  if (socket) return undefined;
  const ahead = req?.socket as Partial<Connection> | null | undefined;
  return typeof ahead?.once === 'function' ? (ahead as Connection) : undefined;
}

/** Whoever has closed before we listened will not say so again. */
const isOver = (response: Closable): boolean =>
  (response.destroyed ?? response.stream?.destroyed ?? false) ||
  (connectionAhead(response)?.destroyed ?? false);

/** True if its client left before anything was said: there is nobody to count, and nobody to tell. */
export const isLeft = (response: Closable): boolean => isOver(response) && !response.writableEnded;

/**
 * Whether all of it went out. HTTP/2 calls finished what was never begun, so it must have ended too;
 * what tests inject has no connection that could say anything.
 */
function isFinished({ writableEnded, writableFinished = true, socket }: Closable): boolean {
  const isPretended = socket != null && !('remoteAddress' in socket);
  return writableEnded && (writableFinished || isPretended);
}

/** Acts once, when the response is over; what comes back calls that off. */
function whenOver(response: Closable, act: () => void): () => void {
  if (isOver(response)) {
    act();
    return () => {};
  }
  const over = (): void => {
    stop();
    act();
  };
  const connection = connectionAhead(response);
  const forget = connection && whenDisconnected(connection, over);
  const stop = (): void => {
    response.removeListener('close', over);
    forget?.();
  };
  response.once('close', over);
  return stop;
}

/** One listener a connection, however many responses are in line for it. */
const inLine = new WeakMap<Connection, Set<() => void>>();

function whenDisconnected(connection: Connection, act: () => void): () => void {
  const acts = inLine.get(connection) ?? watched(connection);
  acts.add(act);
  return () => acts.delete(act);
}

function watched(connection: Connection): Set<() => void> {
  const acts = new Set<() => void>();
  inLine.set(connection, acts);
  connection.once('close', () => {
    for (const act of acts) act();
  });
  return acts;
}

/** Aborts when the client goes before the answer. */
export function leavingOf(response: Closable): Leaving {
  const gone = new AbortController();
  return { signal: gone.signal, stop: whenOver(response, () => gone.abort()) };
}

/** Gives the permit back when the response is over, and says how that went. */
export function settleWhenOver<Request>(
  own: Guard<Request>,
  permit: Permit,
  request: Request,
  response: Closable,
): void {
  whenOver(response, () => {
    if (isRefused(response)) own.settle(permit, 'ignored');
    else if (isFinished(response)) own.settle(permit, own.outcomeOf(request, response.statusCode));
    else own.settle(permit, 'failed');
  });
}

/** Whether somebody who waited is still there when its turn comes; if not, it is somebody else's. */
export function isStillThere<Request>(
  own: Guard<Request>,
  answer: Answer,
  response: Closable,
): boolean {
  if (!isLeft(response)) return true;
  if (answer.go && answer.permit) own.settle(answer.permit, 'ignored');
  return false;
}

/**
 * Responses that a limit of ours refused. A limit further out, which let the request through, learns
 * nothing from that: it says how often a client asks, not how the service is.
 */
const refused = new WeakSet<object>();

export const markRefused = (response: object): void => void refused.add(response);
export const isRefused = (response: object): boolean => refused.has(response);

/**
 * Whether a refusal can still be told. Whoever was answered already, or has gone, is told nothing.
 *
 * A response that has begun cannot be taken back. A refusal behind it would look like a part of it, and
 * going on would serve who was refused. So it is broken off, which its reader notices, and reported:
 * the limit stands too far back.
 */
export function canRefuse<Request>(own: Guard<Request>, response: Closable): boolean {
  if (response.writableEnded || isOver(response)) return false;
  markRefused(response);
  if (!response.headersSent) return true;
  own.tooLate(
    new ConfigError('response', 'not begun when the limit is asked', 'one that has begun'),
  );
  response.destroy?.();
  return false;
}
