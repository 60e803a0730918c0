/** The same stories, told over every framework there is an adapter for. */

import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  type AnyOptions,
  type Handler,
  HTTP_SERVERS,
  pipelineRequests,
  type RunningServer,
} from '../../test/support/http-servers.ts';
import { limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/sync-limiter.ts';
import { VirtualClock } from '../testing/index.ts';
import type { RefusalResponse } from './http.ts';

const PROBLEMS = 'https://iana.org/assignments/http-problem-types#';

const open: RunningServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()));
});

/** Work that is done when the test says so, and says when it has begun. */
function bench() {
  const begun: ((status: number) => void)[] = [];
  return {
    begun,
    work: () => new Promise<number>((done) => begun.push(done)),
    async underway(count: number): Promise<void> {
      await vi.waitFor(() => expect(begun.length).toBe(count));
    },
  };
}

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
    const ask = () => {
      throw new Error('gone');
    };
    return { name: 'api', isCheckOnly: true, acquire: ask, check: ask } as unknown as Limiter;
  };

  test('a request within the limit is served, and told what is left', async () => {
    const get = await serve({ limiter: bucket() });
    const response = await get();
    expect([response.status, await response.text()]).toEqual([200, 'done']);
    expect(response.headers.get('ratelimit-policy')).toBe('"api";q=2;w=2');
    expect(response.headers.get('ratelimit')).toBe('"api";r=1;t=1');
    expect(response.headers.get('retry-after')).toBeNull();
  });

  test('one too many is told so in a way that programs can read', async () => {
    const handle = vi.fn(() => 200);
    const get = await serve({ limiter: bucket() }, handle);
    await get();
    await get();
    const response = await get();
    expect(response.status).toBe(429);
    expect(handle).toHaveBeenCalledTimes(2);
    expect(response.headers.get('retry-after')).toBe('1');
    expect(response.headers.get('ratelimit')).toBe('"api";r=0;t=1');
    expect(response.headers.get('content-type')).toMatch(/^application\/problem\+json/);
    expect(await response.json()).toEqual({
      type: `${PROBLEMS}quota-exceeded`,
      title: 'Request cannot be satisfied as assigned quota has been exceeded',
      status: 429,
      detail: 'Over the limit. Try again in 1 second.',
      'violated-policies': ['api'],
    });
  });

  test('when time has passed it is served again', async () => {
    const clock = new VirtualClock();
    const get = await serve({ limit: { spacing: { every: '6s' } }, clock });
    expect([(await get()).status, (await get()).status]).toEqual([200, 429]);
    clock.advance(6000);
    expect((await get()).status).toBe(200);
  });

  test('what is skipped is not counted', async () => {
    const api = bucket();
    const get = await serve({ limiter: api, skip: () => true });
    for (let n = 0; n < 5; n++) expect((await get()).status).toBe(200);
    expect(api.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('in the shadow it counts what it would refuse, and nobody notices', async () => {
    const api = bucket();
    const get = await serve({ limiter: api, shadow: true });
    for (let n = 0; n < 3; n++) {
      const response = await get();
      expect([response.status, response.headers.get('ratelimit')]).toEqual([200, null]);
    }
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 1 });
  });

  test('each api key has a limit of its own', async () => {
    const get = await serve({ limiter: bucket(), key: { header: 'X-API-Key' } });
    const as = async (key: string) => (await get('/', { headers: { 'x-api-key': key } })).status;
    expect([await as('a'), await as('a'), await as('a')]).toEqual([200, 200, 429]);
    expect(await as('b')).toBe(200);
    expect((await get()).status).toBe(200); // without one, its address counts
  });

  test('behind a trusted proxy the client counts, not the proxy', async () => {
    const get = await serve({ limiter: bucket(), trustProxy: ['127.0.0.0/8'] });
    const from = async (client: string) =>
      (await get('/', { headers: { 'x-forwarded-for': `6.6.6.6, ${client}` } })).status;
    expect([await from('9.9.9.1'), await from('9.9.9.1'), await from('9.9.9.1')]).toEqual([
      200, 200, 429,
    ]);
    expect(await from('9.9.9.2')).toBe(200);
  });

  test('a stranger is not believed about where it comes from', async () => {
    const get = await serve({ limiter: bucket() });
    const from = async (client: string) =>
      (await get('/', { headers: { 'x-forwarded-for': client } })).status;
    expect([await from('9.9.9.1'), await from('9.9.9.2'), await from('9.9.9.3')]).toEqual([
      200, 200, 429,
    ]);
  });

  test('a key function that fails leaves the address, and somebody hears of it', async () => {
    const errors: unknown[] = [];
    const key = () => {
      throw new Error('no such user');
    };
    const get = await serve({ limiter: bucket(), key, onError: (error) => errors.push(error) });
    const statuses = [(await get()).status, (await get()).status, (await get()).status];
    expect(statuses).toEqual([200, 200, 429]);
    expect(errors.map(String)).toEqual(Array(3).fill('Error: no such user'));
  });

  test('a limiter that fails lets requests through, and somebody hears of it', async () => {
    const onError = vi.fn();
    const get = await serve({ limiter: broken(), onError });
    expect([(await get()).status, onError.mock.calls.length]).toEqual([200, 1]);
  });

  test('or keeps it out, if that was asked for', async () => {
    const onError = vi.fn();
    const get = await serve({ limiter: broken(), onUnavailable: 'deny', onError });
    const response = await get();
    expect([response.status, onError.mock.calls.length]).toEqual([503, 1]);
    expect(await response.json()).toMatchObject({ status: 503, 'violated-policies': [] });
  });

  test('other headers, more headers, none', async () => {
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

  test('two limits in a row speak of both', async () => {
    const get = await serve([{ limiter: bucket() }, { limiter: bucket({ name: 'route' }) }]);
    const { headers } = await get();
    expect(headers.get('ratelimit-policy')).toBe('"api";q=2;w=2, "route";q=2;w=2');
    expect(headers.get('ratelimit')).toBe('"api";r=1;t=1, "route";r=1;t=1');
  });

  test.each([
    ['the first', 2, 9],
    ['the second', 9, 2],
  ])('in the old words the tighter of two speaks: %s', async (_, ...bursts) => {
    const [first, second] = bursts.map((burst) =>
      bucket({ limit: { bucket: { rate: '1/s', burst } } }),
    );
    const get = await serve([
      { limiter: first, headers: 'legacy' },
      { limiter: second, headers: 'legacy' },
    ]);
    const { headers } = await get();
    const told = ['limit', 'remaining', 'reset'].map((word) => headers.get(`x-ratelimit-${word}`));
    expect(told).toEqual(['2', '1', '1']);
  });

  test('in the old words a limit without a time takes the time of another away', async () => {
    const inFlight = limiter({ limit: { concurrency: 1 } });
    const get = await serve([
      { limiter: bucket(), headers: 'legacy' },
      { limiter: inFlight, headers: 'legacy' },
    ]);
    const { headers } = await get();
    expect(headers.get('x-ratelimit-remaining')).toBe('0');
    expect(headers.get('x-ratelimit-reset')).toBeNull();
  });

  test('what one limit refuses says nothing to another further out', async () => {
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

  test('a refusal in other words', async () => {
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
    expect([status, await response.text()]).toEqual([429, 'api: wait for 1 s']);
    const names = ['x-help', 'retry-after', 'ratelimit'];
    expect(names.map((header) => headers.get(header))).toEqual(['ask less', '1', '"api";r=0;t=1']);
    expect(headers.get('content-type')).toMatch(/^text\/plain/);
  });

  test('calls in flight: one too many is 503, and when one is done the next is served', async () => {
    const api = limiter({ limit: { concurrency: 1 }, name: 'db' });
    const { begun, work, underway } = bench();
    const get = await serve({ limiter: api }, work);

    const first = get();
    await underway(1);
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
    await underway(2);
    begun[1](200);
    expect((await third).status).toBe(200);
    await settled(api);
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 1, settled: { ok: 2 } });
  });

  test('how it went is told by what was answered', async () => {
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

  test('or by what somebody makes of it', async () => {
    const api = limiter({ limit: { concurrency: 1 } });
    const outcome = (_: unknown, status: number) => (status === 404 ? 'busy' : undefined);
    const get = await serve({ limiter: api, outcome }, (path) => Number(path.slice(1)));
    for (const path of ['/404', '/500', '/200']) {
      await (await get(path)).text();
      await settled(api);
    }
    expect(api.stats().settled).toMatchObject({ ok: 1, busy: 1, failed: 1 });
  });

  test('a client that asked ahead and leaves gives all its places back', async () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const api = limiter({ limit: { concurrency: 100 } });
    const { begun, work, underway } = bench();
    const url = await start({ limiter: api }, work);
    const socket = pipelineRequests(url, 20);
    await underway(20);
    expect(api.stats().held).toBe(20);
    socket.destroy();
    await settled(api);
    expect(api.stats().settled).toMatchObject({ failed: 20, ok: 0 });
    for (const done of begun) done(200); // too late to count
    expect(warned).not.toHaveBeenCalled(); // of too many listeners, say
    warned.mockRestore();
  });

  test('one that asked ahead and stays is served in turn, and is done with then', async () => {
    const api = limiter({ limit: { concurrency: 100 } });
    const { begun, work, underway } = bench();
    const outcome = vi.fn();
    const url = await start({ limiter: api, outcome }, work);
    const socket = pipelineRequests(url, 3);
    await underway(3);
    for (const done of begun.toReversed()) done(200);
    await settled(api);
    expect(api.stats().settled).toMatchObject({ ok: 3, failed: 0 });
    await new Promise((closed) => socket.once('close', closed).destroy());
    const next = fetch(url); // when this is served, the server has seen the other go
    await underway(4);
    begun[3](200);
    await (await next).text();
    await settled(api);
    expect(outcome).toHaveBeenCalledTimes(4);
  });

  test('one that asked ahead, waits and leaves leaves the line', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 1 }, clock });
    const { begun, work, underway } = bench();
    const socket = pipelineRequests(await start({ limiter: api, wait: true }, work), 5);
    await underway(1);
    await vi.waitFor(() => expect(api.stats().waiting).toBe(4));
    socket.destroy();
    await vi.waitFor(() => expect(api.stats()).toMatchObject({ waiting: 0, held: 0 }));
    await new Promise(setImmediate);
    expect(begun.length).toBe(1); // nobody works for those who have gone
  });

  test('a client that leaves gives its place back', async () => {
    const api = limiter({ limit: { concurrency: 1 } });
    const { begun, work, underway } = bench();
    const get = await serve({ limiter: api }, work);
    const leave = new AbortController();
    const first = get('/', { signal: leave.signal });
    await underway(1);
    expect(api.stats().held).toBe(1);
    leave.abort();
    await expect(first).rejects.toThrow();
    await settled(api);
    expect(api.stats().settled).toMatchObject({ failed: 1, ok: 0 });

    begun[0](200); // too late to count
    const second = get();
    await underway(2);
    begun[1](200);
    expect((await second).status).toBe(200);
    await settled(api);
    expect(api.stats().settled).toMatchObject({ failed: 1, ok: 1 });
  });

  test('whoever may wait is served when its turn comes', async () => {
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

  test('but not for longer than it is worth', async () => {
    const clock = new VirtualClock();
    const get = await serve({ limit: { spacing: { every: '6s' } }, clock, wait: '2s' });
    expect((await get()).status).toBe(200);
    const response = await get();
    expect([response.status, response.headers.get('retry-after')]).toEqual([429, '6']);
  });

  test('and not if too many wait already', async () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '6s' } };
    const get = await serve({ limit, clock, queue: { max: 0 }, wait: true });
    await get();
    const response = await get();
    expect([response.status, response.headers.get('retry-after')]).toEqual([503, '6']);
    expect(await response.text()).toContain('Too many requests wait already');
  });

  test('a client that leaves while it waits gives its place in line to the next', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '6s' } }, clock });
    const handle = vi.fn(() => 200);
    const get = await serve({ limiter: api, wait: true }, handle);
    await get();
    const leave = new AbortController();
    const second = get('/', { signal: leave.signal });
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    const third = get();
    await vi.waitFor(() => expect(api.stats().waiting).toBe(2));
    leave.abort();
    await expect(second).rejects.toThrow();
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    await clock.advanceAsync(6000);
    expect((await third).status).toBe(200);
    expect(handle).toHaveBeenCalledTimes(2);
    expect(api.stats()).toMatchObject({ allowed: 2, cancelled: 1 });
  });

  test('partitions are handed on', async () => {
    const limit = { concurrency: { limit: 2, partitions: { live: 0.5, batch: 0.5 } } };
    const api = limiter({ limit });
    const { begun, work, underway } = bench();
    const get = await serve({ limiter: api, partition: () => 'live' }, work);
    const first = get();
    await underway(1);
    expect(api.inspect('127.0.0.1').partitions).toEqual({ live: 1, batch: 0 });
    begun[0](200);
    await first;
    await settled(api);
  });
});
