/**
 * The same small server in several frameworks, for tests that run over all of them: real frameworks and connections, on a
 * free port of the loopback interface.
 */

import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { createAdaptorServer } from '@hono/node-server';
import { All, Controller, Module, Req, Res } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ExpressAdapter } from '@nestjs/platform-express';
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify';
import expressApp from 'express';
import fastifyApp from 'fastify';
import { Hono } from 'hono';
import { rateLimit as express } from '../../src/adapters/express.ts';
import { rateLimit as fastify } from '../../src/adapters/fastify.ts';
import { rateLimit as hono } from '../../src/adapters/hono.ts';
import type { HttpOptions, WithLimiter } from '../../src/adapters/http/index.ts';
import { type NestRequest, rateLimitGuard } from '../../src/adapters/nest.ts';
import { rateLimit as node } from '../../src/adapters/node.ts';
import { type FetchHandler, rateLimit as web } from '../../src/adapters/web.ts';
import type { Inspection } from '../../src/limiter/inspection.ts';

/** Options that do not depend on the type of the request. */
export type AnyOptions = HttpOptions<unknown>;

/** What the first middleware knows of the request. */
export interface RequestState {
  keyOf(): string;
  report(attempt: 'success' | 'failure'): unknown;
  inspect(): Inspection | Promise<Inspection | undefined>;
}

/** The status for a path, now or as a promise; may throw. */
export type Handler = (path: string, state: RequestState) => number | Promise<number>;

const stateOf = <Request>(
  limited: WithLimiter<object, Request>,
  request: Request,
): RequestState => ({
  keyOf: () => limited.keyOf(request),
  report: (attempt) => limited.report(request, attempt),
  inspect: () => limited.inspect(request),
});

export interface RunningServer {
  readonly url: string;
  close(): Promise<void>;
}

/** `host`: `::` takes connections of IPv4 too, as a server without a host does. */
type StartServer = (
  options: readonly AnyOptions[],
  handle: Handler,
  host?: string,
) => Promise<RunningServer>;

export const HTTP_SERVERS: Readonly<Record<string, StartServer>> = {
  'node:http': (options, handle, host) => {
    const limits = options.map((each) => node(each));
    const [first, second = (_: unknown, __: unknown, next: () => void) => next()] = limits;
    const server = createServer((request, response) => {
      first(request, response, () =>
        second(request, response, async () => {
          try {
            response.statusCode = await handle(request.url ?? '', stateOf(limits[0], request));
          } catch {
            response.statusCode = 500;
          }
          response.end('done');
        }),
      );
    });
    return listenOnFreePort(server, host);
  },

  express: (options, handle, host) => {
    const app = expressApp();
    app.set('env', 'test'); // otherwise it prints errors
    const limits = options.map((each) => express(each));
    for (const limited of limits) app.use(limited);
    app.use(async (request, response) => {
      response.status(await handle(request.url, stateOf(limits[0], request))).send('done');
    });
    return listenOnFreePort(createServer(app), host);
  },

  fastify: async (options, handle, host) => {
    const app = fastifyApp();
    const limits = options.map((each) => fastify(each));
    for (const limited of limits) await app.register(limited);
    app.all('/*', async (request, reply) => {
      const status = await handle(request.url, stateOf(limits[0], request));
      return reply.code(status).send('done');
    });
    await app.ready();
    await app.listen({ port: 0, host: host ?? '127.0.0.1' });
    return runningServer(app.server, () => app.close());
  },

  hono: (options, handle, host) => {
    const app = new Hono();
    const limits = options.map((each) => hono(each));
    for (const limited of limits) app.use(limited);
    app.onError((_, c) => c.text('failed', 500));
    app.all('*', async (c) =>
      c.text('done', (await handle(c.req.path, stateOf(limits[0], c))) as 200),
    );
    return listenOnFreePort(createAdaptorServer({ fetch: app.fetch }) as Server, host);
  },

  'fetch handler': (options, handle, host) => {
    const limits = options.map((each) => web(each));
    const respond: FetchHandler = async (request) => {
      try {
        const { pathname, search } = new URL(request.url);
        const state = stateOf(limits[0], request);
        return new Response('done', { status: await handle(pathname + search, state) });
      } catch {
        return new Response('failed', { status: 500 });
      }
    };
    // The first limit is the outermost, as in the other frameworks.
    const fetch = limits.reduceRight<FetchHandler>((inner, limited) => limited(inner), respond);
    return listenOnFreePort(createAdaptorServer({ fetch: fetch as never }) as Server, host);
  },

  'nest on express': (...given) => nestServer(new ExpressAdapter(), ...given),

  'nest on fastify': (...given) => nestServer(new FastifyAdapter(), ...given),
};

/** A Nest application with one controller. Its decorators are applied as functions. */
async function nestServer(
  adapter: ExpressAdapter | FastifyAdapter,
  options: readonly AnyOptions[],
  handle: Handler,
  host = '127.0.0.1',
): Promise<RunningServer> {
  const limits = options.map((each) => rateLimitGuard(each));
  class Root {
    async get(request: NestRequest, response: NestReply): Promise<void> {
      response.status(await handle(request.url ?? '', stateOf(limits[0], request))).send('done');
    }
  }
  const method = Object.getOwnPropertyDescriptor(Root.prototype, 'get') as PropertyDescriptor;
  Req()(Root.prototype, 'get', 0);
  Res()(Root.prototype, 'get', 1);
  All(['/', '*'])(Root.prototype, 'get', method);
  Controller()(Root);
  class App {}
  Module({ controllers: [Root] })(App);
  const app = await NestFactory.create<NestFastifyApplication>(App, adapter as FastifyAdapter, {
    logger: false,
  });
  app.useGlobalGuards(...limits);
  await app.listen(0, host);
  return runningServer(app.getHttpServer(), () => app.close());
}

interface NestReply {
  status(code: number): { send(body: string): unknown };
}

/** One connection that pipelines requests: it sends them all before a response. */
export function pipelineRequests(url: string, count: number): Socket {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => {}); // the server may reset a connection that the test closes
  socket.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'.repeat(count));
  return socket;
}

export function listenOnFreePort(server: Server, host = '127.0.0.1'): Promise<RunningServer> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, host, () =>
      resolve(runningServer(server, () => new Promise((closed) => server.close(closed)))),
    );
  });
}

function runningServer(server: Server, close: () => Promise<unknown>): RunningServer {
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    async close() {
      server.closeAllConnections();
      await close();
    },
  };
}
