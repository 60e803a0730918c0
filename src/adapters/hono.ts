/**
 * `sluice/hono`: rate limiting middleware for Hono on any runtime.
 *
 *     import { rateLimit } from 'sluice/hono';
 *     app.use(rateLimit({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * On Node the adapter finds the connection in `env` and knows when the response is sent completely. On other runtimes a
 * permit is settled when the response exists, even if its body still streams.
 */

import type { Outcome } from '../core/decision.ts';
import { HOLD, type Permit } from '../limiter/permit.ts';
import { disconnectSignalFor, hasDisconnected, nodeBindingsOf } from './http/fetch-connection.ts';
import { type HeaderAccessor, type HeaderValues, mergeHeaders } from './http/headers.ts';
import {
  buildUnavailableRefusal,
  type RefusalResponse,
  type RefusalStatus,
} from './http/refusal.ts';
import { type RequestLimiter, requestLimiter } from './http/request-limiter.ts';
import type { RequestAccessor } from './http/request-reader.ts';
import { isRefused, isStillConnected, markRefused, settleOnClose } from './http/response-close.ts';
import { type RuntimeRequest, runtimeAddressOf } from './http/runtime-address.ts';
import { type HttpOptions, type WithLimiter, withLimiter } from './http/settings.ts';

/** The members of Hono's context that are used. */
export interface HonoContextLike {
  readonly req: {
    readonly method: string;
    readonly url: string;
    readonly path: string;
    header(name: string): string | undefined;
    readonly raw: RuntimeRequest & { readonly signal: AbortSignal };
  };
  readonly env: unknown;
  readonly res: {
    readonly status: number;
    readonly headers: { get(name: string): string | null };
  };
  header(name: string, value?: string): void;
  body(data: string, status: RefusalStatus, headers: Record<string, string>): Response;
}

const requestAccessorFor = (nameOf: () => string): RequestAccessor<HonoContextLike> => ({
  header: (context, name) => context.req.header(name),
  address: (context) => runtimeAddressOf(context.req.raw, context.env, nameOf()),
  message: (context) => nodeBindingsOf(context.env).incoming,
});

/** Headers that limits have set on the response to come. Reading them from `context.res` would create it, which is slow. */
const pendingHeaders = new WeakMap<HonoContextLike, Map<string, string>>();

const PENDING_HEADER_ACCESSOR: HeaderAccessor<HonoContextLike> = {
  get: (context, name) => pendingHeaders.get(context)?.get(name),
  set(context, name, value) {
    const pending = pendingHeaders.get(context);
    if (pending) pending.set(name, value);
    else pendingHeaders.set(context, new Map([[name, value]]));
    context.header(name, value);
  },
  remove(context, name) {
    pendingHeaders.get(context)?.delete(name);
    context.header(name);
  },
};

const SENT_HEADER_ACCESSOR: HeaderAccessor<HonoContextLike> = {
  get: (context, name) => context.res.headers.get(name) ?? undefined,
  set: (context, name, value) => context.header(name, value),
  remove: (context, name) => context.header(name),
};

/** Middleware for `app.use`. */
type HonoMiddleware<Context> = (
  context: Context,
  next: () => Promise<void>,
) => Promise<Response | undefined>;

/** Creates middleware. @throws {ConfigError} if an option is invalid. */
export function rateLimit<Context extends HonoContextLike>(
  options: HttpOptions<Context>,
): WithLimiter<HonoMiddleware<Context>, Context> {
  const limit: RequestLimiter<Context> = requestLimiter(
    options,
    requestAccessorFor(() => limit.limiter.name),
  );

  const outcomeOf = (context: Context): Outcome => {
    if (isRefused(context)) return 'ignored';
    return isGone(context) ? 'failed' : limit.outcomeOf(context, context.res.status);
  };

  /** Calls `next` and settles the permit: on close of the connection if it is known, else when the response exists. */
  const nextWithPermit = async (
    permit: Permit,
    context: Context,
    next: () => Promise<void>,
  ): Promise<void> => {
    const { outgoing } = nodeBindingsOf(context.env);
    if (outgoing) {
      settleOnClose(limit, permit, context, outgoing);
      return next();
    }
    let hasResponse = false;
    try {
      const responding = next();
      permit[HOLD](responding);
      await responding;
      hasResponse = true;
    } finally {
      limit.settle(permit, hasResponse ? outcomeOf(context) : 'failed');
    }
  };

  const limited: HonoMiddleware<Context> = async (context, next) => {
    if (isGone(context)) return sendRefusal(context, buildUnavailableRefusal());
    const watch = limit.canWait
      ? () => disconnectSignalFor(nodeBindingsOf(context.env), context.req.raw.signal)
      : undefined;
    const result = limit.check(context, watch);
    const decision = result instanceof Promise ? await result : result;
    const outgoing = result instanceof Promise ? nodeBindingsOf(context.env).outgoing : undefined;
    if (outgoing && !isStillConnected(limit, decision, outgoing))
      return sendRefusal(context, buildUnavailableRefusal());
    if (!decision.isAllowed) return sendRefusal(context, decision);
    const { headers, permit } = decision;
    if (headers) mergeHeaders(PENDING_HEADER_ACCESSOR, context, headers);
    if (permit) await nextWithPermit(permit, context, next);
    else await next();
    if (headers) restoreHeaders(context, headers);
    return undefined;
  };
  return withLimiter(limited, limit);
}

function sendRefusal(
  context: HonoContextLike,
  { headers, body, status }: RefusalResponse,
): Response {
  if (!isGone(context)) markRefused(nodeBindingsOf(context.env).outgoing ?? context);
  mergeHeaders(PENDING_HEADER_ACCESSOR, context, headers);
  return context.body(body, status, {});
}

/**
 * A handler that creates its response without the context loses the headers set there. The innermost limit runs first
 * after the handler, so each limit puts its items in front of those it finds.
 */
function restoreHeaders(context: HonoContextLike, headers: HeaderValues): void {
  try {
    mergeHeaders(SENT_HEADER_ACCESSOR, context, headers, 'first');
  } catch {
    // an immutable response, such as a WebSocket upgrade, is sent without them
  }
}

const isGone = ({ env, req }: HonoContextLike): boolean =>
  hasDisconnected(nodeBindingsOf(env), req.raw.signal);
