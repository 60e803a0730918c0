import { describe, expect, test } from 'vitest';
import { ConfigError } from './errors.ts';
import { limiter } from './limiter.ts';
import { VirtualClock } from './testing/virtual-clock.ts';

const bucketLimit = { bucket: { rate: '10/s', burst: 3 } } as const;

describe('limiter', () => {
  test('a day of traffic passes in no time', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { bucket: { rate: 2, burst: 1 } }, clock });
    let served = 0;
    for (let second = 0; second < 86_400; second++) {
      if (api.ask('alice').verdict === 'allow') served++;
      clock.advance(1000);
    }
    expect(served).toBe(86_400);
  });

  test('works with nothing but a limit, on the real clock', () => {
    const api = limiter({ limit: bucketLimit });
    expect(api.ask('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(api.ask('alice').verdict).toBe('deny');
    expect(api.stats()).toMatchObject({ keys: 1, evicted: 0 });
  });

  test('a batch reader takes what there is and gives back what it did not need', () => {
    const clock = new VirtualClock(5_000);
    const limit = { ramp: { min: 10, max: 110, over: '10s', mode: 'only-if-used' } } as const;
    const api = limiter({ limit, clock });
    expect(api.take('reader', 7)).toBe(7);
    api.give('reader', 2);
    expect(api.take('reader', Infinity)).toBe(5);
  });

  test('what was taken a second ago is given back to that second, which is over', () => {
    const clock = new VirtualClock();
    const limit = { ramp: { min: 10, max: 20, over: '1s' } } as const;
    const api = limiter({ limit, clock });
    expect(api.take('reader', Infinity)).toBe(10);
    const takenAt = clock.now();
    clock.advance(1000);
    expect(api.take('reader', Infinity)).toBe(20);
    api.give('reader', 10, takenAt);
    expect(api.take('reader', Infinity)).toBe(0);
  });

  test('a call in flight is settled when it is over', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { adaptive: { fixed: 1 } }, clock });
    expect(api.ask('sink').verdict).toBe('allow');
    expect(api.ask('sink').verdict).toBe('deny');
    api.settle('sink', { rttMs: 5 });
    expect(api.ask('sink').verdict).toBe('allow');
  });

  test('any clock will do that has now()', () => {
    const api = limiter({ limit: bucketLimit, clock: Date });
    expect(api.ask('alice', 3).verdict).toBe('allow');
  });

  test('a permit that was overslept has expired', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '6s', expire: '1s' } }, clock });
    api.ask('worker');
    clock.advance(1000);
    expect(api.isExpired(0)).toBe(false);
    clock.advance(1);
    expect(api.isExpired(0)).toBe(true);
  });

  test.each([
    ['no options', undefined, /^expected an object with a limit, got nothing$/],
    ['no limit', {}, /expected `limit` to be an object with one key out of bucket, /],
    ['no keys', { limit: bucketLimit, keysMax: 0 }, /`keysMax` to be a whole number of at least 1/],
    ['too many keys', { limit: bucketLimit, keysMax: 1e9 }, /at most 100000000, got 1000000000/],
    ['half a key', { limit: bucketLimit, keysMax: 1.5 }, /`keysMax`.* got 1.5/],
    [
      'a misspelt option',
      { limit: bucketLimit, keyMax: 5 },
      /`keyMax` to be one of limit, queue, keysMax/,
    ],
    ['a clock that is none', { limit: bucketLimit, clock: 5 }, /`clock` to be .*now\(\)/],
    ['chance that is none', { limit: bucketLimit, random: 5 }, /`random` to be a function/],
  ])('refuses %s', (_what, options, message) => {
    expect(() => limiter(options as never)).toThrow(ConfigError);
    expect(() => limiter(options as never)).toThrow(message);
  });

  test.each([
    ['a cost that is no number', (api: Api) => api.ask('a', Number.NaN), /`cost`/],
    ['a negative cost', (api: Api) => api.ask('a', -1), /`cost`.* got -1/],
    ['a cost that is a text', (api: Api) => api.ask('a', '5' as never), /`cost`.* got "5"/],
    ['a cost that is nothing', (api: Api) => api.ask('a', null as never), /`cost`.* got null/],
    ['a result that is none', (api: Api) => api.settle('a', null as never), /`result`/],
    [
      'a misspelt result',
      (api: Api) => api.settle('a', { outcom: 'busy' } as never),
      /`outcom` to be one of outcome/,
    ],
    ['news that are none', (api: Api) => api.hear('a', null as never), /`news`/],
    ['a key that is no text', (api: Api) => api.ask(5 as never), /`key` to be a text, got 5/],
    ['half a token to take', (api: Api) => api.take('a', 0.5), /`most`/],
    ['a negative deposit', (api: Api) => api.give('a', -1), /`unused`/],
    ['hits that are no number', (api: Api) => api.hear('a', { hits: Number.NaN }), /`hits`/],
    ['negative hits', (api: Api) => api.hear('a', { hits: -5 }), /`hits`/],
    ['an empty pool', (api: Api) => api.hear('a', { poolSize: 0 }), /`poolSize`/],
    ['a rank outside', (api: Api) => api.hear('a', { poolSize: 2, rank: 2 }), /`rank`/],
    [
      'an unknown outcome',
      (api: Api) => api.settle('a', { outcome: 'fine' as never }),
      /`outcome`/,
    ],
    ['a time that is none', (api: Api) => api.settle('a', { rttMs: Number.NaN }), /`rttMs`/],
    ['a negative use', (api: Api) => api.settle('a', { used: -1 }), /`used`/],
  ])('refuses %s and loses nothing', (_what, act, message) => {
    const api = limiter({ limit: bucketLimit, clock: new VirtualClock() });
    api.ask('a');
    expect(() => act(api)).toThrow(ConfigError);
    expect(() => act(api)).toThrow(message);
    expect(api.inspect('a').remaining).toBe(2);
  });
});

type Api = ReturnType<typeof limiter>;
