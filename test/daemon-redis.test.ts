import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../src/client/index.ts';
import {
  daemonFixture,
  EPHEMERAL_PORTS,
  exchange,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { expectReloadKeepsConsumption } from './support/reload-numbers.ts';
import { redisServer, type Service, startRedis } from './support/services.ts';

const WITH_RESP = ['line', 'resp', 'http'].flatMap((name) => [`--${name}`, '127.0.0.1:0']);

/** Of all limits: longer than a stall of a loaded machine. */
const DEADLINE_MS = 2000;

describe.skipIf(redisServer() === undefined)('daemon with redis limits', () => {
  let redis: Service;
  let daemons: RunningDaemon[];
  const fixture = daemonFixture();
  const folder = fixture.place();

  beforeAll(async () => {
    redis = await fixture.serve(startRedis);
    const at = `url: 'redis://127.0.0.1:${redis.port}', deadline: ${DEADLINE_MS}ms`;
    const config = folder.file(
      'sluice.yaml',
      `
limits:
  open: { bucket: { rate: 1/h, burst: 5 }, match: 'open:*', redis: { ${at}, onUnavailable: allow } }
  shut: { bucket: { rate: 1/h, burst: 5 }, match: 'shut:*', redis: { ${at}, onUnavailable: deny } }
  plan: { quota: { limit: 5, per: month, timeZone: Asia/Kathmandu }, match: 'plan:*', redis: { ${at} } }
  rolling: { window: { limit: 5, per: 1h }, match: 'rolling:*', redis: { ${at} } }
  queue: { bucket: { rate: 1/h, burst: 1 }, match: 'queue:*', redis: { ${at}, fairQueue: true } }
  here: { bucket: { rate: 1/h, burst: 5 } }
`,
    );
    daemons = await Promise.all(
      [1, 2].map(() => fixture.start([...WITH_RESP, '--config', config])),
    );
    // A daemon is ready before it is connected to Redis.
    for (const n of [0, 1])
      await waitUntil(async () => (await check(n, ['shut:ready']))[0] === 'OK');
  });

  afterAll(() => fixture.end());

  const check = async (n: number, keys: readonly string[]): Promise<string[]> => {
    const reply = await exchange(
      daemons[n].addresses.line[0],
      keys.map((key) => `${key}\n`).join(''),
    );
    return reply.trim().split('\n');
  };
  const times = (key: string, count: number): string[] => Array.from({ length: count }, () => key);
  const allowed = (replies: readonly string[]): number =>
    replies.filter((reply) => reply === 'OK').length;

  test('two daemons share one count, and replies keep their order', async () => {
    const mixed = times('shut:a', 3).flatMap((key) => [key, 'x']);
    expect(await check(0, mixed)).toEqual(times('OK', 6));
    expect(allowed(await check(1, times('shut:a', 9)))).toBe(2);
    expect(allowed(await check(0, times('shut:a', 9)))).toBe(0);
    expect(allowed(await check(1, times('x', 9)))).toBe(5); // a local limit of that daemon
  });

  test('two daemons share one quota, and tell when it resets', async () => {
    expect(allowed(await check(0, times('plan:a', 3)))).toBe(3);
    expect(allowed(await check(1, times('plan:a', 9)))).toBe(2);
    const http = `http://${daemons[0].addresses.http[0]}`;
    const refused = await fetch(`${http}/check?key=plan:a`);
    const now = Date.now() + 5.75 * 3_600_000;
    const [year, month] = [new Date(now).getUTCFullYear(), new Date(now).getUTCMonth()];
    const [start, end] = [Date.UTC(year, month), Date.UTC(year, month + 1)];
    expect(refused.status).toBe(429);
    const policy = `"plan";q=5;w=${(end - start) / 1000}`;
    expect(refused.headers.get('RateLimit-Policy')).toBe(policy);
    const retryAfter = Number(refused.headers.get('Retry-After'));
    expect(Math.abs(retryAfter - (end - now) / 1000)).toBeLessThan(10);
    const inspected = await (await fetch(`${http}/inspect?key=plan:a`)).json();
    const resetsAt = end - 5.75 * 3_600_000;
    expect(inspected).toMatchObject({ limits: [{ name: 'plan', remaining: 0, resetsAt }] });
  });

  test('two daemons share a sliding window', async () => {
    expect(allowed(await check(0, times('rolling:a', 3)))).toBe(3);
    expect(allowed(await check(1, times('rolling:a', 9)))).toBe(2);
    expect(allowed(await check(0, times('rolling:a', 2)))).toBe(0);
  });

  test('a batch takes what Redis has left, and gives back what was not used', async () => {
    const post = async (n: number, path: string): Promise<{ taken?: number; permit?: string }> =>
      (
        await fetch(`http://${daemons[n].addresses.http[0]}${path}`, { method: 'POST' })
      ).json() as Promise<{ taken?: number; permit?: string }>;
    expect(allowed(await check(0, times('shut:batch', 1)))).toBe(1);
    const batch = await post(1, '/take-up-to?key=shut:batch&max=9&hold=1');
    expect(batch).toEqual({ taken: 4, permit: expect.any(String) });
    expect(await post(0, '/take-up-to?key=shut:batch&max=9&hold=1')).toEqual({ taken: 0 });
    expect(await post(1, `/give-back?permit=${batch.permit}&unused=3`)).toEqual({
      givenBack: true,
    });
    await waitUntil(async () => (await post(0, '/take-up-to?key=shut:batch&max=1')).taken === 1);
    expect(allowed(await check(1, times('shut:batch', 9)))).toBe(2);
  });

  test('what a key has left is known after a refusal, and after a wait in the queue of the fleet', async () => {
    const { addresses } = daemons[0];
    const client = connect({ at: `127.0.0.1:${daemons[0].port('resp')}`, deadline: '5s' });
    expect(await client.check('shut:left', 3)).toMatchObject({ verdict: 'allow', remaining: 2 });
    expect(await client.check('shut:left', 3)).toMatchObject({ verdict: 'deny', remaining: 2 });
    expect(await client.takeUpTo('shut:left', 2)).toEqual({ taken: 2 });
    expect(await client.takeUpTo('shut:left', 1)).toEqual({ taken: 0 });
    expect(await client.takeUpTo('shut:empty', 5)).toEqual({ taken: 5 });
    expect(await client.takeUpTo('shut:empty', 1)).toEqual({ taken: 0 });
    const denialOf = async (key: string) => {
      const response = await fetch(`http://${addresses.http[0]}/denials?key=${key}`);
      return ((await response.json()) as { denials: object[] }).denials.at(-1);
    };
    await waitUntil(async () => 'remaining' in ((await denialOf('shut:empty')) ?? {}));
    expect(await denialOf('shut:left')).toMatchObject({ cost: 3, remaining: 2 });
    // An empty batch tells when the bucket opens, not that a call must settle.
    expect(await denialOf('shut:empty')).toMatchObject({
      remaining: expect.closeTo(0, 1),
      retryAfterMs: expect.closeTo(3_600_000, -6),
    });
    for (const [key, remaining] of [
      ['queue:a', 0],
      ['shut:wait', 4],
    ] as const)
      expect(await client.acquire(key, { wait: '5s' })).toMatchObject({ remaining });
    await client.close();
  });

  test('onUnavailable decides at once while Redis is down, and Redis again after its restart', async () => {
    await redis.kill();
    const at = performance.now();
    expect(await check(0, times('open:b', 9))).toEqual(times('OK', 9));
    expect(await check(0, times('shut:b', 9))).toEqual(times('NO', 9));
    expect(allowed(await check(0, times('y', 9)))).toBe(5);
    expect(performance.now() - at).toBeLessThan(10 * DEADLINE_MS); // not one deadline for each call
    expect(daemons[0].log()).toMatch(
      /warn limit unavailable limit=shut onUnavailable=deny reason=/,
    );
    await redis.restart();
    await waitUntil(async () => (await check(0, ['shut:c']))[0] === 'OK');
    await daemons[0].waitForLog(/info limit available again limit=shut/);
  });

  /** A check, a wait and a batch say so on every protocol, and `why` does not blame the client. */
  const expectUnavailable = async (daemon: RunningDaemon, limit: string, key: string) => {
    const url = `http://${daemon.addresses.http[0]}`;
    for (const query of [`key=${key}`, `key=${key}&wait=50ms`]) {
      const response = await fetch(`${url}/check?${query}`);
      expect([response.status, await response.json()], query).toEqual([
        503,
        expect.objectContaining({ verdict: 'deny', limit, reason: 'unavailable' }),
      ]);
    }
    const take = await fetch(`${url}/take?key=${key}&max=3`, { method: 'POST' });
    expect(await take.json()).toEqual({ taken: 0, reason: 'unavailable' });
    const client = connect({
      at: `127.0.0.1:${daemon.port('resp')}`,
      deadline: '5s',
      onUnavailable: 'deny',
    });
    const denied = { verdict: 'deny', reason: 'unavailable' };
    expect(await client.check(key)).toMatchObject(denied);
    const waited = await client.acquire(key, { wait: 50 });
    expect(waited).toMatchObject(denied);
    expect(waited).not.toHaveProperty('remaining');
    expect(await client.takeUpTo(key, 3)).toEqual({ taken: 0, reason: 'unavailable' });
    await client.close();
    const { denials } = (await (await fetch(`${url}/denials?key=${key}`)).json()) as {
      denials: { reason?: string; denied: number }[];
    };
    expect(denials.map(({ reason }) => reason)).toEqual(['unavailable']);
    expect(denials[0].denied).toBe(6);
  };

  test('calls are decided in time while Redis is paused', async () => {
    redis.pause();
    const at = performance.now();
    const replies = await check(1, [
      ...times('shut:d', 50),
      ...times('z', 5),
      ...times('shut:d', 50),
    ]);
    expect(performance.now() - at).toBeLessThan(10 * DEADLINE_MS);
    expect(replies).toEqual([...times('NO', 50), ...times('OK', 5), ...times('NO', 50)]);
    await expectUnavailable(daemons[1], 'shut', 'shut:w');
    redis.resume();
    await waitUntil(async () => (await check(1, ['shut:e']))[0] === 'OK');
  });

  test('a reload with other numbers keeps what was consumed, also with another period of a window', async () => {
    const backend = `redis: { url: 'redis://127.0.0.1:${redis.port}', deadline: 10s }`;
    await expectReloadKeepsConsumption(fixture, folder, backend);
  });

  test('a limit that a reload removes still answers pending checks', async () => {
    const url = `redis://127.0.0.1:${redis.port}`;
    const here = 'here: { bucket: { rate: 1/h, burst: 50 } }';
    const remote = `remote: { bucket: { rate: 1/h, burst: 5 }, match: 'remote:*', redis: { url: '${url}', deadline: 10s, onUnavailable: deny } }`;
    const config = folder.file('reloaded.yaml', `limits:\n  ${here}\n  ${remote}\n`);
    const daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    const send = (text: string): Promise<string> => exchange(daemon.addresses.line[0], text);
    await waitUntil(async () => (await send('remote:a\n')) === 'OK\n');
    redis.pause();
    const pending = send('remote:b\n');
    await send('x\n'); // sent later, so the first one is in flight
    folder.file('reloaded.yaml', `deny: [gone]\nlimits:\n  ${here}\n`);
    daemon.signal('SIGHUP');
    await waitUntil(async () => (await send('gone\n')) === 'NO\n');
    redis.resume();
    expect(await pending).toBe('OK\n');
    await daemon.waitForLog(/info reloaded limits=1/);
    expect(await daemon.stop()).toBe(0);
  });
});
