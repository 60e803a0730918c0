import { afterEach, describe, expect, test, vi } from 'vitest';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/index.ts';
import { rateLimit } from './web.ts';

afterEach(() => vi.restoreAllMocks());

const get = (init: RequestInit = {}): Request => new Request('http://api.test/', init);
const bucket = { bucket: { rate: '1/s', burst: 1 } } as const;
const options = () => ({ limit: bucket, name: 'api', clock: new VirtualClock() });

describe('web: client address', () => {
  const from = async (connection: unknown, request = get()) => {
    const keys: unknown[] = [];
    const api = limiter(options());
    const limited = rateLimit({ limiter: api, headers: false })((_, __: unknown) => {
      keys.push(api.inspect('192.0.2.7').remaining);
      return new Response('ok');
    });
    await limited(request, connection);
    return keys[0] === 0 ? '192.0.2.7' : 'another';
  };

  test('Bun: the server tells it', async () => {
    const server = {
      peer: { address: '192.0.2.7', port: 1, family: 'IPv4' },
      requestIP(request: unknown) {
        return request instanceof Request ? this.peer : null;
      },
    };
    expect(await from(server)).toBe('192.0.2.7');
  });

  test('Deno: the second argument has it', async () => {
    const info = { remoteAddr: { transport: 'tcp', hostname: '192.0.2.7', port: 1 } };
    expect(await from(info)).toBe('192.0.2.7');
  });

  test('Cloudflare: CF-Connecting-IP counts where the platform marks the request', async () => {
    const request = get({ headers: { 'cf-connecting-ip': '192.0.2.7' } });
    expect(await from({}, Object.assign(request, { cf: {} }))).toBe('192.0.2.7');
  });

  test('elsewhere CF-Connecting-IP does not count: any client can send it', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    expect(await from({}, get({ headers: { 'cf-connecting-ip': '192.0.2.7' } }))).toBe('another');
    expect(String(warn.mock.calls[0][0])).toContain('gives no client address');
  });

  test('option address: used instead', async () => {
    const limited = rateLimit({ ...options(), address: (r) => r.headers.get('x-real-ip') })(
      () => new Response('ok'),
    );
    const status = async (ip: string) =>
      (await limited(get({ headers: { 'x-real-ip': ip } }))).status;
    expect([
      await status('192.0.2.1'),
      await status('192.0.2.1'),
      await status('192.0.2.2'),
    ]).toEqual([200, 429, 200]);
  });
});

describe('web: responses', () => {
  test('headers are added to a response with immutable headers', async () => {
    const limited = rateLimit({ ...options(), key: () => 'a' })(() =>
      Response.redirect('http://api.test/next', 302),
    );
    const response = await limited(get());
    expect([response.status, response.headers.get('location')]).toEqual([
      302,
      'http://api.test/next',
    ]);
    expect(response.headers.get('ratelimit')).toBe('"api";r=0;t=1');
  });

  test('arguments of the runtime reach the handler, and its error the runtime', async () => {
    const limited = rateLimit({ ...options(), key: () => 'a' })(
      (_, env: { name: string }, n: number) => {
        throw new Error(`${env.name} ${n}`);
      },
    );
    await expect(limited(get(), { name: 'env' }, 7)).rejects.toThrow('env 7');
  });
});

describe('web: a limit on calls in flight', () => {
  const inFlight = (body: () => ReadableStream | string | null, inner?: object) => {
    const api = limiter({ limit: { concurrency: 1 }, name: 'db' });
    const own = rateLimit({ limiter: api, maxEventLoopDelay: false });
    const handler = () => new Response(body());
    const limited = own(
      inner ? rateLimit({ ...options(), key: () => 'a', ...inner })(handler) : handler,
    );
    return { api, limited };
  };
  const endless = () => new ReadableStream({ pull: (c) => c.enqueue(new Uint8Array(8)) });

  test('counts a response until its body is read to the end', async () => {
    const { api, limited } = inFlight(() => 'text');
    const response = await limited(get());
    expect(api.stats().held).toBe(1);
    expect((await limited(get())).status).toBe(503);
    expect([await response.text(), api.stats().held]).toEqual(['text', 0]);
    expect(api.stats().settled).toMatchObject({ ok: 1 });
  });

  test('a response without a body is over at once', async () => {
    const { api, limited } = inFlight(() => null);
    await limited(get());
    expect(api.stats().held).toBe(0);
  });

  test('a handler, and a body that is read, keep the permit beyond permitTimeout', async () => {
    const clock = new VirtualClock();
    const limit = { concurrency: 1 };
    const api = limiter({ limit, clock, permitTimeout: '1s' });
    let answer = (_: Response): void => {};
    const handler = () =>
      new Promise<Response>((resolve) => {
        answer = resolve;
      });
    const limited = rateLimit({ limiter: api, key: () => 'all' })(handler);
    const responding = limited(get());
    await clock.advanceAsync(5000);
    expect(api.stats()).toMatchObject({ expiredPermits: 0, held: 1 });
    expect((await limited(get())).status).toBe(503);
    answer(new Response(endless()));
    const body = (await responding).body?.getReader();
    for (let n = 0; n < 5; n++) {
      await body?.read();
      await clock.advanceAsync(1000);
    }
    expect(api.stats()).toMatchObject({ expiredPermits: 0, held: 1 });
    expect((await limited(get())).status).toBe(503);
    await body?.cancel();
    expect(api.stats()).toMatchObject({ held: 0, expiredPermits: 0 });
  });

  test('a cancelled body settles as failed', async () => {
    const { api, limited } = inFlight(endless);
    await (await limited(get())).body?.cancel();
    expect([api.stats().held, api.stats().settled.failed]).toEqual([0, 1]);
  });

  test('a client that disconnects while the body streams settles as failed', async () => {
    const { api, limited } = inFlight(endless);
    const client = new AbortController();
    await limited(get({ signal: client.signal }));
    expect(api.stats().held).toBe(1);
    client.abort();
    expect([api.stats().held, api.stats().settled.failed]).toEqual([0, 1]);
  });

  test('does not learn from the refusal of an inner limit', async () => {
    const { api, limited } = inFlight(() => 'text', {});
    await (await limited(get())).text();
    const refused = await limited(get());
    expect([refused.status, (await refused.text()).length > 0]).toEqual([429, true]);
    expect([api.stats().held, api.stats().settled]).toMatchObject([0, { ok: 1, ignored: 1 }]);
  });
});
