import { describe, expect, test } from 'vitest';
import { positionOf, roundAxisEnd, ticksOf } from './chart.ts';
import { formatDuration, formatPercent, formatShort, roundFloat, roundTo } from './format.ts';

const linear = { label: 's', from: 0, to: 10 };
const log = { label: 'calls/s', from: 0, to: 5000, scale: 'log' } as const;

describe('chart axis', () => {
  test('maps its range to positions from 0 to 1 and clamps values outside', () => {
    expect([0, 5, 10, -3, 99].map((value) => positionOf(value, linear))).toEqual([0, 0.5, 1, 0, 1]);
  });

  test('log scale: contains 0 and gives every power of ten the same width', () => {
    expect(positionOf(0, log)).toBe(0);
    expect(positionOf(5000, log)).toBe(1);
    const [ten, hundred, thousand] = [10, 100, 1000].map((value) => positionOf(value, log));
    expect(hundred - ten).toBeCloseTo(thousand - hundred, 1);
  });

  test('of length 0 puts every value at its start', () => {
    expect(positionOf(3, { label: '', from: 3, to: 3 })).toBe(0);
    expect(ticksOf({ label: '', from: 3, to: 3 }, 5)).toEqual([3]);
  });

  test('ticks are round values, at most as many as requested', () => {
    expect(ticksOf(linear, 6)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticksOf(linear, 3)).toEqual([0, 5, 10]);
    expect(ticksOf({ label: 's', from: 1, to: 32 }, 8)).toEqual([5, 10, 15, 20, 25, 30]);
    expect(ticksOf({ label: 's', from: 0, to: 0.4 }, 5)).toEqual([0, 0.1, 0.2, 0.3, 0.4]);
    expect(ticksOf(log, 6)).toEqual([0, 1, 10, 100, 1000, 5000]);
    expect(ticksOf(log, 3)).toEqual([0, 10, 1000]);
  });

  test('ends at a round value above the highest', () => {
    expect([0, 7, 110, 5000, 5001, 0.35].map((top) => roundAxisEnd([0, top]))).toEqual([
      1, 7, 120, 5000, 6000, 0.35,
    ]);
  });

  test('labels are short', () => {
    expect([0, 0.25, 120, 5000, 20_000, 3_000_000].map(formatShort)).toEqual([
      '0',
      '0.25',
      '120',
      '5000',
      '20k',
      '3M',
    ]);
  });
});

describe('number formats', () => {
  test('rounding removes floating-point noise and keeps integers', () => {
    expect([0.1 + 0.2, 2 ** 53].map(roundFloat)).toEqual([0.3, 2 ** 53]);
    expect([roundTo(22.857, 2), roundTo(1.45, 1), roundTo(-0.26, 1)]).toEqual([22.86, 1.5, -0.3]);
  });

  test('percentages and durations have units', () => {
    expect([formatPercent(0.125, 1), formatPercent(1, 0)]).toEqual(['12.5 %', '100 %']);
    expect([0, 12.345, 999, 7500, 60_000].map(formatDuration)).toEqual([
      '0 ms',
      '12.3 ms',
      '999 ms',
      '7.5 s',
      '60 s',
    ]);
  });
});
