import { spawn } from 'node:child_process';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { systemClockWithout } from '../../../test/support/stallable-clock.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import { type Clock, schedule, systemClock } from '../../core/clock.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Refusal } from '../../limiter/permit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { RttEstimator } from '../rtt-estimator.ts';
import type { CommandText } from './batcher.ts';
import { FairQueue, HEARTBEAT_MS } from './fair-queue.ts';
import { type RedisOptions, redis } from './options.ts';
import type { TimedReply } from './reply.ts';
import { UnsentCommands } from './unsent-commands.ts';

const QUEUE = 'sluice:{api:token}:spacing:queue';
const ALIVE = 'sluice:{api:token}:spacing:heartbeats';
/** A waiter of a process that is not in this test. */
const GHOST = 'ghost/1/-/1000';

/** No heartbeat replaces a message that was lost: its timer does not fire. */
const withoutHeartbeats = systemClockWithout(
  (inMs) => inMs > HEARTBEAT_MS * 0.9 && inMs <= HEARTBEAT_MS, // not a deadline
);

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('fair queue by %s', (_name, connect) => {
  const stage = redisFixture(connect);

  function fair(
    every: number,
    options: RedisOptions = {},
    from = stage.firstClient,
  ): RemoteLimiter {
    const backend = redis(from.client, {
      fairQueue: true,
      deadline: OUTAGE_DEADLINE_MS,
      ...options,
    });
    const api = limiter({ name: 'api', limit: { spacing: { every } }, backend });
    stage.limiters.push(api);
    return api;
  }

  const queueLengthIs = (length: number) =>
    vi.waitFor(() => expect(stage.cli('LLEN', QUEUE)).toBe(String(length)));

  /**
   * Adds a head whose process is alive but never requests, until it is removed. redis-cli sends its heartbeats, because
   * a timer of this process would be late during a stall.
   */
  async function addGhost(): Promise<() => void> {
    const alive = `local t = redis.call('TIME') redis.call('HSET', KEYS[1], 'ghost', t[1] * 1000 + math.floor(t[2] / 1000) .. ' u')`;
    const words = [
      '-p',
      `${stage.service.port}`,
      '-r',
      '-1',
      '-i',
      '0.1',
      'EVAL',
      alive,
      '1',
      ALIVE,
    ];
    const heart = spawn('redis-cli', words, { stdio: 'ignore' });
    onTestFinished(() => void heart.kill());
    await vi.waitFor(() => expect(stage.cli('HEXISTS', ALIVE, 'ghost')).toBe('1'));
    stage.cli('RPUSH', QUEUE, GHOST);
    return () => {
      heart.kill();
      stage.cli('LREM', QUEUE, '1', GHOST);
    };
  }

  /** Runs `act` while Redis is paused and a check has noticed it. */
  async function whilePaused(api: RemoteLimiter, act: () => Promise<void>): Promise<void> {
    stage.service.pause();
    try {
      await api.check('another', 1, { willSettle: true });
      expect(api.stats().isAvailable).toBe(false);
      await act();
    } finally {
      stage.service.resume();
    }
  }

  test('a call whose turn comes after its wait is told when the limit opens', async () => {
    const api = fair(60_000);
    const calls = [1, 2, 3].map(() => api.acquire('token', 1, { wait: 300 }));
    const [first, ...others] = await Promise.all(calls);
    expect(first).toMatchObject({ verdict: 'allow' });
    for (const refusal of others) {
      expect(refusal).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      const { retryAfterMs } = refusal as Refusal;
      expect(retryAfterMs).toBeGreaterThan(30_000);
      expect(retryAfterMs).toBeLessThanOrEqual(60_000);
    }
  });

  test('a call that arrives while Redis is unavailable can abort or expire, else is served later', async () => {
    const api = fair(10);
    let staying: Promise<unknown> = Promise.resolve();
    await whilePaused(api, async () => {
      const abort = new AbortController();
      staying = api.acquire('token');
      const leaving = api.acquire('token', 1, { signal: abort.signal });
      const impatient = api.acquire('token', 1, { wait: 50 });
      expect(await impatient).toMatchObject({ verdict: 'deny', reason: 'unavailable' });
      abort.abort(new Error('enough'));
      await expect(leaving).rejects.toThrow('enough');
      expect(api.stats().waiting).toBe(1);
    });
    expect(await staying).toMatchObject({ verdict: 'allow' });
    expect((await api.acquire('token')).verdict).toBe('allow');
  });

  test('onUnavailable allow: waiting calls pass while Redis is unavailable', async () => {
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

  test('onUnavailable local: waiting calls and checks share one fallback count', async () => {
    const api = fair(60_000, { onUnavailable: 'local' });
    await whilePaused(api, async () => {
      expect((await api.check('token')).verdict).toBe('allow');
      const impatient = await api.acquire('token', 1, { wait: 100 });
      expect(impatient).toMatchObject({ verdict: 'deny', reason: 'too-long' });
      expect((await api.acquire('third')).verdict).toBe('allow');
      expect((await api.check('third')).verdict).toBe('deny');
    });
  });

  test('Redis unavailable: a settled call of this process wakes the next waiter of a concurrency limit', async () => {
    const timers: number[] = [];
    const clock: Clock = {
      now: () => systemClock.now(),
      wakeAt(at, act, keepAlive) {
        timers.push(at);
        return schedule(withoutHeartbeats, at, act, keepAlive);
      },
    };
    const backend = redis(stage.firstClient.client, {
      fairQueue: true,
      deadline: OUTAGE_DEADLINE_MS,
    });
    const api = limiter({ name: 'api', limit: { concurrency: 1 }, backend, clock });
    stage.limiters.push(api);
    await api.inspect('sink');
    await whilePaused(api, async () => {
      const held = await api.acquire('sink');
      const waiting = [api.acquire('sink'), api.acquire('sink')];
      const [before, since] = [timers.length, performance.now()];
      await new Promise((later) => setTimeout(later, 100));
      const probes = 2 * Math.ceil((performance.now() - since) / 400); // each probe has a deadline
      expect(timers.length - before).toBeLessThan(3 + probes); // no polling
      if (held.verdict === 'allow') held.settle();
      for (const one of waiting) {
        const permit = await one;
        expect(permit.verdict).toBe('allow');
        if (permit.verdict === 'allow') permit.settle();
      }
      expect(api.stats()).toMatchObject({ waiting: 0, held: 0 });
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true));
    expect((await api.inspect('sink'))?.inFlight).toBe(0);
  });

  test('a queue that Redis has lost is joined again by all its waiters', async () => {
    const [a, b] = [fair(1), fair(1, {}, stage.secondClient)];
    await Promise.all([a.acquire('token'), b.acquire('token')]); // both are subscribed now
    const removeGhost = await addGhost();
    const waiting = [a.acquire('token'), b.acquire('token'), b.acquire('token')];
    await queueLengthIs(4);
    // The head stays in its position, so that no waiter is served before all have joined.
    const lose = `redis.call('FLUSHALL') redis.call('HSET', KEYS[2], 'ghost', ARGV[2]) return redis.call('RPUSH', KEYS[1], ARGV[1])`;
    expect(stage.cli('EVAL', lose, '2', QUEUE, ALIVE, GHOST, `${Date.now()} u`)).toBe('1');
    await queueLengthIs(4);
    removeGhost();
    const entries = await Promise.all(waiting);
    expect(entries.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow']);
  });

  test('queue entries of aborted waiters are removed after an outage', async () => {
    const api = fair(600_000); // none of them is due
    await api.acquire('token');
    const abort = new AbortController();
    const leaving = [1, 2, 3].map(() => api.acquire('token', 1, { signal: abort.signal }));
    const left = Promise.allSettled(leaving);
    await queueLengthIs(3);
    const stop = new AbortController();
    const staying = api.acquire('token', 1, { signal: stop.signal });
    await queueLengthIs(4);
    await whilePaused(api, async () => {
      abort.abort(new Error('enough'));
      await left;
    });
    await queueLengthIs(1);
    stop.abort(new Error('over'));
    await expect(staying).rejects.toThrow('over');
  });

  test('a permit that another process gives back wakes the head at once', async () => {
    const [a, b] = [stage.firstClient, stage.secondClient].map(({ client }) => {
      const backend = redis(client, { fairQueue: true, deadline: '5s' });
      const limit = { bucket: { rate: '1/h', burst: 1 } } as const;
      return limiter({ name: 'api', limit, backend, clock: withoutHeartbeats });
    });
    stage.limiters.push(a, b);
    await b.acquire('another'); // subscribed now
    const unused = await a.acquire('token');
    const waiting = b.acquire('token');
    await vi.waitFor(() => expect(stage.cli('LLEN', 'sluice:{api:token}:bucket:queue')).toBe('1'));
    if (unused.verdict === 'allow') unused.settle({ outcome: 'ignored' });
    expect((await waiting).verdict).toBe('allow'); // a failure would wait for ever
  });

  test('an unused queue expires in Redis', async () => {
    const api = fair(60_000);
    await api.acquire('token');
    expect(stage.cli('EXISTS', QUEUE, ALIVE)).toBe('0');
    const abort = new AbortController();
    const waiting = api.acquire('token', 1, { signal: abort.signal });
    await queueLengthIs(1);
    for (const key of [QUEUE, ALIVE]) {
      expect(Number(stage.cli('PTTL', key))).toBeGreaterThan(0);
    }
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
  });
});

describe.skipIf(redisServer() === undefined)('fair queue by ioredis with a key prefix', () => {
  test('the next waiter gets its turn message', async () => {
    const service = await borrowRedis();
    const { client, disconnect } = await ioRedis(service.port, 'app:');
    const backend = redis(client, { fairQueue: true, deadline: '5s' });
    const limit = { spacing: { every: 20 } };
    const api = limiter({ name: 'api', limit, backend, clock: withoutHeartbeats });
    try {
      await api.acquire('token');
      await Promise.all(Array.from({ length: 10 }, () => api.acquire('token'))); // a failure would wait for ever
    } finally {
      await api.close();
      disconnect();
      await service.stop();
    }
  });
});

describe('fair queue: a waiter that left while its check was on the way', () => {
  /** A queue whose commands the test answers. */
  function stage() {
    const sent: { text: string; answer: (value: string | number) => void }[] = [];
    const send = (_key: string, command: CommandText): Promise<TimedReply> =>
      new Promise((resolve) => {
        const text = typeof command === 'string' ? command : command();
        const answer = (value: string | number) => resolve({ value, at: clock.now() });
        sent.push({ text: text.split(' ')[0], answer });
      });
    const clock = new VirtualClock();
    const fairQueue = new FairQueue({
      send,
      rtt: new RttEstimator(),
      toRedisTime: (_key, at) => at,
      clock,
      random: () => 0.5,
      subscriber: {
        subscribe: async () => {},
        subscribeBytes: async () => {},
        stop: async () => {},
      },
      maxWaiters: 9,
      keepAlive: false,
      unsent: new UnsentCommands(send, clock),
      fallback: { check: () => ({ verdict: 'deny', retryAfterMs: 500 }), observe: () => {} },
      grantsAhead: true,
    });
    return { fairQueue, sent, clock };
  }

  test('and was first: others are told when the first waiter of another process opens', async () => {
    const { fairQueue, sent, clock } = stage();
    const abort = new AbortController();
    const leaving = fairQueue.acquire('token', 9, { maxWaitMs: Infinity, signal: abort.signal });
    sent[0].answer(-60_002);
    await clock.advanceAsync(1);
    const waiting = fairQueue.acquire('token', 1, { maxWaitMs: 20_000 });
    sent[1].answer('-');
    await clock.advanceAsync(1);
    abort.abort(new Error('enough'));
    await expect(leaving).rejects.toThrow('enough');
    for (let n = 2; n < 40; n++) {
      for (const { text, answer } of sent.splice(2))
        answer({ b: 'x/1 700 0', f: '-' }[text[0]] ?? 0);
      await clock.advanceAsync(600);
    }
    const { retryAfterMs } = (await waiting) as { retryAfterMs: number };
    expect(retryAfterMs).toBeGreaterThan(0);
    expect(retryAfterMs).toBeLessThanOrEqual(700);
  });

  test.each([
    ['queued', '-'],
    ['first', -7],
    ['granted', '0 0 0'],
  ])('and was %s by a repeated command, leaves again', async (_how, value) => {
    const { fairQueue, sent } = stage();
    const abort = new AbortController();
    const leaving = fairQueue.acquire('token', 1, { maxWaitMs: Infinity, signal: abort.signal });
    abort.abort(new Error('enough'));
    await expect(leaving).rejects.toThrow('enough');
    const [before, left] = sent;
    left.answer(0);
    before.answer(value);
    const closing = fairQueue.close();
    await vi.waitFor(() => expect(sent.length).toBe(3));
    const id = before.text.slice(1);
    expect(sent.map(({ text }) => text)).toEqual([`f${id}`, `x${id}`, `x${id}`]);
    sent[2].answer(0);
    await closing;
  });
});
