/** The types below name only the members that are used: those of `node:http`, Express and HTTP/2 all have them. */

import { joinHeader, requestLimiter } from './http/request-limiter.ts';
import type { RequestAccessor } from './http/request-reader.ts';
import {
  type ClosableResponse,
  limitNodeRequest,
  type NodeFramework,
} from './http/response-close.ts';
import { type HttpOptions, type WithLimiter, withLimiter } from './http/settings.ts';

/** The members of a `node:http` or Express request that are used. */
export interface NodeRequest {
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  /** Express: the path of the URL, without the query. */
  readonly path?: string | undefined;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly rawHeaders?: readonly string[];
  readonly socket: { readonly remoteAddress?: string | undefined };
  /** Express: the client's address according to its setting `trust proxy`. */
  readonly ip?: string | undefined;
}

/** The members of a `node:http` or Express response that are used. */
export interface NodeResponse extends ClosableResponse {
  statusCode: number;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  end(body: string): unknown;
}

type Next = (error?: unknown) => void;

/** Middleware for `app.use`. */
type NodeMiddleware<Request> = (request: Request, response: NodeResponse, next: Next) => void;

const REQUEST_ACCESSOR: RequestAccessor<NodeRequest> = {
  header: (request, name) => joinHeader(request.headers[name]),
  address: (request) => request.socket.remoteAddress,
  ip: (request) => request.ip,
  message: (request) => request,
};

const FRAMEWORK: NodeFramework<NodeResponse> = {
  raw: (response) => response,
  get: (response, name) => response.getHeader(name),
  set: (response, name, value) => void response.setHeader(name, value),
  remove: (response, name) => void response.removeHeader(name),
  send(response, status, body) {
    response.statusCode = status;
    response.end(body);
  },
};

/** Creates middleware. @throws {ConfigError} if an option is invalid. */
export function rateLimit<Request extends NodeRequest>(
  options: HttpOptions<Request>,
): WithLimiter<NodeMiddleware<Request>, Request> {
  const limit = requestLimiter(options, REQUEST_ACCESSOR);
  const limited: NodeMiddleware<Request> = (request, response, next) =>
    limitNodeRequest(limit, FRAMEWORK, request, response, next);
  return withLimiter(limited, limit);
}
