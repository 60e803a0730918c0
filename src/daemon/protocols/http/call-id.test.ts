import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type RunningHttpServer,
  serveHttp,
} from '../../../../test/support/http-protocol.ts';
import { nodeRedis } from '../../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../../test/support/services.ts';
import { redis } from '../../../backends/redis/options.ts';

const LIMITS = { api: { bucket: { rate: '1/h', burst: 10 } } };

const open: RunningHttpServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.stop()));
});

async function start() {
  const server = await serveHttp(createHttpServer({ limits: LIMITS }));
  open.push(server);
  const { sendRequest } = server;
  const post = (path: string, body: unknown) =>
    sendRequest(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
  const left = async (key = 'k'): Promise<unknown> =>
    (await sendRequest(`/check?key=${key}&cost=0`)).json.remaining;
  return { sendRequest, post, left };
}

describe('HTTP check with an id', () => {
  test('id: a repeated check is charged once, by URL, form, JSON and in a batch', async () => {
    const { sendRequest, post, left } = await start();
    const first = await sendRequest('/check?key=k&cost=3&id=a%20b');
    const again = await sendRequest('/check?key=k&cost=3&id=a%20b');
    expect([first.status, first.json]).toEqual([200, { verdict: 'allow', remaining: 7 }]);
    expect([again.status, again.json]).toEqual([first.status, first.json]);
    expect((await post('/check', { key: 'k', cost: 3, id: 'a b' })).json).toEqual(first.json);
    const items = [
      { key: 'k', id: 'a b' },
      { key: 'k', id: 'c' },
      { key: 'k', id: 'c' },
    ];
    expect((await post('/batch', items)).status).toBe(200);
    expect((await sendRequest('/check?key=k&wait=1s&id=c')).status).toBe(200);
    expect(await left()).toBe(6);
  });

  test('id-header: the header counts only where the URL names it', async () => {
    const { sendRequest, left } = await start();
    const headers = { 'Idempotency-Key': 'x' };
    for (let n = 0; n < 3; n++) await sendRequest('/check?key=k', { headers });
    expect(await left()).toBe(7); // a client of a proxy must not choose what is charged
    const url = '/check?key=k&id-header=Idempotency-Key';
    for (let n = 0; n < 3; n++) await sendRequest(url, { headers });
    expect(await left()).toBe(6);
    await sendRequest(url); // without the header it has no id
    await sendRequest(url);
    expect(await left()).toBe(4);
  });

  test('id: an invalid one, both forms at once, and an id in several checks are errors', async () => {
    const { sendRequest, post, left } = await start();
    const bad = [
      '/check?key=k&id=',
      `/check?key=k&id=${'x'.repeat(257)}`,
      '/check?key=k&id=x&id-header=y',
      '/check?check=api,k&id=x',
    ];
    for (const url of bad) expect((await sendRequest(url)).status).toBe(400);
    const checks = [{ limit: 'api', key: 'k', id: 'x' }];
    expect((await post('/check', { checks })).json.detail).toContain('checks[0].id');
    expect((await post('/check', { key: 'k', id: 5 })).status).toBe(400);
    expect(await left()).toBe(10);
  });
});

describe.skipIf(!redisServer())('HTTP check with an id, of a limit in Redis', () => {
  const fixture = redisFixture(nodeRedis);

  test('id: another daemon that shares the limit does not charge it again', async () => {
    const limits = { api: { ...LIMITS.api, redis: { url: 'redis://127.0.0.1:1' } } };
    const clients = [fixture.firstClient, fixture.secondClient];
    const replies: unknown[] = [];
    for (const { client } of clients) {
      const backend = redis(client, { deadline: 10_000 });
      const server = await serveHttp(createHttpServer({ limits, backend }));
      open.push(server);
      replies.push((await server.sendRequest('/check?key=k&cost=3&id=x')).json);
    }
    const expected = { verdict: 'allow', remaining: 7 };
    expect(replies).toEqual([expected, expected]);
  });
});
