/**
 * For Hono, wherever it runs.
 *
 *     app.use(hono({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * On Node the adapter finds the connection by itself: its address, when it closes, and so when a
 * response is out to the last byte. Elsewhere say where an address comes from (`address`), and a
 * request counts as done when its response is made, even if the body still streams.
 */

import { warn } from '../core/process-warning.ts';
import type { Permit } from '../limiter/permit.ts';
import {
  type Closable,
  isLeft,
  isRefused,
  isStillThere,
  leavingOf,
  markRefused,
  settleWhenOver,
} from './http/closing.ts';
import { type Answer, type Guard, guard, type Leaving } from './http/guard.ts';
import { type Headers, type HeadersOf, tell } from './http/headers.ts';
import { type RefusalStatus, type Refused, refuseUnavailable } from './http/refusal.ts';
import type { Reader } from './http/request.ts';
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
  readonly outgoing?: Closable;
}

const nodeOf = ({ env }: HonoContextLike): NodeBindings => (env ?? {}) as NodeBindings;

const NO_ADDRESS =
  'the address of a client is not known here, so all clients share one key; ' +
  'give `address`, such as (c) => getConnInfo(c).remote.address, or a `key`';

const readerFor = (nameOf: () => string): Reader<HonoContextLike> => ({
  header: (context, name) => context.req.header(name),
  address(context) {
    const { incoming } = nodeOf(context);
    if (incoming === undefined) warn('NO_ADDRESS', `limit "${nameOf()}": ${NO_ADDRESS}`, nameOf());
    return incoming?.socket?.remoteAddress;
  },
});

/** What limits have put on the response to come: looking at it would make it, and slow it down. */
const said = new WeakMap<HonoContextLike, Map<string, string>>();

const COMING: HeadersOf<HonoContextLike> = {
  get: (context, name) => said.get(context)?.get(name),
  set(context, name, value) {
    const own = said.get(context);
    if (own) own.set(name, value);
    else said.set(context, new Map([[name, value]]));
    context.header(name, value);
  },
  remove(context, name) {
    said.get(context)?.delete(name);
    context.header(name);
  },
};

const MADE: HeadersOf<HonoContextLike> = {
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
    readerFor(() => own.limiter.name),
  );
  return async function limited(context, next) {
    if (hasLeft(context)) return refusing(context, refuseUnavailable());
    const found = own.check(context, own.waits ? () => leaving(context) : undefined);
    const answer = found instanceof Promise ? await onTurn(own, found, context) : found;
    if (!answer.go) return refusing(context, answer);
    const { headers, permit } = answer;
    if (headers) tell(COMING, context, headers);
    if (permit) await held(own, permit, context, next);
    else await next();
    if (headers) keep(context, headers);
    return undefined;
  };
}

/** What somebody who waited is told when its turn comes, if it is still there. */
async function onTurn<Context extends HonoContextLike>(
  own: Guard<Context>,
  found: Promise<Answer>,
  context: Context,
): Promise<Answer> {
  const answer = await found;
  const { outgoing } = nodeOf(context);
  return !outgoing || isStillThere(own, answer, outgoing) ? answer : refuseUnavailable();
}

/** What stands for the response from beginning to end. */
const responseOf = (context: HonoContextLike): object => nodeOf(context).outgoing ?? context;

function refusing(context: HonoContextLike, { headers, body, status }: Refused): Response {
  if (!hasLeft(context)) markRefused(responseOf(context));
  tell(COMING, context, headers);
  return context.body(body, status, {});
}

/**
 * A handler that makes its response without the context's help leaves out what was set there. The
 * innermost limit is the first to notice, so each puts its own in front of what it finds.
 */
function keep(context: HonoContextLike, headers: Headers): void {
  try {
    tell(MADE, context, headers, 'first');
  } catch {
    // what cannot be changed any more, such as the switch to a WebSocket, goes out as it is
  }
}

/** Goes on and settles: when the connection says so, else when the response is made. */
async function held<Context extends HonoContextLike>(
  own: Guard<Context>,
  permit: Permit,
  context: Context,
  next: () => Promise<void>,
): Promise<void> {
  const { outgoing } = nodeOf(context);
  if (outgoing) {
    settleWhenOver(own, permit, context, outgoing);
    return next();
  }
  let isMade = false;
  try {
    await next();
    isMade = true;
  } finally {
    own.settle(permit, isMade ? outcomeWhenMade(own, context) : 'failed');
  }
}

function outcomeWhenMade<Context extends HonoContextLike>(own: Guard<Context>, context: Context) {
  if (isRefused(context)) return 'ignored';
  return hasLeft(context) ? 'failed' : own.outcomeOf(context, context.res.status);
}

function hasLeft(context: HonoContextLike): boolean {
  const { outgoing } = nodeOf(context);
  return outgoing ? isLeft(outgoing) : context.req.raw.signal.aborted;
}

function leaving(context: HonoContextLike): Leaving {
  const { outgoing } = nodeOf(context);
  return outgoing ? leavingOf(outgoing) : { signal: context.req.raw.signal, stop: () => {} };
}
