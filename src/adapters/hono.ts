/**
 * For Hono, wherever it runs.
 *
 *     app.use(hono({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * On Node the adapter finds the connection by itself: its address, when it closes, and so when a
 * response is out to the last byte. Elsewhere say where an address comes from (`address`), and a
 * request counts as done when its response is made, even if the body still streams.
 */

import { emitProcessWarning } from '../core/process-warning.ts';
import type { Permit } from '../limiter/permit.ts';
import {
  type ClosableResponse,
  disconnectSignalOf,
  isAbandoned,
  isRefused,
  isStillConnected,
  markRefused,
  settleOnClose,
} from './http/closing.ts';
import { type DisconnectSignal, type Guard, type GuardResult, guard } from './http/guard.ts';
import { type HeaderAccessor, type HeaderValues, mergeHeaders } from './http/headers.ts';
import {
  buildUnavailableRefusal,
  type RefusalResponse,
  type RefusalStatus,
} from './http/refusal.ts';
import type { RequestAccessor } from './http/request.ts';
import type { HttpOptions } from './http/settings.ts';

/** The least that is needed of Hono's context. */
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

/** What `@hono/node-server` hands in as `env`. */
interface NodeBindings {
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string | undefined } };
  readonly outgoing?: ClosableResponse;
}

const nodeBindingsOf = ({ env }: HonoContextLike): NodeBindings => (env ?? {}) as NodeBindings;

const NO_ADDRESS_WARNING =
  'the address of a client is not known here, so all clients share one key; ' +
  'give `address`, such as (c) => getConnInfo(c).remote.address, or a `key`';

const accessorFor = (nameOf: () => string): RequestAccessor<HonoContextLike> => ({
  header: (context, name) => context.req.header(name),
  address(context) {
    const { incoming } = nodeBindingsOf(context);
    if (incoming === undefined)
      emitProcessWarning('NO_ADDRESS', `limit "${nameOf()}": ${NO_ADDRESS_WARNING}`, nameOf());
    return incoming?.socket?.remoteAddress;
  },
});

/** What limits have put on the response to come: looking at it would make it, and slow it down. */
const pendingHeaders = new WeakMap<HonoContextLike, Map<string, string>>();

const PENDING_HEADER_ACCESSOR: HeaderAccessor<HonoContextLike> = {
  get: (context, name) => pendingHeaders.get(context)?.get(name),
  set(context, name, value) {
    const own = pendingHeaders.get(context);
    if (own) own.set(name, value);
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

/** Middleware. @throws {ConfigError} if an option makes no sense. */
export function hono<Context extends HonoContextLike>(
  options: HttpOptions<Context>,
): (context: Context, next: () => Promise<void>) => Promise<Response | undefined> {
  const own: Guard<Context> = guard(
    options,
    accessorFor(() => own.limiter.name),
  );
  return async function limited(context, next) {
    if (hasDisconnected(context)) return sendRefusal(context, buildUnavailableRefusal());
    const found = own.check(context, own.canWait ? () => disconnectSignalFor(context) : undefined);
    const answer = found instanceof Promise ? await awaitResult(own, found, context) : found;
    if (!answer.isAllowed) return sendRefusal(context, answer);
    const { headers, permit } = answer;
    if (headers) mergeHeaders(PENDING_HEADER_ACCESSOR, context, headers);
    if (permit) await nextWithPermit(own, permit, context, next);
    else await next();
    if (headers) restoreHeaders(context, headers);
    return undefined;
  };
}

/** What somebody who waited is told when its turn comes, if it is still there. */
async function awaitResult<Context extends HonoContextLike>(
  own: Guard<Context>,
  found: Promise<GuardResult>,
  context: Context,
): Promise<GuardResult> {
  const answer = await found;
  const { outgoing } = nodeBindingsOf(context);
  return !outgoing || isStillConnected(own, answer, outgoing) ? answer : buildUnavailableRefusal();
}

/** What stands for the response from beginning to end. */
const responseIdentityOf = (context: HonoContextLike): object =>
  nodeBindingsOf(context).outgoing ?? context;

function sendRefusal(
  context: HonoContextLike,
  { headers, body, status }: RefusalResponse,
): Response {
  if (!hasDisconnected(context)) markRefused(responseIdentityOf(context));
  mergeHeaders(PENDING_HEADER_ACCESSOR, context, headers);
  return context.body(body, status, {});
}

/**
 * A handler that makes its response without the context's help leaves out what was set there. The
 * innermost limit is the first to notice, so each puts its own in front of what it finds.
 */
function restoreHeaders(context: HonoContextLike, headers: HeaderValues): void {
  try {
    mergeHeaders(SENT_HEADER_ACCESSOR, context, headers, 'first');
  } catch {
    // what cannot be changed any more, such as the switch to a WebSocket, goes out as it is
  }
}

/** Goes on and settles: when the connection says so, else when the response is made. */
async function nextWithPermit<Context extends HonoContextLike>(
  own: Guard<Context>,
  permit: Permit,
  context: Context,
  next: () => Promise<void>,
): Promise<void> {
  const { outgoing } = nodeBindingsOf(context);
  if (outgoing) {
    settleOnClose(own, permit, context, outgoing);
    return next();
  }
  let isMade = false;
  try {
    await next();
    isMade = true;
  } finally {
    own.settle(permit, isMade ? responseOutcomeOf(own, context) : 'failed');
  }
}

function responseOutcomeOf<Context extends HonoContextLike>(own: Guard<Context>, context: Context) {
  if (isRefused(context)) return 'ignored';
  return hasDisconnected(context) ? 'failed' : own.outcomeOf(context, context.res.status);
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
