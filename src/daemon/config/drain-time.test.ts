import { expect, test } from 'vitest';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { admittingMsOf, scheduleDrainEnd } from './drain-time.ts';

test('drain: ends on time', () => {
  const clock = new VirtualClock();
  const endedAt: number[] = [];
  scheduleDrainEnd(clock, 1000, () => endedAt.push(clock.now()));
  scheduleDrainEnd(clock, 1000, () => endedAt.push(-1))();
  clock.advance(950);
  scheduleDrainEnd(clock, 10, () => endedAt.push(-1))();
  clock.advance(1000);
  expect(endedAt).toEqual([1000]);
  expect(admittingMsOf(1000)).toBe(900);
});

test('drain: after a stall at its end, refusals still have their time to be sent', () => {
  const inner = new VirtualClock();
  const clock = new StallableClock(inner);
  const endedAt: number[] = [];
  scheduleDrainEnd(clock, 1000, () => endedAt.push(clock.now()));
  inner.advance(800);
  clock.stall();
  inner.advance(5000);
  clock.resume();
  clock.fireOverdue();
  expect(endedAt).toEqual([]);
  inner.advance(99);
  expect(endedAt).toEqual([]);
  inner.advance(1);
  expect(endedAt).toEqual([5900]);
});
