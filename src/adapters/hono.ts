/**
 * `sluice/hono`: rate limiting middleware for Hono on any runtime.
 *
 *     import { rateLimit } from 'sluice/hono';
 *     app.use(rateLimit({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * On Node the adapter finds the connection in `env`: the client's address, and when the response is sent completely. On
 * other runtimes the option `address` supplies the address, and a permit is settled when the response exists, even if its
 * body still streams.
 */

import type { Outcome } from '../core/decision.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import type { Permit } from '../limiter/permit.ts';
import { type HeaderAccessor, type HeaderValues, mergeHeaders } from './http/headers.ts';
import {
  buildUnavailableRefusal,
  type RefusalResponse,
  type RefusalStatus,
} from './http/refusal.ts';
import {
  type DisconnectSignal,
  type RequestLimiter,
  requestLimiter,
} from './http/request-limiter.ts';
import type { NodeMessage, RequestAccessor } from './http/request-reader.ts';
import {
  type ClosableResponse,
  disconnectSignalOf,
  isAbandoned,
  isRefused,
  isStillConnected,
  markRefused,
  settleOnClose,
} from './http/response-close.ts';
import type { HttpOptions } from './http/settings.ts';

/** The members of Hono's context that are used. */
export interface HonoContextLike {
  readonly req: {
    readonly method: string;
    readonly url: string;
    readonly path: string;
    header(name: string): string | undefined;
    readonly raw: { readonly signal: AbortSignal };
  };
  readonly env: unknown;
  readonly res: {
    readonly status: number;
    readonly headers: { get(name: string): string | null };
  };
  header(name: string, value?: string): void;
  body(data: string, status: RefusalStatus, headers: Record<string, string>): Response;
}

/** What `@hono/node-server` passes as `env`. */
interface NodeBindings {
  readonly incoming?: NodeMessage & {
    readonly socket?: { readonly remoteAddress?: string | undefined };
  };
  readonly outgoing?: ClosableResponse;
}

const nodeBindingsOf = ({ env }: HonoContextLike): NodeBindings => (env ?? {}) as NodeBindings;

const NO_ADDRESS_WARNING =
  'this runtime gives no client address, so all clients share one key; ' +
  'set `address`, such as (c) => getConnInfo(c).remote.address, or a `key`';

const requestAccessorFor = (nameOf: () => string): RequestAccessor<HonoContextLike> => ({
  header: (context, name) => context.req.header(name),
  address(context) {
    const { incoming } = nodeBindingsOf(context);
    if (incoming === undefined)
      emitProcessWarning('NO_ADDRESS', `limit "${nameOf()}": ${NO_ADDRESS_WARNING}`, nameOf());
    return incoming?.socket?.remoteAddress;
  },
  message: (context) => nodeBindingsOf(context).incoming,
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

/** Creates middleware. @throws {ConfigError} if an option is invalid. */
export function rateLimit<Context extends HonoContextLike>(
  options: HttpOptions<Context>,
): (context: Context, next: () => Promise<void>) => Promise<Response | undefined> {
  const limit: RequestLimiter<Context> = requestLimiter(
    options,
    requestAccessorFor(() => limit.limiter.name),
  );

  const outcomeOf = (context: Context): Outcome => {
    if (isRefused(context)) return 'ignored';
    return hasDisconnected(context) ? 'failed' : limit.outcomeOf(context, context.res.status);
  };

  /** Calls `next` and settles the permit: on close of the connection if it is known, else when the response exists. */
  const nextWithPermit = async (
    permit: Permit,
    context: Context,
    next: () => Promise<void>,
  ): Promise<void> => {
    const { outgoing } = nodeBindingsOf(context);
    if (outgoing) {
      settleOnClose(limit, permit, context, outgoing);
      return next();
    }
    let hasResponse = false;
    try {
      await next();
      hasResponse = true;
    } finally {
      limit.settle(permit, hasResponse ? outcomeOf(context) : 'failed');
    }
  };

  return async function limited(context, next) {
    if (hasDisconnected(context)) return sendRefusal(context, buildUnavailableRefusal());
    const watch = limit.canWait ? () => disconnectSignalFor(context) : undefined;
    const result = limit.check(context, watch);
    const decision = result instanceof Promise ? await result : result;
    const outgoing = result instanceof Promise ? nodeBindingsOf(context).outgoing : undefined;
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
}

function sendRefusal(
  context: HonoContextLike,
  { headers, body, status }: RefusalResponse,
): Response {
  if (!hasDisconnected(context)) markRefused(nodeBindingsOf(context).outgoing ?? context);
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

function hasDisconnected(context: HonoContextLike): boolean {
  const { outgoing } = nodeBindingsOf(context);
  return outgoing ? isAbandoned(outgoing) : context.req.raw.signal.aborted;
}

function disconnectSignalFor(context: HonoContextLike): DisconnectSignal {
  const { outgoing } = nodeBindingsOf(context);
  return outgoing
    ? disconnectSignalOf(outgoing)
    : { signal: context.req.raw.signal, dispose: () => {} };
}
