/** One line for all processes, in trouble: nobody hangs, and nobody is forgotten. */

import { describe, expect, test, vi } from 'vitest';
import { redisFixture } from '../../../test/support/own-redis.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisServer, startRedis } from '../../../test/support/services.ts';
import { type Clock, schedule, systemClock } from '../../core/clock.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import { type RedisOptions, redis } from './backend.ts';
import type { ScriptBatcher, TimedReply } from './batcher.ts';
import { FairQueue } from './fair-queue.ts';

const LINE = 'sluice:{api:token}:spacing:line';
const ALIVE = 'sluice:{api:token}:spacing:alive';
const LATER = '9999999999999';

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('waiting fairly by %s, in trouble', (_name, connect) => {
  const stage = redisFixture(connect);

  function fair(
    every: number,
    options: RedisOptions = {},
    from = stage.firstClient,
  ): RemoteLimiter {
    const backend = redis(from.client, { fairQueue: true, deadline: 50, ...options });
    const api = limiter({ name: 'api', limit: { spacing: { every } }, backend });
    stage.limiters.push(api);
    return api;
  }

  const lineIs = (length: number) =>
    vi.waitFor(() => expect(stage.cli('LLEN', LINE)).toBe(String(length)), {
      timeout: 5000,
    });

  /** Redis stands still, and whoever asks finds out. */
  async function inSilence(api: RemoteLimiter, act: () => Promise<void>): Promise<void> {
    stage.service.pause();
    try {
      await api.check('another');
      expect(api.stats().isAvailable).toBe(false);
      await act();
    } finally {
      stage.service.resume();
    }
  }

  test('whoever comes while Redis is away can give up, and is served when it is back', async () => {
    const api = fair(10);
    let staying: Promise<unknown> = Promise.resolve();
    await inSilence(api, async () => {
      const giveUp = new AbortController();
      staying = api.acquire('token');
      const leaving = api.acquire('token', 1, { signal: giveUp.signal });
      const impatient = api.acquire('token', 1, { wait: 50 });
      expect(await impatient).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      giveUp.abort(new Error('enough'));
      await expect(leaving).rejects.toThrow('enough');
      expect(api.stats().waiting).toBe(1);
    });
    expect(await staying).toMatchObject({ verdict: 'allow' });
    expect((await api.acquire('token')).verdict).toBe('allow');
  });

  test('those in line go ahead while Redis is away, if whoever stands in lets them', async () => {
    const api = fair(60_000, { onUnavailable: 'allow' });
    await api.acquire('token');
    const waiting = [api.acquire('token'), api.acquire('token')];
    await lineIs(2);
    await inSilence(api, async () => {
      const entries = await Promise.all(waiting);
      expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow']);
      expect(api.stats()).toMatchObject({ waiting: 0, fallback: 3 });
    });
  });

  test('those in line count with those who only ask, while Redis is away', async () => {
    const api = fair(60_000, { onUnavailable: 'local' });
    await inSilence(api, async () => {
      expect((await api.check('token')).verdict).toBe('allow');
      const impatient = await api.acquire('token', 1, { wait: 100 });
      expect(impatient).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      expect((await api.acquire('third')).verdict).toBe('allow');
      expect((await api.check('third')).verdict).toBe('deny');
    });
  });

  test('while Redis is away those in line for a call in flight are let in as calls settle here', async () => {
    const alarms: number[] = [];
    const clock: Clock = {
      now: () => systemClock.now(),
      wakeAt(at, act, keepAlive) {
        alarms.push(at);
        return schedule(systemClock, at, act, keepAlive);
      },
    };
    const backend = redis(stage.firstClient.client, { fairQueue: true, deadline: 50 });
    const api = limiter({ name: 'api', limit: { concurrency: 1 }, backend, clock });
    stage.limiters.push(api);
    await api.inspect('sink');
    await inSilence(api, async () => {
      const held = await api.acquire('sink');
      const waiting = [api.acquire('sink'), api.acquire('sink')];
      const asked = alarms.length;
      await new Promise((later) => setTimeout(later, 100));
      expect(alarms.length - asked).toBeLessThan(5); // nobody looks
      const since = performance.now();
      if (held.verdict === 'allow') held.settle();
      for (const one of waiting) {
        const permit = await one;
        expect(permit.verdict).toBe('allow');
        if (permit.verdict === 'allow') permit.settle();
      }
      expect(performance.now() - since).toBeLessThan(500); // nor was it a beat
      expect(api.stats()).toMatchObject({ waiting: 0, held: 0 });
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
    expect((await api.inspect('sink'))?.inFlight).toBe(0);
  });

  test('a line that Redis has forgotten is joined again by all, whoever else has come since', async () => {
    const [a, b] = [fair(300), fair(300, {}, stage.secondClient)];
    await a.acquire('token');
    const waiting = [a.acquire('token'), b.acquire('token'), b.acquire('token')];
    await lineIs(3);
    stage.cli('FLUSHALL');
    stage.cli('RPUSH', LINE, 'ghost/1/1');
    stage.cli('HSET', ALIVE, 'ghost', LATER);
    await lineIs(4);
    stage.cli('LPOP', LINE);
    const entries = await Promise.all(waiting);
    expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow']);
  }, 10_000);

  test('a place in line that nobody waits for any more is given up', async () => {
    const api = fair(50);
    await api.acquire('token');
    await api.acquire('token');
    stage.cli('RPUSH', LINE, 'ghost/1/1');
    stage.cli('HSET', ALIVE, 'ghost', LATER);
    const giveUp = new AbortController();
    const leaving = [1, 2, 3].map(() => api.acquire('token', 1, { signal: giveUp.signal }));
    const left = Promise.allSettled(leaving);
    await lineIs(4);
    const staying = api.acquire('token');
    await lineIs(5);
    await inSilence(api, async () => {
      giveUp.abort(new Error('enough'));
      await left;
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
    stage.cli('LPOP', LINE);
    expect((await staying).verdict).toBe('allow');
  }, 10_000);

  test('a line nobody asks about any more is forgotten', async () => {
    const api = fair(60_000);
    await api.acquire('token');
    expect(stage.cli('EXISTS', LINE, ALIVE)).toBe('0');
    const waiting = api.acquire('token', 1, { wait: 300 });
    await lineIs(1);
    for (const key of [LINE, ALIVE]) {
      expect(Number(stage.cli('PTTL', key))).toBeGreaterThan(0);
    }
    await waiting;
  });
});

describe.skipIf(redisServer() === undefined)('waiting fairly by ioredis with a prefix', () => {
  test('whoever is next is told', async () => {
    const service = await startRedis();
    const { client, disconnect } = await ioRedis(service.port, 'app:');
    const backend = redis(client, { fairQueue: true });
    const api = limiter({ name: 'api', limit: { spacing: { every: 20 } }, backend });
    try {
      await api.acquire('token');
      const since = performance.now();
      await Promise.all(Array.from({ length: 10 }, () => api.acquire('token')));
      expect(performance.now() - since).toBeLessThan(900); // a beat is a second
    } finally {
      await api.close();
      disconnect();
      await service.stop();
    }
  });
});

describe('somebody who left the line while its ask was under way', () => {
  /** A room whose way to Redis keeps what is sent, until it is answered. */
  function stage() {
    const sent: { text: string; answer: (told: string | number) => void }[] = [];
    const send = (_key: string, text: string): Promise<TimedReply> =>
      new Promise((resolve) => {
        sent.push({ text: text.split(' ')[0], answer: (told) => resolve({ value: told, at: 0 }) });
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
    ['stands in line', '-', 'x'],
    ['stands there as the first', -7, 'x'],
    ['is let in', 0, 's'],
  ])('and %s all the same, because it was sent again, is taken back', async (_how, told, back) => {
    const { fairQueue, sent } = stage();
    const giveUp = new AbortController();
    const leaving = fairQueue.acquire('token', 1, { maxWaitMs: Infinity, signal: giveUp.signal });
    giveUp.abort(new Error('enough'));
    await expect(leaving).rejects.toThrow('enough');
    const [asked, left] = sent;
    left.answer(0);
    asked.answer(told);
    const closing = fairQueue.close();
    await vi.waitFor(() => expect(sent.length).toBe(3));
    const id = asked.text.slice(1);
    expect(sent.map(({ text }) => text)).toEqual([`f${id}`, `x${id}`, `${back}${id}`]);
    sent[2].answer(0);
    await closing;
  });
});
