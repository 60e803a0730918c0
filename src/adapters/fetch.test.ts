import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createSocketServer } from 'node:net';
import { fetch as undiciFetch } from 'undici';
import { afterEach, describe, expect, expectTypeOf, test, vi } from 'vitest';
import type { RemoteBackend, RemoteBackendFactory } from '../backends/remote-backend.ts';
import { allow, deny } from '../core/decision.ts';
import type { SettledEvent } from '../limiter/events.ts';
import { limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/limiter-interface.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { throttleFetch } from './fetch.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

const servers: Server[] = [];

/** A real server with one handler per request; the last one serves all further requests. */
async function serve(...handlers: Handler[]): Promise<{ url: string; seen: string[] }> {
  const seen: string[] = [];
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    request.resume();
    const handler = handlers.length > 1 ? handlers.shift() : handlers[0];
    handler?.(request, response);
  });
  servers.push(server);
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen };
}

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
});

const status =
  (code: number, headers: Record<string, string> = {}): Handler =>
  (_request, response) => {
    response.writeHead(code, headers).end(String(code));
  };

/** The outcomes of settled calls. */
function outcomesOf(api: Limiter): string[] {
  const outcomes: string[] = [];
  api.on((event) => event.type === 'settled' && outcomes.push((event as SettledEvent).outcome));
  return outcomes;
}

const plenty = { bucket: { rate: 1e6, burst: 1e6 } } as const;

describe.each([
  ['the global fetch', globalThis.fetch],
  ["undici's fetch", undiciFetch as unknown as typeof globalThis.fetch],
])('throttleFetch around %s', (_name, inner) => {
  test('returns the response of the inner fetch', async () => {
    const { url } = await serve((_request, response) => response.end('hello'));
    const api = throttleFetch(inner, { limit: plenty });
    const response = await api(`${url}/x`, { method: 'POST', body: 'y' });
    expect([response.status, await response.text()]).toEqual([200, 'hello']);
  });

  test('settles with the outcome of the status', async () => {
    const handlers = [200, 304, 404, 501, 408, 429, 500, 503].map((code) => status(code));
    const { url } = await serve(...handlers);
    const sink = limiter({ limit: { concurrency: 5 } });
    const outcomes = outcomesOf(sink);
    const api = throttleFetch(inner, { limiter: sink });
    for (let n = 0; n < 8; n++) await (await api(url)).text();
    expect(outcomes).toEqual(['ok', 'ok', 'failed', 'failed', 'busy', 'busy', 'busy', 'busy']);
    expect(sink.stats().rttMs.count).toBe(2);
  });

  test('limits each origin separately', async () => {
    const [one, other] = [await serve(status(200)), await serve(status(200))];
    const clock = new VirtualClock();
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const api = throttleFetch(inner, { limit, clock, wait: false });
    await api(`${one.url}/a`);
    await api(new URL(`${other.url}/a`));
    await expect(api(`${one.url}/b`)).rejects.toThrow(`over the limit for "${one.url}"`);
    await expect(api(`${other.url}/b`)).rejects.toMatchObject({ code: 'DENIED' });
    expect([one.seen.length, other.seen.length]).toEqual([1, 1]);
  });

  test('Retry-After starts a cool-down for the origin', async () => {
    const { url, seen } = await serve(status(429, { 'Retry-After': '7' }), status(200));
    const clock = new VirtualClock();
    const api = throttleFetch(inner, { limit: plenty, clock, wait: '10s' });
    expect((await api(url)).status).toBe(429);
    const later = api(url);
    await clock.advanceAsync(6999);
    expect(seen).toHaveLength(1);
    await clock.advanceAsync(1);
    expect((await later).status).toBe(200);
  });

  test('the remaining quota in RateLimit headers bounds the limit', async () => {
    const headers = { RateLimit: '"default";r=2;t=30' };
    const { url } = await serve(status(200, headers), status(200, { RateLimit: '"x";r=0;t=5' }));
    const sink = limiter({ limit: { bucket: { rate: 1, burst: 100 } }, clock: new VirtualClock() });
    const api = throttleFetch(inner, { limiter: sink, wait: false });
    await api(url);
    expect(sink.inspect(url).remaining).toBe(2);
    await api(url);
    expect(sink.inspect(url)).toMatchObject({ by: 'cooldown', opensInMs: 5000 });
    const deaf = throttleFetch(inner, { limit: plenty, rateLimitHeaders: false, wait: false });
    for (let n = 0; n < 3; n++) expect((await deaf(url)).status).toBe(200);
  });

  test('measures time to headers; a streaming body holds no permit', async () => {
    let finish = (): void => {};
    const { url } = await serve((_request, response) => {
      response.write('first');
      finish = () => response.end(' last');
    });
    const sink = limiter({ limit: { concurrency: 1 } });
    const api = throttleFetch(inner, { limiter: sink });
    const response = await api(url);
    expect(sink.inspect(url).inFlight).toBe(0);
    finish();
    expect(await response.text()).toBe('first last');
  });

  test('level: a request counts as the level of its arguments', async () => {
    const sink = limiter({
      limit: { concurrency: { limit: 2, priorities: ['user', 'prefetch'] } },
    });
    const { url } = await serve((_request, response) => {
      response.end(JSON.stringify(sink.inspect(url).priorities));
    });
    const level = (...[, init]: Parameters<typeof inner>) => init?.method && 'user';
    const api = throttleFetch(inner, { limiter: sink, level });
    expect(await (await api(url, { method: 'POST' })).json()).toEqual({ user: 1, prefetch: 0 });
    expect(await (await api(url)).json()).toEqual({ user: 0, prefetch: 1 });
  });

  test('a timeout settles as timeout, an abort as failed', async () => {
    const { url } = await serve(() => {});
    const sink = limiter({ limit: { concurrency: 9 } });
    const outcomes = outcomesOf(sink);
    const api = throttleFetch(inner, { limiter: sink });
    await expect(api(url, { signal: AbortSignal.timeout(20) })).rejects.toThrow();
    const giveUp = new AbortController();
    const call = api(url, { signal: giveUp.signal });
    giveUp.abort();
    await expect(call).rejects.toThrow();
    expect(outcomes).toEqual(['timeout', 'failed']);
    expect(sink.stats().held).toBe(0);
  });

  test('an abort in the queue sends nothing', async () => {
    const { url, seen } = await serve(() => {});
    const sink = limiter({ limit: { concurrency: 1 } });
    const api = throttleFetch(inner, { limiter: sink });
    const [first, second] = [new AbortController(), new AbortController()];
    const holding = api(url, { signal: first.signal });
    const waiting = api(new Request(url, { signal: second.signal }) as never);
    second.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    expect(sink.stats()).toMatchObject({ held: 1, waiting: 0, cancelled: 1 });
    first.abort();
    await expect(holding).rejects.toThrow();
    expect(seen.length).toBeLessThanOrEqual(1);
  });

  test('a refused or closed connection settles as busy, an invalid URL as failed', async () => {
    const dropper = createSocketServer((socket) => socket.destroy());
    await new Promise<void>((ready) => dropper.listen(0, '127.0.0.1', ready));
    const { port } = dropper.address() as AddressInfo;
    const sink = limiter({ limit: { concurrency: 9 } });
    const outcomes = outcomesOf(sink);
    const api = throttleFetch(inner, { limiter: sink });
    await expect(api(`http://127.0.0.1:${port}`)).rejects.toThrow();
    await new Promise((closed) => dropper.close(closed));
    await expect(api(`http://127.0.0.1:${port}`)).rejects.toThrow();
    await expect(api('not an address')).rejects.toThrow();
    expect(outcomes).toEqual(['busy', 'busy', 'failed']);
  });

  test('retry: retries back-pressure and cancels discarded bodies', async () => {
    let dropped = 0;
    const endless: Handler = (_request, response) => {
      response.writeHead(503).write('x'.repeat(100_000));
      response.once('close', () => dropped++);
    };
    const { url, seen } = await serve(endless, status(429), status(200));
    const api = throttleFetch(inner, { limit: plenty, retry: { initialDelay: 1 } });
    const response = await api(url);
    expect([response.status, await response.text()]).toEqual([200, '200']);
    expect(seen).toEqual(['GET /', 'GET /', 'GET /']);
    await vi.waitFor(() => expect(dropped).toBe(1));
  });

  test('retry: does not repeat a request that may have been processed', async () => {
    const api = throttleFetch(inner, { limit: plenty, retry: { initialDelay: 1 } });
    const refused = await serve(status(429), status(201));
    expect((await api(refused.url, { method: 'POST', body: 'x' })).status).toBe(201);
    const doubtful = await serve(status(500), status(201));
    expect((await api(doubtful.url, { method: 'POST', body: 'x' })).status).toBe(500);
    expect((await api(doubtful.url, { method: 'PUT', body: 'x' })).status).toBe(201);
    const streamed = await serve(status(429), status(201));
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(new TextEncoder().encode('once'));
        controller.close();
      },
    });
    const init = { method: 'POST', body, duplex: 'half' } as never;
    expect((await api(streamed.url, init)).status).toBe(429);
  });

  test('rejects what fetch itself refuses', async () => {
    const { url } = await serve(status(200));
    const api = throttleFetch(inner, { limit: plenty, retry: true });
    const odd = api(url, { method: 'POST', body: 123 as never });
    expect(odd).toBeInstanceOf(Promise);
    expect((await odd).status).toBe(200);
    await expect(api(url, { method: 'no way' })).rejects.toThrow();
  });

  test('signal null in init removes the signal of the Request', async () => {
    const { url } = await serve(status(200));
    const api = throttleFetch(inner, { limit: { concurrency: 1 } });
    const signal = AbortSignal.abort();
    expect((await api(url, { signal: null })).status).toBe(200);
    await expect(api(url, { signal })).rejects.toThrow();
  });

  test('onDeny: its result replaces the DeniedError', async () => {
    const { url } = await serve(status(200));
    const api = throttleFetch(inner, {
      limit: { bucket: { rate: 1, burst: 1 } },
      clock: new VirtualClock(),
      wait: false,
      onDeny: ({ retryAfterMs }) => new Response(`later: ${retryAfterMs}`, { status: 429 }),
    });
    await api(url);
    const response = await api(url);
    expect([response.status, await response.text()]).toEqual([429, 'later: 1000']);
  });
});

describe('throttleFetch', () => {
  test('has the type of the wrapped fetch', () => {
    expectTypeOf(throttleFetch({ limit: plenty })).toExtend<typeof fetch>();
    expectTypeOf(throttleFetch(undiciFetch, { limit: plenty })).toExtend<typeof undiciFetch>();
  });

  test('works with a remote limiter, and applies Retry-After', async () => {
    const { url, seen } = await serve(status(429, { 'Retry-After': '60' }));
    const decisions = [allow(1), allow(0)];
    const backend: Partial<RemoteBackend> = {
      checkNow: async () => ({ decision: decisions.shift() ?? deny(1), decidedAt: 0 }),
      settle: async () => {},
      isAvailable: true,
    };
    const maker: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
    const shared = limiter({ limit: plenty, backend: maker });
    const api = throttleFetch({ limiter: shared, wait: false });
    expect((await api(url)).status).toBe(429);
    await expect(api(url)).rejects.toMatchObject({ code: 'DENIED' });
    expect([seen.length, decisions.length]).toEqual([1, 1]); // no second check during the cool-down
  });

  test('refuses invalid options, naming them', () => {
    expect(() => throttleFetch(undefined as never)).toThrow('an object with a limit');
    expect(() => throttleFetch({ limit: { bukket: {} } } as never)).toThrow('`limit`');
    expect(() => throttleFetch({ limit: plenty, wate: 1 } as never)).toThrow('wate');
    expect(() => throttleFetch({ limit: plenty, wait: 'long' as never })).toThrow('wait');
    expect(() => throttleFetch({ limit: plenty, rateLimitHeaders: 1 } as never)).toThrow(
      'rateLimitHeaders',
    );
  });

  test.each([
    [{ on: ['bussy'] }, '`retry.on` to be a function, or a list of ok, busy'],
    [{ on: 'busy' }, '`retry.on` to be a function, or a list of ok, busy'],
    [{ onRetry: 'x' }, '`retry.onRetry` to be a function'],
    [{ maxRetry: 3 }, '`retry.maxRetry`'],
    [null, '`retry` to be true, a number of times, or an object, got null'],
    ['3', '`retry` to be true, a number of times, or an object, got "3"'],
  ])('refuses the retry option %j', (retry, message) => {
    expect(() => throttleFetch({ limit: plenty, retry } as never)).toThrow(message);
  });

  test('retry.maxWaiting bounds requests with safe and unsafe methods together', async () => {
    const clock = new VirtualClock();
    const statuses: number[] = [];
    const busy = async (): Promise<Response> => new Response(null, { status: 503 });
    const retry = { maxWaiting: 1, maxRetries: 1 };
    const api = throttleFetch(busy as typeof fetch, {
      limit: plenty,
      clock,
      retry,
      random: () => 0.5,
    });
    const calls = ['GET', 'POST'].map(async (method) => {
      statuses.push((await api('http://localhost/', { method })).status);
    });
    await clock.advanceAsync(0);
    expect(statuses).toEqual([503]); // the second request ends without a retry
    await clock.advanceAsync(1000);
    await Promise.all(calls);
  });
});

test('throttleFetch: requests that run longer than permitTimeout keep their permits', async () => {
  const clock = new VirtualClock();
  const waiting: ((response: Response) => void)[] = [];
  const inner = (_: string) => new Promise<Response>((answer) => waiting.push(answer));
  const limited = { limit: { concurrency: 2 }, permitTimeout: '1s', wait: true, clock } as const;
  for (const retry of [false, true]) {
    waiting.length = 0;
    const api = throttleFetch(inner, { ...limited, retry });
    const calls = Array.from({ length: 10 }, () => api('http://api.test/'));
    for (let answered = 0; answered < 10; answered++) {
      await clock.advanceAsync(5000);
      expect(waiting.length).toBe(Math.min(10, answered + 2));
      waiting[answered](new Response('ok'));
    }
    await Promise.all(calls);
    expect(api.limiter.stats()).toMatchObject({ expiredPermits: 0, held: 0, allowed: 10 });
  }
});
