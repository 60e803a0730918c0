import { describe, expect, test } from 'vitest';
import { ClockOffset } from './clock-offset.ts';

/** Heard at 1000 on our clock, after 10 ms: theirs was 5000 at some instant of that. */
function heard(): ClockOffset {
  const ahead = new ClockOffset();
  ahead.observe({ from: 5000, to: 5000 }, 990, 1000);
  return ahead;
}

describe('how far a clock is ahead', () => {
  test('is between two bounds, which the next answer narrows', () => {
    const ahead = heard();
    expect(ahead.boundsAt(1000)).toEqual({ min: 4000, max: 4010 });
    ahead.observe({ from: 5104, to: 5104 }, 1098, 1100);
    expect(ahead.boundsAt(1100)).toEqual({ min: 4004, max: 4006 });
  });

  test('is known less and less well while nothing is heard', () => {
    const { min, max } = heard().boundsAt(11_000);
    expect(min).toBeCloseTo(3995, 9);
    expect(max).toBeCloseTo(4015, 9);
    expect(heard().lastMin).toBe(4000);
  });

  test('begins anew if a clock was set', () => {
    const ahead = heard();
    ahead.observe({ from: 9000, to: 9000 }, 1098, 1100);
    expect(ahead.boundsAt(1100)).toEqual({ min: 7900, max: 7902 });
  });

  test('says when theirs will show an instant, by what is left of it then', () => {
    const ahead = heard();
    const { maybe, surely } = ahead.localTimesOf(15_000);
    expect(maybe).toBeLessThan(15_000 - 4010);
    expect(surely).toBeGreaterThan(15_000 - 4000);
    expect(maybe + ahead.boundsAt(maybe).max).toBeCloseTo(15_000, 6);
    expect(surely + ahead.boundsAt(surely).min).toBeCloseTo(15_000, 6);
  });
});
