/** What only one framework has: its own types, its own idea of a client, its own ways to answer. */

import { createServer } from 'node:http';
import { connect, createServer as createHttp2Server } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { createAdaptorServer, type HttpBindings } from '@hono/node-server';
import expressApp, { type Request as ExpressRequest } from 'express';
import fastifyApp, { type FastifyRequest } from 'fastify';
import { type Context, Hono } from 'hono';
import { stream } from 'hono/streaming';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { listening, type Running } from '../../../test/support/http-servers.ts';
import { limiter } from '../../limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import { express, fastify, hono, node } from './index.ts';

const open: Running[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()));
});
const kept = (server: Running): string => {
  open.push(server);
  return server.url;
};

const one = () =>
  limiter({ limit: { bucket: { rate: '1/h', burst: 1 } }, clock: new VirtualClock() });
const inFlight = (fixed = 1) => limiter({ limit: { adaptive: { fixed } } });
const settled = (api: ReturnType<typeof one>) =>
  vi.waitFor(() => expect(api.stats()).toMatchObject({ held: 0 }));

describe('Express', () => {
  test('is asked who the client is, if it was told whom to trust', async () => {
    const app = expressApp();
    app.set('trust proxy', 1);
    const api = one();
    app.use(express({ limiter: api }));
    app.use((_, response) => void response.send('done'));
    const url = kept(await listening(createServer(app)));
    await fetch(url, { headers: { 'x-forwarded-for': '6.6.6.6, 203.0.113.9' } });
    expect(api.inspect('203.0.113.9').remaining).toBe(0);
  });

  test('unless the limit was told something else', async () => {
    const app = expressApp();
    app.set('trust proxy', 1);
    const api = one();
    app.use(express({ limiter: api, trustProxy: false }));
    app.use((_, response) => void response.send('done'));
    const url = kept(await listening(createServer(app)));
    await fetch(url, { headers: { 'x-forwarded-for': '203.0.113.9' } });
    expect(api.inspect('127.0.0.1').remaining).toBe(0);
  });

  test('guards one route as well as all, with a key of its own requests', async () => {
    const app = expressApp();
    const api = one();
    const guarded = express({ limiter: api, key: (request: ExpressRequest) => request.path });
    app.get('/users/:id', guarded, (_, response) => void response.send('done'));
    app.get('/free', (_, response) => void response.send('done'));
    const url = kept(await listening(createServer(app)));
    const status = async (path: string) => (await fetch(url + path)).status;
    expect([await status('/users/a'), await status('/users/a')]).toEqual([200, 429]);
    expect([await status('/users/b'), await status('/free')]).toEqual([200, 200]);
  });

  test('answers HEAD with no body', async () => {
    const app = expressApp();
    app.use(express({ limiter: one() }), (_, response) => void response.send('done'));
    const url = kept(await listening(createServer(app)));
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
    const url = kept(await listening(server));
    await fetch(`${url}/0`);
    await fetch(`${url}/1`);
    expect(counts).toEqual([0, 1]);
  });

  test('whoever waited and was served is listened to once, not twice', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { adaptive: { fixed: 1 } }, clock });
    const [held] = [api.tryAcquire('127.0.0.1')];
    const counts: number[] = [];
    const way = node({ limiter: api, wait: true });
    const server = createServer((request, response) => {
      const before = response.listenerCount('close');
      way(request, response, () => {
        counts.push(response.listenerCount('close') - before);
        response.end();
      });
    });
    const waits = fetch(kept(await listening(server)));
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    if (held.verdict === 'allow') held.settle();
    expect((await waits).status).toBe(200);
    expect(counts).toEqual([1]);
    await settled(api);
  });

  test('a response that is on its way already gets no headers, and no error', async () => {
    const api = one();
    const way = node({ limiter: api });
    const server = createServer((request, response) => {
      response.writeHead(200);
      response.write('begun, ');
      way(request, response, () => response.end('done'));
    });
    const url = kept(await listening(server));
    expect(await (await fetch(url)).text()).toBe('begun, done');
    expect((await fetch(url)).status).toBe(200); // too late to say 429
  });

  test('a client that left before it was checked keeps no place', async () => {
    const api = inFlight();
    const way = node({ limiter: api });
    const gone = new AbortController();
    let checked = false;
    const server = createServer((request, response) => {
      response.once('close', () =>
        setImmediate(() =>
          way(request, response, () => {
            checked = true;
          }),
        ),
      );
      gone.abort();
    });
    const url = kept(await listening(server));
    await expect(fetch(url, { signal: gone.signal })).rejects.toThrow();
    await vi.waitFor(() => expect(checked).toBe(true));
    expect(api.stats()).toMatchObject({ held: 0, settled: { failed: 1 } });
  });

  test('speaks HTTP/2 too', async () => {
    const api = inFlight();
    const way = node({ limiter: api });
    const server = createHttp2Server((request, response) => {
      way(request, response, () => response.end('done'));
    });
    await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
    const client = connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    const headers = await new Promise((resolve, reject) => {
      const stream = client.request({ ':path': '/' });
      stream.once('response', resolve).once('error', reject).resume().end();
    });
    expect(headers).toMatchObject({ ':status': 200, ratelimit: '"adaptive";r=0' });
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 1 });
    client.destroy();
    await new Promise((closed) => server.close(closed));
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
    expect(own.headers.get('ratelimit')?.split(', ').sort()).toEqual([
      '"adaptive";r=0',
      '"bucket";r=0;t=3600',
    ]);
    expect(await own.text()).toBe('done');
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
    const api = limiter({ limit: { adaptive: { fixed: 1 } }, clock });
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
    expect(api.stats()).toMatchObject({ held: 0, waiting: 0, left: 1, settled: { failed: 1 } });
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
    const url = kept(await listening(server));
    const response = await fetch(url);
    expect(response.status).toBe(200);
    expect(api.stats().held).toBe(1);
    end();
    expect(await response.text()).toBe('begun, done');
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 1 });
  });
});
