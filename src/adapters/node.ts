/**
 * For `node:http`, Express, and whatever else takes `(req, res, next)`.
 *
 *     app.use(express({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * The types below are the least that is needed of a request and a response: Node's own, those of
 * Express and those of HTTP/2 all have it.
 */

import {
  type Closable,
  canRefuse,
  isLeft,
  isStillThere,
  leavingOf,
  settleWhenOver,
} from './http/closing.ts';
import { type Answer, type Guard, guard, joined } from './http/guard.ts';
import { type HeadersOf, tell } from './http/headers.ts';
import type { Refused } from './http/refusal.ts';
import type { Reader } from './http/request.ts';
import type { HttpOptions } from './http/settings.ts';

/** What is needed of a request of `node:http`, and of Express. */
export interface NodeRequest {
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  /** Express: the way of the URL, without what is asked of it. */
  readonly path?: string | undefined;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
  /** Express: the client, as its setting `trust proxy` has it. */
  readonly ip?: string | undefined;
}

/** What is needed of a response. */
export interface NodeResponse extends Closable {
  statusCode: number;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  end(body: string): unknown;
}

type Next = (error?: unknown) => void;

const READER: Reader<NodeRequest> = {
  header: (request, name) => joined(request.headers[name]),
  address: (request) => request.socket.remoteAddress,
  ip: (request) => request.ip,
};

const HEADERS: HeadersOf<NodeResponse> = {
  get: (response, name) => response.getHeader(name),
  set: (response, name, value) => void response.setHeader(name, value),
  remove: (response, name) => void response.removeHeader(name),
};

/** Middleware. @throws {ConfigError} if an option makes no sense. */
export function express<Request extends NodeRequest>(
  options: HttpOptions<Request>,
): (request: Request, response: NodeResponse, next: Next) => void {
  const own = guard(options, READER);
  return function limited(request, response, next) {
    if (isLeft(response)) return;
    const leaving = own.waits ? () => leavingOf(response) : undefined;
    const answer = own.check(request, leaving);
    if (!(answer instanceof Promise)) return act(own, answer, request, response, next);
    // What `next` throws is its own, as it would be without us: not a promise nobody looks at.
    answer.then((late) => {
      if (!isStillThere(own, late, response)) return;
      queueMicrotask(() => act(own, late, request, response, next));
    });
  };
}

function act<Request>(
  own: Guard<Request>,
  answer: Answer,
  request: Request,
  response: NodeResponse,
  next: Next,
): void {
  if (!answer.go) {
    if (canRefuse(own, response)) send(response, answer);
    return;
  }
  // Whoever has sent its headers already goes without ours.
  if (answer.headers && !response.headersSent) tell(HEADERS, response, answer.headers);
  if (answer.permit) settleWhenOver(own, answer.permit, request, response);
  next();
}

function send(response: NodeResponse, { status, headers, body }: Refused): void {
  response.statusCode = status;
  tell(HEADERS, response, headers);
  response.end(body);
}
