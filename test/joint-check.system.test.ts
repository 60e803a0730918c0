import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { daemonFixture, type RunningDaemon } from './support/daemon.ts';
import { sendRequest } from './support/http-protocol.ts';
import { nginxServer, pythonWithRedis, type Service, startNginx } from './support/services.ts';

const fixture = daemonFixture();
afterAll(() => fixture.end());

const PORTS = ['--line', 'off', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

const start = (config: string): Promise<RunningDaemon> =>
  fixture.start([...PORTS, '--config', fixture.place().file('sluice.yaml', config)]);

const LOGIN = "limits: { login-user: { bucket: { rate: 5/h, burst: 5 }, match: 'user:*' } }";

const python = pythonWithRedis();

describe.skipIf(python === undefined)('redis-py', () => {
  test('a pipeline with its default, a transaction: counts each check once, or none', async () => {
    const daemon = await start(LOGIN);
    const code = `
import json, redis
client = redis.Redis(port=${daemon.port('resp')}, decode_responses=True)
pipe = client.pipeline()
for cost in (2, 1, 4):
    pipe.execute_command('SLUICE.CHECK', 'login-user', 'user:py', cost)
replies = [pipe.execute()]
pipe = client.pipeline()
pipe.execute_command('SLUICE.CHECK', 'login-user', 'user:py', 2)
pipe.execute_command('NONSENSE')
try:
    pipe.execute()
except redis.RedisError as error:
    replies.append(str(error))
replies.append(client.execute_command('SLUICE.CHECK', 'login-user', 'user:py', 0))
print(json.dumps(replies))`;
    const out = execFileSync(python ?? '', ['-c', code], { encoding: 'utf8', timeout: 20_000 });
    expect(JSON.parse(out)).toEqual([
      [
        [1, 3, 0, '', '', ''],
        [1, 2, 0, '', '', ''],
        [0, 2, expect.any(Number), 'login-user', '', ''],
      ],
      expect.stringContaining("unknown command 'NONSENSE'"),
      [1, 2, 0, '', '', ''], // the failed transaction counted nothing
    ]);
  });
});

describe.skipIf(nginxServer() === undefined)(
  'nginx auth_request with two limits in one check',
  () => {
    let nginx: Service;
    let app: Server;

    beforeAll(async () => {
      const daemon = await start(`
limits:
  per-user: { bucket: { rate: 1/h, burst: 3 }, match: 'user:*' }
  per-client: { bucket: { rate: 1/h, burst: 5 }, match: 'ip:*' }
`);
      app = createServer((_, response) => response.end('app'));
      await new Promise<void>((ready) => app.listen(0, '127.0.0.1', ready));
      const page = readFileSync('docs/reference/http-check.md', 'utf8');
      const [, recipe = ''] = /```nginx\n# two limits in one check\n([\s\S]*?)```/.exec(page) ?? [];
      nginx = await fixture.serve(() =>
        startNginx(1, ([port]) =>
          recipe
            .replace('127.0.0.1:7612', daemon.addresses.http[0])
            .replace('127.0.0.1:3000', `127.0.0.1:${(app.address() as AddressInfo).port}`)
            .replace('listen 80;', `listen 127.0.0.1:${port};`),
        ),
      );
    });
    afterAll(() => new Promise((closed) => app.close(closed)));

    const from = async (headers: Record<string, string>, path = '/'): Promise<number> =>
      (await sendRequest(nginx.port, path, { headers })).status;

    test('both limits count, a refusal charges none, and a client cannot choose another key', async () => {
      const alice = { 'X-Api-Key': 'alice' };
      expect([await from(alice), await from(alice), await from(alice)]).toEqual([200, 200, 200]);
      expect(await from(alice)).toBe(429);
      const tricks = {
        'X-Sluice-User': 'user:new',
        'X-Sluice-Client': 'ip:9',
        'Sluice-Check': '*,x',
      };
      expect(await from({ ...alice, ...tricks })).toBe(429);
      expect(await from(alice, '/?check=per-user,user:new&check-header=per-user,X&cost=0')).toBe(
        429,
      );
      expect(await from({ 'X-Api-Key': 'alice' }, '/check')).toBe(429);
      expect(await from({ 'X-Api-Key': 'x,0&cost=0' })).toBe(200); // its own key
      expect(await from({})).toBe(200); // without a key: all such clients share one
      expect(await from({ 'X-Api-Key': 'bob' })).toBe(429); // the fifth call of the address was the last
      const { headers } = await sendRequest(nginx.port, '/', { headers: alice });
      expect(Number(headers['retry-after'])).toBeGreaterThan(3000);
    });

    test('key that is too long: is refused, and no error 500', async () => {
      expect(await from({ 'X-Api-Key': 'x'.repeat(5000) })).toBe(429);
    });
  },
);
