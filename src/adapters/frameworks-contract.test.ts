import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  type AnyOptions,
  type Handler,
  HTTP_SERVERS,
  pipelineRequests,
  type RunningServer,
} from '../../test/support/http-servers.ts';
import { limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/limiter-interface.ts';
import { VirtualClock } from '../testing/index.ts';
import type { RefusalResponse } from './http/index.ts';

const PROBLEMS = 'https://iana.org/assignments/http-problem-types#';

const open: RunningServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()));
});

/** Handlers that finish when the test says so. */
function controlledWork() {
  const begun: ((status: number) => void)[] = [];
  return {
    begun,
    work: () => new Promise<number>((done) => begun.push(done)),
    async inProgress(count: number): Promise<void> {
      await vi.waitFor(() => expect(begun.length).toBe(count));
    },
  };
}

/** For many connections on a machine that has other work. */
const PATIENT = { timeout: 10_000, interval: 5 };

const settled = (api: Limiter) => vi.waitFor(() => expect(api.stats().held).toBe(0));

describe.each(Object.keys(HTTP_SERVERS))('%s', (name) => {
  async function start(options: AnyOptions | AnyOptions[], handle: Handler = () => 200) {
    const server = await HTTP_SERVERS[name]([options].flat(), handle);
    open.push(server);
    return server.url;
  }
  async function serve(options: AnyOptions | AnyOptions[], handle?: Handler) {
    const url = await start(options, handle);
    return (path = '/', init?: RequestInit) => fetch(`${url}${path}`, init);
  }
  const bucket = (options: object = {}): Limiter =>
    limiter({
      limit: { bucket: { rate: '1/s', burst: 2 } },
      name: 'api',
      clock: new VirtualClock(),
      ...options,
    });

  const broken = (): Limiter => {
    const check = () => {
      throw new Error('gone');
    };
    return { name: 'api', isCheckOnly: true, acquire: check, check } as unknown as Limiter;
  };

  test('serves a request within the limit, with rate limit headers', async () => {
    const get = await serve({ limiter: bucket() });
    const response = await get();
    expect([response.status, await response.text()]).toEqual([200, 'done']);
    expect(response.headers.get('ratelimit-policy')).toBe('"api";q=2;w=2');
    expect(response.headers.get('ratelimit')).toBe('"api";r=1;t=1');
    expect(response.headers.get('retry-after')).toBeNull();
  });

  test('refuses a request above the limit with 429 and problem details', async () => {
    const handle = vi.fn(() => 200);
    const get = await serve({ limiter: bucket() }, handle);
    await get();
    await get();
    const response = await get();
    expect(response.status).toBe(429);
    expect(handle).toHaveBeenCalledTimes(2);
    expect(response.headers.get('retry-after')).toBe('1');
    expect(response.headers.get('ratelimit')).toBe('"api";r=0;t=1');
    // Nest sends every error response as plain JSON.
    const type = name.startsWith('nest') ? /^application\/json/ : /^application\/problem\+json/;
    expect(response.headers.get('content-type')).toMatch(type);
    expect(await response.json()).toEqual({
      type: `${PROBLEMS}quota-exceeded`,
      title: 'Request cannot be satisfied as assigned quota has been exceeded',
      status: 429,
      detail: 'Over the limit. Try again in 1 second.',
      'violated-policies': ['api'],
    });
  });

  test('serves again once the limit has replenished', async () => {
    const clock = new VirtualClock();
    const get = await serve({ limit: { spacing: { every: '6s' } }, clock });
    expect([(await get()).status, (await get()).status]).toEqual([200, 429]);
    clock.advance(6000);
    expect((await get()).status).toBe(200);
  });

  test('skip: does not count the request', async () => {
    const api = bucket();
    const get = await serve({ limiter: api, skip: () => true });
    for (let n = 0; n < 5; n++) expect((await get()).status).toBe(200);
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('shadow: counts what it would refuse, and changes no response', async () => {
    const api = bucket();
    const get = await serve({ limiter: api, shadow: true });
    for (let n = 0; n < 3; n++) {
      const response = await get();
      expect([response.status, response.headers.get('ratelimit')]).toEqual([200, null]);
    }
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 1 });
  });

  test('key header: limits each API key separately', async () => {
    const get = await serve({ limiter: bucket(), key: { header: 'X-API-Key' } });
    const as = async (key: string) => (await get('/', { headers: { 'x-api-key': key } })).status;
    expect([await as('a'), await as('a'), await as('a')]).toEqual([200, 200, 429]);
    expect(await as('b')).toBe(200);
    expect((await get()).status).toBe(200); // without the header, by address
  });

  test('trustProxy: limits the client behind a trusted proxy', async () => {
    const get = await serve({ limiter: bucket(), trustProxy: ['127.0.0.0/8'] });
    const from = async (client: string) =>
      (await get('/', { headers: { 'x-forwarded-for': `6.6.6.6, ${client}` } })).status;
    expect([await from('9.9.9.1'), await from('9.9.9.1'), await from('9.9.9.1')]).toEqual([
      200, 200, 429,
    ]);
    expect(await from('9.9.9.2')).toBe(200);
  });

  test('ignores X-Forwarded-For of an untrusted client', async () => {
    const get = await serve({ limiter: bucket() });
    const from = async (client: string) =>
      (await get('/', { headers: { 'x-forwarded-for': client } })).status;
    expect([await from('9.9.9.1'), await from('9.9.9.2'), await from('9.9.9.3')]).toEqual([
      200, 200, 429,
    ]);
  });

  test('key function that throws: uses the address and reports the error', async () => {
    const errors: unknown[] = [];
    const key = () => {
      throw new Error('no such user');
    };
    const get = await serve({ limiter: bucket(), key, onError: (error) => errors.push(error) });
    const statuses = [(await get()).status, (await get()).status, (await get()).status];
    expect(statuses).toEqual([200, 200, 429]);
    expect(errors.map(String)).toEqual(Array(3).fill('Error: no such user'));
  });

  test('limiter that throws: fails open and reports the error', async () => {
    const onError = vi.fn();
    const get = await serve({ limiter: broken(), onError });
    expect([(await get()).status, onError.mock.calls.length]).toEqual([200, 1]);
  });

  test('limiter that throws, onUnavailable deny: answers 503', async () => {
    const onError = vi.fn();
    const get = await serve({ limiter: broken(), onUnavailable: 'deny', onError });
    const response = await get();
    expect([response.status, onError.mock.calls.length]).toEqual([503, 1]);
    expect(await response.json()).toMatchObject({ status: 503, 'violated-policies': [] });
  });

  test('headers: legacy, both, none', async () => {
    const seen = async (headers: 'legacy' | 'both' | false) => {
      const get = await serve({ limiter: bucket(), headers });
      const all = [...(await get()).headers].filter(([header]) => header.includes('ratelimit'));
      return all.map(([header, value]) => `${header}: ${value}`).sort();
    };
    const legacy = ['x-ratelimit-limit: 2', 'x-ratelimit-remaining: 1', 'x-ratelimit-reset: 1'];
    expect(await seen(false)).toEqual([]);
    expect(await seen('legacy')).toEqual(legacy);
    expect(await seen('both')).toEqual([
      'ratelimit-policy: "api";q=2;w=2',
      'ratelimit: "api";r=1;t=1',
      ...legacy,
    ]);
  });

  test('two limits: headers show both', async () => {
    const get = await serve([{ limiter: bucket() }, { limiter: bucket({ name: 'route' }) }]);
    const { headers } = await get();
    expect(headers.get('ratelimit-policy')).toBe('"api";q=2;w=2, "route";q=2;w=2');
    expect(headers.get('ratelimit')).toBe('"api";r=1;t=1, "route";r=1;t=1');
  });

  test.each([
    ['the first', 2, 9],
    ['the second', 9, 2],
  ])('two limits, legacy headers: show the tighter, %s', async (_, ...bursts) => {
    const [first, second] = bursts.map((burst) =>
      bucket({ limit: { bucket: { rate: '1/s', burst } } }),
    );
    const get = await serve([
      { limiter: first, headers: 'legacy' },
      { limiter: second, headers: 'legacy' },
    ]);
    const { headers } = await get();
    const legacy = ['limit', 'remaining', 'reset'].map((word) =>
      headers.get(`x-ratelimit-${word}`),
    );
    expect(legacy).toEqual(['2', '1', '1']);
  });

  test('two limits, legacy headers: a limit without a reset removes that of the other', async () => {
    const inFlight = limiter({ limit: { concurrency: 1 } });
    const get = await serve([
      { limiter: bucket(), headers: 'legacy' },
      { limiter: inFlight, headers: 'legacy' },
    ]);
    const { headers } = await get();
    expect(headers.get('x-ratelimit-remaining')).toBe('0');
    expect(headers.get('x-ratelimit-reset')).toBeNull();
  });

  test('two limits: the outer settles as ignored what the inner refuses', async () => {
    const outer = limiter({ limit: { concurrency: 10 }, name: 'server' });
    const get = await serve([
      { limiter: outer, key: () => 'all', headers: 'legacy' },
      { limiter: bucket(), headers: 'legacy' },
    ]);
    for (let n = 0; n < 5; n++) {
      const { status, headers } = await get();
      expect(status).toBe(n < 2 ? 200 : 429);
      expect(headers.get('x-ratelimit-remaining')).toBe(n === 0 ? '1' : '0');
      await settled(outer);
    }
    expect(outer.stats().settled).toMatchObject({ ok: 2, ignored: 3, busy: 0 });
  });

  test('refuse: changes headers, content type and body', async () => {
    const refuse = ({ retryAfterSeconds, policies }: RefusalResponse) => ({
      headers: { 'x-help': 'ask less' },
      contentType: 'text/plain',
      body: `${policies}: wait for ${retryAfterSeconds} s`,
    });
    const get = await serve({ limiter: bucket(), refuse });
    await get();
    await get();
    const response = await get();
    const { status, headers } = response;
    if (name.startsWith('nest')) {
      // Nest turns text into the message of its own object.
      expect([status, await response.json()]).toEqual([
        429,
        { statusCode: 429, message: 'api: wait for 1 s' },
      ]);
      expect(headers.get('x-help')).toBe('ask less');
      return;
    }
    expect([status, await response.text()]).toEqual([429, 'api: wait for 1 s']);
    const names = ['x-help', 'retry-after', 'ratelimit'];
    expect(names.map((header) => headers.get(header))).toEqual(['ask less', '1', '"api";r=0;t=1']);
    expect(headers.get('content-type')).toMatch(/^text\/plain/);
  });

  test('concurrency limit: answers 503 above it, and serves again when a call is done', async () => {
    const api = limiter({ limit: { concurrency: 1 }, name: 'db' });
    const { begun, work, inProgress } = controlledWork();
    const get = await serve({ limiter: api, key: 'ip' }, work);

    const first = get();
    await inProgress(1);
    const second = await get();
    expect(second.status).toBe(503);
    expect(second.headers.get('retry-after')).toBe('1');
    expect(second.headers.get('ratelimit-policy')).toBe('"db";q=1;qu="concurrent-requests"');
    expect(second.headers.get('ratelimit')).toBe('"db";r=0');
    expect(await second.json()).toMatchObject({
      type: `${PROBLEMS}temporary-reduced-capacity`,
      'violated-policies': ['db'],
    });

    begun[0](200);
    expect((await first).status).toBe(200);
    await settled(api);
    const third = get();
    await inProgress(2);
    begun[1](200);
    expect((await third).status).toBe(200);
    await settled(api);
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 1, settled: { ok: 2 } });
  });

  test('concurrency limit: a handler that runs longer than permitTimeout keeps its permit', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 2 }, permitTimeout: '1s', clock });
    const { begun, work, inProgress } = controlledWork();
    const get = await serve({ limiter: api, key: 'ip' }, work);
    const running = [get(), get()];
    await inProgress(2);
    for (let seconds = 0; seconds < 10; seconds++) clock.advance(1000);
    expect(api.stats()).toMatchObject({ expiredPermits: 0, held: 2 });
    expect((await get()).status).toBe(503);
    for (const end of begun) end(200);
    for (const response of running) expect(await (await response).text()).toBe('done');
    await settled(api);
    expect(api.stats()).toMatchObject({ expiredPermits: 0, settled: { ok: 2 } });
  });

  test('adaptive limit without a key: is for all clients together, and promises nothing to one', async () => {
    const { begun, work, inProgress } = controlledWork();
    let client = 0;
    const url = await start(
      { limit: { adaptive: { initial: 1 } }, address: () => `192.0.2.${++client}` },
      work,
    );
    const first = fetch(url);
    await inProgress(1);
    const second = await fetch(url);
    expect([second.status, second.headers.get('retry-after')]).toEqual([503, '1']);
    begun[0](200);
    const names = [...(await first).headers.keys(), ...second.headers.keys()];
    expect(names.filter((header) => header.includes('ratelimit'))).toEqual([]);
  });

  test('1,000 requests whose clients disconnect: no slot is lost', async () => {
    const api = limiter({ limit: { concurrency: 100 } });
    const { begun, work } = controlledWork();
    const url = await start({ limiter: api, maxEventLoopDelay: false }, work);
    for (let round = 1; round <= 10; round++) {
      const sockets = Array.from({ length: 100 }, () => pipelineRequests(url, 1));
      await vi.waitFor(() => expect(begun.length).toBe(100 * round), PATIENT);
      // Half of the clients disconnect before the response, half while it is written.
      for (const socket of sockets.slice(50)) socket.destroy();
      for (const done of begun.slice(-100)) done(200);
      for (const socket of sockets.slice(0, 50)) socket.destroy();
      await vi.waitFor(() => expect(api.stats().held).toBe(0), PATIENT);
    }
    const { allowed, denied } = api.stats();
    expect([allowed, denied, api.inspect('server').inFlight]).toEqual([1000, 0, 0]);
  });

  test('settles with the outcome of the response status', async () => {
    const api = limiter({ limit: { concurrency: 1 } });
    const get = await serve({ limiter: api }, (path) => {
      if (path === '/throws') throw new Error('out of luck');
      return Number(path.slice(1));
    });
    for (const path of ['/200', '/404', '/429', '/503', '/500', '/throws']) {
      await (await get(path)).text();
      await settled(api);
    }
    expect(api.stats().settled).toMatchObject({ ok: 3, busy: 1, failed: 2 });
  });

  test('outcome: a function replaces the default outcome', async () => {
    const api = limiter({ limit: { concurrency: 1 } });
    const outcome = (_: unknown, status: number) => (status === 404 ? 'busy' : undefined);
    const get = await serve({ limiter: api, outcome }, (path) => Number(path.slice(1)));
    for (const path of ['/404', '/500', '/200']) {
      await (await get(path)).text();
      await settled(api);
    }
    expect(api.stats().settled).toMatchObject({ ok: 1, busy: 1, failed: 1 });
  });

  test('pipelined requests: a disconnect settles all permits as failed', async () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const api = limiter({ limit: { concurrency: 100 } });
    const { begun, work, inProgress } = controlledWork();
    const url = await start({ limiter: api }, work);
    const socket = pipelineRequests(url, 20);
    await inProgress(20);
    expect(api.stats().held).toBe(20);
    socket.destroy();
    await settled(api);
    expect(api.stats().settled).toMatchObject({ failed: 20, ok: 0 });
    for (const done of begun) done(200); // ignored: already settled
    expect(warned).not.toHaveBeenCalled(); // such as MaxListenersExceededWarning
    warned.mockRestore();
  });

  test('pipelined requests: each permit is settled once, when its response is sent', async () => {
    const api = limiter({ limit: { concurrency: 100 } });
    const { begun, work, inProgress } = controlledWork();
    const outcome = vi.fn();
    const url = await start({ limiter: api, outcome }, work);
    const socket = pipelineRequests(url, 3);
    await inProgress(3);
    for (const done of begun.toReversed()) done(200);
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 3, failed: 0 });
    await new Promise((closed) => socket.once('close', closed).destroy());
    const next = fetch(url); // when this is served, the server has seen the disconnect
    await inProgress(4);
    begun[3](200);
    await (await next).text();
    await settled(api);
    expect(outcome).toHaveBeenCalledTimes(4);
  });

  test('pipelined requests that wait: a disconnect removes them from the queue', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    const { begun, work, inProgress } = controlledWork();
    const socket = pipelineRequests(await start({ limiter: api, wait: true }, work), 5);
    await inProgress(1);
    await vi.waitFor(() => expect(api.stats().waiting).toBe(4));
    socket.destroy();
    await vi.waitFor(() => expect(api.stats()).toMatchObject({ waiting: 0, held: 0 }));
    await new Promise(setImmediate);
    expect(begun.length).toBe(1); // no handler runs for a disconnected client
  });

  test('a disconnect settles the permit as failed', async () => {
    const api = limiter({ limit: { concurrency: 1 } });
    const { begun, work, inProgress } = controlledWork();
    const get = await serve({ limiter: api }, work);
    const disconnect = new AbortController();
    const first = get('/', { signal: disconnect.signal });
    await inProgress(1);
    expect(api.stats().held).toBe(1);
    disconnect.abort();
    await expect(first).rejects.toThrow();
    await settled(api);
    expect(api.stats().settled).toMatchObject({ failed: 1, ok: 0 });

    begun[0](200); // ignored: already settled
    const second = get();
    await inProgress(2);
    begun[1](200);
    expect((await second).status).toBe(200);
    await settled(api);
    expect(api.stats().settled).toMatchObject({ failed: 1, ok: 1 });
  });

  test('wait: serves a queued request when the limit allows', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '6s' } }, clock });
    const get = await serve({ limiter: api, wait: '10s' });
    expect((await get()).status).toBe(200);
    const second = get();
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    await clock.advanceAsync(6000);
    expect((await second).status).toBe(200);
    await settled(api);
    expect(api.stats()).toMatchObject({ allowed: 2, waited: 1, denied: 0 });
  });

  test('wait: refuses at once what would exceed the maximum wait', async () => {
    const clock = new VirtualClock();
    const get = await serve({ limit: { spacing: { every: '6s' } }, clock, wait: '2s' });
    expect((await get()).status).toBe(200);
    const response = await get();
    expect([response.status, response.headers.get('retry-after')]).toEqual([429, '6']);
  });

  test('wait: answers 503 if the queue is full', async () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '6s' } } as const;
    const get = await serve({ limit, clock, queue: { max: 0 }, wait: true });
    await get();
    const response = await get();
    expect([response.status, response.headers.get('retry-after')]).toEqual([503, '6']);
    expect(await response.text()).toContain('The queue is full');
  });

  test('wait: a disconnect removes the request from the queue', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '6s' } }, clock });
    const handle = vi.fn(() => 200);
    const get = await serve({ limiter: api, wait: true }, handle);
    await get();
    const disconnect = new AbortController();
    const second = get('/', { signal: disconnect.signal });
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    const third = get();
    await vi.waitFor(() => expect(api.stats().waiting).toBe(2));
    disconnect.abort();
    await expect(second).rejects.toThrow();
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    await clock.advanceAsync(6000);
    expect((await third).status).toBe(200);
    expect(handle).toHaveBeenCalledTimes(2);
    expect(api.stats()).toMatchObject({ allowed: 2, cancelled: 1 });
  });

  test('level: passes the level to the limiter', async () => {
    const limit = { concurrency: { limit: 2, priorities: ['user', 'prefetch'] } };
    const api = limiter({ limit });
    const { begun, work, inProgress } = controlledWork();
    const get = await serve({ limiter: api, level: () => 'user' }, work);
    const first = get();
    await inProgress(1);
    expect(api.inspect('server').priorities).toEqual({ user: 1, prefetch: 0 });
    begun[0](200);
    await first;
    await settled(api);
  });

  test('partition: passes the partition to the limiter', async () => {
    const limit = { concurrency: { limit: 2, partitions: { live: 0.5, batch: 0.5 } } };
    const api = limiter({ limit });
    const { begun, work, inProgress } = controlledWork();
    const get = await serve({ limiter: api, partition: () => 'live' }, work);
    const first = get();
    await inProgress(1);
    expect(api.inspect('server').partitions).toEqual({ live: 1, batch: 0 });
    begun[0](200);
    await first;
    await settled(api);
  });

  test.each(['127.0.0.1', '[::1]'])(
    'lock-out on a dual-stack port, reported for the request: good logins from %s are never refused',
    async (host) => {
      const api = limiter({ limit: { lockout: { after: 2 } }, clock: new VirtualClock() });
      const attempts = ['success', 'success', 'success', 'success', 'failure', 'failure'] as const;
      let n = 0;
      const seen: unknown[] = [];
      const login: Handler = async (_path, state) => {
        await state.report(attempts[n++]);
        seen.push(state.keyOf(), (await state.inspect())?.failures);
        return 200;
      };
      const server = await HTTP_SERVERS[name]([{ limiter: api }], login, '::');
      open.push(server);
      const url = server.url.replace('127.0.0.1', host);
      const statuses: number[] = [];
      for (let request = 0; request < 7; request++) statuses.push((await fetch(url)).status);
      expect(statuses).toEqual([200, 200, 200, 200, 200, 200, 429]);
      const key = host === '127.0.0.1' ? host : '0:0:0:0::/64';
      expect(seen).toEqual([key, 0, key, 0, key, 0, key, 0, key, 1, key, 2]);
    },
  );

  test('keyOf, report and inspect: use the key that was counted, whatever the option `key` returns later', async () => {
    const api = limiter({ limit: { lockout: { after: 2 } }, clock: new VirtualClock() });
    let user = 'guest';
    const login: Handler = async (_path, state) => {
      user = 'alice';
      const { failures } = (await state.inspect()) ?? {};
      await state.report('success');
      return state.keyOf() === 'guest' && failures === 1 ? 200 : 500;
    };
    const get = await serve({ limiter: api, key: () => user }, login);
    expect((await get()).status).toBe(200);
    expect([api.inspect('guest').failures, api.inspect('alice').failures]).toEqual([0, 0]);
  });
});
