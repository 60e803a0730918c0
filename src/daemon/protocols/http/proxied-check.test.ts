import { connect } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type HttpServerOptions,
  type RunningHttpServer,
  serveHttp,
} from '../../../../test/support/http-protocol.ts';
import { readHttpSection } from '../../config/http.ts';
import { MAX_HEADERS } from './bounds.ts';
import { createKeyExtractor } from './key.ts';

const open: RunningHttpServer[] = [];
afterEach(async () => {
  for (const server of open.splice(0)) await server.stop();
});

/** Takes the key from `Sluice-Key`, with and without the fast path. */
const serve = async (options: HttpServerOptions = {}): Promise<RunningHttpServer> => {
  const extractKey = createKeyExtractor(readHttpSection({ key: { header: 'Sluice-Key' } }, 'http'));
  const server = await serveHttp(createHttpServer({ extractKey, ...options }));
  open.push(server);
  return server;
};

/** Sends bytes and returns the status of the first response. */
const statusOf = (port: number, text: string): Promise<number> =>
  new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(text));
    socket.once('error', reject);
    socket.once('data', (chunk) => {
      socket.destroy();
      resolve(Number(String(chunk).slice(9, 12)));
    });
  });

const withHeaders = (path: string, ...headers: string[]): string =>
  [`GET ${path} HTTP/1.1`, 'Host: localhost', ...headers, '', ''].join('\r\n');

describe.each([{ fastPath: true }, { fastPath: false }])('check by a proxy, $fastPath', (path) => {
  test('status=403: covers every refusal that a client can cause', async () => {
    const { sendRequest, port } = await serve({ ...path, bounds: { maxKey: 20 } });
    const key = { 'sluice-key': 'alice' };
    const refused: [string, Record<string, string>][] = [
      ['/check?status=403', {}], // no key
      ['/check?status=403', { 'sluice-key': 'a'.repeat(21) }],
      ['/check?status=403&limit=unknown', key],
      ['/check?status=403&cost=x', key],
      ['/check?status=403&cost=9', key],
      ['/check?status=403&cost=1&cost=0', key],
      ['/check?status=403&key=%zz', {}],
      ['/check?cost=1&status=403&plans=x', key],
    ];
    for (const [url, headers] of refused) {
      const { status, json } = await sendRequest(url, { headers });
      expect([url, status, json.status]).toEqual([url, 403, 403]);
    }
    const many = Array.from({ length: MAX_HEADERS + 1 }, (_, n) => `X-${n}: ${n}`);
    expect(await statusOf(port, withHeaders('/check?status=403', ...many))).toBe(403);
    expect(await statusOf(port, withHeaders('/check', ...many))).toBe(431);
  });

  test('status=429: covers a cross-site check; an error without status= keeps its own', async () => {
    const { sendRequest } = await serve(path);
    const headers = { origin: 'https://example.org' };
    expect((await sendRequest('/check?key=a&status=429', { headers })).status).toBe(429);
    expect((await sendRequest('/check?key=a', { headers })).status).toBe(403);
    expect((await sendRequest('/check')).status).toBe(400);
    expect((await sendRequest('/check?key=a&limit=unknown')).status).toBe(404);
    expect((await sendRequest('/check?key=a&status=200')).status).toBe(400);
  });

  test('key header twice: refused with 400, whether equal, appended or of other case', async () => {
    const { port, sendRequest } = await serve(path);
    const twice = (...headers: string[]) => statusOf(port, withHeaders('/check', ...headers));
    expect(await twice('Sluice-Key: a', 'Sluice-Key: b')).toBe(400);
    expect(await twice('Sluice-Key: a', 'sluice-key: a')).toBe(400);
    expect(await twice('Sluice-Key: a', 'X-A: b', 'SLUICE-KEY: ')).toBe(400);
    expect(await twice('Sluice-Key: a')).toBe(200);
    const { json } = await sendRequest('/check');
    expect(json.detail).toBe(
      'expected `key` to be a parameter, or once in the header sluice-key, got undefined',
    );
  });

  test('header of one of several checks twice: refused, nothing is counted', async () => {
    const { port, sendRequest } = await serve(path);
    const url = '/check?check-header=api,X-User&check=api,ip:1&status=403';
    expect(await statusOf(port, withHeaders(url, 'X-User: a', 'x-user: b'))).toBe(403);
    expect((await sendRequest('/check?cost=0&key=ip:1')).json.remaining).toBe(3);
    expect(await statusOf(port, withHeaders(url, 'X-User: a'))).toBe(200);
    expect(await statusOf(port, withHeaders(url.replace('check=api', 'check=none')))).toBe(403);
  });

  test('several checks: hide a limit for all keys together', async () => {
    const limits = {
      user: { bucket: { rate: '1/h', burst: 9 } },
      ceiling: { bucket: { rate: '1/h', burst: 2 }, per: 'limit', always: true },
    };
    const { sendRequest } = await serve({ ...path, limits });
    const url = '/check?check=user,a&check=user,b'; // the ceiling counts one call
    for (const remaining of [8, 7]) {
      const { json, headers } = await sendRequest(url);
      expect([json.remaining, headers.ratelimit]).toEqual([
        remaining,
        expect.stringMatching(new RegExp(`^"user";r=${remaining};t=\\d+$`)),
      ]);
    }
    const refused = await sendRequest(url);
    expect([refused.status, refused.text.includes('ceiling')]).toEqual([429, false]);
  });

  test('Sluice-Key of a proxy that forwards Host and Origin: is checked', async () => {
    const { sendRequest } = await serve(path);
    const forwarded = { host: 'example.org', origin: 'https://other.example' };
    expect((await sendRequest('/check', { headers: forwarded })).status).toBe(403);
    const headers = { ...forwarded, 'sluice-key': 'alice' };
    expect((await sendRequest('/check', { headers })).status).toBe(200);
  });
});

describe('Envoy ext_authz', () => {
  /** Sends a check as Envoy does: the client's method, path and query behind `path_prefix`, its host, and no body. */
  const envoy = (
    server: RunningHttpServer,
    prefix: string,
    path: string,
    { method = 'GET', headers = {}, body = '' } = {},
  ) =>
    server.sendRequest(prefix + path, {
      method,
      body,
      headers: {
        host: 'shop.example.org',
        'sluice-key': 'ip:192.0.2.1',
        'x-envoy-internal': 'true',
        'x-forwarded-for': '10.0.0.7',
        'x-envoy-expected-rq-timeout-ms': '100',
        'content-length': String(body.length),
        ...headers,
      },
    });

  test('path_prefix: any method, path and query of a client is a check with cost 1', async () => {
    const server = await serve({ limits: { api: { bucket: { rate: '1/h', burst: 8 } } } });
    const statuses: unknown[] = [];
    for (const path of ['/', '/a/b', '/a?b=c', '/?cost=0', '/;cost=0', '/x?limit=none&key=other'])
      statuses.push((await envoy(server, '/check', path)).json.remaining);
    for (const method of ['POST', 'DELETE'])
      statuses.push((await envoy(server, '/check', '/form', { method })).json.remaining);
    expect(statuses).toEqual([7, 6, 5, 4, 3, 2, 1, 0]);
    expect((await envoy(server, '/check', '/')).status).toBe(429);
  });

  test('parameters of the proxy stand before the path: /check;limit=…&status=…', async () => {
    const limits = {
      api: { bucket: { rate: '1/h', burst: 1 } },
      jobs: { bucket: { rate: '1/h', burst: 5 } },
    };
    const server = await serve({ limits });
    const prefix = '/check;limit=jobs&cost=2&status=499';
    expect((await envoy(server, prefix, '/a?cost=0')).json.remaining).toBe(3);
    expect((await envoy(server, prefix, '/;cost=0&limit=api')).json.remaining).toBe(1);
    expect((await envoy(server, prefix, '/?status=400')).status).toBe(499);
    expect((await envoy(server, '/check;limit=none&status=499', '/a')).status).toBe(499);
    expect((await envoy(server, '/check;limit=none', '/a?status=499')).status).toBe(404);
  });

  test('with_request_body: the client cannot add parameters in a body', async () => {
    const server = await serve({ limits: { api: { bucket: { rate: '1/h', burst: 2 } } } });
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    const sent = { method: 'POST', headers, body: 'cost=0&key=other' };
    expect((await envoy(server, '/check', '/form', sent)).json.remaining).toBe(1);
    const json = { 'content-type': 'application/json' };
    const list = { method: 'POST', headers: json, body: '[]' };
    expect((await envoy(server, '/check;cost=1', '/', list)).json.remaining).toBe(0);
    expect((await envoy(server, '/check', '/', list)).status).toBe(429);
  });

  test('a path that no proxy can send: 404, nothing is counted', async () => {
    const server = await serve();
    for (const path of ['/check;cost=0', '/check;a?/', '/check*', '/checks/a', '/check;cost=1?x/'])
      expect([path, (await envoy(server, path, '')).status]).toEqual([path, 404]);
    expect((await server.sendRequest('/check?cost=0&key=ip:192.0.2.1')).json.remaining).toBe(3);
  });
});
