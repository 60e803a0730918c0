import { spawnSync } from 'node:child_process';
import { getEventListeners } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { systemClock } from '../core/clock.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { type LimiterOptions, limiter } from './limiter.ts';
import type { AcquireOptions } from './sync-limiter.ts';

/** A limiter whose comings and goings are written down, with the clock on the left. */
function tell(options: Omit<LimiterOptions, 'clock' | 'backend'>) {
  const clock = new VirtualClock();
  const api = limiter({ ...options, clock });
  const story: string[] = [];
  const enter = (name: string, cost = 1, limits: AcquireOptions = {}) =>
    api.acquire('key', cost, limits).then(
      (entry) => {
        const why = entry.verdict === 'deny' ? `, ${entry.reason}, ${entry.retryAfterMs}` : '';
        story.push(`${clock.now()} ${name}: ${entry.verdict}${why}`);
        return entry;
      },
      (reason: Error) => {
        story.push(`${clock.now()} ${name}: ${reason.message}`);
        return undefined;
      },
    );
  return { clock, api, story, enter };
}

describe('waiting for a permit', () => {
  test('is in line, first come first served', async () => {
    const { clock, story, enter } = tell({ limit: { bucket: { rate: 1, burst: 1 } } });
    for (const name of ['a', 'b', 'c']) enter(name);
    await clock.advanceAsync(5_000);
    expect(story).toEqual(['0 a: allow', '1000 b: allow', '2000 c: allow']);
  });

  test('last come first served, if the line is told so', async () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const { clock, story, enter } = tell({ limit, queue: { order: 'lifo' } });
    for (const name of ['a', 'b', 'c']) enter(name);
    await clock.advanceAsync(5_000);
    expect(story).toEqual(['0 a: allow', '1000 c: allow', '2000 b: allow']);
  });

  test('whoever matters most goes first, and among equals who came first', async () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const { clock, story, enter } = tell({ limit, queue: { order: 'priority' } });
    enter('first');
    enter('low', 1, { priority: 1 });
    enter('high', 1, { priority: 9 });
    enter('high too', 1, { priority: 9 });
    await clock.advanceAsync(5_000);
    const names = story.map((line) => line.split(/ (.*):/)[1]);
    expect(names).toEqual(['first', 'high', 'high too', 'low']);
  });

  test('is refused at once when it is known to take too long', async () => {
    const { story, clock, enter } = tell({ limit: { spacing: { every: '6s' } } });
    enter('a');
    enter('b', 1, { wait: 5_000 });
    enter('c', 2);
    await clock.advanceAsync(0);
    expect(story).toEqual([
      '0 a: allow',
      '0 b: deny, too-long, 6000',
      '0 c: deny, never, Infinity',
    ]);
  });

  test('ends when patience does, if nobody could know how long it would take', async () => {
    const { clock, story, enter } = tell({ limit: { spacing: { every: '6s' } } });
    enter('a');
    enter('b', 1, { wait: 7_000 });
    enter('c', 1, { wait: 7_000 }); // behind b, and b goes at six
    await clock.advanceAsync(20_000);
    expect(story).toEqual(['0 a: allow', '6000 b: allow', '7000 c: deny, too-long, 5000']);
  });

  test('has a bound to how many', async () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const { clock, api, story, enter } = tell({ limit, queue: { max: 1 } });
    for (const name of ['a', 'b', 'c']) enter(name);
    expect(api.stats().waiting).toBe(1);
    await clock.advanceAsync(0);
    expect(story).toEqual(['0 a: allow', '0 c: deny, queue-full, 1000']);
  });

  test('a reserved place is used when it is due', async () => {
    const { clock, story, enter } = tell({ limit: { spacing: { every: '6s', reserve: 2 } } });
    for (const name of ['a', 'b', 'c', 'd']) enter(name);
    await clock.advanceAsync(20_000);
    expect(story).toEqual(['0 a: allow', '6000 b: allow', '12000 c: allow', '18000 d: allow']);
  });

  test('who gives up gives the place back to whoever comes next', async () => {
    const { clock, story, enter } = tell({ limit: { spacing: { every: '6s', reserve: 2 } } });
    const abort = new AbortController();
    enter('a');
    enter('b', 1, { signal: abort.signal });
    await clock.advanceAsync(1_000);
    abort.abort(new Error('changed my mind'));
    enter('c');
    await clock.advanceAsync(20_000);
    expect(story).toEqual(['0 a: allow', '1000 b: changed my mind', '6000 c: allow']);
  });

  test('a signal that has aborted already lets nobody in', async () => {
    const { clock, api, story, enter } = tell({ limit: { bucket: { rate: 1, burst: 1 } } });
    enter('a', 1, { signal: AbortSignal.abort(new Error('too late')) });
    await clock.advanceAsync(0);
    expect(story).toEqual(['0 a: too late']);
    expect(api.inspect('key').remaining).toBe(1);
  });

  test('a call in flight that settles lets the next one in', async () => {
    const { clock, story, enter } = tell({ limit: { concurrency: 2 } });
    const first = enter('a');
    for (const name of ['b', 'c', 'd']) enter(name);
    await clock.advanceAsync(100);
    expect(story).toEqual(['0 a: allow', '0 b: allow']);
    const permit = await first;
    if (permit?.verdict === 'allow') permit.settle();
    await clock.advanceAsync(100);
    expect(story.slice(2)).toEqual(['100 c: allow']);
  });

  test('what is given back early is not waited for in vain', async () => {
    const { clock, api, story, enter } = tell({ limit: { bucket: { rate: 1, burst: 5 } } });
    api.check('key', 5);
    enter('a', 5);
    await clock.advanceAsync(1_000);
    api.settle('key', { cost: 5, used: 0 });
    await clock.advanceAsync(10_000);
    expect(story).toEqual(['1000 a: allow']);
  });

  test('after a stall nobody makes up for it: permits stay as far apart', async () => {
    // A clock that wakes people only every full minute, as a busy process may.
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

  test('a nonsensical cost is refused to the one who asked, not to those in line', async () => {
    const { clock, api, story, enter } = tell({ limit: { spacing: { every: 50 } } });
    api.check('key');
    enter('a');
    await expect(api.acquire('key', Number.NaN)).rejects.toThrow(/`cost`/);
    await clock.advanceAsync(100);
    expect(story).toEqual(['50 a: allow']);
  });

  test('what costs more than the limit has its turn when it is alone', async () => {
    const { clock, story, enter } = tell({ limit: { adaptive: {} } });
    enter('two', 2).then((entry) => entry?.verdict === 'allow' && entry.settle());
    enter('one', 1);
    await clock.advanceAsync(100);
    expect(story).toEqual(['0 two: allow', '0 one: allow']);
  });

  test('when the first loses patience, the next may fit where it did not', async () => {
    const { clock, api, story, enter } = tell({ limit: { concurrency: 3 } });
    api.check('key');
    enter('large', 3, { wait: 1_000 });
    enter('small', 1);
    await clock.advanceAsync(2_000);
    expect(story).toEqual(['1000 large: deny, too-long, 0', '1000 small: allow']);
  });

  test('who comes first may need less than who was first before', async () => {
    const limit = { bucket: { rate: 1, burst: 10 } } as const;
    const { clock, api, story, enter } = tell({ limit, queue: { order: 'priority' } });
    api.check('key', 10);
    enter('large', 10);
    await clock.advanceAsync(1_500);
    enter('small', 1, { priority: 9 });
    await clock.advanceAsync(20_000);
    expect(story).toEqual(['1500 small: allow', '11000 large: allow']);
  });

  test('news may open the door', async () => {
    const limit = { ramp: { min: 10, max: 20, over: '1h', mode: 'scheduled' } } as const;
    const { clock, api, story, enter } = tell({ limit });
    api.update('key', { poolSize: 10 });
    enter('batch', 2);
    await clock.advanceAsync(500);
    api.update('key', { poolSize: 1 });
    await clock.advanceAsync(0);
    expect(story).toEqual(['500 batch: allow']);
  });

  test('a crowd on one signal is one listener, and leaves together', async () => {
    const { clock, api, story, enter } = tell({ limit: { spacing: { every: '6s' } } });
    api.check('key');
    const abort = new AbortController();
    for (let n = 0; n < 50; n++) enter(`${n}`, 1, { signal: abort.signal });
    expect(getEventListeners(abort.signal, 'abort').length).toBe(1);
    abort.abort(new Error('closed'));
    await clock.advanceAsync(0);
    expect(story.length).toBe(50);
    expect(getEventListeners(abort.signal, 'abort').length).toBe(0);
    expect(api.stats().waiting).toBe(0);
  });

  test.each([
    [{ max: -1 }, /`queue\.max`/],
    [{ order: 'random' }, /`queue\.order` to be one of fifo, lifo, priority/],
    [{ keepAlive: 'yes' }, /`queue\.keepAlive` to be true or false/],
    [{ size: 5 }, /`queue\.size` to be one of max, order, keepAlive/],
  ])('a queue of %j is refused', (queue, message) => {
    const limit = { bucket: { rate: 1 } };
    expect(() => limiter({ limit, queue: queue as never })).toThrow(message);
  });

  test.each([-1, Number.NaN, 'soon'])('nobody can wait for %s', async (maxWaitMs) => {
    const api = limiter({ limit: { bucket: { rate: 1 } } });
    await expect(api.acquire('key', 1, { wait: maxWaitMs as never })).rejects.toThrow(/`wait`/);
  });
});

describe('for any crowd', () => {
  const crowd = fc.array(
    fc.record({
      key: fc.constantFrom('x', 'y'),
      afterMs: fc.nat(1_500),
      cost: fc.integer({ min: 1, max: 3 }),
      maxWaitMs: fc.option(fc.nat(8_000), { nil: undefined }),
      abortsAfterMs: fc.option(fc.nat(4_000), { nil: undefined }),
    }),
    { maxLength: 30 },
  );

  test('everybody hears, nobody twice, and no more get in than the limit allows', async () => {
    await fc.assert(
      fc.asyncProperty(crowd, async (people) => {
        const clock = new VirtualClock();
        const api = limiter({ limit: { bucket: { rate: 1, burst: 3 } }, clock });
        const served: { key: string; at: number; cost: number }[] = [];
        let heard = 0;
        for (const { key, afterMs, cost, maxWaitMs, abortsAfterMs } of people) {
          await clock.advanceAsync(afterMs);
          const abort = new AbortController();
          if (abortsAfterMs !== undefined) {
            clock.wakeAt(clock.now() + abortsAfterMs, () => abort.abort(new Error('gone')));
          }
          const patience = {
            signal: abort.signal,
            ...(maxWaitMs !== undefined && { wait: maxWaitMs }),
          };
          api.acquire(key, cost, patience).then(
            (entry) => {
              heard++;
              if (entry.verdict === 'allow') served.push({ key, at: clock.now(), cost });
            },
            () => heard++,
          );
        }
        await clock.advanceAsync(200_000);
        expect(heard).toBe(people.length);
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

describe('on the real clock', () => {
  test('permits are never closer than they should be, whatever timers do', async () => {
    const api = limiter({ limit: { spacing: { every: 3, reserve: 50 } } });
    const entries = await Promise.all(Array.from({ length: 20 }, () => api.acquire('key')));
    const times = entries.map((entry) => (entry.verdict === 'allow' ? entry.dueAt : Number.NaN));
    const gaps = times.slice(1).map((at, n) => at - times[n]);
    expect(gaps.length).toBe(19);
    for (const gap of gaps) expect(gap).toBeGreaterThanOrEqual(3);
    expect(times[19]).toBeLessThanOrEqual(systemClock.now());
  });

  test('a hundred thousand who gave up leave nothing behind', async () => {
    setFlagsFromString('--expose-gc');
    const collect: () => void = runInNewContext('gc');
    const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout');
    const api = limiter({ limit: { spacing: { every: '1h' } }, queue: { max: 200_000 } });
    api.check('key');
    collect();
    const [heap, before] = [process.memoryUsage().heapUsed, timers().length];
    await (async () => {
      // All of them stand in one line at the same time, each with a signal and a deadline of its own.
      const signals = Array.from({ length: 100_000 }, () => new AbortController());
      const waits = signals.map(({ signal }) =>
        api.acquire('key', 1, { signal, wait: 7_200_000 }).catch(() => 'left'),
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
  }, 30_000);

  test('a wait for a call to settle keeps the process alive, too', () => {
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
  ])('with keepAlive %s a process ends as it should', (keepAlive, expected) => {
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
