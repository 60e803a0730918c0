import { spawnSync } from 'node:child_process';
import { getEventListeners } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { BackendFactory } from '../backends/backend.ts';
import { LocalBackend } from '../backends/local/backend.ts';
import { systemClock } from '../core/clock.ts';
import type { Decision } from '../core/decision.ts';
import type { Limit } from '../policies/limit.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import { type LimiterOptions, limiter } from './limiter.ts';
import type { AcquireOptions, Limiter } from './limiter-interface.ts';

/** A limiter whose results are logged, with the time on the left. */
function setUp(options: Omit<LimiterOptions, 'clock' | 'backend'>) {
  const clock = new VirtualClock();
  const api = limiter({ ...options, clock });
  const log: string[] = [];
  const enter = (name: string, cost = 1, limits: AcquireOptions = {}) =>
    api.acquire('key', cost, limits).then(
      (entry) => {
        const why = entry.verdict === 'deny' ? `, ${entry.reason}, ${entry.retryAfterMs}` : '';
        log.push(`${clock.now()} ${name}: ${entry.verdict}${why}`);
        return entry;
      },
      (reason: Error) => {
        log.push(`${clock.now()} ${name}: ${reason.message}`);
        return undefined;
      },
    );
  return { clock, api, log, enter };
}

describe('wait queue of a local limiter', () => {
  test('fifo: serves in order of arrival', async () => {
    const { clock, log, enter } = setUp({ limit: { bucket: { rate: 1, burst: 1 } } });
    for (const name of ['a', 'b', 'c']) enter(name);
    await clock.advanceAsync(5_000);
    expect(log).toEqual(['0 a: allow', '1000 b: allow', '2000 c: allow']);
  });

  test('lifo: serves the last arrival first', async () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const { clock, log, enter } = setUp({ limit, queue: { order: 'lifo' } });
    for (const name of ['a', 'b', 'c']) enter(name);
    await clock.advanceAsync(5_000);
    expect(log).toEqual(['0 a: allow', '1000 c: allow', '2000 b: allow']);
  });

  test('priority: serves the highest first, equals in order of arrival', async () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const { clock, log, enter } = setUp({ limit, queue: { order: 'priority' } });
    enter('first');
    enter('low', 1, { priority: 1 });
    enter('high', 1, { priority: 9 });
    enter('high too', 1, { priority: 9 });
    await clock.advanceAsync(5_000);
    const names = log.map((line) => line.split(/ (.*):/)[1]);
    expect(names).toEqual(['first', 'high', 'high too', 'low']);
  });

  test('refuses at once a wait known to be too long', async () => {
    const { log, clock, enter } = setUp({ limit: { spacing: { every: '6s' } } });
    enter('a');
    enter('b', 1, { wait: 5_000 });
    enter('c', 2);
    await clock.advanceAsync(0);
    expect(log).toEqual(['0 a: allow', '0 b: deny, too-long, 6000', '0 c: deny, never, Infinity']);
  });

  test('refuses at once a wait whose turn comes after its deadline', async () => {
    const { clock, log, enter } = setUp({ limit: { spacing: { every: '6s' } } });
    enter('a');
    enter('b', 1, { wait: 7_000 });
    enter('c', 1, { wait: 7_000 }); // behind b, which is served at 6 s
    await clock.advanceAsync(20_000);
    expect(log).toEqual(['0 a: allow', '0 c: deny, too-long, 12000', '6000 b: allow']);
  });

  test.each([
    ['bucket', { bucket: { rate: '1/s', burst: 2 } }, 3000],
    ['window', { window: { limit: 2, per: '1s', steps: 1 } }, 4000],
    ['quota', { quota: { limit: 2, per: '1s' } }, 3000],
    ['ramp', { ramp: { min: 2, max: 2, over: '1m' } }, 3000],
    [
      'all',
      { all: [{ bucket: { rate: '1/s', burst: 2 } }, { quota: { limit: 2, per: '1s' } }] },
      3000,
    ],
  ] as const)('%s: the position in the queue counts', async (_, limit, turnInMs) => {
    const { clock, log, enter } = setUp({ limit });
    for (let n = 0; n < 10; n++) enter(`w${n}`, 1, { wait: '2s' });
    await clock.advanceAsync(0);
    const refused = log.filter((line) => line.includes('deny'));
    expect(refused.length).toBeGreaterThan(0);
    expect(refused.every((line) => line.startsWith('0 '))).toBe(true);
    await clock.advanceAsync(10_000);
    const served = log.filter((line) => line.includes('allow'));
    expect(served.length + refused.length).toBe(10); // no other was refused later
    expect(refused.at(-1)).toBe(`0 w9: deny, too-long, ${turnInMs}`);
  });

  test('refuses a waiter at once when a cool-down begins that outlasts its wait', async () => {
    const { clock, api, log, enter } = setUp({ limit: { bucket: { rate: 1, burst: 1 } } });
    enter('a');
    enter('b', 1, { wait: '3s' });
    await clock.advanceAsync(100);
    api.update('key', { retryAfterMs: 60_000 });
    await clock.advanceAsync(0);
    expect(log).toEqual(['0 a: allow', '100 b: deny, too-long, 60000']);
  });

  test('refuses a call beyond queue.max', async () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const { clock, api, log, enter } = setUp({ limit, queue: { max: 1 } });
    for (const name of ['a', 'b', 'c']) enter(name);
    expect(api.stats().waiting).toBe(1);
    await clock.advanceAsync(0);
    expect(log).toEqual(['0 a: allow', '0 c: deny, queue-full, 1000']);
  });

  test('spacing with reservations: serves each call when it is due', async () => {
    const { clock, log, enter } = setUp({ limit: { spacing: { every: '6s', reserve: 2 } } });
    for (const name of ['a', 'b', 'c', 'd']) enter(name);
    await clock.advanceAsync(20_000);
    expect(log).toEqual(['0 a: allow', '6000 b: allow', '12000 c: allow', '18000 d: allow']);
  });

  test('an aborted call leaves its place to the next one', async () => {
    const { clock, log, enter } = setUp({ limit: { spacing: { every: '6s', reserve: 2 } } });
    const abort = new AbortController();
    enter('a');
    enter('b', 1, { signal: abort.signal });
    await clock.advanceAsync(1_000);
    abort.abort(new Error('changed my mind'));
    enter('c');
    await clock.advanceAsync(20_000);
    expect(log).toEqual(['0 a: allow', '1000 b: changed my mind', '6000 c: allow']);
  });

  test('a signal that has already aborted takes nothing', async () => {
    const { clock, api, log, enter } = setUp({ limit: { bucket: { rate: 1, burst: 1 } } });
    enter('a', 1, { signal: AbortSignal.abort(new Error('too late')) });
    await clock.advanceAsync(0);
    expect(log).toEqual(['0 a: too late']);
    expect(api.inspect('key').remaining).toBe(1);
  });

  test('a settled call wakes the next waiter', async () => {
    const { clock, log, enter } = setUp({ limit: { concurrency: 2 } });
    const first = enter('a');
    for (const name of ['b', 'c', 'd']) enter(name);
    await clock.advanceAsync(100);
    expect(log).toEqual(['0 a: allow', '0 b: allow']);
    const permit = await first;
    if (permit?.verdict === 'allow') permit.settle();
    await clock.advanceAsync(100);
    expect(log.slice(2)).toEqual(['100 c: allow']);
  });

  test('cost given back early wakes the waiter', async () => {
    const { clock, api, log, enter } = setUp({ limit: { bucket: { rate: 1, burst: 5 } } });
    api.check('key', 5);
    enter('a', 5);
    await clock.advanceAsync(1_000);
    api.settle('key', { cost: 5, used: 0 });
    await clock.advanceAsync(10_000);
    expect(log).toEqual(['1000 a: allow']);
  });

  test('after a stall of the event loop, permits keep their distance', async () => {
    // A clock whose timers fire only every full minute, as in a busy process.
    const inner = new VirtualClock();
    const clock = {
      now: () => inner.now(),
      wakeAt: (at: number, act: () => void) => inner.wakeAt(Math.ceil(at / 60_000) * 60_000, act),
    };
    const api = limiter({ limit: { spacing: { every: '6s', reserve: 9 } }, clock });
    const times: number[] = [];
    for (let n = 0; n < 4; n++) api.acquire('key').then(() => times.push(inner.now()));
    await inner.advanceAsync(600_000);
    expect(times).toEqual([0, 60_000, 120_000, 180_000]);
  });

  test('an invalid cost rejects its own call, and no waiter', async () => {
    const { clock, api, log, enter } = setUp({ limit: { spacing: { every: 50 } } });
    api.check('key');
    enter('a');
    await expect(api.acquire('key', Number.NaN)).rejects.toThrow(/`cost`/);
    await clock.advanceAsync(100);
    expect(log).toEqual(['50 a: allow']);
  });

  test('adaptive: a cost above the limit is served when nothing is in flight', async () => {
    const { clock, log, enter } = setUp({ limit: { adaptive: {} } });
    enter('two', 2).then((entry) => entry?.verdict === 'allow' && entry.settle());
    enter('one', 1);
    await clock.advanceAsync(100);
    expect(log).toEqual(['0 two: allow', '0 one: allow']);
  });

  test('when the first waiter expires, a smaller one behind it is served', async () => {
    const { clock, api, log, enter } = setUp({ limit: { concurrency: 3 } });
    api.check('key', 1, { willSettle: true });
    enter('large', 3, { wait: 1_000 });
    enter('small', 1);
    await clock.advanceAsync(2_000);
    expect(log).toEqual(['1000 large: deny, too-long, 0', '1000 small: allow']);
  });

  test('a new first waiter with a lower cost is served at once', async () => {
    const limit = { bucket: { rate: 1, burst: 10 } } as const;
    const { clock, api, log, enter } = setUp({ limit, queue: { order: 'priority' } });
    api.check('key', 10);
    enter('large', 10);
    await clock.advanceAsync(1_500);
    enter('small', 1, { priority: 9 });
    await clock.advanceAsync(20_000);
    expect(log).toEqual(['1500 small: allow', '11000 large: allow']);
  });

  test('an update of the pool size wakes the waiter', async () => {
    const limit = { ramp: { min: 10, max: 20, over: '1h', mode: 'scheduled' } } as const;
    const { clock, api, log, enter } = setUp({ limit });
    api.update('key', { poolSize: 10 });
    enter('batch', 2);
    await clock.advanceAsync(500);
    api.update('key', { poolSize: 1 });
    await clock.advanceAsync(0);
    expect(log).toEqual(['500 batch: allow']);
  });

  test('many waiters on one signal share one listener and end together', async () => {
    const { clock, api, log, enter } = setUp({ limit: { spacing: { every: '6s' } } });
    api.check('key');
    const abort = new AbortController();
    for (let n = 0; n < 50; n++) enter(`${n}`, 1, { signal: abort.signal });
    expect(getEventListeners(abort.signal, 'abort').length).toBe(1);
    abort.abort(new Error('closed'));
    await clock.advanceAsync(0);
    expect(log.length).toBe(50);
    expect(getEventListeners(abort.signal, 'abort').length).toBe(0);
    expect(api.stats().waiting).toBe(0);
  });

  test.each([
    [{ max: -1 }, /`queue\.max`/],
    [{ order: 'random' }, /`queue\.order` to be one of fifo, lifo, priority/],
    [{ keepAlive: 'yes' }, /`queue\.keepAlive` to be true or false/],
    [{ size: 5 }, /`queue\.size` to be one of max, order, keepAlive/],
  ])('refuses the queue option %j', (queue, message) => {
    const limit = { bucket: { rate: 1 } };
    expect(() => limiter({ limit, queue: queue as never })).toThrow(message);
  });

  test.each([-1, Number.NaN, 'soon'])('acquire: refuses a wait of %s', async (maxWaitMs) => {
    const api = limiter({ limit: { bucket: { rate: 1 } } });
    await expect(api.acquire('key', 1, { wait: maxWaitMs as never })).rejects.toThrow(/`wait`/);
  });
});

describe('wait queue of a limit that opens when a call settles', () => {
  test.each([
    ['adaptive, rule delay', { adaptive: {} }],
    ['adaptive, rule aimd', { adaptive: { rule: 'aimd' } }],
    ['concurrency', { concurrency: 1 }],
    ['all with adaptive', { all: [{ adaptive: {} }, { bucket: { rate: 100 } }] }],
  ] as const)(
    '%s: a call with a short wait gets the slot of a call that settles',
    async (_, limit) => {
      const clock = new VirtualClock();
      const api = limiter({ limit, clock });
      const first = api.tryAcquire('sink');
      if (first.verdict === 'deny') throw new Error('expected a permit');
      const waiting = api.acquire('sink', 1, { wait: 200 });
      await clock.advanceAsync(50);
      expect(api.stats().waiting).toBe(1);
      first.settle();
      expect(await waiting).toMatchObject({ verdict: 'allow', dueAt: 50 });
    },
  );

  test('adaptive: a second waiter stays in the queue when the first gets the slot', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { adaptive: { initial: 1, max: 1 } }, clock });
    const first = api.tryAcquire('sink');
    if (first.verdict === 'deny') throw new Error('expected a permit');
    const waiting = [1, 2].map(() => api.acquire('sink', 1, { wait: 200 }));
    await clock.advanceAsync(50);
    first.settle();
    const second = await waiting[0];
    expect([second.verdict, api.stats().waiting]).toEqual(['allow', 1]);
    await clock.advanceAsync(50);
    if (second.verdict === 'allow') second.settle();
    expect(await waiting[1]).toMatchObject({ verdict: 'allow', dueAt: 100 });
  });

  test('adaptive: a call that no other makes way for is refused after its wait', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { adaptive: {} }, clock });
    api.tryAcquire('sink');
    const waiting = api.acquire('sink', 1, { wait: 200 });
    await clock.advanceAsync(200);
    expect(await waiting).toMatchObject({ verdict: 'deny', reason: 'too-long' });
  });
});

describe('wait queue: any sequence of calls', () => {
  const anyCalls = fc.array(
    fc.record({
      key: fc.constantFrom('x', 'y'),
      afterMs: fc.nat(1_500),
      cost: fc.integer({ min: 1, max: 3 }),
      maxWaitMs: fc.option(fc.nat(8_000), { nil: undefined }),
      abortsAfterMs: fc.option(fc.nat(4_000), { nil: undefined }),
    }),
    { maxLength: 30 },
  );

  test('every call ends once, and the limit holds', async () => {
    await fc.assert(
      fc.asyncProperty(anyCalls, async (calls) => {
        const clock = new VirtualClock();
        const api = limiter({ limit: { bucket: { rate: 1, burst: 3 } }, clock });
        const served: { key: string; at: number; cost: number }[] = [];
        let ended = 0;
        for (const { key, afterMs, cost, maxWaitMs, abortsAfterMs } of calls) {
          await clock.advanceAsync(afterMs);
          const abort = new AbortController();
          if (abortsAfterMs !== undefined) {
            clock.wakeAt(clock.now() + abortsAfterMs, () => abort.abort(new Error('gone')));
          }
          const limits = {
            signal: abort.signal,
            ...(maxWaitMs !== undefined && { wait: maxWaitMs }),
          };
          api.acquire(key, cost, limits).then(
            (entry) => {
              ended++;
              if (entry.verdict === 'allow') served.push({ key, at: clock.now(), cost });
            },
            () => ended++,
          );
        }
        await clock.advanceAsync(200_000);
        expect(ended).toBe(calls.length);
        expect(api.stats().waiting).toBe(0);
        for (const key of ['x', 'y']) {
          const own = served.filter((one) => one.key === key);
          for (const [n, { at }] of own.entries()) {
            const since = own.slice(n);
            const sum = since.reduce((total, one) => total + one.cost, 0);
            const span = (since.at(-1)?.at ?? at) - at;
            expect(sum).toBeLessThanOrEqual(3 + span / 1000 + 1e-5);
          }
        }
      }),
      { numRuns: 60 },
    );
  });
});

describe('wait queue on the real clock', () => {
  test('permits keep their distance, whatever timers do', async () => {
    const api = limiter({ limit: { spacing: { every: 3, reserve: 50 } } });
    const entries = await Promise.all(Array.from({ length: 20 }, () => api.acquire('key')));
    const times = entries.map((entry) => (entry.verdict === 'allow' ? entry.dueAt : Number.NaN));
    const gaps = times.slice(1).map((at, n) => at - times[n]);
    expect(gaps.length).toBe(19);
    for (const gap of gaps) expect(gap).toBeGreaterThanOrEqual(3);
    expect(times[19]).toBeLessThanOrEqual(systemClock.now());
  });

  test('100,000 aborted waiters leave no memory, timer or listener behind', async () => {
    setFlagsFromString('--expose-gc');
    const collect: () => void = runInNewContext('gc');
    const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout');
    const api = limiter({ limit: { spacing: { every: '1h' } }, queue: { max: 200_000 } });
    api.check('key');
    collect();
    const [heap, before] = [process.memoryUsage().heapUsed, timers().length];
    await (async () => {
      // All wait in one queue at the same time, each with its own signal and deadline.
      const signals = Array.from({ length: 100_000 }, () => new AbortController());
      const waits = signals.map(({ signal }) =>
        api.acquire('key', 1, { signal, wait: '200000h' }).catch(() => 'left'),
      );
      expect(api.stats().waiting).toBe(100_000);
      expect(timers().length).toBeLessThanOrEqual(before + 1);
      for (const own of signals) own.abort();
      expect(new Set(await Promise.all(waits))).toEqual(new Set(['left']));
      for (const { signal } of signals.slice(0, 100)) {
        expect(getEventListeners(signal, 'abort').length).toBe(0);
      }
    })();
    expect(api.stats()).toMatchObject({ waiting: 0, cancelled: 100_000 });
    expect(timers().length).toBe(before);
    collect();
    expect(process.memoryUsage().heapUsed - heap).toBeLessThan(10e6);
  }, 90_000); // only a guard against a hang: a loaded machine needs 30 s

  test('a wait for a call to settle keeps the process alive', () => {
    const script = `
      import { limiter } from 'sluice';
      const sink = limiter({ limit: { concurrency: 1 } });
      const held = await sink.acquire('key');
      setTimeout(() => held.settle(), 300).unref();
      await sink.acquire('key');
      process.exitCode = 7;`;
    const args = ['--input-type=module', '-e', script];
    expect(spawnSync(process.execPath, args, { timeout: 20_000 }).status).toBe(7);
  });

  test.each([
    [false, 0],
    [true, 7],
  ])('keepAlive %s: the process ends with code %i', (keepAlive, expected) => {
    const script = `
      import { limiter } from 'sluice';
      const limit = { spacing: { every: 400 } };
      const api = limiter({ limit, queue: { keepAlive: ${keepAlive} } });
      api.check('key');
      api.acquire('key').then(() => { process.exitCode = 7; });`;
    const args = ['--input-type=module', '-e', script];
    expect(spawnSync(process.execPath, args, { timeout: 20_000 }).status).toBe(expected);
  });
});

describe('wait queue of a local limiter: a check that fails', () => {
  const FAILED = new Error('the check failed');

  /** A limiter whose next check fails when `fail` was called. */
  function failing(limit: Limit, clock = new VirtualClock()) {
    let isFailing = false;
    const factory: BackendFactory = {
      isRemote: false,
      create: (policy, context) =>
        new (class extends LocalBackend {
          override checkNow(key: string, cost: number, now: number): Decision {
            if (!isFailing) return super.checkNow(key, cost, now);
            isFailing = false;
            throw FAILED;
          }
        })(policy, { ...context, clock }),
    };
    const api = limiter({ name: 'failing', limit, backend: factory, clock });
    const fail = (): void => {
      isFailing = true;
    };
    return { api, clock, fail };
  }

  const endsOf = (api: Limiter, calls: number) =>
    Array.from({ length: calls }, () =>
      api.acquire('k', 1, { wait: '1s' }).then(
        ({ verdict }) => verdict,
        (error: unknown) => error,
      ),
    );

  test('rejects its waiter with the error, and serves those behind it and later ones', async () => {
    const { api, clock, fail } = failing({ spacing: { every: 100 } });
    const ends = endsOf(api, 3);
    await clock.advanceAsync(50);
    fail();
    await clock.advanceAsync(500);
    ends.push(...endsOf(api, 1));
    expect(await Promise.all(ends)).toEqual(['allow', FAILED, 'allow', 'allow']);
    expect(api.stats().waiting).toBe(0);
  });

  test('does not fail the settlement that gives it its turn', async () => {
    const { api, fail } = failing({ concurrency: 1 });
    const held = api.tryAcquire('k');
    const ends = endsOf(api, 2);
    fail();
    if (held.verdict === 'allow') held.settle();
    expect(await Promise.all(ends)).toEqual([FAILED, 'allow']);
  });

  test('all([…]): returns what the other limits had granted', async () => {
    const { api, clock, fail } = failing({ bucket: { rate: '10/s', burst: 1 } });
    const first = limiter({ name: 'first', limit: { concurrency: 2 }, clock });
    const both = all([first, api]);
    const ends = endsOf(both, 2);
    await clock.advanceAsync(50);
    fail();
    await clock.advanceAsync(500);
    expect(await Promise.all(ends)).toEqual(['allow', FAILED]);
    expect(first.inspect('k').inFlight).toBe(1);
  });
});
