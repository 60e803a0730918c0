import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { daemonFixture, EPHEMERAL_PORTS, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { redisServer, type Service, startRedis } from './support/services.ts';

describe.skipIf(redisServer() === undefined)('control of limits in Redis', () => {
  let redis: Service;
  let daemon: RunningDaemon;
  const fixture = daemonFixture();

  beforeAll(async () => {
    redis = await fixture.serve(startRedis);
    const options = `redis: { url: 'redis://127.0.0.1:${redis.port}', onUnavailable: deny, deadline: 10s }`;
    const file = fixture.place().file(
      'sluice.yaml',
      `
limits:
  rate: { bucket: { rate: 1/h, burst: 20 }, match: 'r:*', ${options} }
  calls: { concurrency: 2, match: 'c:*', ${options} }
  here: { bucket: { rate: 1/h, burst: 5 }, match: 'c:*', always: true }
`,
    );
    daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', file]);
    await waitUntil(async () => (await take('r:ready', 1)) === 1);
  });
  afterAll(() => fixture.end());

  const post = (path: string): Promise<Response> =>
    fetch(`http://${daemon.addresses.http[0]}${path}`, { method: 'POST' });
  const take = async (key: string, max: number): Promise<number> =>
    ((await (await post(`/take-up-to?key=${key}&max=${max}`)).json()) as { taken: number }).taken;

  test('override: a key takes along what it has consumed in Redis, and back', async () => {
    expect(await take('r:alice', 15)).toBe(15);
    expect((await post('/override?key=r:alice&rate=100/h&for=1h')).status).toBe(200);
    expect(await take('r:alice', 200)).toBe(85);
    expect((await post('/remove-override?key=r:alice')).status).toBe(200);
    expect(await take('r:alice', 200)).toBe(0);
  });

  test('reset: a limit that cannot is named, and an error only if no other was reset', async () => {
    const reset = await post('/reset?key=r:alice');
    expect([reset.status, await reset.json()]).toEqual([200, { reset: ['rate'], failed: [] }]);
    expect(await take('r:alice', 200)).toBe(20);
    const partly = await post('/reset?key=c:1');
    expect([partly.status, await partly.json()]).toEqual([
      200,
      { reset: ['here'], failed: ['calls'] },
    ]);
    expect((await post('/reset?key=c:1&limit=calls')).status).toBe(502);
  });

  test('override: while Redis is unavailable, the reply warns that consumption is not taken along', async () => {
    redis.pause();
    const set = await post('/override?key=r:bob&rate=100/h&for=1h');
    expect([set.status, await set.json()]).toEqual([
      200,
      expect.objectContaining({
        kind: 'override',
        warnings: [
          expect.stringMatching(/^consumption not taken along: limit rate.* is unavailable$/),
        ],
      }),
    ]);
    expect((await post('/reset?key=r:bob&limit=rate')).status).toBe(502);
    expect(daemon.log()).not.toMatch(/info key reset .*r:bob/);
    redis.resume();
  });
});
