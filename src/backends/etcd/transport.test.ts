import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '../../core/clock.ts';
import { EtcdHttp } from './transport.ts';

describe('etcd transport with credentials', () => {
  let server: Server;
  let http: EtcdHttp;
  /** Number of logins; tokens are numbered by it, and only the last one is valid. */
  let logins = 0;
  /** The response to an expired token. */
  let expired: readonly [number, object];
  beforeEach(async () => {
    logins = 0;
    server = createServer((request, response) => {
      const respond = (status: number, body: object): unknown =>
        response.writeHead(status).end(JSON.stringify(body));
      if (request.url === '/v3/auth/authenticate')
        return respond(200, { token: `token ${++logins}` });
      const { authorization } = request.headers;
      if (authorization === undefined) return respond(400, { error: 'user name is empty' });
      return authorization === `token ${logins}` ? respond(200, {}) : respond(...expired);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const endpoints = [new URL(`http://127.0.0.1:${port}`)];
    const auth = { name: 'root', password: 'secret' };
    http = new EtcdHttp({ endpoints, deadlineMs: 5000, clock: systemClock, auth, tls: undefined });
  });
  afterEach(async () => {
    http.close();
    server.close();
    await once(server, 'close');
  });

  const postMany = (): Promise<unknown> =>
    Promise.all(Array.from({ length: 32 }, () => http.post('/v3/kv/range', {})));

  test('concurrent requests share one login', async () => {
    await postMany();
    expect(logins).toBe(1);
  });

  test.each([
    [401, { error: 'etcdserver: invalid auth token' }],
    [400, { error: 'etcdserver: revision of auth store is old' }],
  ] as const)('logs in once more when the token has expired: status %i', async (...response) => {
    expired = response;
    await http.post('/v3/kv/range', {});
    logins++; // such as after a restart of the server
    await postMany();
    expect(logins).toBe(3);
  });
});
