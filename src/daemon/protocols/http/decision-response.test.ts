import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type HttpResult,
  type HttpServerOptions,
  type RunningHttpServer,
  serveHttp,
} from '../../../../test/support/http-protocol.ts';

const open: RunningHttpServer[] = [];
afterEach(async () => {
  for (const server of open.splice(0)) await server.stop();
});

const serve = async (options: HttpServerOptions): Promise<RunningHttpServer> => {
  const server = await serveHttp(createHttpServer(options));
  open.push(server);
  return server;
};

const CEILING = { bucket: { rate: '1/h', burst: 3 }, per: 'limit', always: true };
const LIMITS = {
  'per-client': { bucket: { rate: '1/h', burst: 9 } },
  ceiling: CEILING,
};

/** Everything that a response says. */
const all = ({ headers, text }: HttpResult): string => JSON.stringify(headers) + text;

describe.each([{ fastPath: true }, { fastPath: false }])('HTTP check, $fastPath', (path) => {
  test('per: limit: neither allowed nor refused clients learn of it', async () => {
    const { sendRequest } = await serve({ ...path, limits: LIMITS });
    for (const remaining of [8, 7, 6]) {
      const allowed = await sendRequest('/check?key=alice');
      expect(allowed.json).toEqual({ verdict: 'allow', remaining });
      expect(allowed.headers.ratelimit).toMatch(new RegExp(`^"per-client";r=${remaining};t=\\d+$`));
      expect(allowed.headers['ratelimit-policy']).toMatch(/^"per-client";q=9;w=\d+$/);
    }
    const refused = await sendRequest('/check?key=alice');
    expect(refused.status).toBe(429);
    expect(refused.json).toMatchObject({ verdict: 'deny', remaining: 6, 'violated-policies': [] });
    expect(refused.headers.ratelimit).toMatch(/^"per-client";r=6;t=\d+$/);
    expect(Number(refused.headers['retry-after'])).toBeGreaterThan(3000);
    expect(all(refused)).not.toContain('ceiling');
  });

  test('per: limit alone, with a permit, or by name: no count in the response', async () => {
    const { sendRequest } = await serve({ ...path, limits: { ceiling: CEILING } });
    for (const url of ['/check?key=a', '/check?key=a&hold=1', '/check?key=a&limit=ceiling']) {
      const allowed = await sendRequest(url);
      expect([allowed.json.verdict, allowed.json.remaining]).toEqual(['allow', undefined]);
      expect(allowed.headers.ratelimit).toBeUndefined();
    }
    const refused = await sendRequest('/check?key=b');
    expect([refused.status, refused.headers.ratelimit]).toEqual([429, undefined]);
    expect(all(refused)).not.toContain('ceiling');
  });

  test('concurrency of all clients: 503, without its name', async () => {
    const limits = { ...LIMITS, ceiling: { concurrency: 1, per: 'limit', always: true } };
    const { sendRequest } = await serve({ ...path, limits });
    expect((await sendRequest('/check?key=a&hold=1')).json.remaining).toBe(8);
    const refused = await sendRequest('/check?key=b');
    expect(refused.status).toBe(503);
    expect(refused.json.remaining).toBe(9);
    expect(all(refused)).not.toContain('ceiling');
  });

  test('expose: overrides the default, per limit', async () => {
    const limits = {
      secret: { bucket: { rate: '1/h', burst: 9 }, expose: false, match: 's*' },
      ceiling: { ...CEILING, expose: true },
    };
    const { sendRequest } = await serve({ ...path, limits });
    const shown = await sendRequest('/check?key=a');
    expect(shown.headers.ratelimit).toMatch(/^"ceiling";r=2;t=\d+$/);
    const half = await sendRequest('/check?key=s1');
    expect(half.json.remaining).toBe(1);
    expect(all(half)).not.toContain('secret');
    await sendRequest('/check?key=s1');
    expect((await sendRequest('/check?key=s1')).json.limit).toBe('ceiling');
  });

  test('expose: false on the only limit of a key: no count in the response', async () => {
    const limits = { secret: { bucket: { rate: '1/h', burst: 1 }, expose: false } };
    const { sendRequest } = await serve({ ...path, limits });
    expect((await sendRequest('/check?key=a')).json).toEqual({ verdict: 'allow' });
    const refused = await sendRequest('/check?key=a');
    expect(refused.status).toBe(429);
    expect(all(refused)).not.toContain('secret');
  });

  test('deny list: the response does not show the pattern', async () => {
    const { sendRequest } = await serve({ ...path, deny: ['ip:203.0.113.*'] });
    const denied = await sendRequest('/check?key=ip:203.0.113.7');
    expect([denied.status, denied.json.reason]).toEqual([403, 'deny-list']);
    expect(all(denied)).not.toContain('203.0.113.');
  });
});

test('batch: hides a limit for all keys together; /inspect shows it to operators', async () => {
  const { sendRequest } = await serve({ limits: LIMITS });
  const body = JSON.stringify([1, 2, 3, 4].map((n) => ({ key: `user-${n}` })));
  const headers = { 'content-type': 'application/json' };
  const batch = await sendRequest('/batch', { method: 'POST', headers, body });
  const entries = JSON.parse(batch.text);
  expect(entries.map(({ verdict }: { verdict: string }) => verdict)).toEqual([
    ...Array(3).fill('allow'),
    'deny',
  ]);
  expect(batch.text).not.toMatch(/ceiling|remaining/);
  const { text } = await sendRequest('/inspect?key=user-1');
  expect(text).toContain('ceiling');
});
