import { describe, expect, expectTypeOf, test } from 'vitest';
import { DeniedError } from '../core/errors.ts';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { throttle, throttled } from './throttle.ts';

const once = { bucket: { rate: '1/6s', burst: 1 } } as const;

describe('throttle', () => {
  test('a function keeps its arguments, its result and its this', () => {
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

  test('a refusal says which key, and until when', () => {
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

  test('a refused call is skipped, or answered by somebody else', () => {
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

  test('the seed of it all: one call every six seconds, whoever waits gets a turn', async () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '6s', reserve: 5 } } as const;
    const story: string[] = [];
    const call = throttle(
      async (name: string) => {
        story.push(`${clock.now()} ${name}`);
      },
      { limit, clock, wait: true },
    );
    for (const name of ['a', 'b', 'c']) call(name);
    await clock.advanceAsync(20_000);
    expect(story).toEqual(['0 a', '6000 b', '12000 c']);
  });

  test('waits no longer than it was told, and not after an abort', async () => {
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

  test('cost is estimated, and settled with what was really used', async () => {
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

  test('how a call went is told: by its result, its error, or whoever knows better', async () => {
    const clock = new VirtualClock();
    const limit = { adaptive: { initial: 4, decreaseRatio: 0.5 } } as const;
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

  test('an error is passed on, and does not hold a place in flight', () => {
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

  test('a judge that fails loses nothing', async () => {
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

  test('without waiting, a place later is a refusal, and stays free for others', () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '6s', reserve: 1 } } as const;
    const shared = limiter({ limit, clock });
    const call = throttle(() => 'done', { limiter: shared });
    expect(call()).toBe('done');
    expect(() => call()).toThrow('try again in 6000 ms');
    expect(shared.check('')).toEqual({ verdict: 'wait', waitMs: 6000 });
  });

  test('a method is decorated', () => {
    const greet = (name: string) => `hello ${name}`;
    const decorate = throttled({ limit: once, clock: new VirtualClock() });
    const limited = decorate(greet, {} as ClassMethodDecoratorContext);
    expect(limited('alice')).toBe('hello alice');
    expect(() => limited('alice')).toThrow(DeniedError);
  });

  test.each([
    [
      'nothing to call',
      () => throttle(undefined as never, { limit: once }),
      /`fn` to be a function/,
    ],
    ['no limit', () => throttle(() => 1, {} as never), /`limit` to be/],
    ['a misspelt option', () => throttle(() => 1, { limit: once, kye: 1 } as never), /`kye`/],
    ['an odd wait', () => throttle(async () => 1, { limit: once, wait: 'soon' }), /`wait`/],
    ['an odd key', () => throttle(() => 1, { limit: once, key: 5 } as never), /`key` to be a func/],
    ['an odd signal', () => throttle(() => 1, { limit: once, signal: 5 } as never), /`signal`/],
    ['no limiter', () => throttle(() => 1, { limiter: undefined } as never), /`limiter`/],
    [
      'a limit beside a limiter',
      () => throttle(() => 1, { limiter: limiter({ limit: once }), limit: once } as never),
      /`limit` to be left out when a limiter is given/,
    ],
    ['an odd onDeny', () => throttle(() => 1, { limit: once, onDeny: 'cry' as never }), /`onDeny`/],
  ])('refuses %s', (_what, make, message) => {
    expect(make).toThrow(message);
  });
});

describe('the type of a wrapped function', () => {
  test('is the type of the function', () => {
    const plain = (a: number, b?: string): string => `${a}${b}`;
    const later = async (a: number): Promise<{ a: number }> => ({ a });
    expectTypeOf(throttle(plain, { limit: once })).toEqualTypeOf<typeof plain>();
    expectTypeOf(throttle(later, { limit: once, wait: true })).toEqualTypeOf<typeof later>();
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
  });
});

describe('what a refusal looks like', () => {
  test('as what the function gives: a promise, once it has given one', async () => {
    const clock = new VirtualClock();
    const limit = { bucket: { rate: 1, burst: 1 } } as const;
    const skipping = throttle(() => Promise.resolve(1), { limit, clock, onDeny: 'skip' });
    expect(await skipping()).toBe(1);
    expect(skipping()).toBeInstanceOf(Promise);
    const throwing = throttle(() => Promise.resolve(1), { limit, clock });
    await throwing();
    await expect(throwing()).rejects.toThrow(DeniedError);
  });

  test('names the limit', () => {
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

describe('a call that may go at once', () => {
  test.each([
    ['spacing with places ahead', { limit: { spacing: { every: 100, reserve: 5 } } }],
    ['calls in flight', { limit: { concurrency: 1 } }],
    ['a bucket', { limit: { bucket: { rate: 1 } } }],
  ] as const)('begins before anything else happens: %s', (_name, options) => {
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

  test('is not counted as one that waited, on a real clock either', async () => {
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

test('a method that waits must give a promise', () => {
  const waiting = throttled({ limit: once, wait: true });
  expectTypeOf(waiting).parameter(0).toExtend<(...args: never[]) => Promise<unknown>>();
});
