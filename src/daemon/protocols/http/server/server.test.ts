import { once } from 'node:events';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type HttpRequestOptions,
  type HttpServerOptions,
  type RunningHttpServer,
  serveHttp,
  unavailableBackend,
} from '../../../../../test/support/http-protocol.ts';
import { deny } from '../../../../core/decision.ts';
import { formatMismatch } from '../../../../core/errors.ts';
import { VirtualClock } from '../../../../testing/index.ts';
import { readHttpSection } from '../../../config/http.ts';
import { createKeyExtractor } from '../key.ts';

const open: RunningHttpServer[] = [];

afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.stop()));
});

async function start(
  options: HttpServerOptions = {},
  isLoopback = true,
): Promise<RunningHttpServer> {
  const clock = new VirtualClock(1e6);
  const server = await serveHttp(createHttpServer({ clock, ...options }), isLoopback);
  open.push(server);
  return server;
}

const post = (body: unknown, headers: HttpRequestOptions['headers'] = {}): HttpRequestOptions => ({
  method: 'POST',
  headers: { 'content-type': 'application/json', ...headers },
  body: JSON.stringify(body),
});

const form = (body: string): HttpRequestOptions => ({
  method: 'POST',
  headers: { 'content-type': 'application/x-www-form-urlencoded' },
  body,
});

const PROBLEM = 'application/problem+json';

describe('HTTP check', () => {
  test('bucket: 200 with what remains, then 429 with Retry-After', async () => {
    const { sendRequest } = await start();
    const first = await sendRequest('/check?limit=api&key=alice');
    expect(first.status).toBe(200);
    expect(first.json).toEqual({ verdict: 'allow', remaining: 2 });
    expect(first.headers).toMatchObject({
      'content-type': 'application/json',
      'ratelimit-policy': '"api";q=3;w=3',
      ratelimit: '"api";r=2;t=1',
    });
    expect((await sendRequest('/check?key=alice&cost=2')).json.remaining).toBe(0);
    const refused = await sendRequest('/check?key=alice');
    expect(refused.status).toBe(429);
    expect(refused.headers).toMatchObject({
      'content-type': PROBLEM,
      'retry-after': '1',
      ratelimit: '"api";r=0;t=1',
    });
    expect(refused.json).toMatchObject({
      type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
      status: 429,
      'violated-policies': ['api'],
      verdict: 'deny',
      remaining: 0,
      retryAfterMs: 1000,
      limit: 'api',
    });
    expect((await sendRequest('/check?key=bob')).status).toBe(200);
    const large = await sendRequest('/check?key=bob&cost=9');
    expect(large.headers.ratelimit).toBe('"api";r=2');
    expect(large.json).toMatchObject({ remaining: 2, retryAfterMs: null }); // the same as in the header
  });

  test('forwarded by a proxy: any method, and a body is not parsed', async () => {
    const { sendRequest } = await start({
      extractKey: createKeyExtractor(readHttpSection({ key: { header: 'X-Real-IP' } }, 'http')),
    });
    const headers = { 'x-real-ip': '192.0.2.1', 'x-forwarded-method': 'PUT' };
    expect((await sendRequest('/check', { method: 'HEAD', headers })).text).toBe('');
    expect((await sendRequest('/check', { method: 'DELETE', headers })).status).toBe(200);
    const forged = { ...post({ key: 'bob' }), headers: { ...headers, 'x-forwarded-uri': '/' } };
    expect((await sendRequest('/check', forged)).status).toBe(200);
    expect((await sendRequest('/check', { method: 'OPTIONS', headers })).status).toBe(429);
    expect((await sendRequest('/check', { headers: { 'x-real-ip': '192.0.2.2' } })).status).toBe(
      200,
    );
  });

  test('without the header that holds the key: the problem names the header', async () => {
    const { sendRequest } = await start({
      extractKey: createKeyExtractor(readHttpSection({ key: { header: 'X-Real-IP' } }, 'http')),
    });
    expect((await sendRequest('/check')).json).toMatchObject({
      status: 400,
      detail: 'expected `key` to be a parameter, or once in the header x-real-ip, got undefined',
    });
  });

  test('form, JSON and URL: name the same binary key', async () => {
    const { sendRequest } = await start();
    expect((await sendRequest('/check', form('key=caf%C3%A9'))).json.remaining).toBe(2);
    expect((await sendRequest('/check', post({ key: 'café' }))).json.remaining).toBe(1);
    expect((await sendRequest('/check?key=caf%C3%A9')).json.remaining).toBe(0);
    expect((await sendRequest('/check?key=caf%E9')).json.remaining).toBe(2); // other bytes, other key
  });

  test('status parameter: replaces the status of a refusal', async () => {
    const { sendRequest } = await start();
    const refused = await sendRequest('/check?key=alice&cost=4&status=403');
    expect([refused.status, refused.json.status]).toEqual([403, 403]);
    expect(refused.headers['retry-after']).toBeUndefined(); // it can never fit
    expect(refused.json.retryAfterMs).toBeNull();
    expect((await sendRequest('/check?key=alice&cost=3&status=403')).status).toBe(200);
    const later = await sendRequest('/check?key=alice&status=403');
    expect([later.status, later.headers['retry-after']]).toEqual([403, '1']);
  });

  test('several limits: headers list all of them, the refusal names one', async () => {
    const { sendRequest } = await start({
      limits: {
        user: { bucket: { rate: '1/s', burst: 3 } },
        all: { bucket: { rate: '1/s', burst: 2 }, per: 'limit', always: true, expose: true },
      },
    });
    const first = await sendRequest('/check?key=alice');
    expect(first.headers.ratelimit).toBe('"user";r=2;t=1, "all";r=1;t=1');
    expect(first.json.remaining).toBe(1);
    await sendRequest('/check?key=bob');
    const refused = await sendRequest('/check?key=carol');
    expect(refused.json).toMatchObject({ limit: 'all', 'violated-policies': ['all'] });
  });

  test('shadow mode: neither headers nor body mention the limit', async () => {
    const { sendRequest } = await start({
      limits: { api: { bucket: { rate: '1/s', burst: 1 }, shadow: true } },
    });
    await sendRequest('/check?key=alice');
    const second = await sendRequest('/check?key=alice');
    expect([second.status, second.headers.ratelimit]).toEqual([200, undefined]);
    expect(second.json).toEqual({ verdict: 'allow' });
  });

  test('unavailable backend: 503 without RateLimit headers', async () => {
    const redis = { url: 'redis://127.0.0.1' };
    const { sendRequest } = await start({
      limits: { api: { bucket: { rate: '1/s', burst: 3 }, redis } },
      backend: unavailableBackend(deny(500)),
    });
    const { status, headers, json } = await sendRequest('/check?key=a');
    expect([status, headers['retry-after'], headers.ratelimit]).toEqual([503, '1', undefined]);
    expect(json).toMatchObject({
      type: 'https://iana.org/assignments/http-problem-types#temporary-reduced-capacity',
      detail: 'The limit could not be checked. Try again in 1 second.',
      'violated-policies': ['api'],
      verdict: 'deny',
      reason: 'unavailable',
      limit: 'api',
      retryAfterMs: 500,
    });
    expect(json).not.toHaveProperty('remaining');
    expect((await sendRequest('/check?key=a&status=403')).status).toBe(403); // for nginx auth_request
    const batch = await sendRequest('/batch', post([{ key: 'a' }]));
    expect(batch.json).toEqual([
      { verdict: 'deny', retryAfterMs: 500, limit: 'api', reason: 'unavailable' },
    ]);
  });

  test('inspect with an unavailable backend: lists the limit as not available', async () => {
    const { sendRequest } = await start({
      limits: { far: { bucket: { rate: '1/s' }, redis: { url: 'redis://127.0.0.1' } } },
      backend: unavailableBackend(deny(500)),
    });
    const { json } = await sendRequest('/inspect?key=a');
    expect(json.limits).toEqual([{ name: 'far', isAvailable: false }]);
  });

  test('unavailable backend beside a local limit: only the unavailable one is violated', async () => {
    const { sendRequest } = await start({
      limits: {
        far: { bucket: { rate: '1/s' }, redis: { url: 'redis://127.0.0.1' } },
        near: { bucket: { rate: '1/s', burst: 3 }, always: true },
      },
      backend: unavailableBackend(deny(500)),
    });
    const { status, headers, json } = await sendRequest('/check?key=a');
    expect([status, headers.ratelimit]).toEqual([503, expect.stringMatching(/^"near";r=3/)]);
    expect(json['violated-policies']).toEqual(['far']);
  });

  test('local fallback refuses: 429 like any exhausted limit', async () => {
    const { sendRequest } = await start({
      limits: { api: { bucket: { rate: '1/s' }, redis: { url: 'redis://127.0.0.1' } } },
      backend: unavailableBackend(deny(500), [], 'local'),
    });
    const { status, json } = await sendRequest('/check?key=a');
    expect([status, json.reason]).toEqual([429, undefined]);
  });

  test('key on a list: is decided without counting', async () => {
    const { sendRequest } = await start({ deny: 'eve', allow: 'root' });
    expect((await sendRequest('/check?key=root&cost=99')).json).toEqual({ verdict: 'allow' });
    const denied = await sendRequest('/check?key=eve');
    expect(denied.status).toBe(403);
    expect(denied.json).toMatchObject({
      detail: 'The key is on the deny list.',
      verdict: 'deny',
      reason: 'deny-list',
      retryAfterMs: null,
    });
    expect((await sendRequest('/check?key=eve&status=429')).status).toBe(429);
    const strict = await start({
      unmatched: 'deny',
      limits: { a: { bucket: { rate: 1 }, match: 'a' } },
    });
    expect((await strict.sendRequest('/check?key=b')).json.reason).toBe('unmatched');
  });

  test('invalid request: names the parameter and takes nothing', async () => {
    const { sendRequest } = await start();
    const problemOf = async (path: string, options?: HttpRequestOptions): Promise<string> => {
      const { status, headers, json } = await sendRequest(path, options);
      expect([path, headers['content-type']]).toEqual([path, PROBLEM]);
      expect(json.status).toBe(status);
      return `${status} ${json.detail}`;
    };
    expect(await problemOf('/check?limit=nope&key=a')).toBe('404 There is no limit "nope".');
    expect(await problemOf('/check')).toBe(`400 ${formatMismatch('key', 'a string', undefined)}`);
    const empty = '400 expected `key` to be a string that is not empty, got ""';
    for (const path of [
      '/check?key=',
      '/check?key',
      '/inspect?key=',
      '/explain?key=',
      '/denials?key=',
    ])
      expect(await problemOf(path)).toBe(empty);
    expect(await problemOf('/check;key=/path')).toBe(empty);
    expect(await problemOf('/check', form('key='))).toBe(empty);
    expect(await problemOf('/check', post({ key: '' }))).toBe(empty);
    expect(await problemOf('/check?key=&wait=1s')).toBe(empty);
    expect(await problemOf('/take', post({ key: '', max: 1 }))).toBe(empty);
    expect(await problemOf('/report', post({ key: '', attempt: 'failure' }))).toBe(empty);
    expect(await problemOf('/batch', post([{ key: 'a' }, { key: '' }]))).toBe(
      empty.replace('key', '[1].key'),
    );
    expect(await problemOf('/check?check=bucket,')).toBe(empty.replace('key', 'checks[0].key'));
    expect(await problemOf(`/check?key=${'a'.repeat(4097)}`)).toMatch(
      /^400 expected `key` to be at most 4096 bytes, got "a{59}…$/,
    );
    expect(await problemOf('/check?key=a&key=b')).toBe(
      '400 expected `key` to be given once, got "b"',
    );
    expect(await problemOf('/check?key=a&hold=maybe')).toBe(
      '400 expected `hold` to be 1 or 0, got "maybe"',
    );
    for (const cost of ['-1', 'x', '', '1e3', 'Infinity', '0x10', '9999999999999999']) {
      expect(await problemOf(`/check?key=a&cost=${cost}`)).toBe(
        `400 expected \`cost\` to be a number from 0 to 1e15, got "${cost}"`,
      );
    }
    expect(await problemOf('/check?key=a&wait=500')).toBe(
      '400 expected `wait` to be a duration such as 500ms or 2s, or 0, got "500"; did you mean "500s" or "500ms"?',
    );
    expect((await sendRequest('/check?key=waiter&wait=0')).status).toBe(200);
    expect(await problemOf('/check?key=a&status=200')).toContain(
      '400 expected `status` to be an integer from 400 to 599',
    );
    expect(await problemOf('/check?key=a', form('key=b'))).toContain(
      '400 Send parameters in the URL or in the body',
    );
    expect(await problemOf('/check', form('key=%'))).toContain(
      '400 expected `key` to be percent-encoded',
    );
    expect(await problemOf('/check', post(7))).toBe('400 expected an object, got 7');
    expect(await problemOf('/check', post({ key: 7 }))).toBe(
      '400 expected `key` to be a string, got 7',
    );
    expect(await problemOf('/check', post({ kye: 'a' }))).toContain(
      '400 expected one of limit, key, cost, hold, status, wait, plan, id, flow, flowWeight, tenant, tenantWeight, got "kye"',
    );
    expect(await problemOf('/check', { ...post({}), body: '{' })).toBe(
      '400 expected `body` to be JSON, got "{"',
    );
    const latin = { ...post({}), body: Buffer.from('{"key":"caf\xe9"}', 'latin1') };
    expect(await problemOf('/check', latin)).toContain('400 expected `body` to be UTF-8, got ');
    const plain = { ...post({}), headers: { 'content-type': 'text/plain' } };
    expect(await problemOf('/check', plain)).toContain('415');
    expect((await sendRequest('/check?key=a')).json.remaining).toBe(2);
  });
});

describe('HTTP batch', () => {
  test('results: in the order of the checks', async () => {
    const { sendRequest } = await start({ deny: 'eve' });
    const checks = [
      { key: 'alice', cost: 3 },
      { key: 'alice' },
      { key: 'eve' },
      { key: 'bob', limit: 'api' },
      { key: 'bob', cost: 3 },
    ];
    const results = [
      { verdict: 'allow', remaining: 0 },
      { verdict: 'deny', remaining: 0, retryAfterMs: 1000, limit: 'api' },
      { verdict: 'deny', retryAfterMs: null, reason: 'deny-list' },
      { verdict: 'allow', remaining: 2 },
      { verdict: 'deny', remaining: 2, retryAfterMs: 1000, limit: 'api' },
    ];
    expect((await sendRequest('/batch', post(checks))).json).toEqual(results);
    expect((await sendRequest('/batch', post([]))).json).toEqual([]);
  });

  test('list sent to /check: 400, and nothing is taken, as one status cannot say what was denied', async () => {
    const { sendRequest } = await start();
    const { status, json } = await sendRequest('/check', post([{ key: 'a' }, { key: 'a' }]));
    expect([status, json.detail]).toEqual([
      400,
      'expected `body` to be an object, got a list: send {"checks": […]} for one verdict, or POST /batch for one of each',
    ]);
    expect((await sendRequest('/check?key=a')).json.remaining).toBe(2);
  });

  test('one invalid check: nothing is taken for the others', async () => {
    const { sendRequest } = await start({ bounds: { maxBatch: 3 } });
    const problemOf = async (body: unknown) =>
      (await sendRequest('/batch', post(body))).json.detail;
    expect(await problemOf([{ key: 'a' }, { key: 'a', cost: -1 }])).toBe(
      'expected `[1].cost` to be a number from 0 to 1e15, got -1',
    );
    expect(await problemOf([{ key: 'a' }, {}])).toBe(
      formatMismatch('[1].key', 'a string', undefined),
    );
    expect(await problemOf([{ key: 'a' }, 7])).toBe('expected `[1]` to be an object, got 7');
    expect(await problemOf([{ key: 'a' }, { key: 'a', limit: 'nope' }])).toBe(
      '[1]: There is no limit "nope".',
    );
    expect(await problemOf(Array(4).fill({ key: 'a' }))).toBe(
      'expected `body` to be at most 3 checks, got 4',
    );
    expect(await problemOf({ key: 'a' })).toBe(
      'expected `body` to be a list of checks, got "one check"',
    );
    expect((await sendRequest('/check?key=a')).json.remaining).toBe(2);
  });
});

describe('HTTP permit', () => {
  const limits = { jobs: { concurrency: 1 } };

  test('hold: a check and a batch reply with what remains, as without', async () => {
    const { sendRequest } = await start();
    expect((await sendRequest('/check?key=a&hold=1')).json).toMatchObject({ remaining: 2 });
    const { json } = await sendRequest('/batch', post([{ key: 'a', hold: true }]));
    expect(json).toMatchObject([{ verdict: 'allow', remaining: 1 }]);
  });

  test('hold=1: is in flight until it is settled', async () => {
    const { sendRequest } = await start({ limits });
    const { json } = await sendRequest('/check?key=a&hold=1');
    expect(json).toMatchObject({ verdict: 'allow', remaining: 0 });
    const full = await sendRequest('/check?key=a&hold=1');
    expect([full.status, full.headers['retry-after']]).toEqual([503, '1']);
    const settled = await sendRequest(
      '/settle',
      post({ permit: json.permit, outcome: 'ok', rttMs: 5 }),
    );
    expect([settled.status, settled.json]).toEqual([200, { settled: true }]);
    expect((await sendRequest('/settle', post({ permit: json.permit }))).status).toBe(404);
    expect((await sendRequest('/check?key=a&hold=1')).status).toBe(200);
  });

  test('settle: by form, URL or JSON; an invalid result settles nothing', async () => {
    const { sendRequest } = await start({ limits: { jobs: { concurrency: 3 } } });
    const hold = async () => (await sendRequest('/check?key=a&hold=true')).json.permit;
    expect(
      (await sendRequest('/settle', form(`permit=${await hold()}&outcome=failed`))).status,
    ).toBe(200);
    const url = `/settle?permit=${await hold()}&used=2&rttMs=1.5`;
    expect((await sendRequest(url, { method: 'POST' })).status).toBe(200);
    const permit = await hold();
    for (const wrong of [{ outcome: 'fine' }, { used: -1 }, { rttMs: 'x' }, { usd: 1 }]) {
      expect((await sendRequest('/settle', post({ permit, ...wrong }))).status).toBe(400);
    }
    expect((await sendRequest('/settle', post({ outcome: 'ok' }))).json.detail).toBe(
      formatMismatch('permit', 'a string', undefined),
    );
    expect((await sendRequest('/settle', post({ permit }))).status).toBe(200);
  });
});

describe('HTTP admin endpoints', () => {
  test('help, limits, metrics, 404 and 405', async () => {
    const { sendRequest } = await start();
    expect((await sendRequest('/')).text).toContain('sluice 0.0.0');
    expect((await sendRequest('/limits')).json).toEqual({
      api: { bucket: { rate: '1/s', burst: 3 } },
    });
    const metrics = await sendRequest('/metrics');
    expect(metrics.headers['content-type']).toBe('text/plain; version=0.0.4; charset=utf-8');
    expect(metrics.text).toBe('up 1\n');
    expect((await sendRequest('/nothing')).status).toBe(404);
    expect((await sendRequest('http://localhost/healthz')).text).toBe('ok\n');
    const wrong = await sendRequest('/limits', { method: 'DELETE' });
    expect([wrong.status, wrong.headers.allow]).toEqual([405, 'GET, HEAD']);
    expect((await sendRequest('/reload')).headers.allow).toBe('POST');
  });

  test('inspect and explain: status of a key, and the limits that match', async () => {
    const { sendRequest } = await start({
      deny: 'eve',
      limits: { api: { bucket: { rate: '1/s', burst: 3 }, match: 'caf*' } },
    });
    await sendRequest('/check?key=caf%C3%A9');
    const { json } = await sendRequest('/inspect?key=caf%C3%A9');
    expect(json).toMatchObject({ key: 'café', limits: [{ name: 'api', remaining: 2 }] });
    expect((await sendRequest('/explain?key=caf%C3%A9')).json).toMatchObject({
      key: 'café',
      summary: 'one limit decides',
      limits: [{ name: 'api', isApplied: true, reason: 'matches caf*, is the most specific' }],
    });
    expect((await sendRequest('/explain?key=eve')).json.summary).toBe(
      'always denied: the deny list has eve',
    );
    expect((await sendRequest('/inspect?key=eve')).json).toEqual({
      key: 'eve',
      verdict: 'deny',
      reason: 'deny-list',
      pattern: 'eve',
      limits: [],
    });
    expect((await sendRequest('/inspect')).status).toBe(400);
    for (const path of ['/inspect?key=a&', '/explain?key=a&', '/denials?', '/denials?key=a&']) {
      const { status, json: problem } = await sendRequest(`${path}limit=nope`);
      expect([path, status, problem.detail]).toEqual([
        path,
        404,
        'There is no limit "nope". Limits: api.',
      ]);
    }
    expect((await sendRequest('/denials?limit=api')).json.denials).toEqual([]);
  });

  test('other hosts: need a token; checks do not', async () => {
    const { sendRequest } = await start({}, false);
    for (const path of [
      ...['/', '/limits', '/metrics', '/feed', '/inspect?key=a', '/explain?key=a'],
      ...['/top', '/denials'],
    ]) {
      expect([path, (await sendRequest(path)).status]).toEqual([path, 403]);
    }
    expect((await sendRequest('/reload', { method: 'POST' })).status).toBe(403);
    for (const path of ['/check?key=a', '/healthz', '/readyz']) {
      expect([path, (await sendRequest(path)).status]).toEqual([path, 200]);
    }
    const withToken = await start({ admin: { token: 'secret' } }, false);
    const headers = { authorization: 'Bearer secret' };
    expect((await withToken.sendRequest('/limits', { headers })).status).toBe(200);
    expect((await withToken.sendRequest('/limits')).status).toBe(401);
  });

  test('reload: applies the configuration; cross-site requests are refused', async () => {
    let times = 0;
    const reload = async () => {
      times++;
      return times === 1
        ? { ok: true as const, limits: 2, kept: 1, warnings: [], added: [], removed: [] }
        : { ok: false as const, problems: ['line 3', 'line 4'] };
    };
    const { sendRequest } = await start({ reload });
    expect((await sendRequest('/reload', { method: 'POST' })).json).toEqual({
      ok: true,
      limits: 2,
      kept: 1,
      ...{ warnings: [], added: [], removed: [] },
    });
    const bad = await sendRequest('/reload', { method: 'POST' });
    expect([bad.status, bad.json.detail]).toEqual([422, 'line 3\nline 4']);
    const headers = { origin: 'http://evil.example' };
    expect((await sendRequest('/reload', { method: 'POST', headers })).status).toBe(403);
    expect((await sendRequest('/batch', post([{ key: 'a' }], headers))).status).toBe(403);
    const named = await sendRequest('/reload?file=other.yaml', { method: 'POST' });
    expect([named.status, named.json.detail]).toEqual([400, 'expected no parameters, got "file"']);
    expect(times).toBe(2);
  });

  test('internal error: 500 without details, which go to onError', async () => {
    const errors: unknown[] = [];
    const { sendRequest } = await start({
      metrics: () => {
        throw new Error('secret');
      },
      reload: () => Promise.reject(new Error('secret')),
      onError: (error) => errors.push(error),
    });
    const failed = await sendRequest('/metrics');
    expect([failed.status, failed.text.includes('secret')]).toEqual([500, false]);
    expect((await sendRequest('/reload', { method: 'POST' })).status).toBe(500);
    expect(errors).toHaveLength(2);
  });
});

describe('HTTP server', () => {
  test('draining: answers, reports not ready and closes connections', async () => {
    let isReady = true;
    const { sendRequest } = await start({ isReady: () => isReady });
    expect(JSON.parse((await sendRequest('/readyz')).text)).toMatchObject({ ready: true });
    isReady = false;
    const draining = await sendRequest('/readyz', { headers: { connection: 'keep-alive' } });
    expect([draining.status, draining.headers.connection]).toEqual([503, 'close']);
    expect((await sendRequest('/healthz')).status).toBe(200);
    expect((await sendRequest('/check?key=a')).status).toBe(200);
  });

  test('body beyond the bound: 413, with Content-Length or chunked', async () => {
    const { sendRequest } = await start({ bounds: { maxBody: 100 } });
    const long = post([{ key: 'a'.repeat(200) }]);
    expect((await sendRequest('/batch', long)).status).toBe(413);
    const chunked = post([{ key: 'a'.repeat(200) }], { 'transfer-encoding': 'chunked' });
    expect((await sendRequest('/batch', chunked)).status).toBe(413);
    expect((await sendRequest('/batch', post([{ key: 'a' }]))).status).toBe(200);
  });

  /** Sends raw bytes and returns what comes back until the server closes. */
  const raw = (port: number, bytes: string): Promise<string> =>
    new Promise((resolve, reject) => {
      let text = '';
      const socket = connect(port, '127.0.0.1', () => socket.write(bytes, 'latin1'));
      socket.setEncoding('latin1').on('data', (chunk) => {
        text += chunk;
      });
      socket.on('end', () => resolve(text)).on('error', reject);
    });

  test('invalid, too long or too slow request: 400, 431, 408 and close', async () => {
    const { port } = await start({ bounds: { slowMs: 100 } });
    expect(await raw(port, 'hello\r\n\r\n')).toMatch(
      /^HTTP\/1.1 400 Bad Request\r\nContent-Type: application\/problem\+json/,
    );
    const long = `GET / HTTP/1.1\r\nx: ${'a'.repeat(20_000)}\r\n\r\n`;
    expect(await raw(port, long)).toMatch(/^HTTP\/1.1 431 /);
    expect(await raw(port, 'GET /healthz HTTP/1.1\r\n')).toMatch(/^HTTP\/1.1 408 /);
  });

  test('connections beyond the bound: are refused', async () => {
    const { port, sendRequest } = await start({ bounds: { maxConnections: 1 } });
    const first = connect(port, '127.0.0.1');
    await once(first, 'connect');
    await expect(sendRequest('/healthz')).rejects.toThrow(/hang up|ECONNRESET/);
    first.destroy();
    await once(first, 'close');
    await expect
      .poll(() =>
        sendRequest('/healthz').then(
          ({ status }) => status,
          () => 0,
        ),
      )
      .toBe(200);
  });

  test('drain: closes idle connections at once', async () => {
    const httpServer = createHttpServer({ clock: new VirtualClock() });
    const { port } = await serveHttp(httpServer);
    const idle = connect(port, '127.0.0.1', () => {
      idle.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n');
    });
    const silent = connect(port, '127.0.0.1');
    await Promise.all([once(idle, 'data'), once(silent, 'connect')]);
    await expect.poll(() => httpServer.counts.open).toBe(2);
    await httpServer.drain(60_000); // no time passes on this clock
    await once(idle, 'close');
    expect(httpServer.counts.open).toBe(0);
  });

  test('configure: applies to the next request', async () => {
    const httpServer = createHttpServer({ clock: new VirtualClock() });
    const running = await serveHttp(httpServer);
    open.push(running);
    expect((await running.sendRequest('/limits')).status).toBe(200);
    httpServer.configure({ admin: { token: 'secret' }, bounds: { maxKey: 3 } });
    expect((await running.sendRequest('/limits')).status).toBe(401);
    expect((await running.sendRequest('/check?key=alice')).status).toBe(400);
  });

  test('client that never reads: is not read from, and disconnected as slow', async () => {
    const clock = new VirtualClock();
    const httpServer = createHttpServer({ clock });
    const running = await serveHttp(httpServer);
    open.push(running);
    const client = connect(running.port, '127.0.0.1').pause();
    client.on('error', () => {});
    client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'.repeat(20_000));
    await expect.poll(() => httpServer.counts.responsesByStatus[200]).toBeGreaterThan(100);
    for (let n = 0; httpServer.counts.slow === 0 && n < 1000; n++) {
      await new Promise((later) => setTimeout(later, 20)); // until the socket buffers are full
      clock.advance(10_000);
    }
    expect(httpServer.counts.slow).toBe(1);
    expect(httpServer.counts.responsesByStatus[200]).toBeLessThan(20_000); // back-pressure
    expect((await running.sendRequest('/healthz')).status).toBe(200);
  });

  test('pipelined requests: are answered in order', async () => {
    const { port } = await start();
    const one = 'GET /check?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n';
    const last = one.replace('\r\n\r\n', '\r\nConnection: close\r\n\r\n');
    const received = await raw(port, one.repeat(4) + last);
    expect([...received.matchAll(/HTTP\/1.1 (\d+)/g)].map(([, status]) => status)).toEqual([
      '200',
      '200',
      '200',
      '429',
      '429',
    ]);
  });

  describe.each([true, false])('half-closed connection, fast path %s', (fastPath) => {
    /** Sends the requests and a FIN, and returns the statuses of the responses until the server closes. */
    async function statusesOf(port: number, paths: readonly string[]): Promise<string[]> {
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
      const requests = paths.map((path) => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
      socket.end(requests.join(''));
      const received = await text(socket);
      return [...received.matchAll(/HTTP\/1.1 (\d+)/g)].map(([, status]) => status);
    }

    test('every complete request is answered, also after several turns of the event loop', async () => {
      const { port } = await start({ fastPath });
      expect(await statusesOf(port, ['/metrics'])).toEqual(['200']);
      const paths = ['/check?key=a', ...Array<string>(12).fill('/metrics'), '/nowhere'];
      const statuses = await statusesOf(port, paths);
      expect(statuses).toEqual(['200', ...Array<string>(12).fill('200'), '404']);
    });

    test('an incomplete request behind complete ones is refused', async () => {
      const { port } = await start({ fastPath });
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
      socket.end('GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metr');
      const received = await text(socket);
      expect(received).toMatch(/^HTTP\/1.1 200 [\s\S]*HTTP\/1.1 400 /);
    });

    test('a call with `wait` is decided, and does not wait', async () => {
      const { port } = await start({ fastPath });
      const waiting = '/check?key=a&cost=3&wait=20s';
      expect(await statusesOf(port, [waiting])).toEqual(['200']);
      const [status] = await statusesOf(port, [waiting]);
      expect(['429', '499']).toContain(status); // refused at once, or it had begun to wait
      const behind = await statusesOf(port, ['/metrics', waiting]);
      expect(behind).toEqual(['200', expect.stringMatching(/429|499/)]);
    });
  });

  test('counts: responses by status', async () => {
    const httpServer = createHttpServer({ clock: new VirtualClock() });
    const running = await serveHttp(httpServer);
    open.push(running);
    await running.sendRequest('/check?key=a&cost=3');
    await running.sendRequest('/check?key=a');
    await running.sendRequest('/healthz');
    expect(httpServer.counts).toMatchObject({
      accepted: 3,
      refused: 0,
      responsesByStatus: { 200: 2, 429: 1 },
    });
  });

  test('event stream: snapshot, one event a second, end on drain', async () => {
    const clock = new VirtualClock();
    const httpServer = createHttpServer({ clock, bounds: { maxSubscribers: 1 } });
    const running = await serveHttp(httpServer);
    open.push(running);
    const response = await fetch(`http://127.0.0.1:${running.port}/feed`);
    expect(response.headers.get('content-type')).toBe('text/event-stream');
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    expect((await reader?.read())?.value).toContain('event: snapshot\ndata: {');
    expect((await running.sendRequest('/feed')).status).toBe(503);
    await running.sendRequest('/check?key=a');
    clock.advance(1000);
    expect((await reader?.read())?.value).toMatch(/^event: second\ndata: .*"allowed":1/);
    const drained = httpServer.drain(1000);
    expect((await reader?.read())?.done).toBe(true);
    clock.advance(1000);
    await drained;
  });
});

describe('a limit with several rules', () => {
  test('refusal: the body names the rule, with and without a permit, and in a batch', async () => {
    const rules = [{ bucket: { rate: '10/s', burst: 9 } }, { bucket: { rate: '1/h', burst: 1 } }];
    const { sendRequest } = await start({ limits: { api: { all: rules } } });
    expect((await sendRequest('/check?key=a')).status).toBe(200);
    const denial = { verdict: 'deny', limit: 'api', rule: 'bucket-2' };
    expect((await sendRequest('/check?key=a')).json).toMatchObject(denial);
    expect((await sendRequest('/check?key=a&hold=1')).json).toMatchObject(denial);
    expect((await sendRequest('/batch', post([{ key: 'a' }]))).json).toMatchObject([denial]);
  });
});

describe('batches: POST /take-up-to and /give-back', () => {
  const take = (query: string) => [`/take-up-to?${query}`, { method: 'POST' }] as const;

  test('limit that is not exposed: bounds what is taken, and no response names it', async () => {
    const own = { bucket: { rate: '1/h', burst: 9 } };
    const total = { per: 'limit', always: true, match: '*' };
    const taken = await start({
      limits: { own, total: { ...total, bucket: { rate: '1/h', burst: 4 } } },
    });
    expect((await taken.sendRequest(...take('key=a&max=100'))).json).toEqual({ taken: 4 });
    expect((await taken.sendRequest(...take('key=a&max=100'))).json).toEqual({ taken: 0 });
    const slots = await start({ limits: { own, total: { ...total, concurrency: 4 } } });
    const refused = await slots.sendRequest(...take('limit=own&key=a&max=100'));
    expect([refused.status, refused.json.detail]).toEqual([
      400,
      'expected `key` to be one whose limits do not count calls in flight: use check',
    ]);
    const named = await start({
      limits: { own, total: { ...total, concurrency: 4, expose: true } },
    });
    expect((await named.sendRequest(...take('limit=own&key=a&max=100'))).text).toContain('total');
  });

  test('take what is left of all limits of the key, and give back what was not used', async () => {
    const { sendRequest } = await start({
      limits: {
        api: { bucket: { rate: '1/s', burst: 5 } },
        total: { bucket: { rate: '1/s', burst: 8 }, always: true, per: 'limit' },
      },
    });
    const { status, json } = await sendRequest(...take('key=a&max=100&hold=1'));
    expect([status, json]).toEqual([200, { taken: 5, permit: expect.any(String) }]);
    expect((await sendRequest(...take('key=b&max=100'))).json).toEqual({ taken: 3 });
    expect((await sendRequest(...take('key=a&max=100&hold=1'))).json).toEqual({ taken: 0 });
    const back = { permit: json.permit, unused: 4 };
    expect((await sendRequest('/give-back', post(back))).json).toEqual({ givenBack: true });
    expect((await sendRequest('/give-back', post(back))).status).toBe(404);
    expect((await sendRequest('/take-up-to', post({ key: 'a', max: 3 }))).json.taken).toBe(3);
    expect((await sendRequest(...take('key=c&max=9'))).json.taken).toBe(1); // of the 8 in total
  });

  test('shadow mode and lists: neither limits a batch unless the key is denied', async () => {
    const { sendRequest } = await start({
      limits: { api: { bucket: { rate: '1/s', burst: 2 }, shadow: true } },
      deny: ['mallory'],
      allow: ['root'],
    });
    expect((await sendRequest(...take('key=a&max=9'))).json.taken).toBe(9);
    expect((await sendRequest(...take('key=root&max=9&hold=1'))).json).toEqual({ taken: 9 });
    expect((await sendRequest(...take('key=mallory&max=9'))).json.taken).toBe(0);
  });

  test('invalid requests: 400, 404 or 405, and nothing is taken', async () => {
    const limits = {
      api: { bucket: { rate: '1/s', burst: 3 } },
      jobs: { concurrency: 1, match: 'j' },
    };
    const { sendRequest } = await start({ limits });
    const statusOf = async (...request: Parameters<typeof sendRequest>) =>
      (await sendRequest(...request)).status;
    for (const query of [
      'key=a',
      'key=a&max=-1',
      'key=a&max=1.5',
      'key=a&max=1&hold=x',
      'key=a&cost=1',
    ])
      expect([query, await statusOf(...take(query))]).toEqual([query, 400]);
    const detailOf = async (query: string) => (await sendRequest(...take(query))).json.detail;
    expect(await detailOf('key=a&max=-1')).toContain('got "-1"');
    expect(await detailOf('key=a&max=1&hold=constructor')).toContain('got "constructor"');
    expect(await statusOf(...take('key=a&max=1&limit=none'))).toBe(404);
    expect(await statusOf(...take('key=j&max=1'))).toBe(400);
    expect(await statusOf('/take-up-to?key=a&max=1')).toBe(405);
    expect(await statusOf('/give-back', post({ permit: 'x', unused: 'y' }))).toBe(400);
    expect((await sendRequest(...take('key=a&max=9'))).json.taken).toBe(3);
  });
});
