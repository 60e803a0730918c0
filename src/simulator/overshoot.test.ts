import { describe, expect, test } from 'vitest';
import { overshootOf } from './overshoot.ts';

describe('overshoot', () => {
  test('calls above the burst, before it is refilled', () => {
    expect(overshootOf([0, 0, 0], 10, 2)).toBe(1);
    expect(overshootOf([0, 0, 100], 10, 2)).toBe(0);
    expect(overshootOf([0, 0, 50], 10, 2)).toBe(0.5);
  });

  test('a rounding error is no call', () => {
    // Each third of a token is rounded, and the sum exceeds the burst by 1e-13.
    const times = Array.from({ length: 1000 }, (_, n) => (n * 1000) / 3);
    expect(overshootOf(times, 3, 1)).toBe(0);
  });
});
