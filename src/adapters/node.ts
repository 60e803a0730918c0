/**
 * For `node:http`, Express, and whatever else takes `(req, res, next)`.
 *
 *     app.use(express({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * The types below are the least that is needed of a request and a response: Node's own, those of
 * Express and those of HTTP/2 all have it.
 */

import {
  type ClosableResponse,
  canRefuse,
  disconnectSignalOf,
  isAbandoned,
  isStillConnected,
  settleOnClose,
} from './http/closing.ts';
import { type Guard, type GuardResult, guard, joinHeader } from './http/guard.ts';
import { type HeaderAccessor, mergeHeaders } from './http/headers.ts';
import type { RefusalResponse } from './http/refusal.ts';
import type { RequestAccessor } from './http/request.ts';
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
export interface NodeResponse extends ClosableResponse {
  statusCode: number;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  end(body: string): unknown;
}

type Next = (error?: unknown) => void;

const ACCESSOR: RequestAccessor<NodeRequest> = {
  header: (request, name) => joinHeader(request.headers[name]),
  address: (request) => request.socket.remoteAddress,
  ip: (request) => request.ip,
};

const HEADER_ACCESSOR: HeaderAccessor<NodeResponse> = {
  get: (response, name) => response.getHeader(name),
  set: (response, name, value) => void response.setHeader(name, value),
  remove: (response, name) => void response.removeHeader(name),
};

/** Middleware. @throws {ConfigError} if an option makes no sense. */
export function express<Request extends NodeRequest>(
  options: HttpOptions<Request>,
): (request: Request, response: NodeResponse, next: Next) => void {
  const own = guard(options, ACCESSOR);
  return function limited(request, response, next) {
    if (isAbandoned(response)) return;
    const leaving = own.canWait ? () => disconnectSignalOf(response) : undefined;
    const answer = own.check(request, leaving);
    if (!(answer instanceof Promise)) return applyResult(own, answer, request, response, next);
    // What `next` throws is its own, as it would be without us: not a promise nobody looks at.
    answer.then((late) => {
      if (!isStillConnected(own, late, response)) return;
      queueMicrotask(() => applyResult(own, late, request, response, next));
    });
  };
}

function applyResult<Request>(
  own: Guard<Request>,
  answer: GuardResult,
  request: Request,
  response: NodeResponse,
  next: Next,
): void {
  if (!answer.isAllowed) {
    if (canRefuse(own, response)) sendRefusal(response, answer);
    return;
  }
  // Whoever has sent its headers already goes without ours.
  if (answer.headers && !response.headersSent)
    mergeHeaders(HEADER_ACCESSOR, response, answer.headers);
  if (answer.permit) settleOnClose(own, answer.permit, request, response);
  next();
}

function sendRefusal(response: NodeResponse, { status, headers, body }: RefusalResponse): void {
  response.statusCode = status;
  mergeHeaders(HEADER_ACCESSOR, response, headers);
  response.end(body);
}
