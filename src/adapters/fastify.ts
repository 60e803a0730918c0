/**
 * For Fastify: a plugin, for the whole server or for the scope it is registered in.
 *
 *     await app.register(fastify({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 */

import { Fields } from '../core/options.ts';
import {
  type Closable,
  canRefuse,
  isLeft,
  isStillThere,
  leavingOf,
  settleWhenOver,
} from './http/closing.ts';
import { type Answer, guard, joined } from './http/guard.ts';
import { type HeadersOf, IN_SMALL_LETTERS, tell } from './http/headers.ts';
import type { Reader } from './http/request.ts';
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
  readonly raw: Closable;
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

type Hook<Request> = (request: Request, reply: FastifyReplyLike, done: () => void) => void;

/** The least a server needs to have. */
export interface FastifyLike {
  addHook(name: FastifyHook, hook: never): unknown;
}

/** What `app.register` takes. */
export type FastifyPluginLike = (app: FastifyLike, options: unknown, done: () => void) => void;

const READER: Reader<FastifyRequestLike> = {
  header: (request, name) => joined(request.headers[name]),
  address: (request) => request.raw.socket.remoteAddress,
  ip: (request) => request.ip,
};

/** Fastify lowers every name it is given. Given one of small letters, it makes no new text: a µs a response. */
const small = (name: string): string => IN_SMALL_LETTERS.get(name) ?? name;

const HEADERS: HeadersOf<FastifyReplyLike> = {
  get: (reply, name) => reply.getHeader(small(name)),
  set: (reply, name, value) => void reply.header(small(name), value),
  remove: (reply, name) => void reply.removeHeader(small(name)),
};

/** A plugin. @throws {ConfigError} if an option makes no sense. */
export function fastify<Request extends FastifyRequestLike>(
  options: FastifyOptions<Request>,
): FastifyPluginLike {
  const when = new Fields('', options).oneOf('hook', HOOKS, 'onRequest');
  const { hook: _, ...rest } = options;
  const hook = hookOf(rest as HttpOptions<Request>);
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

function hookOf<Request extends FastifyRequestLike>(options: HttpOptions<Request>): Hook<Request> {
  const own = guard(options, READER);

  const act = (answer: Answer, request: Request, reply: FastifyReplyLike, done: () => void) => {
    if (!answer.go && !canRefuse(own, reply.raw)) return;
    if (answer.headers) tell(HEADERS, reply, answer.headers);
    if (!answer.go) {
      reply.code(answer.status);
      reply.send(answer.body);
      return;
    }
    if (answer.permit) settleWhenOver(own, answer.permit, request, reply.raw);
    done();
  };

  return (request, reply, done) => {
    if (isLeft(reply.raw)) return;
    const answer = own.check(request, own.waits ? () => leavingOf(reply.raw) : undefined);
    if (!(answer instanceof Promise)) return act(answer, request, reply, done);
    answer.then((late) => {
      if (!isStillThere(own, late, reply.raw)) return;
      queueMicrotask(() => act(late, request, reply, done));
    });
  };
}
