import { connect } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { readHttpSection } from '../../src/daemon/config/http.ts';
import {
  createHttpServer,
  type HttpRequestOptions,
  type HttpServerOptions,
  serveHttp,
} from '../support/http-protocol.ts';
import { createTestDaemon, ProtocolClient } from '../support/small-daemon.ts';

const stops: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  await Promise.all(stops.splice(0).map((stop) => stop()));
});

async function start(options: HttpServerOptions = {}) {
  const server = await serveHttp(createHttpServer(options));
  stops.push(server.stop);
  return server;
}

const PAGE = 'http://evil.example';

/** What a browser sends for an image, a form and a script of a page, and before a request with other headers. */
const REQUESTS_OF_PAGES: Readonly<Record<string, HttpRequestOptions>> = {
  image: { headers: { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors' } },
  'page on another port': { headers: { 'sec-fetch-site': 'same-site' } },
  script: { headers: { origin: PAGE } },
  form: { method: 'POST', headers: { origin: PAGE, 'content-length': '0' } },
  sandbox: { method: 'POST', headers: { origin: 'null', 'content-length': '0' } },
  preflight: {
    method: 'OPTIONS',
    headers: { origin: PAGE, 'access-control-request-headers': 'x-forwarded-for' },
  },
};

describe.each([true, false])('web page, HTTP with fastPath %s', (fastPath) => {
  test.each(Object.entries(REQUESTS_OF_PAGES))(
    '%s: is refused and takes nothing',
    async (_, sent) => {
      const { sendRequest } = await start({ fastPath });
      for (let n = 0; n < 5; n++) {
        const { status, json } = await sendRequest('/check?key=victim', sent);
        expect([status, json.detail]).toEqual([
          403,
          expect.stringContaining('http.allowCrossSite'),
        ]);
      }
      expect((await sendRequest('/check?key=victim')).json).toEqual({
        verdict: 'allow',
        remaining: 2,
      });
    },
  );

  test('proxy that forwards the headers of a browser: its checks count', async () => {
    const { sendRequest } = await start({ fastPath });
    const headers = {
      origin: PAGE,
      'sec-fetch-site': 'cross-site',
      'x-forwarded-for': '192.0.2.1',
    };
    const statuses: number[] = [];
    for (let n = 0; n < 4; n++)
      statuses.push((await sendRequest('/check?key=a', { headers })).status);
    expect(statuses).toEqual([200, 200, 200, 429]);
  });

  test('own page, or allowCrossSite: may check', async () => {
    const { sendRequest } = await start({ fastPath });
    const own = { headers: { 'sec-fetch-site': 'same-origin' } };
    expect((await sendRequest('/check?key=a', own)).status).toBe(200);
    expect(readHttpSection({ allowCrossSite: true }, 'http').allowCrossSite).toBe(true);
    const open = await start({ fastPath, allowCrossSite: true });
    for (const sent of Object.values(REQUESTS_OF_PAGES).slice(0, 3))
      expect((await open.sendRequest('/check?key=a', sent)).status).toBe(200);
  });

  test('admin pages: a page of another site gets 403, a link of it works', async () => {
    const { sendRequest } = await start({ fastPath });
    const site = { 'sec-fetch-site': 'cross-site' };
    for (const path of ['/feed', '/inspect?key=victim', '/limits', '/metrics'])
      for (const headers of [{ origin: PAGE }, { origin: 'null' }, { ...site }])
        expect((await sendRequest(path, { headers })).status).toBe(403);
    const link = { headers: { ...site, 'sec-fetch-mode': 'navigate' } };
    expect((await sendRequest('/limits', link)).status).toBe(200);
    expect((await sendRequest('/limits')).status).toBe(200);
    expect((await sendRequest('/reload', { method: 'POST', ...link })).status).toBe(403);
  });

  test('image by a public name of loopback: is refused and takes nothing', async () => {
    const { sendRequest } = await start({ fastPath });
    const image = { headers: { host: 'localtest.example:7612', accept: 'image/*' } };
    for (const path of ['/check', 'http://localtest.example:7612/check'])
      expect((await sendRequest(`${path}?key=victim`, image)).status).toBe(403);
    const forwarded = { headers: { host: 'app.example', 'x-forwarded-for': '192.0.2.1' } };
    const named = { headers: { host: 'sluice' } };
    for (const sent of [forwarded, named, {}])
      expect((await sendRequest('/check?key=victim', sent)).status).toBe(200);
    expect((await sendRequest('/check?key=victim')).status).toBe(429);
    const open = await start({ fastPath, allowCrossSite: true });
    expect((await open.sendRequest('/check?key=victim', image)).status).toBe(200);
  });

  test('DNS rebinding: a page that reaches loopback by its own name takes no batch', async () => {
    const { sendRequest } = await start({ fastPath });
    const headers = { host: 'evil.example:7612', origin: 'http://evil.example:7612' };
    const take = { method: 'POST', headers: { ...headers, 'content-length': '0' } };
    expect((await sendRequest('/take-up-to?key=victim&max=3', take)).status).toBe(403);
    const named = { method: 'POST', headers: { host: 'sluice', 'content-length': '0' } };
    expect((await sendRequest('/take-up-to?key=victim&max=3', named)).json).toEqual({ taken: 3 });
  });
});

describe('web page, other protocols', () => {
  const POST = 'POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 30\r\n\r\nvictim\nvictim\n';

  test.each(['POST', 'GET', 'PUT', 'OPTIONS'])('line: %s closes the connection', (method) => {
    const { line } = createTestDaemon();
    for (const cut of [1, 10, POST.length]) {
      const request = POST.replace('POST', method);
      const client = new ProtocolClient(line).send(request.slice(0, cut)).send(request.slice(cut));
      expect([client.takeReceived(), client.isClosed]).toEqual(['', true]);
    }
    const victim = new ProtocolClient(line).send('victim\n'.repeat(6)).takeReceived();
    expect(victim).toBe(`${'OK\n'.repeat(5)}NO\n`);
  });

  test('line: later lines and other first lines are keys', () => {
    const { line } = createTestDaemon();
    const keys = 'POST\nPOST / HTTP/1.1\nGET /a\nHost: a\n\x16\x03\n';
    expect(new ProtocolClient(line).send(keys).takeReceived()).toBe('OK\n'.repeat(5));
  });

  /** A handshake with a session ticket that the server of a page chose: it carries requests. */
  const handshake = (ticket: string): Buffer =>
    Buffer.concat([
      Buffer.from('1603010200010001fc0303', 'hex'),
      Buffer.alloc(32, 0x41),
      Buffer.from(`\r\n${ticket}`),
    ]);

  test.each([1, 5, 200])('TLS handshake, cut after %i bytes: closes the connection', (cut) => {
    const { line, resp } = createTestDaemon();
    const check = 'SLUICE.CHECK all-users victim\r\n';
    for (const [protocol, request] of [[line, 'victim\n'] as const, [resp, check] as const]) {
      const bytes = handshake(request.repeat(5));
      const client = new ProtocolClient(protocol).send(bytes.subarray(0, cut));
      if (!client.isClosed) client.send(bytes.subarray(cut));
      expect(client.takeReceived()).toMatch(/^(-ERR Protocol error: [^\r]*\r\n)?$/);
      expect(client.isClosed).toBe(true);
    }
    expect(new ProtocolClient(resp).send(check).takeReceived()).toMatch(/^\*6\r\n:1\r\n:4\r\n/);
  });

  test.each(['POST', 'GET', 'PUT', 'OPTIONS'])('RESP: %s closes the connection', (method) => {
    const { resp } = createTestDaemon();
    const body = 'SLUICE.CHECK all-users victim\r\n';
    const request = `${method} / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n${body}`;
    for (const cut of [1, 10, request.length]) {
      const client = new ProtocolClient(resp).send(request.slice(0, cut)).send(request.slice(cut));
      expect(client.takeReceived()).toMatch(/^(-ERR Protocol error: [^\r]*\r\n)?$/);
      expect(client.isClosed).toBe(true);
    }
    const victim = new ProtocolClient(resp).send(body).takeReceived();
    expect(victim).toMatch(/^\*6\r\n:1\r\n:4\r\n/);
  });
});

test('HTTP CONNECT: is answered with 405, and the connection is closed', async () => {
  const { port, sendRequest } = await start();
  const text = await new Promise<string>((resolve, reject) => {
    let received = '';
    const socket = connect(port, '127.0.0.1').on('error', reject);
    socket.on('data', (chunk) => {
      received += chunk;
    });
    socket.on('close', () => resolve(received));
    socket.write('CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n');
  });
  expect(text).toMatch(/^HTTP\/1\.1 405 Method Not Allowed\r\n(.+\r\n)*Connection: close\r\n/);
  expect((await sendRequest('/check?key=a')).status).toBe(200);
});
