import { describe, expect, test } from 'vitest';
import { ClockOffset } from './clock-offset.ts';

/** A reply received at 1000 after 10 ms: the server's clock was 5000 at some instant of these. */
function observedOnce(): ClockOffset {
  const offset = new ClockOffset();
  offset.observe({ from: 5000, to: 5000 }, 990, 1000);
  return offset;
}

describe('ClockOffset', () => {
  test('gives two bounds, which the next reply narrows', () => {
    const offset = observedOnce();
    expect(offset.boundsAt(1000)).toEqual({ min: 4000, max: 4010 });
    offset.observe({ from: 5104, to: 5104 }, 1098, 1100);
    expect(offset.boundsAt(1100)).toEqual({ min: 4004, max: 4006 });
  });

  test('widens the bounds by the drift while no reply comes', () => {
    const { min, max } = observedOnce().boundsAt(11_000);
    expect(min).toBeCloseTo(3995, 9);
    expect(max).toBeCloseTo(4015, 9);
    expect(observedOnce().lastMin).toBe(4000);
  });

  test('starts again from the last reply if a clock was set', () => {
    const offset = observedOnce();
    offset.observe({ from: 9000, to: 9000 }, 1098, 1100);
    expect(offset.boundsAt(1100)).toEqual({ min: 7900, max: 7902 });
  });

  test('gives the local times at which the server clock may and surely does show an instant', () => {
    const offset = observedOnce();
    const { maybe, surely } = offset.localTimesOf(15_000);
    expect(maybe).toBeLessThan(15_000 - 4010);
    expect(surely).toBeGreaterThan(15_000 - 4000);
    expect(maybe + offset.boundsAt(maybe).max).toBeCloseTo(15_000, 6);
    expect(surely + offset.boundsAt(surely).min).toBeCloseTo(15_000, 6);
  });
});
