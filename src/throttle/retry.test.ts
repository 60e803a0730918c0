import { describe, expect, test } from 'vitest';
import type { Outcome } from '../core/decision.ts';
import { seededRandom } from '../core/random.ts';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { type ThrottleOptions, throttle } from './throttle.ts';

interface Answer {
  readonly outcome: Outcome;
  readonly retryAfterMs?: number;
}

type Work = (name: string) => Promise<Answer>;

const half = () => 0.5;

/** A call whose attempts are logged; each gets the next of `answers` after 10 ms. */
function setUp(answers: readonly (Answer | Error)[], options: Partial<ThrottleOptions<Work>> = {}) {
  const clock = new VirtualClock();
  const log: string[] = [];
  const left = [...answers];
  const work = async (name: string): Promise<Answer> => {
    const answer = left.shift() ?? { outcome: 'ok' };
    log.push(
      `${clock.now()} ${name}: ${answer instanceof Error ? answer.message : answer.outcome}`,
    );
    await new Promise<void>((done) => clock.wakeAt(clock.now() + 10, done));
    if (answer instanceof Error) throw answer;
    return answer;
  };
  const sink = limiter({ limit: { concurrency: 5 }, clock, random: half });
  const call = throttle(work, {
    limiter: sink,
    outcome: (error, result) => (error ? 'failed' : (result?.outcome ?? 'ok')),
    retryAfter: (_error, result) => result?.retryAfterMs,
    retry: true,
    ...options,
  } as ThrottleOptions<Work>);
  return { clock, log, sink, call };
}

const busy: Answer = { outcome: 'busy' };
const ok: Answer = { outcome: 'ok' };

describe('retry', () => {
  test('backs off exponentially, with jitter', async () => {
    const { clock, log, call, sink } = setUp([busy, { outcome: 'timeout' }, busy, ok]);
    const result = call('a');
    await clock.advanceAsync(2000);
    expect(await result).toEqual(ok);
    expect(log).toEqual(['0 a: busy', '60 a: timeout', '170 a: busy', '380 a: ok']);
    expect(sink.stats()).toMatchObject({
      allowed: 4,
      held: 0,
      settled: { ok: 1, busy: 2, timeout: 1 },
    });
  });

  test('times every attempt separately', async () => {
    const { clock, call, sink } = setUp([busy, ok]);
    const result = call('a');
    await clock.advanceAsync(2000);
    await result;
    expect(sink.stats().rttMs).toMatchObject({ count: 1, sumMs: 10 });
  });

  test('returns the last result after the last retry', async () => {
    const { clock, log, call } = setUp([busy, busy, busy], { retry: 2 });
    const result = call('a');
    await clock.advanceAsync(2000);
    expect(await result).toEqual(busy);
    expect(log).toHaveLength(3);
  });

  test('does not retry an outcome that is not listed, and passes its error on', async () => {
    const { clock, log, call } = setUp([new Error('no such thing')]);
    const result = call('a');
    result.catch(() => {});
    await clock.advanceAsync(2000);
    await expect(result).rejects.toThrow('no such thing');
    expect(log).toHaveLength(1);
    const again = setUp([new Error('flaky'), ok], {
      retry: { on: ['failed'], initialDelay: '10ms' },
    });
    const second = again.call('b');
    await again.clock.advanceAsync(100);
    expect(await second).toEqual(ok);
  });

  test('keeps the Retry-After of a server, for other calls too', async () => {
    const { clock, log, call } = setUp([{ outcome: 'busy', retryAfterMs: 3000 }, ok, ok], {
      wait: '10s',
    });
    const first = call('a');
    await clock.advanceAsync(100);
    const second = call('b'); // waits: the key is in cool-down for 3 s
    await clock.advanceAsync(5000);
    await Promise.all([first, second]);
    expect(log).toEqual(['0 a: busy', '3010 b: ok', '3060 a: ok']);
  });

  test('does not wait for a Retry-After above maxDelay', async () => {
    const { clock, call } = setUp([{ outcome: 'busy', retryAfterMs: 86_400_000 }]);
    const result = call('a');
    await clock.advanceAsync(10);
    expect(await result).toMatchObject(busy);
  });

  test('bounds the number of calls backing off at once', async () => {
    const { clock, log, call } = setUp([busy, busy, busy, busy], { retry: { maxWaiting: 2 } });
    const results = ['a', 'b', 'c', 'd'].map((name) => call(name));
    await clock.advanceAsync(2000);
    expect((await Promise.all(results)).map(({ outcome }) => outcome)).toEqual([
      'ok',
      'ok',
      'busy',
      'busy',
    ]);
    expect(log).toHaveLength(6);
  });

  test('an abort ends the back-off at once, without another attempt', async () => {
    const abort = new AbortController();
    const { clock, log, call } = setUp([busy, busy], { signal: abort.signal });
    const result = call('a');
    await clock.advanceAsync(20);
    abort.abort(new Error('enough'));
    await expect(result).rejects.toThrow('enough');
    await clock.advanceAsync(5000);
    expect(log).toEqual(['0 a: busy']);
  });

  test('spreads the retries of calls that failed together', async () => {
    const clock = new VirtualClock();
    const times = new Set<number>();
    const seen = new Map<number, number>();
    const call = throttle(
      async (id: number) => {
        const tries = (seen.get(id) ?? 0) + 1;
        seen.set(id, tries);
        if (tries === 2) times.add(Math.round(clock.now()));
        return tries;
      },
      {
        limit: { bucket: { rate: 1000 } },
        clock,
        random: seededRandom(7),
        retry: { maxRetries: 1, budget: false },
        outcome: (_error, tries) => (tries === 1 ? 'busy' : 'ok'),
      },
    );
    const all = Array.from({ length: 50 }, (_, id) => call(id));
    await clock.advanceAsync(1000);
    await Promise.all(all);
    expect(times.size).toBeGreaterThan(25);
  });

  test('returns the first result if the limit refuses the retry', async () => {
    const clock = new VirtualClock();
    const retries: number[] = [];
    const call = throttle(async () => 'busy', {
      limit: { bucket: { rate: '1/m', burst: 1 } },
      clock,
      outcome: () => 'busy',
      wait: '1s',
      retry: { maxRetries: 2, initialDelay: 5, onRetry: (_attempt, n) => retries.push(n) },
    });
    const result = call();
    await clock.advanceAsync(5000);
    expect(await result).toBe('busy');
    expect(retries).toEqual([]); // no result was discarded
  });

  test('reads the signal once for all attempts of a call', async () => {
    const clock = new VirtualClock();
    let made = 0;
    const call = throttle(async () => 'busy', {
      limit: { bucket: { rate: 1000 } },
      clock,
      random: half,
      outcome: () => 'busy',
      retry: 3,
      signal: () => {
        made++;
        return new AbortController().signal;
      },
    });
    const result = call();
    await clock.advanceAsync(5000);
    await result;
    expect(made).toBe(1);
  });

  test('refuses invalid options by name', () => {
    const make = (retry: unknown) => () => setUp([], { retry: retry as never });
    expect(make({ maxRetries: -1 })).toThrow('retry.maxRetries');
    expect(make({ tims: 1 })).toThrow('retry.tims');
    expect(make('often')).toThrow('`retry` to be true, a number of times, or an object');
    expect(make({ on: ['bussy'] })).toThrow('retry.on');
  });

  test('onRetry that throws: the call rejects and the permit of the retry is given back', async () => {
    const onRetry = () => {
      throw new Error('hook');
    };
    const { clock, sink, call } = setUp([busy, ok], { retry: { onRetry } });
    const result = call('a');
    result.catch(() => {});
    await clock.advanceAsync(1000);
    await expect(result).rejects.toThrow('hook');
    expect(sink.stats().held).toBe(0);
    expect(sink.inspect('').inFlight).toBe(0);
  });
});
