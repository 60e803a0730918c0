/**
 * For Hono, wherever it runs.
 *
 *     app.use(hono({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * On Node the adapter finds the connection by itself: its address, when it closes, and so when a
 * response is out to the last byte. Elsewhere say where an address comes from (`address`), and a
 * request counts as done when its response is made, even if the body still streams.
 */

import type { Permit } from '../../permit.ts';
import { warn } from '../../warning.ts';
import { type Guard, guard, type Leaving, outcomeOf, type Reader } from './guard.ts';
import { type Headers, isList } from './headers.ts';
import { type Closable, settleWhenClosed, whenClosed } from './node.ts';
import type { RefusalStatus } from './refusal.ts';
import type { HttpOptions } from './settings.ts';

export interface HonoContextLike {
  readonly req: {
    header(name: string): string | undefined;
    readonly raw: { readonly signal: AbortSignal };
  };
  readonly env: unknown;
  readonly res: {
    readonly status: number;
    readonly headers: { get(name: string): string | null };
  };
  header(name: string, value: string, options?: { append?: boolean }): void;
  body(data: string, status: RefusalStatus, headers: Record<string, string>): Response;
}

/** What `@hono/node-server` hands in as `env`. */
interface NodeBindings {
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string | undefined } };
  readonly outgoing?: Closable;
}

const nodeOf = ({ env }: HonoContextLike): NodeBindings => (env ?? {}) as NodeBindings;

const READER: Reader<HonoContextLike> = {
  header: (context, name) => context.req.header(name),
  address(context) {
    const { incoming } = nodeOf(context);
    if (incoming === undefined) warn('ADAPTER', NO_ADDRESS);
    return incoming?.socket?.remoteAddress;
  },
};

const NO_ADDRESS =
  'the address of a client is not known here, so all clients share one limit; ' +
  'give `address`, such as (c) => getConnInfo(c).remote.address, or a `key`';

/** Middleware. @throws {ConfigError} if an option makes no sense. */
export function hono<Context extends HonoContextLike>(
  options: HttpOptions<Context>,
): (context: Context, next: () => Promise<void>) => Promise<Response | undefined> {
  const own = guard(options, READER);
  return async function limited(context, next) {
    const found = own.check(context, own.waits ? () => leavingOf(context) : undefined);
    const answer = found instanceof Promise ? await found : found;
    const { headers } = answer;
    for (const name in headers) context.header(name, headers[name], { append: isList(name) });
    if (!answer.go) return context.body(answer.body, answer.status, {});
    if (answer.permit) await held(own, answer.permit, context, next);
    else await next();
    if (headers) keep(context, headers);
    return undefined;
  };
}

/** A handler that makes its response without the context's help leaves out what was set there. */
function keep(context: HonoContextLike, headers: Headers): void {
  try {
    for (const name in headers) {
      if (context.res.headers.get(name)?.includes(headers[name])) continue;
      context.header(name, headers[name], { append: isList(name) });
    }
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
    settleWhenClosed(own, permit, outgoing);
    return next();
  }
  let isFinished = false;
  try {
    await next();
    isFinished = !context.req.raw.signal.aborted;
  } finally {
    own.settle(permit, outcomeOf(isFinished ? context.res.status : 500, isFinished));
  }
}

function leavingOf(context: HonoContextLike): Leaving {
  const { outgoing } = nodeOf(context);
  return outgoing ? whenClosed(outgoing) : { signal: context.req.raw.signal, stop: () => {} };
}
