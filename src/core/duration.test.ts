import { describe, expect, test } from 'vitest';
import { DURATIONS, RATES } from '../../test/support/duration-spellings.ts';
import { parseDuration, parseRate, suggestDuration, suggestRate } from './duration.ts';

test('every documented spelling is accepted', () => {
  expect(DURATIONS.length).toBeGreaterThan(80);
  expect(DURATIONS.filter((text) => parseDuration(text) === undefined)).toEqual([]);
  expect(RATES.filter((text) => parseRate(text) === undefined)).toEqual([]);
});

describe('parseDuration', () => {
  test.each([
    ['6s', 6_000],
    ['1.5s', 1_500],
    ['250ms', 250],
    ['2m', 120_000],
    ['1h', 3_600_000],
    ['1d', 86_400_000],
    ['500us', 0.5],
    ['.5s', 500],
    ['0s', 0],
    [' 6 s ', 6_000],
    ['100ms', 100],
    ['100msec', 100],
    ['30sec', 30_000],
    ['30 seconds', 30_000],
    ['1second', 1_000],
    ['1min', 60_000],
    ['5minutes', 300_000],
    ['1hr', 3_600_000],
    ['2hours', 7_200_000],
    ['1day', 86_400_000],
    [1_234, 1_234],
    [0.25, 0.25],
    [-5, -5], // the caller checks the range
  ])('%j is %d ms', (value, ms) => {
    expect(parseDuration(value)).toBeCloseTo(ms, 9);
  });

  test.for([
    [
      '',
      '6',
      's',
      '6x',
      '6sek',
      '1month',
      '6S',
      '6Sec',
      '-6s',
      '+6s',
      '1e3ms',
      '1_000ms',
      '6s7s',
      '1.s',
      '1,5s',
      '6s\n5',
    ],
    [Number.NaN, Infinity, -Infinity],
    [null, undefined, true, [], ['6s'], {}, 6n],
  ])('refuses %j', (values) => {
    for (const value of values) expect(parseDuration(value), String(value)).toBeUndefined();
  });
});

describe('parseRate', () => {
  test.each([
    ['100/s', 100, 1_000],
    ['500/m', 500, 60_000],
    ['1/6s', 1, 6_000],
    ['5/100ms', 5, 100],
    ['1.5/h', 1.5, 3_600_000],
    ['7/d', 7, 86_400_000],
    ['.5/.5s', 0.5, 500],
    [' 3 / 2 s ', 3, 2_000],
    ['2/10us', 2, 0.01],
    ['10/sec', 10, 1_000],
    ['10/second', 10, 1_000],
    ['10/min', 10, 60_000],
    ['10/minute', 10, 60_000],
    ['10/hour', 10, 3_600_000],
    ['5/day', 5, 86_400_000],
    ['1/30secs', 1, 30_000],
    [100, 100, 1_000],
    [0.1, 0.1, 1_000],
  ])('%j is %d in %d ms', (value, count, periodMs) => {
    const rate = parseRate(value);
    expect(rate?.count).toBe(count);
    expect(rate?.periodMs).toBeCloseTo(periodMs, 9);
  });

  test.for([
    ['', '100', '/s', '100/', '100/x', '100 per s', '-1/s', '1/-1s', '1e3/s', '1/s/s', '100s'],
    [Number.NaN, Infinity, -Infinity],
    [null, undefined, true, [], ['1/s'], {}, 6n],
  ])('refuses %j', (values) => {
    for (const value of values) expect(parseRate(value), String(value)).toBeUndefined();
  });

  test('parses rates of 0 and below: the caller words the error', () => {
    expect(parseRate('0/s')).toEqual({ count: 0, periodMs: 1_000 });
    expect(parseRate('1/0s')).toEqual({ count: 1, periodMs: 0 });
    expect(parseRate(-5)).toEqual({ count: -5, periodMs: 1_000 });
  });
});

describe('suggestDuration', () => {
  test.each([
    ['6', 'did you mean "6s" or "6ms"?'],
    ['6S', 'did you mean "6s"?'],
    ['2Hours', 'did you mean "2hours"?'],
    ['0s', undefined],
    ['soon', undefined],
    ['1month', undefined],
    [true, undefined],
  ])('%j: %s', (value, hint) => {
    expect(suggestDuration(value)).toBe(hint);
  });
});

describe('suggestRate', () => {
  test.each([
    ['100', 'did you mean "100/s"?'],
    ['100 per s', 'did you mean "100/s"?'],
    ['100 per second', 'did you mean "100/second"?'],
    ['100/S', 'did you mean "100/s"?'],
    ['50 rps', 'did you mean "50/s"?'],
    ['50rpm', 'did you mean "50/min"?'],
    ['0/s', undefined],
    ['fast', undefined],
    [{}, undefined],
  ])('%j: %s', (value, hint) => {
    expect(suggestRate(value)).toBe(hint);
  });
});
