import { createServer } from 'node:http';
import { connect, createServer as createHttp2Server, type Http2ServerResponse } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { createAdaptorServer, type HttpBindings } from '@hono/node-server';
import expressApp, { type ErrorRequestHandler, type Request as ExpressRequest } from 'express';
import fastifyApp, { type FastifyRequest } from 'fastify';
import { type Context, Hono } from 'hono';
import { stream } from 'hono/streaming';
import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  listenOnFreePort,
  pipelineRequests,
  type RunningServer,
} from '../../test/support/http-servers.ts';
import { limiter } from '../limiter/limiter.ts';
import type { Limit } from '../policies/limit.ts';
import { VirtualClock } from '../testing/index.ts';
import { rateLimit as express } from './express.ts';
import { rateLimit as fastify } from './fastify.ts';
import { rateLimit as hono } from './hono.ts';
import type { WithLimiter } from './http/index.ts';
import { rateLimitGuard } from './nest.ts';
import { rateLimit as node } from './node.ts';
import { rateLimit as web } from './web.ts';

const open: RunningServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()));
});
const track = (server: RunningServer): string => {
  open.push(server);
  return server.url;
};

const one = () =>
  limiter({ limit: { bucket: { rate: '1/h', burst: 1 } }, clock: new VirtualClock() });
const inFlight = (concurrency = 1) => limiter({ limit: { concurrency } });
const settled = (api: ReturnType<typeof one>) =>
  vi.waitFor(() => expect(api.stats()).toMatchObject({ held: 0 }));

const CREATORS = { express, fastify, hono, nest: rateLimitGuard, node, web };

test.each(Object.entries(CREATORS) as [string, (options: object) => WithLimiter<object, never>][])(
  '%s: the middleware has its limiter, given or created',
  async (_name, rateLimit) => {
    const given = limiter({ limit: { concurrency: 1 } });
    expect(rateLimit({ limiter: given }).limiter).toBe(given);
    const created = rateLimit({
      name: 'api',
      limit: { bucket: { rate: '1/s', burst: 2 } },
    }).limiter;
    expect(await created.inspect('alice')).toMatchObject({ remaining: 2 });
    await created.change({ bucket: { rate: '1/s', burst: 9 } });
    expect(await created.inspect('alice')).toMatchObject({ remaining: 9 });
  },
);

describe('express', () => {
  test('requests are decided by the numbers that `limiter.change` set', async () => {
    const limit = (burst: number): Limit => ({ bucket: { rate: '1/m', burst } });
    const limited = express({ limit: limit(1), clock: new VirtualClock() });
    const app = expressApp();
    app.use(limited, (_, response) => void response.send('done'));
    const url = track(await listenOnFreePort(createServer(app)));
    const twice = async () => [(await fetch(url)).status, (await fetch(url)).status];
    expect(await twice()).toEqual([200, 429]);
    await limited.limiter.change(limit(2));
    expect(await twice()).toEqual([200, 429]);
  });

  test('uses the client address of the setting `trust proxy`', async () => {
    const app = expressApp();
    app.set('trust proxy', 1);
    const api = one();
    app.use(express({ limiter: api }));
    app.use((_, response) => void response.send('done'));
    const url = track(await listenOnFreePort(createServer(app)));
    await fetch(url, { headers: { 'x-forwarded-for': '6.6.6.6, 203.0.113.9' } });
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
  });

  test('trustProxy overrides the framework setting', async () => {
    const app = expressApp();
    app.set('trust proxy', 1);
    const api = one();
    app.use(express({ limiter: api, trustProxy: false }));
    app.use((_, response) => void response.send('done'));
    const url = track(await listenOnFreePort(createServer(app)));
    await fetch(url, { headers: { 'x-forwarded-for': '203.0.113.9' } });
    expect(api.inspect('127.0.0.1').remaining).toBe(0);
  });

  test('lock-out on a dual-stack port, reported for `request.ip`: another key, so good logins are refused, with a warning', async () => {
    const emitted = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const app = expressApp();
    const limited = express({ name: 'by ip', limit: { lockout: { after: 2 } } });
    app.use(limited, async (request, response) => {
      await limited.limiter.report(request.ip ?? '', 'success');
      response.send('done');
    });
    const url = track(await listenOnFreePort(createServer(app), '::'));
    const statuses: number[] = [];
    for (let n = 0; n < 4; n++) statuses.push((await fetch(url)).status);
    expect(statuses).toEqual([200, 200, 429, 429]);
    const text = /limit "by ip": report of key "::ffff:127.0.0.1", which no check has counted/;
    expect(emitted.mock.calls.map(([warning]) => warning)).toEqual([expect.stringMatching(text)]);
    emitted.mockRestore();
  });

  test('limits a single route, with a key function on Express requests', async () => {
    const app = expressApp();
    const api = one();
    const limited = express({ limiter: api, key: (request: ExpressRequest) => request.path });
    app.get('/users/:id', limited, (_, response) => void response.send('done'));
    app.get('/free', (_, response) => void response.send('done'));
    const url = track(await listenOnFreePort(createServer(app)));
    const status = async (path: string) => (await fetch(url + path)).status;
    expect([await status('/users/a'), await status('/users/a')]).toEqual([200, 429]);
    expect([await status('/users/b'), await status('/free')]).toEqual([200, 200]);
  });

  test('leaves a response alone that is already complete', async () => {
    const app = expressApp();
    const failed = vi.fn();
    app.use((_, response, next) => {
      response.json({ answered: true });
      next();
    });
    app.use(express({ limiter: one(), onError: failed }), (_, __, next) => next('route'));
    app.use(((error, _, __, ___) => failed(error)) satisfies ErrorRequestHandler);
    const url = track(await listenOnFreePort(createServer(app)));
    for (let n = 0; n < 3; n++) {
      const response = await fetch(url);
      expect([response.status, await response.json()]).toEqual([200, { answered: true }]);
    }
    expect(failed).not.toHaveBeenCalled();
  });

  test('leaves a response alone that was completed while the request waited', async () => {
    const api = inFlight();
    const held = api.tryAcquire('all');
    const app = expressApp();
    const handle = vi.fn();
    app.use((_, response, next) => {
      next();
      void vi.waitFor(() => expect(api.stats().waiting).toBe(1)).then(() => response.send('slow'));
    });
    app.use(express({ limiter: api, key: () => 'all', wait: true }), handle);
    const url = track(await listenOnFreePort(createServer(app)));
    expect(await (await fetch(url)).text()).toBe('slow');
    await vi.waitFor(() => expect(api.stats().waiting).toBe(0));
    await new Promise(setImmediate);
    expect(handle).not.toHaveBeenCalled();
    if (held.verdict === 'allow') held.settle();
  });

  test('limits users by id, and anonymous requests by address', async () => {
    const app = expressApp();
    const api = one();
    app.use((request, _, next) => {
      const id = request.get('x-user');
      if (id) Object.assign(request, { user: { id: Number(id) } });
      next();
    });
    const key = (request: ExpressRequest & { user?: { id: number } }) => request.user?.id;
    app.use(express({ limiter: api, key }), (_, response) => void response.send('done'));
    const url = track(await listenOnFreePort(createServer(app)));
    const as = async (headers: Record<string, string>) => (await fetch(url, { headers })).status;
    expect([await as({ 'x-user': '7' }), await as({ 'x-user': '7' })]).toEqual([200, 429]);
    expect([await as({ 'x-user': '8' }), await as({}), await as({})]).toEqual([200, 200, 429]);
    expect(api.inspect('7').remaining).toBe(0);
  });

  test('refuses HEAD without a body', async () => {
    const app = expressApp();
    app.use(express({ limiter: one() }), (_, response) => void response.send('done'));
    const url = track(await listenOnFreePort(createServer(app)));
    await fetch(url, { method: 'HEAD' });
    const response = await fetch(url, { method: 'HEAD' });
    expect([response.status, await response.text()]).toEqual([429, '']);
  });
});

describe('node', () => {
  test('adds a close listener only where a permit has to be settled', async () => {
    const counts: number[] = [];
    const limits = [node({ limiter: one() }), node({ limiter: inFlight() })];
    const server = createServer((request, response) => {
      const before = response.listenerCount('close');
      const limited = limits[Number(request.url?.slice(1))];
      limited(request, response, () => {
        counts.push(response.listenerCount('close') - before);
        response.end();
      });
    });
    const url = track(await listenOnFreePort(server));
    await fetch(`${url}/0`);
    await fetch(`${url}/1`);
    expect(counts).toEqual([0, 1]);
  });

  test('adds one close listener for a request that waited', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    const held = api.tryAcquire('server');
    const counts: number[] = [];
    const limited = node({ limiter: api, wait: true });
    const server = createServer((request, response) => {
      const before = response.listenerCount('close');
      limited(request, response, () => {
        counts.push(response.listenerCount('close') - before);
        response.end();
      });
    });
    const waits = fetch(track(await listenOnFreePort(server)));
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    if (held.verdict === 'allow') held.settle();
    expect((await waits).status).toBe(200);
    expect(counts).toEqual([1]);
    await settled(api);
  });

  test('sets no headers on a response that has begun', async () => {
    const limited = node({ limiter: one() });
    const server = createServer((request, response) => {
      response.writeHead(200);
      response.write('begun, ');
      limited(request, response, () => response.end('done'));
    });
    const url = track(await listenOnFreePort(server));
    expect(await (await fetch(url)).text()).toBe('begun, done');
  });

  test('destroys a response that has begun when it is refused, and reports it', async () => {
    const onError = vi.fn();
    const limited = node({ limiter: one(), onError });
    const next = vi.fn();
    const server = createServer((request, response) => {
      response.writeHead(200);
      response.write('begun, ', () =>
        limited(request, response, () => response.end(next() ?? 'done')),
      );
    });
    const url = track(await listenOnFreePort(server));
    await (await fetch(url)).text();
    const body = await read(url);
    expect(body).toMatch(/begun, \r\n$/); // neither an end nor a refusal
    expect([next.mock.calls.length, onError.mock.calls.length]).toEqual([1, 1]);
    expect(String(onError.mock.calls[0][0])).toContain('begun');
  });

  /** All bytes of a connection until it closes. */
  const read = (url: string): Promise<string> =>
    new Promise((done) => {
      const chunks: Buffer[] = [];
      const socket = pipelineRequests(url, 1);
      socket.on('data', (chunk) => chunks.push(chunk));
      socket.on('close', () => done(Buffer.concat(chunks).toString()));
    });

  test('does not count a client that disconnected before the check', async () => {
    const [api, handle, checked] = [one(), vi.fn(), vi.fn()];
    const limited = node({ limiter: api });
    const disconnect = new AbortController();
    const server = createServer((request, response) => {
      response.once('close', () =>
        setImmediate(() => checked(limited(request, response, () => handle()))),
      );
      disconnect.abort();
    });
    const url = track(await listenOnFreePort(server));
    await expect(fetch(url, { signal: disconnect.signal })).rejects.toThrow();
    await vi.waitFor(() => expect(checked).toHaveBeenCalledTimes(1));
    expect(handle).not.toHaveBeenCalled();
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0, held: 0 });
  });

  test('does not count a pipelined request whose client disconnected before the check', async () => {
    const [api, checked] = [one(), vi.fn()];
    const limited = node({ limiter: api });
    const server = createServer((request, response) => {
      request.socket.once('close', () =>
        setImmediate(() => checked(limited(request, response, () => {}))),
      );
    });
    const socket = pipelineRequests(track(await listenOnFreePort(server)), 3);
    await vi.waitFor(async () => expect(await connectionsOf(server)).toBe(1));
    socket.destroy();
    await vi.waitFor(() => expect(checked).toHaveBeenCalled());
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('settles as failed a pipelined response that was never sent', async () => {
    const api = inFlight(2);
    const limited = node({ limiter: api });
    const answered = vi.fn();
    const server = createServer((request, response) => {
      const isFirst = response.socket !== null;
      limited(request, response, () => void (isFirst || answered(response.end('done'))));
    });
    const socket = pipelineRequests(track(await listenOnFreePort(server)), 2);
    await vi.waitFor(() => expect(answered).toHaveBeenCalledTimes(1));
    expect(api.stats().held).toBe(2);
    socket.destroy();
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 0, failed: 2 });
  });

  const connectionsOf = (server: ReturnType<typeof createServer>): Promise<number> =>
    new Promise((done) => server.getConnections((_, count) => done(count)));

  describe('HTTP/2', () => {
    async function serve(handle: (response: Http2ServerResponse) => void) {
      const api = inFlight();
      const limited = node({ limiter: api });
      const server = createHttp2Server((request, response) => {
        limited(request, response, () => handle(response));
      });
      await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
      const client = connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
      open.push({
        url: '',
        async close() {
          client.destroy();
          await new Promise((closed) => server.close(closed));
        },
      });
      return { api, client, send: () => client.request({ ':path': '/' }).on('error', () => {}) };
    }

    test('settles as ok', async () => {
      const { api, send } = await serve((response) => response.end('done'));
      const headers = await new Promise((resolve) => send().once('response', resolve).resume());
      expect(headers).toMatchObject({ ':status': 200 });
      await settled(api);
      expect(api.stats().settled).toMatchObject({ ok: 1 });
    });

    test.each(['the request', 'the connection'])(
      'settles as failed when the client closes %s',
      async (what) => {
        let begin = (): void => {};
        const begun = new Promise<void>((resolve) => {
          begin = resolve;
        });
        const { api, client, send } = await serve(begin);
        const stream = send();
        await begun;
        if (what === 'the request') stream.close(8);
        else client.destroy();
        await settled(api);
        expect(api.stats().settled).toMatchObject({ ok: 0, failed: 1 });
      },
    );

    test('does not count a client that disconnected before the check', async () => {
      const [inner, checked] = [one(), vi.fn()];
      const limited = node({ limiter: inner });
      let begin = (): void => {};
      const begun = new Promise<void>((resolve) => {
        begin = resolve;
      });
      const { send } = await serve((response) => {
        const { req } = response;
        response.once('close', () => setImmediate(() => checked(limited(req, response, () => {}))));
        begin();
      });
      const stream = send();
      await begun;
      stream.close(8);
      await vi.waitFor(() => expect(checked).toHaveBeenCalled());
      expect(inner.stats()).toMatchObject({ allowed: 0, denied: 0 });
    });

    test('destroys a response that has begun when it is refused', async () => {
      const onError = vi.fn();
      const limited = node({ limiter: one(), key: () => 'all', onError });
      const { send } = await serve((response) => {
        response.write('begun, ');
        const request = response.req;
        limited(request, response, () => limited(request, response, () => response.end('done')));
      });
      const stream = send();
      let text = '';
      stream.on('data', (chunk) => {
        text += chunk;
      });
      await new Promise((closed) => stream.once('close', closed));
      expect('begun, '.startsWith(text)).toBe(true);
      expect(onError).toHaveBeenCalledTimes(1);
    });
  });
});

describe('fastify', () => {
  test('uses the client address of the setting `trustProxy`', async () => {
    const app = fastifyApp({ trustProxy: '127.0.0.1' });
    const api = one();
    await app.register(fastify({ limiter: api }));
    app.get('/', async () => 'done');
    await app.inject({ url: '/', headers: { 'x-forwarded-for': '6.6.6.6, 203.0.113.9' } });
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
    await app.close();
  });

  test('limits one scope only, with a key function on Fastify requests', async () => {
    const app = fastifyApp();
    const key = (request: FastifyRequest) => request.routeOptions.url;
    await app.register(async (scope) => {
      await scope.register(fastify({ limiter: one(), key }));
      scope.get('/limited', async () => 'done');
      scope.get('/other', async () => 'done');
    });
    app.get('/free', async () => 'done');
    const status = async (url: string) => (await app.inject({ url })).statusCode;
    expect([await status('/limited'), await status('/limited')]).toEqual([200, 429]);
    expect([await status('/other'), await status('/free'), await status('/free')]).toEqual([
      200, 200, 200,
    ]);
    await app.close();
  });
});

describe('fastify: hooks and responses', () => {
  test('settles injected requests by their status', async () => {
    const api = inFlight();
    const app = fastifyApp();
    await app.register(fastify({ limiter: api }));
    app.get('/:status', async (request, reply) =>
      reply.code(Number((request.params as { status: string }).status)).send('done'),
    );
    for (const status of [200, 503, 500]) {
      expect((await app.inject(`/${status}`)).statusCode).toBe(status);
      await settled(api);
    }
    expect(api.stats().settled).toMatchObject({ ok: 1, busy: 1, failed: 1 });
    await app.close();
  });

  test.each([
    ['onRequest', '127.0.0.1'],
    ['preHandler', '7'],
  ] as const)('hook %s: with a user set in preHandler, the key is %s', async (hook, key) => {
    const api = one();
    const app = fastifyApp();
    const users = new WeakMap<FastifyRequest, { id: number }>();
    app.addHook('preHandler', async (request) => void users.set(request, { id: 7 }));
    const userId = (request: FastifyRequest) => users.get(request)?.id;
    await app.register(fastify({ limiter: api, key: userId, hook }));
    app.get('/', async () => 'done');
    expect((await app.inject('/')).statusCode).toBe(200);
    expect((await app.inject('/')).statusCode).toBe(429);
    expect(api.inspect(key).remaining).toBe(0);
    await app.close();
  });

  test('refuses an unknown hook', () => {
    expect(() => fastify({ limiter: one(), hook: 'onSend' as never })).toThrow(
      expect.objectContaining({ code: 'CONFIG', field: 'hook' }),
    );
  });

  test('does not count a client that disconnected before the check', async () => {
    const [api, handle, passed] = [one(), vi.fn(), vi.fn()];
    const app = fastifyApp();
    const disconnect = new AbortController();
    app.addHook('onRequest', (_, reply, done) => {
      reply.raw.once('close', () => setImmediate(() => passed(done())));
      disconnect.abort();
    });
    await app.register(fastify({ limiter: api }));
    app.get('/', async () => handle());
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    await expect(fetch(url, { signal: disconnect.signal })).rejects.toThrow();
    await vi.waitFor(() => expect(passed).toHaveBeenCalled());
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
    expect(handle).not.toHaveBeenCalled();
    await app.close();
  });

  test('destroys a response that has begun when it is refused', async () => {
    const onError = vi.fn();
    const app = fastifyApp();
    app.addHook('onRequest', async (_, reply) => void reply.raw.write('begun'));
    await app.register(fastify({ limiter: one(), key: () => 'all', onError }));
    app.get('/', async () => 'done');
    await expect(Promise.race([app.inject('/'), app.inject('/')])).rejects.toThrow();
    expect(onError).toHaveBeenCalledTimes(1);
    await app.close();
  });
});

describe('hono', () => {
  type Env = { Variables: { user: string } };

  test('types the key function by the app context', async () => {
    const app = new Hono<Env>();
    app.use(async (c, next) => {
      c.set('user', c.req.query('user') ?? '');
      await next();
    });
    app.use(hono({ limiter: one(), key: (c: Context<Env>) => c.get('user') }));
    app.get('/', (c) => c.text('done'));
    const status = async (user: string) => (await app.request(`/?user=${user}`)).status;
    expect([await status('a'), await status('a'), await status('b')]).toEqual([200, 429, 200]);
  });

  test('keeps headers of other middleware in a refusal', async () => {
    const app = new Hono();
    app.use(async (c, next) => {
      c.header('access-control-allow-origin', '*');
      await next();
    });
    app.use(hono({ limiter: one(), key: () => 'all' }));
    app.get('/', (c) => c.text('done'));
    await app.request('/');
    const response = await app.request('/');
    expect(response.status).toBe(429);
    expect(response.headers.get('access-control-allow-origin')).toBe('*');
    expect(response.headers.get('content-type')).toBe('application/problem+json');
  });

  test('adds headers to a Response that the handler created itself', async () => {
    const app = new Hono();
    app.use(hono({ limiter: one(), key: () => 'all' }));
    app.use(hono({ limiter: inFlight(), key: () => 'all' }));
    app.get('/own', () => new Response('done'));
    const response = await app.request('/own');
    expect(response.headers.get('ratelimit')).toBe('"bucket";r=0;t=3600, "concurrency";r=0');
    expect(await response.text()).toBe('done');
  });

  test('adds an item to a list that has a similar one', async () => {
    const app = new Hono();
    app.use(hono({ limiter: one(), key: () => 'all', headers: 'both' }));
    const upstream = { ratelimit: '"bucket";r=0;t=36000', 'x-ratelimit-remaining': '00' };
    app.get('/', () => new Response('done', { headers: upstream }));
    const { headers } = await app.request('/');
    expect(headers.get('ratelimit')).toBe('"bucket";r=0;t=3600, "bucket";r=0;t=36000');
  });

  test('a refusal of an inner limit keeps its legacy headers', async () => {
    const app = new Hono();
    const wide = limiter({ limit: { bucket: { rate: '1/h', burst: 9 } }, name: 'wide' });
    app.use(hono({ limiter: wide, key: () => 'all', headers: 'both' }));
    app.use(hono({ limiter: one(), key: () => 'all', headers: 'both' }));
    app.get('/', () => new Response('done'));
    await app.request('/');
    const { status, headers } = await app.request('/');
    const legacy = ['limit', 'remaining', 'reset'].map((word) =>
      headers.get(`x-ratelimit-${word}`),
    );
    expect([status, ...legacy]).toEqual([429, '1', '0', '3600']);
    expect(headers.get('ratelimit')).toMatch(/^"wide";r=7;t=\d+, "bucket";r=0;t=3600$/);
  });

  test('without Node: an outer limit settles a refusal as ignored', async () => {
    const api = inFlight();
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all' }), hono({ limiter: one(), key: () => 'all' }));
    app.get('/', (c) => c.text('done'));
    for (let n = 0; n < 3; n++) await app.request('/');
    expect(api.stats()).toMatchObject({ held: 0, settled: { ok: 1, ignored: 2 } });
  });

  test('without Node: a disconnect between two limits settles the outer as failed', async () => {
    const [outer, inner, disconnect] = [inFlight(), one(), new AbortController()];
    const app = new Hono();
    app.use(hono({ limiter: outer, key: () => 'all' }));
    app.use(async (_, next) => {
      disconnect.abort();
      await next();
    });
    app.use(hono({ limiter: inner, key: () => 'all' }));
    await app.request('/', { signal: disconnect.signal });
    expect(inner.stats()).toMatchObject({ allowed: 0, denied: 0 });
    expect(outer.stats().settled).toMatchObject({ failed: 1, ignored: 0 });
  });

  test('without Node: does not count an aborted request', async () => {
    const api = one();
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all' }));
    await app.request('/', { signal: AbortSignal.abort() });
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('leaves an immutable response as it is', async () => {
    const app = new Hono();
    app.use(hono({ limiter: one(), key: () => 'all' }));
    const switching = new Response(null);
    Object.defineProperty(switching, 'status', { value: 101 });
    app.get('/', () => switching);
    expect((await app.request('/')).status).toBe(101);
  });

  test('without Node: uses the option address, else one key for all and a warning', async () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const api = one();
    const app = new Hono();
    app.use('/known', hono({ limiter: api, address: () => '203.0.113.9' }));
    app.use('/unknown', hono({ limiter: api }));
    app.all('*', (c) => c.text('done'));
    await app.request('/known');
    expect(warned).not.toHaveBeenCalled();
    await app.request('/unknown');
    await app.request('/unknown');
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
    expect(api.inspect('unknown').remaining).toBe(0);
    expect(warned).toHaveBeenCalledTimes(1);
    warned.mockRestore();
  });

  test('without Node: settles when the response exists, by its status', async () => {
    const api = inFlight();
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all' }));
    app.get('/ok', (c) => c.text('done'));
    app.get('/busy', (c) => c.text('not now', 503));
    app.get('/throws', () => {
      throw new Error('out of luck');
    });
    app.onError((_, c) => c.text('failed', 500));
    for (const path of ['/ok', '/busy', '/throws']) await app.request(path);
    expect(api.stats()).toMatchObject({ held: 0, settled: { ok: 1, busy: 1, failed: 1 } });
  });

  test('without Node: a handler that runs longer than permitTimeout keeps its permit', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock, permitTimeout: '1s' });
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all' }));
    let finish = (): void => {};
    const finished = new Promise<void>((resolve) => {
      finish = resolve;
    });
    app.get('/', async (c) => finished.then(() => c.text('done')));
    const running = app.request('/');
    await vi.waitFor(() => expect(api.stats().held).toBe(1));
    for (let seconds = 0; seconds < 5; seconds++) await clock.advanceAsync(1000);
    expect(api.stats()).toMatchObject({ expiredPermits: 0, held: 1 });
    expect((await app.request('/')).status).toBe(503);
    finish();
    expect((await running).status).toBe(200);
    expect(api.stats()).toMatchObject({ held: 0, expiredPermits: 0 });
  });

  test('without Node: a disconnect cancels a wait and settles a call as failed', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all', wait: true }));
    const disconnect = new AbortController();
    let begin = (): void => {};
    const begun = new Promise<void>((resolve) => {
      begin = resolve;
    });
    app.get('/', async (c) => {
      begin();
      await new Promise<void>((end) => disconnect.signal.addEventListener('abort', () => end()));
      return c.text('done');
    });
    const both = [1, 2].map(() => app.request('/', { signal: disconnect.signal }));
    await begun;
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    disconnect.abort();
    await Promise.all(both);
    expect(api.stats()).toMatchObject({
      held: 0,
      waiting: 0,
      cancelled: 1,
      settled: { failed: 1 },
    });
  });

  test('on Node: a streaming body holds its permit to the last byte', async () => {
    const api = inFlight();
    const app = new Hono<{ Bindings: HttpBindings }>();
    app.use(hono({ limiter: api }));
    let end = (): void => {};
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    app.get('/', (c) =>
      stream(c, async (out) => {
        await out.write('begun, ');
        await ended;
        await out.write('done');
      }),
    );
    const server = createAdaptorServer({ fetch: app.fetch }) as ReturnType<typeof createServer>;
    const url = track(await listenOnFreePort(server));
    const response = await fetch(url);
    expect(response.status).toBe(200);
    expect(api.stats().held).toBe(1);
    end();
    expect(await response.text()).toBe('begun, done');
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 1 });
  });
});

test('adapters: request types expose method, URL and path to `skip`', () => {
  const limiter = one();
  expressApp().use(
    express({ limiter, skip: (req) => req.method === 'OPTIONS' || req.path === '/' }),
  );
  const plain = node({ limiter, skip: (req) => req.url === '/health' });
  createServer((request, response) => plain(request, response, () => response.end()));
  fastifyApp().register(fastify({ limiter, skip: (request) => request.url === '/health' }));
  new Hono().use(hono({ limiter, skip: (c) => c.req.path === '/' || c.req.method === 'OPTIONS' }));
});
