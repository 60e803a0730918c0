import { OptionReader } from '../core/options.ts';
import { LOWERCASE_NAMES } from './http/headers.ts';
import { joinHeader, RequestLimiter } from './http/request-limiter.ts';
import type { NodeMessage, RequestAccessor } from './http/request-reader.ts';
import {
  type ClosableResponse,
  limitNodeRequest,
  type NodeFramework,
} from './http/response-close.ts';
import { type HttpOptions, readSettings, type WithLimiter, withLimiter } from './http/settings.ts';

/** The members of a Fastify request that are used. */
export interface FastifyRequestLike {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** The client's address according to the server's setting `trustProxy`. */
  readonly ip: string;
  readonly raw: NodeMessage & { readonly socket: { readonly remoteAddress?: string | undefined } };
}

/** The members of a Fastify reply that are used. */
export interface FastifyReplyLike {
  readonly raw: ClosableResponse;
  code(status: number): unknown;
  getHeader(name: string): unknown;
  header(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  send(body: string): unknown;
}

const HOOKS = ['onRequest', 'preHandler'] as const;

/**
 * When a request is checked: on arrival (`onRequest`, the default), or right before its handler (`preHandler`), when its
 * body is read and hooks that authenticate users have run.
 */
export type FastifyHook = (typeof HOOKS)[number];

/** The options of all adapters, and the hook. */
export type FastifyOptions<Request> = HttpOptions<Request> & {
  readonly hook?: FastifyHook | undefined;
};

/** The members of a Fastify server that are used. */
export interface FastifyLike {
  addHook(name: FastifyHook, hook: never): unknown;
}

/** A plugin for `app.register`. */
export type FastifyPluginLike = (app: FastifyLike, options: unknown, done: () => void) => void;

const REQUEST_ACCESSOR: RequestAccessor<FastifyRequestLike> = {
  header: (request, name) => joinHeader(request.headers[name]),
  address: (request) => request.raw.socket.remoteAddress,
  ip: (request) => request.ip,
  message: (request) => request.raw,
};

/** Fastify converts every name to lower case, which allocates a string unless it is already: 1 µs per response. */
const toLowercaseName = (name: string): string => LOWERCASE_NAMES.get(name) ?? name;

const FRAMEWORK: NodeFramework<FastifyReplyLike> = {
  raw: (reply) => reply.raw,
  get: (reply, name) => reply.getHeader(toLowercaseName(name)),
  set: (reply, name, value) => void reply.header(toLowercaseName(name), value),
  remove: (reply, name) => void reply.removeHeader(toLowercaseName(name)),
  send(reply, status, body) {
    reply.code(status);
    reply.send(body);
  },
};

/** Creates a plugin. @throws {ConfigError} if an option is invalid. */
export function rateLimit<Request extends FastifyRequestLike>(
  options: FastifyOptions<Request>,
): WithLimiter<FastifyPluginLike, Request> {
  const limit = new RequestLimiter(readSettings(options, ['hook']), REQUEST_ACCESSOR);
  const hookName = new OptionReader('', options).oneOf('hook', HOOKS, 'onRequest');
  const hook = (request: Request, reply: FastifyReplyLike, done: () => void): void =>
    limitNodeRequest(limit, FRAMEWORK, request, reply, done);
  const plugin: FastifyPluginLike = (app, _, done) => {
    app.addHook(hookName, hook as never);
    done();
  };
  Object.assign(plugin, {
    // The hook belongs to the scope that registers the plugin, not to a new scope without routes.
    [Symbol.for('skip-override')]: true,
    [Symbol.for('fastify.display-name')]: 'sluice',
  });
  return withLimiter(plugin, limit);
}
