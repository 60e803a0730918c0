/**
 * For Fastify: a plugin, for the whole server or for the scope it is registered in.
 *
 *     await app.register(fastify({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 */

import { type Answer, guard, joined, type Reader } from './guard.ts';
import { isList } from './headers.ts';
import { type Closable, settleWhenClosed, whenClosed } from './node.ts';
import type { HttpOptions } from './settings.ts';

export interface FastifyRequestLike {
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
  send(body: string): unknown;
}

type Hook<Request> = (request: Request, reply: FastifyReplyLike, done: () => void) => void;

/** The least a server needs to have. */
export interface FastifyLike {
  addHook(name: 'onRequest', hook: never): unknown;
}

export type FastifyPluginLike = (app: FastifyLike, options: unknown, done: () => void) => void;

const READER: Reader<FastifyRequestLike> = {
  header: (request, name) => joined(request.headers[name]),
  address: (request) => request.raw.socket.remoteAddress,
  ip: (request) => request.ip,
};

/** A plugin. @throws {ConfigError} if an option makes no sense. */
export function fastify<Request extends FastifyRequestLike>(
  options: HttpOptions<Request>,
): FastifyPluginLike {
  const hook = hookOf(options);
  const plugin: FastifyPluginLike = (app, _, done) => {
    app.addHook('onRequest', hook as never);
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

  const act = (answer: Answer, reply: FastifyReplyLike, done: () => void): void => {
    for (const name in answer.headers) {
      const before = isList(name) ? reply.getHeader(name) : undefined;
      const value = answer.headers[name];
      reply.header(name, before ? `${before}, ${value}` : value);
    }
    if (!answer.go) {
      reply.code(answer.status);
      reply.send(answer.body);
      return;
    }
    if (answer.permit) settleWhenClosed(own, answer.permit, reply.raw);
    done();
  };

  return (request, reply, done) => {
    const answer = own.check(request, own.waits ? () => whenClosed(reply.raw) : undefined);
    if (!(answer instanceof Promise)) return act(answer, reply, done);
    answer.then((late) => queueMicrotask(() => act(late, reply, done)));
  };
}
