import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type RunningHttpServer,
  sendRequest,
  serveHttp,
} from './support/http-protocol.ts';
import { nginxServer, type Service, startNginx } from './support/services.ts';

describe.skipIf(nginxServer() === undefined)('nginx auth_request with wait', () => {
  let app: Server;
  let daemon: RunningHttpServer;
  let nginx: Service;

  beforeAll(async () => {
    app = createServer((_request, response) => response.end('app'));
    await new Promise<void>((ready) => app.listen(0, '127.0.0.1', ready));
    daemon = await serveHttp(
      createHttpServer({ limits: { site: { bucket: { rate: '1/150ms', burst: 1 } } } }),
    );
    nginx = await startNginx(
      1,
      ([port]) => `
upstream sluice { server 127.0.0.1:${daemon.port}; keepalive 4; }
server {
  listen 127.0.0.1:${port};
  location / {
    auth_request /_sluice;
    proxy_pass http://127.0.0.1:${(app.address() as AddressInfo).port};
  }
  location = /_sluice {
    internal;
    proxy_pass http://sluice/check?limit=site&key=all&wait=5s&status=403;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_pass_request_body off;
    proxy_set_header Content-Length "";
    proxy_set_header X-Original-URI $request_uri;
    proxy_read_timeout 6s;
  }
}`,
    );
  });

  afterAll(async () => {
    await nginx?.stop();
    await daemon?.stop();
    await new Promise((closed) => app?.close(closed));
  });

  test('nginx: six requests at once, all pass at the rate of the limit', async () => {
    const startedAt = performance.now();
    const results = await Promise.all([1, 2, 3, 4, 5, 6].map(() => sendRequest(nginx.port, '/')));
    expect(results.map(({ status, text }) => `${status} ${text}`)).toEqual(
      Array(6).fill('200 app'),
    );
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(5 * 150 - 1);
  });
});
