import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, expectTypeOf, test, vi } from 'vitest';
import type { RemoteBackendFactory } from '../backends/remote-backend.ts';
import { DeniedError } from '../core/errors.ts';
import { seededRandom } from '../core/random.ts';
import type { RemoteLimiter } from '../limiter/async-limiter.ts';
import { all } from '../limiter/composite-limiter.ts';
import { limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/limiter-interface.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { type ThrottleOptions, throttle, throttled } from './throttle.ts';

const once = { bucket: { rate: '1/6s', burst: 1 } } as const;

describe('throttle', () => {
  test('passes arguments, result and this on', () => {
    const counter = {
      count: 0,
      add: throttle(
        function add(this: { count: number }, a: number, b: number) {
          this.count += a + b;
          return this.count;
        },
        { limit: { bucket: { rate: 1, burst: 2 } }, clock: new VirtualClock() },
      ),
    };
    expect(counter.add(1, 2)).toBe(3);
    expect(counter.add(3, 4)).toBe(10);
    expect(() => counter.add(5, 6)).toThrow(DeniedError);
    expect(counter.count).toBe(10);
  });

  test('a DeniedError names the key and the time to retry', () => {
    const options = { limit: once, clock: new VirtualClock(), key: (user: string) => user };
    const greet = throttle((user: string) => `hello ${user}`, options);
    expect(greet('alice')).toBe('hello alice');
    expect(greet('bob')).toBe('hello bob');
    expect(() => greet('alice')).toThrow('over the limit for "alice"; try again in 6000 ms');
    try {
      greet('bob');
    } catch (error) {
      expect(error).toBeInstanceOf(DeniedError);
      expect(error).toMatchObject({ code: 'DENIED', key: 'bob', decision: { retryAfterMs: 6000 } });
    }
  });

  test('onDeny: skips a refused call, or returns the result of a function', () => {
    const clock = new VirtualClock();
    const skipping = throttle((n: number) => n, { limit: once, clock, onDeny: 'skip' });
    expect([skipping(1), skipping(2)]).toEqual([1, undefined]);
    const answering = throttle((n: number) => n, {
      limit: once,
      clock,
      onDeny: ({ retryAfterMs }, n) => -n * retryAfterMs,
    });
    expect([answering(1), answering(2)]).toEqual([1, -12_000]);
  });

  test('wait: spacing of 6 s serves waiting calls in order, 6 s apart', async () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '6s', reserve: 5 } } as const;
    const log: string[] = [];
    const call = throttle(
      async (name: string) => {
        log.push(`${clock.now()} ${name}`);
      },
      { limit, clock, wait: true },
    );
    for (const name of ['a', 'b', 'c']) call(name);
    await clock.advanceAsync(20_000);
    expect(log).toEqual(['0 a', '6000 b', '12000 c']);
  });

  test('wait: ends at its limit and at an abort', async () => {
    const clock = new VirtualClock();
    const hurried = throttle(async () => 'done', { limit: once, clock, wait: '5s' });
    expect(await hurried()).toBe('done');
    await expect(hurried()).rejects.toThrow(DeniedError);
    const hasty = throttle(async () => 'done', { limit: once, clock });
    await hasty();
    await expect(hasty()).rejects.toThrow(DeniedError); // not thrown at once: it is async

    const abort = new AbortController();
    const options = { limit: once, clock, wait: true, signal: abort.signal } as const;
    const cancelled = throttle(async () => 'done', options);
    await cancelled();
    const waiting = cancelled();
    abort.abort(new Error('never mind'));
    await expect(waiting).rejects.toThrow('never mind');
  });

  test('used: corrects the charged cost by what the call used', async () => {
    const clock = new VirtualClock();
    const tokens = limiter({ limit: { bucket: { rate: '1000/m' } }, clock });
    const complete = throttle(async (prompt: string, _max: number) => prompt.length, {
      limiter: tokens,
      cost: (_prompt, max) => max,
      used: (length) => length,
    });
    await complete('hello', 800);
    expect(tokens.inspect('').remaining).toBe(995);
    await complete('a longer one', 900);
    expect(tokens.inspect('').remaining).toBe(983);
  });

  test('outcome: an adaptive limit learns from results and errors', async () => {
    const clock = new VirtualClock();
    const limit = { adaptive: { rule: 'aimd', initial: 4, decreaseRatio: 0.5 } } as const;
    const sink = limiter({ limit, clock });
    const send = throttle(
      async (status: number, tookMs = 100) => {
        clock.advance(tookMs);
        if (status >= 500) throw Object.assign(new Error('no'), { status });
        return status;
      },
      {
        limiter: sink,
        outcome: (error, status) => (error || status === 429 ? 'busy' : 'ok'),
      },
    );
    await send(200);
    await send(200, 90);
    expect(sink.inspect('').limit).toBe(4);
    await expect(send(503)).rejects.toThrow('no');
    expect(sink.inspect('')).toMatchObject({ limit: 2, inFlight: 0 });
    await send(429);
    expect(sink.inspect('').limit).toBe(1);
  });

  test('level: a call counts as its level, with and without waiting', async () => {
    const limit = { concurrency: { limit: 4, priorities: ['user', 'prefetch'] } };
    const shared = limiter({ limit, clock: new VirtualClock() });
    const level = (name: string | undefined) => name;
    const seen: unknown[] = [];
    for (const wait of [false, true]) {
      const call = throttle(
        async (_name: string | undefined) => void seen.push(shared.inspect('').priorities),
        { limiter: shared, level, wait },
      );
      for (const name of ['user', undefined]) await call(name);
    }
    const [user, lowest] = [
      { user: 1, prefetch: 0 },
      { user: 0, prefetch: 1 },
    ];
    expect(seen).toEqual([user, lowest, user, lowest]);
    expect(shared.inspect('').priorities).toEqual({ user: 0, prefetch: 0 });
  });

  test('an error of the function is passed on and its permit settled', () => {
    const limit = { concurrency: 1 } as const;
    const shared = limiter({ limit, clock: new VirtualClock() });
    const fail = throttle(
      () => {
        throw new TypeError('as before');
      },
      { limiter: shared },
    );
    expect(() => fail()).toThrow(new TypeError('as before'));
    expect(() => fail()).toThrow(new TypeError('as before'));
    expect(shared.stats().held).toBe(0);
  });

  test('an error of the outcome or used option leaves no permit unsettled', async () => {
    const shared = limiter({ limit: { concurrency: 1 }, clock: new VirtualClock() });
    const outcome = () => {
      throw new Error('no idea');
    };
    const call = throttle(
      async (ok: boolean) => (ok ? 'done' : Promise.reject(new Error('its own'))),
      {
        limiter: shared,
        outcome,
      },
    );
    await expect(call(true)).rejects.toThrow('no idea');
    await expect(call(false)).rejects.toThrow('its own');
    const odd = throttle(async () => 'done', { limiter: shared, used: () => Number.NaN });
    await expect(odd()).rejects.toThrow(/`used`/);
    expect(shared.stats().held).toBe(0);
    expect(shared.inspect('').inFlight).toBe(0);
  });

  test('without wait, a reserved place is a refusal and stays free', () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '6s', reserve: 1 } } as const;
    const shared = limiter({ limit, clock });
    const call = throttle(() => 'done', { limiter: shared });
    expect(call()).toBe('done');
    expect(() => call()).toThrow('try again in 6000 ms');
    expect(shared.check('')).toEqual({ verdict: 'wait', waitMs: 6000, dueAt: 6000 });
  });

  test('throttled: decorates a method', () => {
    const greet = (name: string) => `hello ${name}`;
    const decorate = throttled({ limit: once, clock: new VirtualClock() });
    const limited = decorate(greet, {} as ClassMethodDecoratorContext);
    expect(limited('alice')).toBe('hello alice');
    expect(() => limited('alice')).toThrow(DeniedError);
  });

  test('throttled: decorates a method with experimentalDecorators', () => {
    class Api {
      readonly greeting = 'hello';
      greet(name: string): string {
        return `${this.greeting} ${name}`;
      }
    }
    const descriptor = Object.getOwnPropertyDescriptor(Api.prototype, 'greet');
    const decorate = throttled({ limit: once, clock: new VirtualClock() });
    const limited = decorate(Api.prototype, 'greet', descriptor as PropertyDescriptor);
    expect(limited).toMatchObject({ enumerable: false, writable: true });
    Object.defineProperty(Api.prototype, 'greet', limited);
    const api = new Api();
    expect(api.greet('alice')).toBe('hello alice');
    expect(() => api.greet('alice')).toThrow(DeniedError);
  });

  test.each([
    [
      'a missing function',
      () => throttle(undefined as never, { limit: once }),
      /`fn` to be a function/,
    ],
    ['a missing limit', () => throttle(() => 1, {} as never), /`limit` to be/],
    ['a misspelt option', () => throttle(() => 1, { limit: once, kye: 1 } as never), /`kye`/],
    [
      'an invalid wait',
      () => throttle(async () => 1, { limit: once, wait: 'soon' as never }),
      /`wait`/,
    ],
    [
      'an invalid key',
      () => throttle(() => 1, { limit: once, key: 5 } as never),
      /`key` to be a func/,
    ],
    ['an invalid signal', () => throttle(() => 1, { limit: once, signal: 5 } as never), /`signal`/],
    ['an undefined limiter', () => throttle(() => 1, { limiter: undefined } as never), /`limiter`/],
    [
      'a limit beside a limiter',
      () => throttle(() => 1, { limiter: limiter({ limit: once }), limit: once } as never),
      /`limit` to be left out when a limiter is given, got \{"bucket"/,
    ],
    [
      'an unknown onDeny',
      () => throttle(() => 1, { limit: once, onDeny: 'cry' as never }),
      /`onDeny`/,
    ],
  ])('refuses %s', (_what, make, message) => {
    expect(make).toThrow(message);
  });
});

describe('throttle: DeniedError', () => {
  const minutely = { bucket: { rate: '1/m', burst: 1 } } as const;
  const denial = async (call: () => unknown): Promise<unknown> => {
    try {
      await call();
      await call();
    } catch (error) {
      return (error as DeniedError).decision;
    }
    return 'allowed';
  };

  test('names the rule that refused, with and without permits', async () => {
    const limit = { all: [{ bucket: { rate: '5/s', burst: 3 } }, minutely] } as const;
    const options = () => ({ limit, name: 'api', clock: new VirtualClock() });
    const refused = { limit: 'api', retryAfterMs: 60_000, rule: 'bucket-2' };
    expect(await denial(throttle(() => 1, options()))).toMatchObject(refused);
    const settled = throttle(() => 1, { ...options(), used: () => 1 });
    expect(await denial(settled)).toMatchObject(refused);
    const waiting = throttle(async () => 1, { ...options(), wait: '1s' });
    expect(await denial(waiting)).toMatchObject(refused);
  });

  test('names the component of a combined limiter that refused', async () => {
    const clock = new VirtualClock();
    const user = limiter({ name: 'user', limit: { bucket: { rate: 9, burst: 9 } }, clock });
    const overall = limiter({ name: 'overall', limit: minutely, clock });
    const call = throttle(() => 1, { limiter: all([user, overall]) });
    expect(await denial(call)).toMatchObject({ limit: 'overall', retryAfterMs: 60_000 });
  });
});

describe('throttle: error messages', () => {
  const rejection = (call: Promise<unknown>): Promise<string> =>
    call.then(
      () => 'allowed',
      (error: Error) => error.message,
    );

  test('a wait that ends at its limit says how long it took', async () => {
    const clock = new VirtualClock();
    const limit = { concurrency: 1 } as const;
    const sink = limiter({ limit, clock });
    sink.tryAcquire('');
    const send = throttle(async () => 1, { limiter: sink, wait: 300 });
    const message = rejection(send());
    await clock.advanceAsync(300);
    expect(await message).toBe('over the limit; gave up after 300 ms');
  });

  test('a wait known to be too long says how long it would be', async () => {
    const send = throttle(async () => 1, { limit: once, clock: new VirtualClock(), wait: '5s' });
    await send();
    expect(await rejection(send())).toBe(
      'over the limit; the next permit is 6000 ms away, `wait` allows 5000 ms',
    );
  });

  test('a cost that never fits names the limit it exceeds', async () => {
    const clock = new VirtualClock();
    const limit = { bucket: { rate: '1000/m', burst: 2250 } } as const;
    const tokens = limiter({ name: 'tokens', limit, clock });
    const cost = () => 4000;
    const message = 'over the limit; cost 4000 exceeds the burst 2250 of `tokens`';
    expect(() => throttle(() => 1, { limiter: tokens, cost })()).toThrow(message);
    const permits = { cost, used: () => 1 };
    expect(() => throttle(() => 1, { limiter: tokens, ...permits })()).toThrow(message);
    const waiting = throttle(async () => 1, { limiter: tokens, cost, wait: true });
    expect(await rejection(waiting())).toBe(message);
    const both = all([limiter({ limit: { bucket: { rate: 1e4 } }, clock }), tokens]);
    expect(() => throttle(() => 1, { limiter: both, cost })()).toThrow(message);
    const calls = limiter({ name: 'calls', limit: { spacing: { every: '1s' } }, clock });
    expect(() => throttle(() => 1, { limiter: calls, cost: () => 2 })()).toThrow(
      'over the limit; cost 2 exceeds the limit 1 of `calls`',
    );
  });

  test('an object that is not a limiter is refused when the function is wrapped', () => {
    const fake = { name: 'api', check: () => 1, acquire: () => 1 } as never;
    expect(() => throttle(() => 1, { limiter: fake })).toThrow(
      /`limiter` to be a limiter made by limiter\(\) or all\(\)/,
    );
  });
});

describe('throttle: types', () => {
  test('the wrapped function has the type of the function', () => {
    const plain = (a: number, b?: string): string => `${a}${b}`;
    const later = async (a: number): Promise<{ a: number }> => ({ a });
    expectTypeOf(throttle(plain, { limit: once })).toExtend<typeof plain>();
    expectTypeOf(throttle(later, { limit: once, wait: true })).toExtend<typeof later>();
    const skipped = throttle(plain, { limit: once, onDeny: 'skip' });
    expectTypeOf(skipped).returns.toEqualTypeOf<string | undefined>();
    const skippedLater = throttle(later, { limit: once, wait: '1s', onDeny: 'skip' });
    expectTypeOf(skippedLater).returns.resolves.toEqualTypeOf<{ a: number } | undefined>();
    // @ts-expect-error a function that answers at once cannot wait
    throttle(plain, { limit: once, wait: true });
    const twice = { bucket: { rate: 1, burst: 2 } };
    const generic = throttle(<T>(value: T): T => value, { limit: twice });
    expectTypeOf(generic('text')).toEqualTypeOf<string>();
    expectTypeOf(generic(5)).toEqualTypeOf<number>();
    const onDeny = throttle(plain, { limit: once, onDeny: (denial, a) => `${denial.limit} ${a}` });
    expectTypeOf(onDeny).returns.toEqualTypeOf<string>();
    const keyed = throttle(plain, { limit: once, key: (a, b) => `${a.toFixed()} ${b?.trim()}` });
    expectTypeOf(keyed).returns.toEqualTypeOf<string>();
  });

  test('the limiter has the type that the options say', () => {
    const later = async (a: number): Promise<number> => a;
    const [local, remote] = [{} as Limiter, {} as RemoteLimiter];
    const types = () => {
      expectTypeOf(throttle(later, { limit: once, wait: true }).limiter).toEqualTypeOf<Limiter>();
      const backend = {} as RemoteBackendFactory;
      expectTypeOf(
        throttle(later, { limit: once, backend }).limiter,
      ).toEqualTypeOf<RemoteLimiter>();
      expectTypeOf(throttle(later, { limiter: remote }).limiter).toEqualTypeOf<RemoteLimiter>();
      expectTypeOf(throttle(later, { limiter: local }).limiter).toEqualTypeOf<Limiter>();
      const options = {} as ThrottleOptions<typeof later>;
      expectTypeOf(throttle(later, options).limiter).toEqualTypeOf<Limiter | RemoteLimiter>();
    };
    expect(types).toBeTypeOf('function'); // only compiled
  });
});

describe('throttle: a refused call', () => {
  test('returns a promise once the function has returned one', async () => {
    const clock = new VirtualClock();
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const skipping = throttle(() => Promise.resolve(1), { limit, clock, onDeny: 'skip' });
    expect(await skipping()).toBe(1);
    expect(skipping()).toBeInstanceOf(Promise);
    const throwing = throttle(() => Promise.resolve(1), { limit, clock });
    await throwing();
    await expect(throwing()).rejects.toThrow(DeniedError);
  });

  test('carries the name of the limit', () => {
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const call = throttle(() => 1, { name: 'search', limit, clock: new VirtualClock() });
    call();
    try {
      call();
      expect.unreachable();
    } catch (error) {
      expect((error as DeniedError).decision).toMatchObject({ limit: 'search' });
    }
  });
});

describe('throttle with wait: a call that fits', () => {
  test.each([
    ['spacing with reservations', { limit: { spacing: { every: 100, reserve: 5 } } }],
    ['calls in flight', { limit: { concurrency: 1 } }],
    ['a bucket', { limit: { bucket: { rate: 1 } } }],
  ] as const)('starts in the same tick: %s', (_name, options) => {
    let begun = false;
    const call = throttle(
      async () => {
        begun = true;
      },
      { ...options, clock: new VirtualClock(), wait: true },
    );
    call();
    expect(begun).toBe(true);
  });

  test('is not counted as waited, on the real clock either', async () => {
    for (const limit of [{ concurrency: 9 }, { spacing: { every: 0.001 } }] as const) {
      const sink = limiter({ limit });
      for (let n = 0; n < 20; n++) {
        const entry = await sink.acquire('k');
        if (entry.verdict === 'allow') entry.settle();
        await new Promise((later) => setImmediate(later));
      }
      expect(sink.stats().waited).toBeLessThan(3);
    }
  });
});

test('throttled: a method that waits must return a promise', () => {
  const waiting = throttled({ limit: once, wait: true });
  const context = {} as ClassMethodDecoratorContext;
  expectTypeOf(waiting(async (name: string) => name, context)).returns.toEqualTypeOf<
    Promise<string>
  >();
  // @ts-expect-error this method returns no promise
  expect(waiting((name: string) => name, context)).toBeTypeOf('function');
});

describe('throttle: errors', () => {
  test('a closed limiter is named as the reason', () => {
    const api = limiter({ limit: once, clock: new VirtualClock() });
    const call = throttle(() => 1, { limiter: api });
    api.close();
    expect(call).toThrow('over the limit; the limiter is closed');
  });

  test('refused at once on the real clock: says how far away the next permit is', async () => {
    const call = throttle(async () => 1, { limit: { spacing: { every: '1h' } }, wait: '1s' });
    await call();
    await expect(call()).rejects.toThrow(/the next permit is \d+ ms away, `wait` allows 1000 ms/);
  });

  test('an async function whose key fails rejects, with and without a permit', async () => {
    const key = (): string => {
      throw new Error('no key');
    };
    for (const limit of [once, { concurrency: 1 }] as const) {
      const call = throttle(async () => 1, { limit, key });
      await expect(call()).rejects.toThrow('no key');
    }
    expect(throttle(() => 1, { limit: once, key })).toThrow('no key');
  });

  /** As examples/llm-quota.mjs, on a virtual clock. */
  test('24 workers with a maximum cost, settled with what was used: 95 % of a quota of tokens is used, and never more', async () => {
    const clock = new VirtualClock();
    const random = seededRandom(7);
    const sleep = (ms: number) => new Promise<void>((wake) => clock.wakeAt(clock.now() + ms, wake));
    const perSecond = { requests: 50, tokens: 4000 };
    const budget = (name: keyof typeof perSecond) => {
      const [rate, burst] = [perSecond[name], 1.5 * perSecond[name]];
      return limiter({ name, limit: { bucket: { rate, burst } }, clock });
    };
    const quota = all([{ limiter: budget('requests'), cost: 1 }, { limiter: budget('tokens') }]);
    let usedTokens = 0;
    let refused = 0;
    const answer = async (maxTokens: number): Promise<number> => {
      await sleep(50 + 100 * random());
      const used = Math.ceil(maxTokens * (0.2 + 0.6 * random()));
      usedTokens += used;
      return used;
    };
    const complete = throttle(answer, {
      limiter: quota,
      wait: true,
      cost: (maxTokens: number) => maxTokens,
      used: (used: number) => used,
    });
    let isOver = false;
    const work = async (): Promise<void> => {
      while (!isOver) await complete(250).catch(() => refused++);
    };
    const workers = Array.from({ length: 24 }, work);
    await clock.advanceAsync(2000); // the burst is spent
    const before = usedTokens;
    await clock.advanceAsync(10_000);
    expect((usedTokens - before) / (10 * perSecond.tokens)).toBeCloseTo(1, 1.3); // by 2.5 %
    expect(refused).toBe(0);
    isOver = true;
    await clock.advanceAsync(5000);
    await Promise.all(workers);
  });

  test('a misspelt option lists the options of throttle and of its limiter', () => {
    const wrap = () => throttle(() => 1, { limit: once, onDenny: 'skip' } as never);
    expect(wrap).toThrow(/maxKeys.*onDeny.*got "onDenny"; did you mean `onDeny`\?/);
  });
});

describe('throttle: calls that run longer than permitTimeout', () => {
  const RUN_MS = 10_000;
  const THEN = 'then';
  const options = (clock: VirtualClock) =>
    ({ limit: { concurrency: 2 }, permitTimeout: '1s', clock }) as const;

  /** Work of 10 s, and how much of it runs. */
  function work(clock: VirtualClock) {
    const counts = { running: 0, peak: 0, done: 0 };
    const end = (): void => {
      counts.running--;
      counts.done++;
    };
    const begin = (): void => {
      counts.running++;
      counts.peak = Math.max(counts.peak, counts.running);
    };
    const run = (): Promise<void> => {
      begin();
      return new Promise<void>((resolve) => clock.wakeAt(clock.now() + RUN_MS, resolve)).then(end);
    };
    return { counts, run };
  }

  test.each<[string, (clock: VirtualClock, run: () => Promise<void>) => () => unknown]>([
    ['wait', (clock, run) => throttle(async () => run(), { ...options(clock), wait: true })],
    [
      'a function that is not async',
      (clock, run) => throttle(run, { ...options(clock), onDeny: 'skip' }),
    ],
    ['retry', (clock, run) => throttle(run, { ...options(clock), wait: true, retry: true })],
    [
      'several rules',
      (clock, run) => {
        const limit = { all: [{ concurrency: 2 }, { bucket: { rate: '9/s', burst: 9 } }] } as const;
        return throttle(run, { ...options(clock), limit, wait: true });
      },
    ],
    [
      'all of two limiters',
      (clock, run) => {
        const both = all([limiter(options(clock)), limiter({ ...options(clock), name: 'b' })]);
        return throttle(run, { limiter: both, wait: true });
      },
    ],
    [
      'a thenable of a query builder, which is gone while its query runs',
      (clock, run) => {
        const thenable = () => ({
          [THEN]: (ok: (_: unknown) => void, failed: () => void) => run().then(ok, failed),
        });
        return throttle(thenable as typeof run, { ...options(clock), wait: true });
      },
    ],
  ])('%s: never more than the limit run, and no permit expires', async (_, wrap) => {
    const clock = new VirtualClock();
    const { counts, run } = work(clock);
    const call = wrap(clock, run) as ReturnType<typeof throttle<() => Promise<void>>>;
    for (let n = 0; n < 10; n++) {
      void call();
      await clock.advanceAsync(500);
    }
    for (let ms = 0; ms < 6 * RUN_MS; ms += 500) {
      if (ms % 5000 === 0) await collectGarbage();
      const { waiting } = call.limiter.stats();
      if (waiting === 0 && counts.done + counts.running < 10) void call();
      await clock.advanceAsync(500);
    }
    expect(counts).toEqual({ peak: 2, running: 0, done: 10 });
    expect(call.limiter.stats()).toMatchObject({ expiredPermits: 0, held: 0 });
  });

  test('a promise that can never settle: its permit expires once it was collected', async () => {
    vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const clock = new VirtualClock();
    const stuck = throttle(() => new Promise<void>(() => {}), options(clock));
    for (const _ of [1, 2]) void stuck();
    await clock.advanceAsync(1000);
    expect(stuck.limiter.stats()).toMatchObject({ expiredPermits: 0, held: 2 });
    await collectGarbage();
    await clock.advanceAsync(1000);
    expect(stuck.limiter.stats()).toMatchObject({ expiredPermits: 2, held: 0 });
    vi.restoreAllMocks();
  });

  test('a limiter of another copy of this package: its permit is held, too', async () => {
    vi.resetModules();
    const copy: typeof import('./throttle.ts') = await import('./throttle.ts');
    expect(copy.throttle).not.toBe(throttle);
    const clock = new VirtualClock();
    const api = limiter(options(clock));
    void copy.throttle(work(clock).run, { limiter: api })();
    await clock.advanceAsync(5000);
    expect(api.stats()).toMatchObject({ expiredPermits: 0, held: 1 });
  });

  test('a permit of acquire that nothing settles: expires as before', async () => {
    vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const clock = new VirtualClock();
    const api = limiter(options(clock));
    const permit = await api.acquire('');
    void throttle(work(clock).run, { limiter: api })();
    await clock.advanceAsync(1000);
    expect(api.stats()).toMatchObject({ expiredPermits: 1, held: 1 });
    expect(permit).toMatchObject({ isSettled: true });
    vi.restoreAllMocks();
  });
});

async function collectGarbage(): Promise<void> {
  await new Promise(setImmediate); // until then a weak reference that was read is strong
  setFlagsFromString('--expose-gc');
  runInNewContext('gc')();
}
