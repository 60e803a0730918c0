/**
 * `sluice/web`: rate limiting for any fetch handler: Bun, Deno, Cloudflare Workers, Next.js, Elysia, h3.
 *
 *     import { rateLimit } from 'sluice/web';
 *     const limited = rateLimit({ limit: { bucket: { rate: '10/s', burst: 20 } } });
 *     Deno.serve(limited((request) => new Response('hello')));
 *
 * A handler takes a `Request` and returns a `Response`; further arguments are passed on.
 *
 * A limit on calls in flight counts a request until its response body is read to the end or cancelled, or its client
 * disconnects. So such a body is read through a stream of this adapter, except on Node, where the connection tells. Other
 * limits leave the body as it is.
 */

import type { Outcome } from '../core/decision.ts';
import { HOLD, type Permit } from '../limiter/permit.ts';
import { disconnectSignalFor, nodeBindingsOf } from './http/fetch-connection.ts';
import { type HeaderAccessor, type HeaderValues, mergeHeaders } from './http/headers.ts';
import { buildUnavailableRefusal, type RefusalResponse } from './http/refusal.ts';
import { type RequestLimiter, requestLimiter } from './http/request-limiter.ts';
import type { RequestAccessor } from './http/request-reader.ts';
import {
  type ClosableResponse,
  isAbandoned,
  isRefused,
  isStillConnected,
  markRefused,
  settleOnClose,
} from './http/response-close.ts';
import { runtimeAddressOf } from './http/runtime-address.ts';
import { type HttpOptions, type WithLimiter, withLimiter } from './http/settings.ts';

/** A fetch handler, with what its runtime passes beside the request. */
export type FetchHandler<Rest extends readonly unknown[] = readonly unknown[]> = (
  request: Request,
  ...rest: Rest
) => Response | Promise<Response>;

/** Limits a fetch handler. The result has the same arguments and always returns a promise. */
export type HandlerLimiter = <Rest extends readonly unknown[]>(
  handler: FetchHandler<Rest>,
) => (request: Request, ...rest: Rest) => Promise<Response>;

/** The value that the runtime passed beside each request, for the client's address. */
const connections = new WeakMap<Request, unknown>();

const requestAccessorFor = (nameOf: () => string): RequestAccessor<Request> => ({
  header: (request, name) => request.headers.get(name) ?? undefined,
  address: (request) => runtimeAddressOf(request, connections.get(request), nameOf()),
  message: (request) => nodeBindingsOf(connections.get(request)).incoming,
});

const HEADER_ACCESSOR: HeaderAccessor<Response> = {
  get: (response, name) => response.headers.get(name) ?? undefined,
  set: (response, name, value) => response.headers.set(name, value),
  remove: (response, name) => response.headers.delete(name),
};

/** Creates a function that limits handlers; all of them share the limit. @throws {ConfigError} if an option is invalid. */
export function rateLimit(options: HttpOptions<Request>): WithLimiter<HandlerLimiter, Request> {
  const limit: RequestLimiter<Request> = requestLimiter(
    options,
    requestAccessorFor(() => limit.limiter.name),
  );
  const limitHandler: HandlerLimiter = (handler) =>
    async function limited(request, ...rest) {
      const bindings = nodeBindingsOf(rest[0]);
      const { outgoing } = bindings;
      const handle = () => handler(request, ...rest);
      if (outgoing && isAbandoned(outgoing)) return refusalResponse(buildUnavailableRefusal());
      connections.set(request, rest[0]);
      // Only calls that wait or hold a permit read the signal: Deno prints a note when it is read.
      const watch = () => disconnectSignalFor(bindings, request.signal);
      const decision = await limit.check(request, limit.canWait ? watch : undefined);
      if (outgoing && !isStillConnected(limit, decision, outgoing))
        return refusalResponse(buildUnavailableRefusal());
      if (!decision.isAllowed) return refusalResponse(decision, outgoing);
      const { headers, permit } = decision;
      if (permit && outgoing) settleOnClose(limit, permit, request, outgoing);
      const response =
        permit && !outgoing
          ? await respondWithPermit(limit, permit, request, handle)
          : await handle();
      return headers ? withHeaders(response, headers) : response;
    };
  return withLimiter(limitHandler, limit);
}

/** The response to a refused request, marked so that an outer limit does not learn from it. */
function refusalResponse(
  { status, headers, body }: RefusalResponse,
  outgoing?: ClosableResponse,
): Response {
  const response = new Response(body, { status, headers });
  markRefused(outgoing ?? response);
  return response;
}

/** Calls the handler, and settles the permit when its response is over or its client disconnects. */
async function respondWithPermit(
  limit: RequestLimiter<Request>,
  permit: Permit,
  request: Request,
  handle: () => Response | Promise<Response>,
): Promise<Response> {
  const { signal } = request;
  const onAbort = (): void => settle('failed');
  const settle = (outcome: Outcome): void => {
    signal.removeEventListener('abort', onAbort);
    limit.settle(permit, outcome); // only the first time counts
  };
  signal.addEventListener('abort', onAbort);
  permit[HOLD](settle);
  let response: Response;
  try {
    response = await handle();
  } catch (error) {
    settle('failed');
    throw error;
  }
  const outcome = isRefused(response) ? 'ignored' : limit.outcomeOf(request, response.status);
  if (response.body === null || isUpgrade(response)) {
    settle(outcome);
    return response;
  }
  const onEnd = (isComplete: boolean): void => settle(isComplete ? outcome : 'failed');
  return copyOf(response, watchEnd(response.body, onEnd));
}

/** A copy with another body that stays marked as refused. */
function copyOf(response: Response, body: Response['body']): Response {
  const copy = new Response(body, response);
  if (isRefused(response)) markRefused(copy);
  return copy;
}

/** Copies the stream, and calls `onEnd` once, with whether it was read to its end. Reads no chunk ahead. */
function watchEnd<Chunk>(
  body: ReadableStream<Chunk>,
  onEnd: (isComplete: boolean) => void,
): ReadableStream<Chunk> {
  const reader = body.getReader();
  return new ReadableStream<Chunk>(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (!done) return controller.enqueue(value);
          onEnd(true);
          controller.close();
        } catch (error) {
          onEnd(false);
          controller.error(error);
        }
      },
      cancel(reason) {
        onEnd(false);
        return reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
}

/** A WebSocket upgrade: its response cannot be copied. */
const isUpgrade = ({ status }: Response): boolean => status === 101;

/** Adds the headers. Responses of `fetch` and `Response.redirect` have immutable headers and are copied. */
function withHeaders(response: Response, headers: HeaderValues): Response {
  if (isUpgrade(response)) return response;
  try {
    mergeHeaders(HEADER_ACCESSOR, response, headers, 'first');
    return response;
  } catch {
    const copy = copyOf(response, response.body);
    mergeHeaders(HEADER_ACCESSOR, copy, headers, 'first');
    return copy;
  }
}
