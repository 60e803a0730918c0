import { describe, expect, test } from 'vitest';
import { parseDuration, parseRate } from './duration.ts';

describe('a duration', () => {
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
    [1_234, 1_234],
    [0.25, 0.25],
    [-5, -5], // whoever asked knows what is too little
  ])('%j is %d ms', (value, ms) => {
    expect(parseDuration(value)).toBeCloseTo(ms, 9);
  });

  test.for([
    ['', '6', 's', '6 sec', '6S', '-6s', '+6s', '1e3ms', '1_000ms', '6s7s', '1.s', '1,5s', '6s\n5'],
    [Number.NaN, Infinity, -Infinity],
    [null, undefined, true, [], ['6s'], {}, 6n],
  ])('these are none: %j', (values) => {
    for (const value of values) expect(parseDuration(value), String(value)).toBeUndefined();
  });
});

describe('a rate', () => {
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
  ])('these are none: %j', (values) => {
    for (const value of values) expect(parseRate(value), String(value)).toBeUndefined();
  });

  test('one that makes no sense is read all the same: whoever asked has the words for it', () => {
    expect(parseRate('0/s')).toEqual({ count: 0, periodMs: 1_000 });
    expect(parseRate('1/0s')).toEqual({ count: 1, periodMs: 0 });
    expect(parseRate(-5)).toEqual({ count: -5, periodMs: 1_000 });
  });
});
