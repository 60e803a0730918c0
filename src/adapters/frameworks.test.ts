/** What only one framework has: its own types, its own idea of a client, its own ways to answer. */

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
import { VirtualClock } from '../testing/index.ts';
import { express, fastify, hono, node } from './http.ts';

const open: RunningServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()));
});
const kept = (server: RunningServer): string => {
  open.push(server);
  return server.url;
};

const one = () =>
  limiter({ limit: { bucket: { rate: '1/h', burst: 1 } }, clock: new VirtualClock() });
const inFlight = (concurrency = 1) => limiter({ limit: { concurrency } });
const settled = (api: ReturnType<typeof one>) =>
  vi.waitFor(() => expect(api.stats()).toMatchObject({ held: 0 }));

describe('Express', () => {
  test('is asked who the client is, if it was told whom to trust', async () => {
    const app = expressApp();
    app.set('trust proxy', 1);
    const api = one();
    app.use(express({ limiter: api }));
    app.use((_, response) => void response.send('done'));
    const url = kept(await listenOnFreePort(createServer(app)));
    await fetch(url, { headers: { 'x-forwarded-for': '6.6.6.6, 203.0.113.9' } });
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
  });

  test('unless the limit was told something else', async () => {
    const app = expressApp();
    app.set('trust proxy', 1);
    const api = one();
    app.use(express({ limiter: api, trustProxy: false }));
    app.use((_, response) => void response.send('done'));
    const url = kept(await listenOnFreePort(createServer(app)));
    await fetch(url, { headers: { 'x-forwarded-for': '203.0.113.9' } });
    expect(api.inspect('127.0.0.1').remaining).toBe(0);
  });

  test('guards one route as well as all, with a key of its own requests', async () => {
    const app = expressApp();
    const api = one();
    const guarded = express({ limiter: api, key: (request: ExpressRequest) => request.path });
    app.get('/users/:id', guarded, (_, response) => void response.send('done'));
    app.get('/free', (_, response) => void response.send('done'));
    const url = kept(await listenOnFreePort(createServer(app)));
    const status = async (path: string) => (await fetch(url + path)).status;
    expect([await status('/users/a'), await status('/users/a')]).toEqual([200, 429]);
    expect([await status('/users/b'), await status('/free')]).toEqual([200, 200]);
  });

  test('whoever was answered already is not answered again', async () => {
    const app = expressApp();
    const failed = vi.fn();
    app.use((_, response, next) => {
      response.json({ answered: true });
      next();
    });
    app.use(express({ limiter: one(), onError: failed }), (_, __, next) => next('route'));
    app.use(((error, _, __, ___) => failed(error)) satisfies ErrorRequestHandler);
    const url = kept(await listenOnFreePort(createServer(app)));
    for (let n = 0; n < 3; n++) {
      const response = await fetch(url);
      expect([response.status, await response.json()]).toEqual([200, { answered: true }]);
    }
    expect(failed).not.toHaveBeenCalled();
  });

  test('nor whoever was answered while it waited', async () => {
    const api = inFlight();
    const held = api.tryAcquire('all');
    const app = expressApp();
    const handle = vi.fn();
    app.use((_, response, next) => {
      next();
      void vi.waitFor(() => expect(api.stats().waiting).toBe(1)).then(() => response.send('slow'));
    });
    app.use(express({ limiter: api, key: () => 'all', wait: true }), handle);
    const url = kept(await listenOnFreePort(createServer(app)));
    expect(await (await fetch(url)).text()).toBe('slow');
    await vi.waitFor(() => expect(api.stats().waiting).toBe(0));
    await new Promise(setImmediate);
    expect(handle).not.toHaveBeenCalled();
    if (held.verdict === 'allow') held.settle();
  });

  test('users by their ids, strangers by their addresses', async () => {
    const app = expressApp();
    const api = one();
    app.use((request, _, next) => {
      const id = request.get('x-user');
      if (id) Object.assign(request, { user: { id: Number(id) } });
      next();
    });
    const key = (request: ExpressRequest & { user?: { id: number } }) => request.user?.id;
    app.use(express({ limiter: api, key }), (_, response) => void response.send('done'));
    const url = kept(await listenOnFreePort(createServer(app)));
    const as = async (headers: Record<string, string>) => (await fetch(url, { headers })).status;
    expect([await as({ 'x-user': '7' }), await as({ 'x-user': '7' })]).toEqual([200, 429]);
    expect([await as({ 'x-user': '8' }), await as({}), await as({})]).toEqual([200, 200, 429]);
    expect(api.inspect('7').remaining).toBe(0);
  });

  test('answers HEAD with no body', async () => {
    const app = expressApp();
    app.use(express({ limiter: one() }), (_, response) => void response.send('done'));
    const url = kept(await listenOnFreePort(createServer(app)));
    await fetch(url, { method: 'HEAD' });
    const response = await fetch(url, { method: 'HEAD' });
    expect([response.status, await response.text()]).toEqual([429, '']);
  });
});

describe('node:http', () => {
  test('is not listened to where nothing has to be settled', async () => {
    const counts: number[] = [];
    const ways = [node({ limiter: one() }), node({ limiter: inFlight() })];
    const server = createServer((request, response) => {
      const before = response.listenerCount('close');
      const way = ways[Number(request.url?.slice(1))];
      way(request, response, () => {
        counts.push(response.listenerCount('close') - before);
        response.end();
      });
    });
    const url = kept(await listenOnFreePort(server));
    await fetch(`${url}/0`);
    await fetch(`${url}/1`);
    expect(counts).toEqual([0, 1]);
  });

  test('whoever waited and was served is listened to once, not twice', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    const held = api.tryAcquire('127.0.0.1');
    const counts: number[] = [];
    const way = node({ limiter: api, wait: true });
    const server = createServer((request, response) => {
      const before = response.listenerCount('close');
      way(request, response, () => {
        counts.push(response.listenerCount('close') - before);
        response.end();
      });
    });
    const waits = fetch(kept(await listenOnFreePort(server)));
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    if (held.verdict === 'allow') held.settle();
    expect((await waits).status).toBe(200);
    expect(counts).toEqual([1]);
    await settled(api);
  });

  test('a response that is on its way already gets no headers, and no error', async () => {
    const way = node({ limiter: one() });
    const server = createServer((request, response) => {
      response.writeHead(200);
      response.write('begun, ');
      way(request, response, () => response.end('done'));
    });
    const url = kept(await listenOnFreePort(server));
    expect(await (await fetch(url)).text()).toBe('begun, done');
  });

  test('too late to say 429: what has begun is broken off, and nothing is put behind it', async () => {
    const onError = vi.fn();
    const way = node({ limiter: one(), onError });
    const next = vi.fn();
    const server = createServer((request, response) => {
      response.writeHead(200);
      response.write('begun, ', () => way(request, response, () => response.end(next() ?? 'done')));
    });
    const url = kept(await listenOnFreePort(server));
    await (await fetch(url)).text();
    const body = await read(url);
    expect(body).toMatch(/begun, \r\n$/); // neither an end nor a refusal
    expect([next.mock.calls.length, onError.mock.calls.length]).toEqual([1, 1]);
    expect(String(onError.mock.calls[0][0])).toContain('begun');
  });

  /** All that comes over the connection, until it closes. */
  const read = (url: string): Promise<string> =>
    new Promise((done) => {
      const chunks: Buffer[] = [];
      const socket = pipelineRequests(url, 1);
      socket.on('data', (chunk) => chunks.push(chunk));
      socket.on('close', () => done(Buffer.concat(chunks).toString()));
    });

  test('a client that left before it was checked is not counted, and nobody works for it', async () => {
    const [api, handle, checked] = [one(), vi.fn(), vi.fn()];
    const way = node({ limiter: api });
    const gone = new AbortController();
    const server = createServer((request, response) => {
      response.once('close', () =>
        setImmediate(() => checked(way(request, response, () => handle()))),
      );
      gone.abort();
    });
    const url = kept(await listenOnFreePort(server));
    await expect(fetch(url, { signal: gone.signal })).rejects.toThrow();
    await vi.waitFor(() => expect(checked).toHaveBeenCalledTimes(1));
    expect(handle).not.toHaveBeenCalled();
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0, held: 0 });
  });

  test('nor is one that asked ahead and left', async () => {
    const [api, checked] = [one(), vi.fn()];
    const way = node({ limiter: api });
    const server = createServer((request, response) => {
      request.socket.once('close', () =>
        setImmediate(() => checked(way(request, response, () => {}))),
      );
    });
    const socket = pipelineRequests(kept(await listenOnFreePort(server)), 3);
    await vi.waitFor(async () => expect(await connectionsOf(server)).toBe(1));
    socket.destroy();
    await vi.waitFor(() => expect(checked).toHaveBeenCalled());
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('an answer that is ready but never had its turn has not been served', async () => {
    const api = inFlight(2);
    const way = node({ limiter: api });
    const answered = vi.fn();
    const server = createServer((request, response) => {
      const isFirst = response.socket !== null;
      way(request, response, () => void (isFirst || answered(response.end('done'))));
    });
    const socket = pipelineRequests(kept(await listenOnFreePort(server)), 2);
    await vi.waitFor(() => expect(answered).toHaveBeenCalledTimes(1));
    expect(api.stats().held).toBe(2);
    socket.destroy();
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 0, failed: 2 });
  });

  const connectionsOf = (server: ReturnType<typeof createServer>): Promise<number> =>
    new Promise((done) => server.getConnections((_, count) => done(count)));

  describe('speaks HTTP/2 too', () => {
    async function serve(handle: (response: Http2ServerResponse) => void) {
      const api = inFlight();
      const way = node({ limiter: api });
      const server = createHttp2Server((request, response) => {
        way(request, response, () => handle(response));
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
      return { api, client, ask: () => client.request({ ':path': '/' }).on('error', () => {}) };
    }

    test('and hears that it went well', async () => {
      const { api, ask } = await serve((response) => response.end('done'));
      const headers = await new Promise((resolve) => ask().once('response', resolve).resume());
      expect(headers).toMatchObject({ ':status': 200, ratelimit: '"concurrency";r=0' });
      await settled(api);
      expect(api.stats().settled).toMatchObject({ ok: 1 });
    });

    test.each(['the request', 'the connection'])('and that a client gave up %s', async (what) => {
      let begin = (): void => {};
      const begun = new Promise<void>((resolve) => {
        begin = resolve;
      });
      const { api, client, ask } = await serve(begin);
      const stream = ask();
      await begun;
      if (what === 'the request') stream.close(8);
      else client.destroy();
      await settled(api);
      expect(api.stats().settled).toMatchObject({ ok: 0, failed: 1 });
    });

    test('and does not count who left before', async () => {
      const [inner, checked] = [one(), vi.fn()];
      const way = node({ limiter: inner });
      let begin = (): void => {};
      const begun = new Promise<void>((resolve) => {
        begin = resolve;
      });
      const { ask } = await serve((response) => {
        const { req } = response;
        response.once('close', () => setImmediate(() => checked(way(req, response, () => {}))));
        begin();
      });
      const stream = ask();
      await begun;
      stream.close(8);
      await vi.waitFor(() => expect(checked).toHaveBeenCalled());
      expect(inner.stats()).toMatchObject({ allowed: 0, denied: 0 });
    });

    test('and breaks off what has begun', async () => {
      const onError = vi.fn();
      const way = node({ limiter: one(), key: () => 'all', onError });
      const { ask } = await serve((response) => {
        response.write('begun, ');
        const request = response.req;
        way(request, response, () => way(request, response, () => response.end('done')));
      });
      const stream = ask();
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

describe('Fastify', () => {
  test('is asked who the client is, if it was told whom to trust', async () => {
    const app = fastifyApp({ trustProxy: '127.0.0.1' });
    const api = one();
    await app.register(fastify({ limiter: api }));
    app.get('/', async () => 'done');
    await app.inject({ url: '/', headers: { 'x-forwarded-for': '6.6.6.6, 203.0.113.9' } });
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
    await app.close();
  });

  test('guards one scope and leaves the others alone, with a key of its own requests', async () => {
    const app = fastifyApp();
    const key = (request: FastifyRequest) => request.routeOptions.url;
    await app.register(async (scope) => {
      await scope.register(fastify({ limiter: one(), key }));
      scope.get('/guarded', async () => 'done');
      scope.get('/other', async () => 'done');
    });
    app.get('/free', async () => 'done');
    const status = async (url: string) => (await app.inject({ url })).statusCode;
    expect([await status('/guarded'), await status('/guarded')]).toEqual([200, 429]);
    expect([await status('/other'), await status('/free'), await status('/free')]).toEqual([
      200, 200, 200,
    ]);
    await app.close();
  });
});

describe('Fastify, when', () => {
  test('nobody connects: how it went is told all the same', async () => {
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
  ] as const)('asked in %s, a user that a hook before the handler finds: %s', async (hook, key) => {
    const api = one();
    const app = fastifyApp();
    const users = new WeakMap<FastifyRequest, { id: number }>();
    app.addHook('preHandler', async (request) => void users.set(request, { id: 7 }));
    const own = (request: FastifyRequest) => users.get(request)?.id;
    await app.register(fastify({ limiter: api, key: own, hook }));
    app.get('/', async () => 'done');
    expect((await app.inject('/')).statusCode).toBe(200);
    expect((await app.inject('/')).statusCode).toBe(429);
    expect(api.inspect(key).remaining).toBe(0);
    await app.close();
  });

  test('asked at no time there is', () => {
    expect(() => fastify({ limiter: one(), hook: 'onSend' as never })).toThrow(
      expect.objectContaining({ code: 'CONFIG', field: 'hook' }),
    );
  });

  test('a client left before: it is not counted, and nobody works for it', async () => {
    const [api, handle, passed] = [one(), vi.fn(), vi.fn()];
    const app = fastifyApp();
    const gone = new AbortController();
    app.addHook('onRequest', (_, reply, done) => {
      reply.raw.once('close', () => setImmediate(() => passed(done())));
      gone.abort();
    });
    await app.register(fastify({ limiter: api }));
    app.get('/', async () => handle());
    const url = await app.listen({ port: 0, host: '127.0.0.1' });
    await expect(fetch(url, { signal: gone.signal })).rejects.toThrow();
    await vi.waitFor(() => expect(passed).toHaveBeenCalled());
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
    expect(handle).not.toHaveBeenCalled();
    await app.close();
  });

  test('a response has begun without it: that is broken off', async () => {
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

describe('Hono', () => {
  type Env = { Variables: { user: string } };

  test('types a key by its own context', async () => {
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

  test('keeps what others have written into the response it refuses with', async () => {
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

  test('tells of the limit in a response that a handler made by itself', async () => {
    const app = new Hono();
    app.use(hono({ limiter: one(), key: () => 'all' }));
    app.use(hono({ limiter: inFlight(), key: () => 'all' }));
    app.get('/own', () => new Response('done'));
    const own = await app.request('/own');
    expect(own.headers.get('ratelimit')).toBe('"bucket";r=0;t=3600, "concurrency";r=0');
    expect(await own.text()).toBe('done');
  });

  test('in which something is said that only looks like it', async () => {
    const app = new Hono();
    app.use(hono({ limiter: one(), key: () => 'all', headers: 'both' }));
    const upstream = { ratelimit: '"bucket";r=0;t=36000', 'x-ratelimit-remaining': '00' };
    app.get('/', () => new Response('done', { headers: upstream }));
    const { headers } = await app.request('/');
    expect(headers.get('ratelimit')).toBe('"bucket";r=0;t=3600, "bucket";r=0;t=36000');
  });

  test('a refusal further in keeps its figures', async () => {
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

  test('without Node: a limit further out learns nothing from a refusal', async () => {
    const api = inFlight();
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all' }), hono({ limiter: one(), key: () => 'all' }));
    app.get('/', (c) => c.text('done'));
    for (let n = 0; n < 3; n++) await app.request('/');
    expect(api.stats()).toMatchObject({ held: 0, settled: { ok: 1, ignored: 2 } });
  });

  test('without Node: whoever leaves between two limits has failed the first', async () => {
    const [outer, inner, leave] = [inFlight(), one(), new AbortController()];
    const app = new Hono();
    app.use(hono({ limiter: outer, key: () => 'all' }));
    app.use(async (_, next) => {
      leave.abort();
      await next();
    });
    app.use(hono({ limiter: inner, key: () => 'all' }));
    await app.request('/', { signal: leave.signal });
    expect(inner.stats()).toMatchObject({ allowed: 0, denied: 0 });
    expect(outer.stats().settled).toMatchObject({ failed: 1, ignored: 0 });
  });

  test('without Node: whoever has left already is not counted', async () => {
    const api = one();
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all' }));
    await app.request('/', { signal: AbortSignal.abort() });
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('leaves a response alone that cannot be changed', async () => {
    const app = new Hono();
    app.use(hono({ limiter: one(), key: () => 'all' }));
    const switching = new Response(null);
    Object.defineProperty(switching, 'status', { value: 101 });
    app.get('/', () => switching);
    expect((await app.request('/')).status).toBe(101);
  });

  test('without Node: an address as it is told, one key for all if it is not', async () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const api = one();
    const app = new Hono();
    app.use('/told', hono({ limiter: api, address: () => '203.0.113.9' }));
    app.use('/blind', hono({ limiter: api }));
    app.all('*', (c) => c.text('done'));
    await app.request('/told');
    expect(warned).not.toHaveBeenCalled();
    await app.request('/blind');
    await app.request('/blind');
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
    expect(api.inspect('unknown').remaining).toBe(0);
    expect(warned).toHaveBeenCalledTimes(1);
    warned.mockRestore();
  });

  test('without Node: settled when the response is made, however that went', async () => {
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

  test('without Node: a client that leaves has failed, waiting or served', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    const app = new Hono();
    app.use(hono({ limiter: api, key: () => 'all', wait: true }));
    const leave = new AbortController();
    let begin = (): void => {};
    const begun = new Promise<void>((resolve) => {
      begin = resolve;
    });
    app.get('/', async (c) => {
      begin();
      await new Promise<void>((end) => leave.signal.addEventListener('abort', () => end()));
      return c.text('done');
    });
    const both = [1, 2].map(() => app.request('/', { signal: leave.signal }));
    await begun;
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    leave.abort();
    await Promise.all(both);
    expect(api.stats()).toMatchObject({
      held: 0,
      waiting: 0,
      cancelled: 1,
      settled: { failed: 1 },
    });
  });

  test('on Node: a body that streams keeps its place to the last byte', async () => {
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
    const url = kept(await listenOnFreePort(server));
    const response = await fetch(url);
    expect(response.status).toBe(200);
    expect(api.stats().held).toBe(1);
    end();
    expect(await response.text()).toBe('begun, done');
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 1 });
  });
});

test('requests are typed as far as is needed to skip one', () => {
  const limiter = one();
  expressApp().use(
    express({ limiter, skip: (req) => req.method === 'OPTIONS' || req.path === '/' }),
  );
  const plain = node({ limiter, skip: (req) => req.url === '/health' });
  createServer((request, response) => plain(request, response, () => response.end()));
  fastifyApp().register(fastify({ limiter, skip: (request) => request.url === '/health' }));
  new Hono().use(hono({ limiter, skip: (c) => c.req.path === '/' || c.req.method === 'OPTIONS' }));
});
