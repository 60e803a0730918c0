/** The fair queue during faults: no waiter hangs, and none is lost. */

import { describe, expect, test, vi } from 'vitest';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer, startRedis } from '../../../test/support/services.ts';
import { type Clock, schedule, systemClock } from '../../core/clock.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import type { ScriptBatcher, TimedReply } from './batcher.ts';
import { FairQueue } from './fair-queue.ts';
import { type RedisOptions, redis } from './options.ts';

const QUEUE = 'sluice:{api:token}:spacing:queue';
const HEARTBEATS = 'sluice:{api:token}:spacing:heartbeats';
const LATER = '9999999999999';

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('fair queue by %s, during faults', (_name, connect) => {
  const fixture = redisFixture(connect);

  function fair(
    every: number,
    options: RedisOptions = {},
    from = fixture.firstClient,
  ): RemoteLimiter {
    const backend = redis(from.client, { fairQueue: true, deadline: 50, ...options });
    const api = limiter({ name: 'api', limit: { spacing: { every } }, backend });
    fixture.limiters.push(api);
    return api;
  }

  const queueLengthIs = (length: number) =>
    vi.waitFor(() => expect(fixture.cli('LLEN', QUEUE)).toBe(String(length)), {
      timeout: 5000,
    });

  /** Pauses Redis, and lets the limiter find out. */
  async function whilePaused(api: RemoteLimiter, act: () => Promise<void>): Promise<void> {
    fixture.service.pause();
    try {
      await api.check('another');
      expect(api.stats().isAvailable).toBe(false);
      await act();
    } finally {
      fixture.service.resume();
    }
  }

  test('a waiter that joins during an outage can time out or abort, and is served afterwards', async () => {
    const api = fair(10);
    let remaining: Promise<unknown> = Promise.resolve();
    await whilePaused(api, async () => {
      const controller = new AbortController();
      remaining = api.acquire('token');
      const leaving = api.acquire('token', 1, { signal: controller.signal });
      const expiring = api.acquire('token', 1, { wait: 50 });
      expect(await expiring).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      controller.abort(new Error('aborted'));
      await expect(leaving).rejects.toThrow('aborted');
      expect(api.stats().waiting).toBe(1);
    });
    expect(await remaining).toMatchObject({ verdict: 'allow' });
    expect((await api.acquire('token')).verdict).toBe('allow');
  });

  test('during an outage, waiters are admitted by onUnavailable: allow', async () => {
    const api = fair(60_000, { onUnavailable: 'allow' });
    await api.acquire('token');
    const waiting = [api.acquire('token'), api.acquire('token')];
    await queueLengthIs(2);
    await whilePaused(api, async () => {
      const entries = await Promise.all(waiting);
      expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow']);
      expect(api.stats()).toMatchObject({ waiting: 0, fallback: 3 });
    });
  });

  test('during an outage, waiters and checks share the local fallback', async () => {
    const api = fair(60_000, { onUnavailable: 'local' });
    await whilePaused(api, async () => {
      expect((await api.check('token')).verdict).toBe('allow');
      const expiring = await api.acquire('token', 1, { wait: 100 });
      expect(expiring).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      expect((await api.acquire('third')).verdict).toBe('allow');
      expect((await api.check('third')).verdict).toBe('deny');
    });
  });

  test('during an outage, waiters for calls in flight are admitted as local calls settle', async () => {
    const timers: number[] = [];
    const clock: Clock = {
      now: () => systemClock.now(),
      wakeAt(at, callback, keepAlive) {
        timers.push(at);
        return schedule(systemClock, at, callback, keepAlive);
      },
    };
    const backend = redis(fixture.firstClient.client, { fairQueue: true, deadline: 50 });
    const api = limiter({ name: 'api', limit: { adaptive: { fixed: 1 } }, backend, clock });
    fixture.limiters.push(api);
    await api.inspect('sink');
    await whilePaused(api, async () => {
      const held = await api.acquire('sink');
      const waiting = [api.acquire('sink'), api.acquire('sink')];
      const before = timers.length;
      await new Promise((later) => setTimeout(later, 100));
      expect(timers.length - before).toBeLessThan(5); // no polling
      const since = performance.now();
      if (held.verdict === 'allow') held.settle();
      for (const one of waiting) {
        const permit = await one;
        expect(permit.verdict).toBe('allow');
        if (permit.verdict === 'allow') permit.settle();
      }
      expect(performance.now() - since).toBeLessThan(500); // not a heartbeat interval
      expect(api.stats()).toMatchObject({ waiting: 0, held: 0 });
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
    expect((await api.inspect('sink'))?.inFlight).toBe(0);
  });

  test('all waiters join again after Redis lost the queue', async () => {
    const [a, b] = [fair(300), fair(300, {}, fixture.secondClient)];
    await a.acquire('token');
    const waiting = [a.acquire('token'), b.acquire('token'), b.acquire('token')];
    await queueLengthIs(3);
    fixture.cli('FLUSHALL');
    fixture.cli('RPUSH', QUEUE, 'ghost/1/1');
    fixture.cli('HSET', HEARTBEATS, 'ghost', LATER);
    await queueLengthIs(4);
    fixture.cli('LPOP', QUEUE);
    const entries = await Promise.all(waiting);
    expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow']);
  }, 10_000);

  test('heartbeats remove entries of waiters that left during an outage', async () => {
    const api = fair(50);
    await api.acquire('token');
    await api.acquire('token');
    fixture.cli('RPUSH', QUEUE, 'ghost/1/1');
    fixture.cli('HSET', HEARTBEATS, 'ghost', LATER);
    const controller = new AbortController();
    const leaving = [1, 2, 3].map(() => api.acquire('token', 1, { signal: controller.signal }));
    const settled = Promise.allSettled(leaving);
    await queueLengthIs(4);
    const remaining = api.acquire('token');
    await queueLengthIs(5);
    await whilePaused(api, async () => {
      controller.abort(new Error('aborted'));
      await settled;
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
    fixture.cli('LPOP', QUEUE);
    expect((await remaining).verdict).toBe('allow');
  }, 10_000);

  test('an idle queue expires', async () => {
    const api = fair(60_000);
    await api.acquire('token');
    expect(fixture.cli('EXISTS', QUEUE, HEARTBEATS)).toBe('0');
    const waiting = api.acquire('token', 1, { wait: 300 });
    await queueLengthIs(1);
    for (const key of [QUEUE, HEARTBEATS]) {
      expect(Number(fixture.cli('PTTL', key))).toBeGreaterThan(0);
    }
    await waiting;
  });
});

describe.skipIf(redisServer() === undefined)('fair queue by ioredis with keyPrefix', () => {
  test('turn messages reach the next waiter', async () => {
    const service = await startRedis();
    const { client, disconnect } = await ioRedis(service.port, 'app:');
    const backend = redis(client, { fairQueue: true });
    const api = limiter({ name: 'api', limit: { spacing: { every: 20 } }, backend });
    try {
      await api.acquire('token');
      const since = performance.now();
      await Promise.all(Array.from({ length: 10 }, () => api.acquire('token')));
      expect(performance.now() - since).toBeLessThan(900); // a heartbeat interval is a second
    } finally {
      await api.close();
      disconnect();
      await service.stop();
    }
  });
});

describe('fair queue: a waiter that left while its request was in flight', () => {
  /** A queue whose batcher holds every command until the test replies. */
  function setUp() {
    const sent: { text: string; reply: (value: string | number) => void }[] = [];
    const send = (_key: string, text: string): Promise<TimedReply> =>
      new Promise((resolve) => {
        sent.push({ text: text.split(' ')[0], reply: (value) => resolve({ value, at: 0 }) });
      });
    const fairQueue = new FairQueue({
      batcher: { send } as unknown as ScriptBatcher,
      clock: new VirtualClock(),
      random: () => 0.5,
      subscriber: {
        subscribe: async () => {},
        subscribeBytes: async () => {},
        stop: async () => {},
      },
      maxWaiters: 9,
      keepAlive: false,
      redisKeyOf: (key) => key,
      fallback: { check: () => ({ verdict: 'deny', retryAfterMs: 500 }) },
      releaseCommand: (id) => `s${id}`,
    });
    return { fairQueue, sent };
  }

  test.each([
    ['is queued', '-', 'x'],
    ['is queued at the head', -7, 'x'],
    ['is admitted', 0, 's'],
  ])('and %s by a resent request is removed again', async (_state, value, command) => {
    const { fairQueue, sent } = setUp();
    const controller = new AbortController();
    const leaving = fairQueue.acquire('token', 1, {
      maxWaitMs: Infinity,
      signal: controller.signal,
    });
    controller.abort(new Error('aborted'));
    await expect(leaving).rejects.toThrow('aborted');
    const [request, leave] = sent;
    leave.reply(0);
    request.reply(value);
    const closing = fairQueue.close();
    await vi.waitFor(() => expect(sent.length).toBe(3));
    const id = request.text.slice(1);
    expect(sent.map(({ text }) => text)).toEqual([`f${id}`, `x${id}`, `${command}${id}`]);
    sent[2].reply(0);
    await closing;
  });
});
