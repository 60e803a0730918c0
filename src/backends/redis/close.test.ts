import { execFile } from 'node:child_process';
import { getEventListeners } from 'node:events';
import { promisify } from 'node:util';
import { describe, expect, test, vi } from 'vitest';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { requestLimiter } from '../../adapters/http/request-limiter.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import { limiter, type QueueOptions } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { throttle } from '../../throttle/throttle.ts';
import { type RedisOptions, redis } from './options.ts';

const run = promisify(execFile);

/** The system clock, and the timers that keep the process alive. */
function countingClock() {
  const timers = new Set<object>();
  const clock: Clock = {
    now: () => systemClock.now(),
    wakeAt(at, callback, keepAlive) {
      const timer = {};
      if (keepAlive) timers.add(timer);
      const fire = (): void => {
        timers.delete(timer);
        callback();
      };
      const cancel = systemClock.wakeAt?.(at, fire, keepAlive);
      return () => {
        timers.delete(timer);
        cancel?.();
      };
    },
  };
  return { clock, timers };
}

const HOURLY: Limit = { spacing: { every: '1h' } };

const ONE_IN_FLIGHT: Limit = { concurrency: 1 };

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('closing a limiter shared through %s', (_name, connect) => {
  const fixture = redisFixture(connect);

  function shared(limit: Limit, options: RedisOptions = {}, queue: QueueOptions = {}) {
    const { clock, timers } = countingClock();
    const api = limiter({
      name: 'api',
      limit,
      backend: redis(fixture.firstClient.client, { deadline: '10s', ...options }),
      clock,
      queue,
    });
    return { api, timers };
  }

  const connections = (): number => fixture.cli('CLIENT', 'LIST').split('\n').length;

  const MODES: [string, Limit, RedisOptions][] = [
    ['in the local queue', HOURLY, {}],
    ['in the fair queue', HOURLY, { fairQueue: true }],
    ['with a reservation', { spacing: { every: '1h', reserve: 9 } }, {}],
    ['for a call in flight', ONE_IN_FLIGHT, {}],
    ['for a call in flight in the fair queue', ONE_IN_FLIGHT, { fairQueue: true }],
    ['for prefetched tokens', { bucket: { rate: '1/h', burst: 1 } }, { prefetch: 1 }],
  ];

  test.each(MODES)(
    'calls waiting %s are refused at once with reason closed',
    async (_mode, limit, options) => {
      const before = connections();
      const { api, timers } = shared(limit, options);
      await api.acquire('token'); // and never settled
      const { signal } = new AbortController();
      const withSignal = { signal, wait: 86_400_000 };
      const waiting = [
        api.acquire('token', 1, { signal }),
        ...[1, 2, 3].map(() => api.acquire('token', 1, withSignal)),
      ];
      await vi.waitFor(() => expect([api.stats().waiting, timers.size > 1]).toEqual([4, true]));
      await api.inspect('token'); // a barrier: earlier commands have arrived
      let refused = 0;
      for (const one of waiting) void one.then(() => refused++);
      const closed = api.close();
      await new Promise(setImmediate);
      expect(refused).toBe(4);
      const results = await Promise.all(waiting);
      const refusal = { verdict: 'deny', reason: 'closed', limit: 'api', retryAfterMs: Infinity };
      for (const result of results) expect(result).toMatchObject(refusal);
      await closed;
      expect(api.stats()).toMatchObject({ waiting: 0, denied: 4 });
      expect(timers.size).toBe(0);
      expect(getEventListeners(signal, 'abort')).toEqual([]);
      expect(fixture.cli('KEYS', '*:queue')).toBe('');
      await vi.waitFor(() => expect(connections()).toBe(before));
      expect(await api.acquire('token')).toMatchObject(refusal);
      await api.close(); // closing again does nothing
    },
  );

  test.each(MODES)(
    'later calls are refused and store nothing (mode: waiting %s)',
    async (_mode, limit, options) => {
      const { api } = shared(limit, options);
      await api.inspect('token');
      await api.close();
      const keysBefore = fixture.cli('KEYS', '*');
      expect(await api.check('token', 1, { willSettle: true })).toMatchObject({
        verdict: 'deny',
        reason: 'closed',
      });
      expect(await api.tryAcquire('token')).toMatchObject({ verdict: 'deny', reason: 'closed' });
      const withoutWaiting = await api.acquire('token', 1, { wait: 0 });
      expect(withoutWaiting).toMatchObject({ verdict: 'deny', reason: 'closed' });
      expect(await api.takeUpTo('token', 1)).toBe(0);
      expect(api.stats().denied).toBe(4);
      expect(fixture.cli('KEYS', '*')).toBe(keysBefore);
    },
  );

  test('tryAcquire granted during close does not stay in flight', async () => {
    const [{ api }, other] = [shared(ONE_IN_FLIGHT), shared(ONE_IN_FLIGHT)];
    await api.inspect('sink');
    const acquiring = api.tryAcquire('sink'); // in flight
    await api.close();
    expect(await acquiring).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect((await other.api.inspect('sink'))?.inFlight).toBe(0);
  });

  test.each([
    ['local queue', false],
    ['fair queue', true],
  ])('%s: a waiter keeps the process alive only with keepAlive', async (_queue, fair) => {
    for (const keepAlive of [true, false]) {
      const { api, timers } = shared(HOURLY, { fairQueue: fair }, { keepAlive });
      await api.check('token');
      const waiting = api.acquire('token', 1, { wait: 7_200_000 });
      await api.inspect('token');
      if (keepAlive) await vi.waitFor(() => expect(timers.size).toBeGreaterThan(1));
      else expect(timers.size).toBe(0);
      await api.close();
      expect((await waiting).verdict).toBe('deny');
    }
  });

  test('reservations are returned', async () => {
    const limit = { spacing: { every: '1h', reserve: 9 } } as const;
    const [{ api }, other] = [shared(limit), shared(limit)];
    await api.check('token');
    const waiting = [api.acquire('token'), api.acquire('token')];
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(2));
    await api.close();
    expect((await other.api.inspect('token'))?.reserved).toBe(0);
    expect((await Promise.all(waiting)).map(({ verdict }) => verdict)).toEqual(['deny', 'deny']);
  });

  test('a permit granted during close is returned', async () => {
    const [{ api }, other] = [shared(ONE_IN_FLIGHT), shared(ONE_IN_FLIGHT)];
    await api.inspect('sink');
    const waiting = api.acquire('sink'); // in flight
    await api.close();
    expect(await waiting).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect((await other.api.inspect('sink'))?.inFlight).toBe(0);
    const fair = [shared(HOURLY, { fairQueue: true }), shared(HOURLY, { fairQueue: true })];
    await fair[0].api.acquire('another'); // subscribed from here on
    const requested = fair[0].api.acquire('token');
    expect(fair[0].api.stats().waiting).toBe(1);
    await fair[0].api.close();
    expect(await requested).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect((await fair[1].api.acquire('token', 1, { wait: '30s' })).verdict).toBe('allow');
    await fair[1].api.close();
  });

  test('fair queue: the next waiter of another process gets its turn at once', async () => {
    const limit = { spacing: { every: 1000 } };
    const [{ api }, other] = [
      shared(limit, { fairQueue: true }),
      shared(limit, { fairQueue: true }),
    ];
    await Promise.all([api.acquire('token'), other.api.acquire('token')]);
    const closed = Array.from({ length: 20 }, () => api.acquire('token'));
    await api.inspect('another');
    const next = other.api.acquire('token');
    await other.api.inspect('another');
    const since = performance.now();
    await api.close();
    expect((await next).verdict).toBe('allow');
    expect(performance.now() - since).toBeLessThan(10_000); // not one interval for each waiter that left: 20 s
    await Promise.all(closed);
    await other.api.close();
  });

  test('fair queue: close does not wait for the subscription', async () => {
    const { api } = shared(HOURLY, { fairQueue: true });
    const waiting = api.acquire('token');
    await api.close();
    expect(await waiting).toMatchObject({ verdict: 'deny', reason: 'closed' });
  });

  test('throttle and the request limiter report the closed limiter', async () => {
    const { api } = shared(HOURLY);
    await api.check('token');
    const call = throttle(async () => 1, { limiter: api, key: () => 'token', wait: true });
    const calling = expect(call()).rejects.toThrow(
      'over the limit for "token"; the limiter is closed',
    );
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    const server = requestLimiter({ limiter: api, key: () => 'token', wait: '2h' });
    const checking = server.check({ headers: {} });
    await vi.waitFor(() => expect(api.stats().waiting).toBe(2));
    await api.close();
    await calling;
    const response = await checking;
    expect(response).toMatchObject({ isAllowed: false, status: 503 });
    expect(JSON.stringify(response)).toContain('The server is closing. Try again in 1 second.');
  });

  test.each([
    ['local queue', false],
    ['fair queue', true],
  ])('%s: the process can exit after close', async (_queue, fair) => {
    const make =
      _name === 'ioredis'
        ? `const client = new (await import('ioredis')).Redis(${fixture.service.port}); const end = () => client.disconnect();`
        : `const client = await (await import('redis')).createClient({ socket: { port: ${fixture.service.port} } }).connect(); const end = () => client.destroy();`;
    const program = `
      import { limiter } from 'sluice';
      import { redis } from 'sluice/redis';
      ${make}
      const api = limiter({ name: 'api', limit: { spacing: { every: '1h' } }, backend: redis(client, { fairQueue: ${fair}, deadline: '10s' }) });
      await api.acquire('token');
      const waiting = api.acquire('token', 1, { wait: 7_200_000 });
      await api.inspect('token');
      await api.close();
      end();
      console.log((await waiting).reason);`;
    const args = ['--input-type=module', '-e', program];
    const { stdout } = await run(process.execPath, args, { timeout: 40_000 });
    expect(stdout.trim()).toBe('closed');
  });
});
