/** A real nginx with auth_request to the daemon, configured with the recipes of docs/http-check.md. */

import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readHttpSection } from '../src/daemon/config/http.ts';
import { createKeyExtractor } from '../src/daemon/protocols/http/key.ts';
import {
  createHttpServer,
  type HttpResult,
  type RunningHttpServer,
  sendRequest,
  serveHttp,
} from './support/http-protocol.ts';
import { nginxServer, type Service, startNginx } from './support/services.ts';

/** A recipe of the page with the test's addresses. */
function recipe(name: string, replacements: Readonly<Record<string, string>>): string {
  const page = readFileSync('docs/http-check.md', 'utf8');
  const [, text] = new RegExp(`\`\`\`nginx\\n# ${name}\\n([\\s\\S]*?)\`\`\``).exec(page) ?? [];
  if (text === undefined) throw new Error(`docs/http-check.md has no recipe "${name}"`);
  return Object.entries(replacements).reduce((all, [from, to]) => all.replaceAll(from, to), text);
}

/** The upstream application: echoes method and URL. */
async function startApp(): Promise<{ server: Server; port: number }> {
  const server = createServer((request, response) => {
    response.statusCode = request.url === '/forbidden' ? 403 : 200;
    response.end(`app ${request.method} ${request.url}`);
  });
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  return { server, port: (server.address() as AddressInfo).port };
}

describe.skipIf(nginxServer() === undefined)('nginx auth_request', () => {
  let app: Awaited<ReturnType<typeof startApp>>;
  let daemon: RunningHttpServer;
  let nginx: Service;
  let closedPort: number;

  beforeAll(async () => {
    app = await startApp();
    daemon = await serveHttp(
      createHttpServer({
        limits: { 'per-client': { bucket: { rate: '1/h', burst: 3 }, match: 'ip:*' } },
        extractKey: createKeyExtractor(
          readHttpSection({ prefix: 'ip:', trustProxy: ['127.0.0.1'] }, 'http'),
        ),
      }),
    );
    // The tests act as many clients by a header that nginx trusts.
    const realIp = 'set_real_ip_from 127.0.0.1; real_ip_header X-Test-Client;';
    nginx = await startNginx(2, (ports) => {
      closedPort = ports[1];
      const [open, closed] = ports.map((port) => ({
        '127.0.0.1:7612': `127.0.0.1:${daemon.port}`,
        '127.0.0.1:3000': `127.0.0.1:${app.port}`,
        'listen 80;': `listen 127.0.0.1:${port};`,
      }));
      return `${realIp}\n${recipe('refused with 429', open)}\n${recipe(
        'and closed without the daemon',
        closed,
      )
        .replaceAll('upstream sluice', 'upstream sluice_closed')
        .replaceAll('//sluice/', '//sluice_closed/')}`;
    });
  });

  afterAll(async () => {
    await nginx?.stop();
    await daemon?.stop().catch(() => undefined);
    await new Promise((closed) => app?.server.close(closed));
  });

  const from = (client: string, path = '/', more = {}): Promise<HttpResult> =>
    sendRequest(nginx.port, path, { headers: { 'x-test-client': client }, ...more });

  test('client within its burst: passes; then 429 with Retry-After', async () => {
    for (let remaining = 2; remaining >= 0; remaining--) {
      const { status, text, headers } = await from('192.0.2.1', `/page?n=${remaining}`);
      expect([status, text]).toEqual([200, `app GET /page?n=${remaining}`]);
      expect(headers.ratelimit).toMatch(new RegExp(`^"per-client";r=${remaining};t=\\d+$`));
    }
    const refused = await from('192.0.2.1');
    expect(refused.status).toBe(429);
    expect(refused.text).not.toContain('app');
    expect(Number(refused.headers['retry-after'])).toBeGreaterThan(3000);
    expect(refused.headers.ratelimit).toMatch(/^"per-client";r=0;t=\d+$/);
  });

  test('two clients: count apart', async () => {
    expect((await from('192.0.2.2')).status).toBe(200);
    expect((await from('192.0.2.1')).status).toBe(429);
  });

  test('POST: is checked without its body', async () => {
    const sent = {
      method: 'POST',
      body: 'key=ip:192.0.2.9',
      headers: {
        'x-test-client': '192.0.2.3',
        'content-type': 'application/x-www-form-urlencoded',
      },
    };
    expect((await from('192.0.2.3', '/form', sent)).text).toBe('app POST /form');
  });

  test('403 of the application: passes unchanged', async () => {
    const { status, text } = await from('192.0.2.4', '/forbidden');
    expect([status, text]).toEqual([403, 'app GET /forbidden']);
  });

  test('daemon down: fails open or closed as configured', async () => {
    const strict = () =>
      sendRequest(closedPort, '/', { headers: { 'x-test-client': '192.0.2.6' } });
    const statuses = [];
    for (let n = 0; n < 4; n++) statuses.push((await strict()).status);
    expect(statuses).toEqual([200, 200, 200, 429]);
    await daemon.stop();
    for (let n = 0; n < 5; n++) expect((await from('192.0.2.5')).status).toBe(200);
    const closed = await strict();
    expect([closed.status, closed.text.includes('app')]).toEqual([500, false]);
  });
});
