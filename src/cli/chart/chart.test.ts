import { describe, expect, test } from 'vitest';
import { formatShort, positionOf, roundAxisEnd, ticksOf } from './chart.ts';

const linear = { label: 's', from: 0, to: 10 };
const log = { label: 'calls/s', from: 0, to: 5000, scale: 'log' } as const;

describe('an axis', () => {
  test('goes from 0 at its start to 1 at its end, and no further', () => {
    expect([0, 5, 10, -3, 99].map((value) => positionOf(value, linear))).toEqual([0, 0.5, 1, 0, 1]);
  });

  test('that is logarithmic has a place for 0, and the same room for every power of ten', () => {
    expect(positionOf(0, log)).toBe(0);
    expect(positionOf(5000, log)).toBe(1);
    const [ten, hundred, thousand] = [10, 100, 1000].map((value) => positionOf(value, log));
    expect(hundred - ten).toBeCloseTo(thousand - hundred, 1);
  });

  test('of no length puts everything at its start', () => {
    expect(positionOf(3, { label: '', from: 3, to: 3 })).toBe(0);
    expect(ticksOf({ label: '', from: 3, to: 3 }, 5)).toEqual([3]);
  });

  test('is labelled at round values, as many as fit', () => {
    expect(ticksOf(linear, 6)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticksOf(linear, 3)).toEqual([0, 5, 10]);
    expect(ticksOf({ label: 's', from: 1, to: 32 }, 8)).toEqual([5, 10, 15, 20, 25, 30]);
    expect(ticksOf({ label: 's', from: 0, to: 0.4 }, 5)).toEqual([0, 0.1, 0.2, 0.3, 0.4]);
    expect(ticksOf(log, 6)).toEqual([0, 1, 10, 100, 1000, 5000]);
    expect(ticksOf(log, 3)).toEqual([0, 10, 1000]);
  });

  test('ends at a round value with room for the highest', () => {
    expect([0, 7, 110, 5000, 5001, 0.35].map((top) => roundAxisEnd([0, top]))).toEqual([
      1, 7, 120, 5000, 6000, 0.35,
    ]);
  });

  test('has short labels', () => {
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
