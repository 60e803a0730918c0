/** Closing a shared limiter while somebody waits in its line: everybody goes home, and nothing stays behind. */

import { execFile } from 'node:child_process';
import { getEventListeners } from 'node:events';
import { promisify } from 'node:util';
import { describe, expect, test, vi } from 'vitest';
import { redisFixture } from '../../../test/support/own-redis.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisServer } from '../../../test/support/services.ts';
import { guard } from '../../adapters/http/guard.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { limiter, type QueueOptions } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { throttle } from '../../throttle/throttle.ts';
import { type RedisOptions, redis } from './backend.ts';

const run = promisify(execFile);

/** The system's clock, and how many alarms keep the process alive. */
function countingClock() {
  const alarms = new Set<object>();
  const clock: Clock = {
    now: () => systemClock.now(),
    wakeAt(at, act, keepAlive) {
      const own = {};
      if (keepAlive) alarms.add(own);
      const rung = (): void => {
        alarms.delete(own);
        act();
      };
      const cancel = systemClock.wakeAt?.(at, rung, keepAlive);
      return () => {
        alarms.delete(own);
        cancel?.();
      };
    },
  };
  return { clock, alarms };
}

const HOURLY: Limit = { spacing: { every: '1h' } };

const ONE_LINE: Limit = { concurrency: 1 };

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('a limiter shared by %s is closed', (_name, connect) => {
  const stage = redisFixture(connect);

  function shared(limit: Limit, options: RedisOptions = {}, queue: QueueOptions = {}) {
    const { clock, alarms } = countingClock();
    const api = limiter({
      name: 'api',
      limit,
      backend: redis(stage.firstClient.client, options),
      clock,
      queue,
    });
    return { api, alarms };
  }

  const connections = (): number => stage.cli('CLIENT', 'LIST').split('\n').length;

  const WAYS: [string, Limit, RedisOptions][] = [
    ['in line', HOURLY, {}],
    ['in the line of all', HOURLY, { fairQueue: true }],
    ['with a place reserved', { spacing: { every: '1h', reserve: 9 } }, {}],
    ['for a call in flight', ONE_LINE, {}],
    ['for a call in flight, in the line of all', ONE_LINE, { fairQueue: true }],
    ['for permits taken ahead', { bucket: { rate: '1/h', burst: 1 } }, { prefetch: 1 }],
  ];

  test.each(WAYS)('%s, everybody who waits is told so at once', async (_how, limit, options) => {
    const before = connections();
    const { api, alarms } = shared(limit, options);
    await api.acquire('token'); // and never settled
    const { signal } = new AbortController();
    const patience = { signal, wait: 86_400_000 };
    const waiting = [
      api.acquire('token', 1, { signal }),
      ...[1, 2, 3].map(() => api.acquire('token', 1, patience)),
    ];
    await vi.waitFor(() => expect(alarms.size).toBeGreaterThan(3));
    await api.inspect('token'); // what was sent before has arrived
    const since = performance.now();
    const closed = api.close();
    const entries = await Promise.all(waiting);
    expect(performance.now() - since).toBeLessThan(500);
    const refusal = { verdict: 'deny', reason: 'closed', limit: 'api', retryAfterMs: 0 };
    for (const entry of entries) expect(entry).toMatchObject(refusal);
    await closed;
    expect(api.stats()).toMatchObject({ waiting: 0, denied: 4 });
    expect(alarms.size).toBe(0);
    expect(getEventListeners(signal, 'abort')).toEqual([]);
    expect(stage.cli('KEYS', '*:line')).toBe('');
    await vi.waitFor(() => expect(connections()).toBe(before));
    expect(await api.acquire('token')).toMatchObject(refusal);
    await api.close(); // and once more does nothing
  });

  test.each(WAYS)('%s, and nothing is had from it after that', async (_how, limit, options) => {
    const { api } = shared(limit, options);
    await api.inspect('token');
    await api.close();
    const kept = stage.cli('KEYS', '*');
    expect(await api.check('token')).toEqual({ verdict: 'deny', retryAfterMs: 0 });
    expect(await api.tryAcquire('token')).toMatchObject({ verdict: 'deny', reason: 'closed' });
    const impatient = await api.acquire('token', 1, { wait: 0 });
    expect(impatient).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect(await api.takeUpTo('token', 1)).toBe(0);
    expect(api.stats().denied).toBe(4);
    expect(stage.cli('KEYS', '*')).toBe(kept);
  });

  test('a call that is let in while it closes does not stay in flight', async () => {
    const [{ api }, other] = [shared(ONE_LINE), shared(ONE_LINE)];
    await api.inspect('sink');
    const asking = api.tryAcquire('sink'); // it is on its way
    await api.close();
    expect(await asking).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect((await other.api.inspect('sink'))?.inFlight).toBe(0);
  });

  test.each([
    ['in line', false],
    ['in the line of all', true],
  ])('%s, whoever waits keeps no process alive unless it should', async (_how, fair) => {
    for (const keepAlive of [true, false]) {
      const { api, alarms } = shared(HOURLY, { fairQueue: fair }, { keepAlive });
      await api.check('token');
      const waiting = api.acquire('token', 1, { wait: 7_200_000 });
      await api.inspect('token');
      if (keepAlive) await vi.waitFor(() => expect(alarms.size).toBeGreaterThan(1));
      else expect(alarms.size).toBe(0);
      await api.close();
      expect((await waiting).verdict).toBe('deny');
    }
  });

  test('places that were reserved are given back', async () => {
    const limit = { spacing: { every: '1h', reserve: 9 } };
    const [{ api }, other] = [shared(limit), shared(limit)];
    await api.check('token');
    const waiting = [api.acquire('token'), api.acquire('token')];
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(2));
    await api.close();
    expect((await other.api.inspect('token'))?.reserved).toBe(0);
    expect((await Promise.all(waiting)).map(({ verdict }) => verdict)).toEqual(['deny', 'deny']);
  });

  test('what is granted while it closes is given back', async () => {
    const [{ api }, other] = [shared(ONE_LINE), shared(ONE_LINE)];
    await api.inspect('sink');
    const waiting = api.acquire('sink'); // it is on its way
    await api.close();
    expect(await waiting).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect((await other.api.inspect('sink'))?.inFlight).toBe(0);
    const fair = [shared(HOURLY, { fairQueue: true }), shared(HOURLY, { fairQueue: true })];
    await fair[0].api.acquire('another'); // it listens from here on
    const asked = fair[0].api.acquire('token');
    expect(fair[0].api.stats().waiting).toBe(1);
    await fair[0].api.close();
    expect(await asked).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect((await fair[1].api.acquire('token', 1, { wait: 2000 })).verdict).toBe('allow');
    await fair[1].api.close();
  });

  test('whoever stands behind in the line of all is next', async () => {
    const limit = { spacing: { every: 50 } };
    const [{ api }, other] = [
      shared(limit, { fairQueue: true }),
      shared(limit, { fairQueue: true }),
    ];
    await Promise.all([api.acquire('token'), other.api.acquire('token')]);
    const gone = Array.from({ length: 20 }, () => api.acquire('token'));
    await api.inspect('another');
    const next = other.api.acquire('token');
    await other.api.inspect('another');
    const since = performance.now();
    await api.close();
    expect((await next).verdict).toBe('allow');
    expect(performance.now() - since).toBeLessThan(500); // not a place for each of those who left
    await Promise.all(gone);
    await other.api.close();
  });

  test('before it listens, nobody waits for that', async () => {
    const { api } = shared(HOURLY, { fairQueue: true });
    const waiting = api.acquire('token');
    await api.close();
    expect(await waiting).toMatchObject({ verdict: 'deny', reason: 'closed' });
  });

  test('a wrapped function and a client hear why', async () => {
    const { api } = shared(HOURLY);
    await api.check('token');
    const call = throttle(async () => 1, { limiter: api, key: () => 'token', wait: true });
    const calling = expect(call()).rejects.toThrow(
      'over the limit for "token"; the limiter was closed',
    );
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    const server = guard({ limiter: api, key: () => 'token', wait: '2h' });
    const asking = server.check({ headers: {} });
    await vi.waitFor(() => expect(api.stats().waiting).toBe(2));
    await api.close();
    await calling;
    const answer = await asking;
    expect(answer).toMatchObject({ isAllowed: false, status: 503 });
    expect(JSON.stringify(answer)).toContain('The server is closing. Try again in 1 second.');
  });

  test.each([
    ['in line', false],
    ['in the line of all', true],
  ])(
    '%s, the process can end',
    async (_how, fair) => {
      const make =
        _name === 'ioredis'
          ? `const client = new (await import('ioredis')).Redis(${stage.service.port}); const end = () => client.disconnect();`
          : `const client = await (await import('redis')).createClient({ socket: { port: ${stage.service.port} } }).connect(); const end = () => client.destroy();`;
      const program = `
      import { limiter } from 'sluice';
      import { redis } from 'sluice/redis';
      ${make}
      const api = limiter({ name: 'api', limit: { spacing: { every: '1h' } }, backend: redis(client, { fairQueue: ${fair} }) });
      await api.acquire('token');
      const waiting = api.acquire('token', 1, { wait: 7_200_000 });
      await api.inspect('token');
      await api.close();
      end();
      console.log((await waiting).reason);`;
      const args = ['--input-type=module', '-e', program];
      const { stdout } = await run(process.execPath, args, { timeout: 10_000 });
      expect(stdout.trim()).toBe('closed');
    },
    15_000,
  );
});
