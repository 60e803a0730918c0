import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type HttpServerOptions,
  type RunningHttpServer,
  serveHttp,
  unavailableBackend,
} from '../../../../test/support/http-protocol.ts';
import { deny } from '../../../core/decision.ts';
import { VirtualClock } from '../../../testing/index.ts';

const LIMITS = {
  user: { bucket: { rate: '5/m', burst: 5 }, match: 'user:*' },
  ip: { bucket: { rate: '20/m', burst: 20 }, match: 'ip:*' },
  db: { concurrency: 2, match: 'db:*' },
};

/** The parameters that several checks have in common. */
const COMMON = 'hold, status, wait, flow, flowWeight, tenant, tenantWeight';

const open: RunningHttpServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.stop()));
});

async function start(options: HttpServerOptions = {}) {
  const clock = new VirtualClock(1e6);
  const server = await serveHttp(createHttpServer({ clock, limits: LIMITS, ...options }));
  open.push(server);
  const { sendRequest } = server;
  const post = (path: string, body: unknown) =>
    sendRequest(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
  const left = async (limit: string, key: string): Promise<unknown> =>
    (await sendRequest(`/check?limit=${limit}&key=${key}&cost=0`)).json.remaining;
  return { sendRequest, post, left };
}

describe('HTTP check of several limits and keys', () => {
  test('wait: for all limits, and refused at once where that would be in vain', async () => {
    const { sendRequest, post, left } = await start();
    const { permit } = (await sendRequest('/check?check=db@2,db:1&hold=1')).json;
    const both = 'check=db,db:1&check=user@2,user:a';
    const waiting = [
      sendRequest(`/check?${both}&hold=1&wait=60s&flow=a`),
      post('/check', {
        checks: [
          { limit: 'db', key: 'db:1' },
          { limit: 'ip', key: 'ip:1' },
        ],
        wait: '60s',
      }),
    ];
    const vain = await sendRequest('/check?check=user@5,user:b&check=ip,ip:1&wait=60s');
    expect(vain.status).toBe(200);
    const late = await sendRequest('/check?check=user,user:b&check=ip,ip:1&wait=11s&status=403');
    expect([late.status, late.json.limit, late.json.retryAfterMs]).toEqual([403, 'user', 12_000]);
    await post('/settle', { permit });
    const [held, counted] = await Promise.all(waiting);
    expect(held.json).toEqual({ verdict: 'allow', remaining: 1, permit: expect.any(String) });
    expect(counted.json).toMatchObject({ verdict: 'allow' });
    expect([await left('user', 'user:a'), await left('ip', 'ip:1')]).toEqual([3, 18]);
  });

  test('parameters: one verdict, and RateLimit headers of all limits', async () => {
    const { sendRequest } = await start();
    const { status, json, headers } = await sendRequest('/check?check=user,user:a&check=ip@2,ip:1');
    expect([status, json]).toEqual([200, { verdict: 'allow', remaining: 4 }]);
    expect(headers.ratelimit).toBe('"user";r=4;t=12, "ip";r=18;t=6');
    expect(headers['ratelimit-policy']).toBe('"user";q=5;w=60, "ip";q=20;w=60');
  });

  test('JSON, form and URL: the same question', async () => {
    const { sendRequest, post, left } = await start();
    const checks = [
      { limit: 'user', key: 'user:é' },
      { limit: 'ip', key: 'ip:1', cost: 2 },
    ];
    expect((await post('/check', { checks })).json).toEqual({ verdict: 'allow', remaining: 4 });
    const text = 'check=user,user:%C3%A9&check=ip@2,ip:1';
    await sendRequest(`/check?${text}`);
    const form = { 'content-type': 'application/x-www-form-urlencoded' };
    await sendRequest('/check', { method: 'POST', headers: form, body: text });
    expect([await left('user', 'user:%C3%A9'), await left('ip', 'ip:1')]).toEqual([2, 14]);
  });

  test('one limit refuses: 429, its name, the longest Retry-After, and nothing is charged', async () => {
    const { post, left } = await start();
    const question = (user: number, ip: number) => ({
      checks: [
        { limit: 'ip', key: 'ip:1', cost: ip },
        { limit: 'user', key: 'user:a', cost: user },
      ],
    });
    await post('/check', question(4, 19));
    const { status, json, headers } = await post('/check', question(3, 1));
    expect(status).toBe(429);
    expect(json).toMatchObject({
      verdict: 'deny',
      limit: 'user',
      remaining: 1,
      retryAfterMs: 24_000,
      'violated-policies': ['user'],
    });
    expect(headers['retry-after']).toBe('24');
    expect(headers.ratelimit).toBe('"ip";r=1;t=57, "user";r=1;t=24');
    const both = await post('/check', question(3, 2));
    expect(both.json['violated-policies']).toEqual(['ip', 'user']);
    expect(both.headers['retry-after']).toBe('24');
    expect([await left('user', 'user:a'), await left('ip', 'ip:1')]).toEqual([1, 1]);
  });

  test('status=: is that of every refusal, also of a missing or too long key', async () => {
    const { sendRequest } = await start({ deny: 'user:eve', bounds: { maxKey: 20 } });
    const statusOf = async (query: string, headers = {}) =>
      (await sendRequest(`/check?status=403&${query}`, { headers })).status;
    expect(await statusOf('check=user@6,user:a&check=ip,ip:1')).toBe(403);
    expect(await statusOf('check=user,user:eve&check=ip,ip:1')).toBe(403);
    expect(await statusOf('check-header=user,X-User&check=ip,ip:1')).toBe(403);
    expect(await statusOf('check-header=user,X-User', { 'X-User': 'x'.repeat(21) })).toBe(403);
    expect((await sendRequest('/check?check-header=user,X-User')).status).toBe(400);
  });

  test('check-header: the key is in the header that the URL names, and in no other', async () => {
    const { sendRequest, left } = await start();
    const headers = {
      'X-User': 'user:a,1&cost=0',
      'X-Other': 'user:b',
      'Sluice-Check': 'user,user:c',
    };
    const path = '/check?check-header=user@2,X-User&check=ip,ip:1';
    expect((await sendRequest(path, { headers })).json).toEqual({ verdict: 'allow', remaining: 3 });
    expect(await left('user', 'user:a%2C1%26cost%3D0')).toBe(3);
    expect([await left('user', 'user:b'), await left('user', 'user:c')]).toEqual([5, 5]);
  });

  test.each(['user:a,0', 'user:a@0', 'user:a@0,x', ',', '@9', 'a=b', 'user:%2526'])(
    'key %j: is a key, whatever it looks like',
    async (key) => {
      const { sendRequest, left } = await start();
      const encoded = encodeURIComponent(key);
      await sendRequest(`/check?check=user@2,${encoded}`);
      expect(await left('user', encoded)).toBe(3);
      if (!/[%=]/.test(key)) await sendRequest(`/check?check=user,${key}`); // not encoded
      expect(await left('user', encoded)).toBe(/[%=]/.test(key) ? 3 : 2);
    },
  );

  test.each(['user:a', 'user:a,0', 'user:a&check=ip@9,ip:1', 'user:%26check%3Dip%409%2Cip%3A1'])(
    'encoder that encodes the comma too, key %j: is the same check',
    async (key) => {
      const { sendRequest, left } = await start();
      const query = new URLSearchParams([
        ['check', `user@2,${key}`],
        ['check', 'ip,ip:1'],
      ]);
      expect(`${query}`).toMatch(/^check=user%402%2Cuser%3A/);
      expect((await sendRequest(`/check?${query}`)).json).toEqual({
        verdict: 'allow',
        remaining: 3,
      });
      const headers = { 'X-User': 'user:b' };
      await sendRequest('/check?check-header=user%2CX-User', { headers });
      expect(await left('user', encodeURIComponent(key))).toBe(3);
      expect([await left('user', 'user:b'), await left('ip', 'ip:1')]).toEqual([4, 19]);
    },
  );

  test('hold=1: one permit for all, which gives back all', async () => {
    const { sendRequest, post, left } = await start();
    const path = '/check?check=user,user:a&check=db,db:1&hold=1';
    const [first, second, third] = [
      await sendRequest(path),
      await sendRequest(path),
      await sendRequest(path),
    ];
    expect([first.json.remaining, second.json.remaining]).toEqual([1, 0]);
    expect([third.status, third.json.limit, third.json.remaining]).toEqual([503, 'db', 0]);
    expect((await post('/settle', { permit: first.json.permit, outcome: 'ignored' })).status).toBe(
      200,
    );
    expect(await left('user', 'user:a')).toBe(4);
    expect((await sendRequest(path)).status).toBe(200);
  });

  test('permit of different costs: `used` and /give are 400, and it can still be settled', async () => {
    const { sendRequest, post } = await start();
    const { json } = await sendRequest('/check?check=user,user:a&check=ip@5,ip:1&hold=1');
    const used = await post('/settle', { permit: json.permit, used: 3 });
    expect([used.status, used.json.detail]).toEqual([
      400,
      expect.stringContaining('`used` to be left out'),
    ]);
    expect((await post('/settle', { permit: json.permit })).status).toBe(200);
  });

  test('remote limit that is unavailable: 503, and the local limit gets back its charge', async () => {
    const far = { bucket: { rate: '1/s', burst: 3 }, redis: 'redis://127.0.0.1:1' };
    const backend = unavailableBackend(deny(500));
    const { sendRequest, left } = await start({ limits: { ...LIMITS, far }, backend });
    const { status, json, headers } = await sendRequest('/check?check=user,user:a&check=far,x');
    expect([status, json.limit, json.reason]).toEqual([503, 'far', 'unavailable']);
    expect(headers['retry-after']).toBe('1');
    expect(await left('user', 'user:a')).toBe(5);
  });

  test('key left out in JSON: is that of the request, as in a single check', async () => {
    const extractKey = Object.assign(() => 'ip:9', { header: undefined });
    const { post, left } = await start({ extractKey });
    await post('/check', { checks: [{ limit: 'user', key: 'user:a' }, { limit: 'ip' }] });
    expect([await left('user', 'user:a'), await left('ip', 'ip:9')]).toEqual([4, 19]);
  });

  test('one limit with two keys: the header shows the tighter one', async () => {
    const { sendRequest } = await start();
    const { headers } = await sendRequest('/check?check=ip,ip:1&check=ip@9,ip:2');
    expect(headers.ratelimit).toBe('"ip";r=11;t=27');
  });

  test.each([
    [
      'check=user',
      'KEY or LIMIT@COST,KEY, with a comma before the key, percent-encoded, got "user"',
    ],
    ['check=user%252Cuser:a', 'got "user%2Cuser:a"'],
    ['check=user@,a', 'expected `check` to be LIMIT,KEY'],
    ['check=user@x,a', 'expected `check` to be LIMIT,KEY'],
    ['check=user@-1,a', 'expected `check` to be LIMIT,KEY'],
    ['check=,a', 'expected `check` to be LIMIT,KEY'],
    ['check=user,%zz', 'expected `check` to be LIMIT,KEY'],
    ['check=user,user:a&key=b', `expected one of check, check-header, ${COMMON}, got "key"`],
    ['cost=0&check=user,user:a', `expected one of check, check-header, ${COMMON}, got "cost"`],
    ['check=user,user:a&wait=2', 'expected `wait` to be a duration such as 500ms or 2s, or 0'],
    ['check=user,user:a&wait=2m', 'expected `wait` to be at most 60000 ms (bounds.wait)'],
    ['check=user,user:a&flow=x', 'expected `wait` to be given with `flow` or `tenant`'],
    ['check=user,user:a&hold=1&hold=1', 'expected `hold` to be given once'],
    ['check=user,user:a&status=200', 'expected `status` to be an integer from 400 to 599'],
    [
      Array(33).fill('check=user,user:a').join('&'),
      'expected `check` to be 1 to 32 checks, got 33',
    ],
  ])('%s: 400, and nothing is charged', async (query, detail) => {
    const { sendRequest, left } = await start();
    const { status, json } = await sendRequest(`/check?${query}`);
    expect([status, json.detail]).toEqual([400, expect.stringContaining(detail)]);
    expect(await left('user', 'user:a')).toBe(5);
  });

  test.each([
    [{ checks: [] }, 'expected `checks` to be 1 to 32 checks, got 0'],
    [{ checks: {} }, 'expected `checks` to be a list of checks'],
    [{ checks: [7] }, 'expected `checks[0]` to be an object'],
    [
      { checks: [{ key: 'a' }, { key: 'b', cost: -1 }] },
      'expected `checks[1].cost` to be a number',
    ],
    [{ checks: [{ key: 'a', hold: true }] }, 'expected `checks[0].hold` to be beside `checks`'],
    [
      { checks: [{ key: 'a', foo: 1 }] },
      '`checks[0]` to be one of limit, key, cost, plan, got "foo"',
    ],
    [{ checks: [{ key: 'a', wait: '1s' }] }, '`checks[0].wait` to be beside `checks`, for all'],
    [{ checks: [{ key: 'a', flow: 'b' }] }, '`checks[0].flow` to be beside `checks`, for all'],
    [{ checks: [{ key: 'a', id: 'b' }] }, '`checks[0].id` to be left out of several checks'],
    [{ checks: [{ key: 'a' }], key: 'b' }, `expected one of checks, ${COMMON}, got "key"`],
    [{ checks: [{ key: 'a' }], hold: 1 }, 'expected `hold` to be true or false'],
    [{ checks: [{ limit: 'user' }] }, 'expected `checks[0].key` to be a string'],
  ])('%j: 400', async (body, detail) => {
    const { status, json } = await (await start()).post('/check', body);
    expect([status, json.detail]).toEqual([400, expect.stringContaining(detail)]);
  });

  test.each([
    ['{"checks":[{"limit":"user","key":"user:a","cost":5,"cost":0}]}', 'cost twice'],
    ['{"checks":[{"limit":"user","key":"user:b"}],"checks":[{"key":"user:a"}]}', 'checks twice'],
    ['{"limit":"user","key":"user:b","key":"user:a"}', 'key twice'],
    ['[{"key":"user:a"},{"key":"user:b","k\\u0065y":"user:a"}]', 'key twice'],
  ])('%s: 400, and nothing is charged', async (body, got) => {
    const { sendRequest, left } = await start();
    const headers = { 'content-type': 'application/json' };
    const { status, json } = await sendRequest('/check', { method: 'POST', headers, body });
    expect([status, json.detail]).toEqual([
      400,
      `expected \`body\` to be JSON with each member once, got "${got}"`,
    ]);
    expect([await left('user', 'user:a'), await left('user', 'user:b')]).toEqual([5, 5]);
  });

  test('unknown limit: 404, and nothing is charged', async () => {
    const { sendRequest, left } = await start();
    const { status, json } = await sendRequest('/check?check=user,user:a&check=nope,x');
    expect([status, json.detail]).toEqual([404, 'checks[1]: There is no limit "nope".']);
    expect(await left('user', 'user:a')).toBe(5);
  });
});

test('/take and /give: take what is left, and give back what was not used', async () => {
  const { post } = await start();
  const taken = await post('/take', { limit: 'user', key: 'user:a', max: 9, hold: true });
  expect(taken.json).toMatchObject({ taken: 5 });
  expect((await post('/give', { permit: taken.json.permit, unused: 2 })).json).toEqual({
    givenBack: true,
  });
  expect((await post('/take-up-to', { limit: 'user', key: 'user:a', max: 9 })).json).toEqual({
    taken: 2,
  });
});
