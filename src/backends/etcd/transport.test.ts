import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '../../core/clock.ts';
import { EtcdHttp } from './transport.ts';

describe('whoever has a name and a password', () => {
  let server: Server;
  let http: EtcdHttp;
  /** How often somebody logged in; tokens are numbered by it, and only the last is good. */
  let logins = 0;
  /** What is said of the others. */
  let spent: readonly [number, object];
  beforeEach(async () => {
    logins = 0;
    server = createServer((asked, answer) => {
      const say = (status: number, body: object): unknown =>
        answer.writeHead(status).end(JSON.stringify(body));
      if (asked.url === '/v3/auth/authenticate') return say(200, { token: `token ${++logins}` });
      const { authorization } = asked.headers;
      if (authorization === undefined) return say(400, { error: 'user name is empty' });
      return authorization === `token ${logins}` ? say(200, {}) : say(...spent);
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

  const askMany = (): Promise<unknown> =>
    Promise.all(Array.from({ length: 32 }, () => http.post('/v3/kv/range', {})));

  test('logs in once for all who ask at the same time: to etcd that is a lot of work', async () => {
    await askMany();
    expect(logins).toBe(1);
  });

  test.each([
    [401, { error: 'etcdserver: invalid auth token' }],
    [400, { error: 'etcdserver: revision of auth store is old' }],
  ] as const)('and once again when its token is no longer good: %i', async (...said) => {
    spent = said;
    await http.post('/v3/kv/range', {});
    logins++; // such as by a server that was started anew
    await askMany();
    expect(logins).toBe(3);
  });
});
