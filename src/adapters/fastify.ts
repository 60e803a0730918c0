/**
 * For Fastify: a plugin, for the whole server or for the scope it is registered in.
 *
 *     await app.register(fastify({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 */

import { OptionReader } from '../core/options.ts';
import {
  type ClosableResponse,
  canRefuse,
  disconnectSignalOf,
  isAbandoned,
  isStillConnected,
  settleOnClose,
} from './http/closing.ts';
import { type GuardResult, guard, joinHeader } from './http/guard.ts';
import { type HeaderAccessor, LOWERCASE_NAMES, mergeHeaders } from './http/headers.ts';
import type { RequestAccessor } from './http/request.ts';
import type { HttpOptions } from './http/settings.ts';

export interface FastifyRequestLike {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** The client, as the server's setting `trustProxy` has it. */
  readonly ip: string;
  readonly raw: { readonly socket: { readonly remoteAddress?: string | undefined } };
}

export interface FastifyReplyLike {
  readonly raw: ClosableResponse;
  code(status: number): unknown;
  getHeader(name: string): unknown;
  header(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  send(body: string): unknown;
}

/**
 * When a request is checked: as soon as it comes (default), or right before its handler, when its
 * body is read and hooks that look up users have run.
 */
const HOOKS = ['onRequest', 'preHandler'] as const;

/** When the limit is asked. */
export type FastifyHook = (typeof HOOKS)[number];

/** Those of every framework, and the hook. */
export type FastifyOptions<Request> = HttpOptions<Request> & { readonly hook?: FastifyHook };

type HookHandler<Request> = (request: Request, reply: FastifyReplyLike, done: () => void) => void;

/** The least a server needs to have. */
export interface FastifyLike {
  addHook(name: FastifyHook, hook: never): unknown;
}

/** What `app.register` takes. */
export type FastifyPluginLike = (app: FastifyLike, options: unknown, done: () => void) => void;

const ACCESSOR: RequestAccessor<FastifyRequestLike> = {
  header: (request, name) => joinHeader(request.headers[name]),
  address: (request) => request.raw.socket.remoteAddress,
  ip: (request) => request.ip,
};

/** Fastify lowers every name it is given. Given one of small letters, it makes no new text: a µs a response. */
const toLowercaseName = (name: string): string => LOWERCASE_NAMES.get(name) ?? name;

const HEADER_ACCESSOR: HeaderAccessor<FastifyReplyLike> = {
  get: (reply, name) => reply.getHeader(toLowercaseName(name)),
  set: (reply, name, value) => void reply.header(toLowercaseName(name), value),
  remove: (reply, name) => void reply.removeHeader(toLowercaseName(name)),
};

/** A plugin. @throws {ConfigError} if an option makes no sense. */
export function fastify<Request extends FastifyRequestLike>(
  options: FastifyOptions<Request>,
): FastifyPluginLike {
  const when = new OptionReader('', options).oneOf('hook', HOOKS, 'onRequest');
  const { hook: _, ...rest } = options;
  const hook = createHook(rest as HttpOptions<Request>);
  const plugin: FastifyPluginLike = (app, _, done) => {
    app.addHook(when, hook as never);
    done();
  };
  return Object.assign(plugin, {
    // Its hook is for whoever registers it, not for a scope of its own with nothing in it.
    [Symbol.for('skip-override')]: true,
    [Symbol.for('fastify.display-name')]: 'sluice',
  });
}

function createHook<Request extends FastifyRequestLike>(
  options: HttpOptions<Request>,
): HookHandler<Request> {
  const own = guard(options, ACCESSOR);

  const act = (
    answer: GuardResult,
    request: Request,
    reply: FastifyReplyLike,
    done: () => void,
  ) => {
    if (!answer.isAllowed && !canRefuse(own, reply.raw)) return;
    if (answer.headers) mergeHeaders(HEADER_ACCESSOR, reply, answer.headers);
    if (!answer.isAllowed) {
      reply.code(answer.status);
      reply.send(answer.body);
      return;
    }
    if (answer.permit) settleOnClose(own, answer.permit, request, reply.raw);
    done();
  };

  return (request, reply, done) => {
    if (isAbandoned(reply.raw)) return;
    const answer = own.check(
      request,
      own.canWait ? () => disconnectSignalOf(reply.raw) : undefined,
    );
    if (!(answer instanceof Promise)) return act(answer, request, reply, done);
    answer.then((late) => {
      if (!isStillConnected(own, late, reply.raw)) return;
      queueMicrotask(() => act(late, request, reply, done));
    });
  };
}
