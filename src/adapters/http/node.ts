/**
 * For `node:http`, Express, and whatever else takes `(req, res, next)`.
 *
 *     app.use(express({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * The types below are the least that is needed of a request and a response: Node's own, those of
 * Express and those of HTTP/2 all have it.
 */

import type { Permit } from '../../permit.ts';
import {
  type Answer,
  type Guard,
  guard,
  joined,
  type Leaving,
  outcomeOf,
  type Reader,
} from './guard.ts';
import { type Headers, isList } from './headers.ts';
import type { Refused } from './refusal.ts';
import type { HttpOptions } from './settings.ts';

export interface NodeRequest {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
  /** Express: the client, as its setting `trust proxy` has it. */
  readonly ip?: string | undefined;
}

/** A response that somebody will finish or leave. */
export interface Closable {
  readonly statusCode: number;
  readonly destroyed?: boolean;
  /** HTTP/2 keeps it here. */
  readonly stream?: { readonly destroyed: boolean };
  readonly writableEnded: boolean;
  readonly writableFinished?: boolean;
  once(event: 'close', act: () => void): unknown;
  removeListener(event: 'close', act: () => void): unknown;
}

export interface NodeResponse extends Closable {
  statusCode: number;
  readonly headersSent: boolean;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
}

type Next = (error?: unknown) => void;

const READER: Reader<NodeRequest> = {
  header: (request, name) => joined(request.headers[name]),
  address: (request) => request.socket.remoteAddress,
  ip: (request) => request.ip,
};

/** Middleware. @throws {ConfigError} if an option makes no sense. */
export function express<Request extends NodeRequest>(
  options: HttpOptions<Request>,
): (request: Request, response: NodeResponse, next: Next) => void {
  const own = guard(options, READER);
  return function limited(request, response, next) {
    const leaving = own.waits ? () => whenClosed(response) : undefined;
    const answer = own.check(request, leaving);
    if (!(answer instanceof Promise)) return act(own, answer, response, next);
    // What `next` throws is its own, as it would be without us: not a promise nobody looks at.
    answer.then((late) => queueMicrotask(() => act(own, late, response, next)));
  };
}

function act<Request>(
  own: Guard<Request>,
  answer: Answer,
  response: NodeResponse,
  next: Next,
): void {
  if (!answer.go) {
    send(response, answer);
    return;
  }
  if (answer.headers) put(response, answer.headers);
  if (answer.permit) settleWhenClosed(own, answer.permit, response);
  next();
}

function send(response: NodeResponse, { status, headers, body }: Refused): void {
  response.statusCode = status;
  put(response, headers);
  response.end(body);
}

/** Whoever has sent its headers already goes without ours. */
function put(response: NodeResponse, headers: Headers): void {
  if (response.headersSent) return;
  for (const name in headers) {
    const before = isList(name) ? response.getHeader(name) : undefined;
    response.setHeader(name, before ? `${before}, ${headers[name]}` : headers[name]);
  }
}

/** Whoever has closed before we listened will not say so again. */
const isClosed = ({ destroyed, stream }: Closable): boolean =>
  destroyed ?? stream?.destroyed ?? false;

/** A response is closed once, whether it was finished or its client left. */
export function settleWhenClosed<Request>(
  own: Guard<Request>,
  permit: Permit,
  response: Closable,
): void {
  const settle = (): void => {
    const isFinished = response.writableFinished ?? response.writableEnded;
    own.settle(permit, outcomeOf(response.statusCode, isFinished));
  };
  if (isClosed(response)) settle();
  else response.once('close', settle);
}

/** Aborts when the connection goes before the answer. */
export function whenClosed(response: Closable): Leaving {
  const gone = new AbortController();
  const leave = (): void => gone.abort();
  if (isClosed(response)) leave();
  else response.once('close', leave);
  return { signal: gone.signal, stop: () => response.removeListener('close', leave) };
}
