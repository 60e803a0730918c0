import { expect, test } from 'vitest';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import { ClockOffsets } from './clock-offsets.ts';

// Their clock shows a million more than ours. What they send at 0 here, they send at 1,000,000.
const AHEAD_MS = 1_000_000;

test('a clock is known as well as the youngest register that was read', () => {
  const clocks = new ClockOffsets();
  expect(clocks.latestLocalTimeOf('a', AHEAD_MS)).toBe(Infinity);
  clocks.observe('a', AHEAD_MS, 5000); // it was written five seconds ago: who could tell?
  expect(clocks.latestLocalTimeOf('a', AHEAD_MS + 100)).toBeCloseTo(5100, 0);
  clocks.observe('a', AHEAD_MS + 6000, 6003);
  expect(clocks.latestLocalTimeOf('a', AHEAD_MS + 6100)).toBeGreaterThanOrEqual(6103);
  expect(clocks.latestLocalTimeOf('a', AHEAD_MS + 6100)).toBeLessThan(6104);
  clocks.observe('a', AHEAD_MS + 6500, 9000); // an old one tells nothing new
  expect(clocks.latestLocalTimeOf('a', AHEAD_MS + 9000)).toBeLessThan(9006);
  expect(clocks.latestLocalTimeOf('b', AHEAD_MS)).toBe(Infinity);
});

test('never promises more than a clock can keep that goes as slowly as it may', () => {
  const clocks = new ClockOffsets();
  const theirs = (ours: number): number => AHEAD_MS + ours * (1 - CLOCK_DRIFT_RATE);
  for (let at = 0; at < 20_000; at += 1000) {
    clocks.observe('a', theirs(at), at + 1);
    for (const laterMs of [0, 10, 5000, 60_000]) {
      expect(clocks.latestLocalTimeOf('a', theirs(at + laterMs))).toBeGreaterThanOrEqual(
        at + laterMs,
      );
    }
  }
});

test('a clock that stood still is believed again after a minute', () => {
  const clocks = new ClockOffsets();
  const SLEPT_MS = 10_000;
  clocks.observe('a', AHEAD_MS, 1);
  for (let at = SLEPT_MS; at < SLEPT_MS + 60_000; at += 1000)
    clocks.observe('a', AHEAD_MS + at - SLEPT_MS, at + 1);
  const at = SLEPT_MS + 61_000;
  clocks.observe('a', AHEAD_MS + at - SLEPT_MS, at + 1);
  expect(clocks.latestLocalTimeOf('a', AHEAD_MS + at - SLEPT_MS)).toBeGreaterThanOrEqual(at);
});

test('of very many, those not heard of for longest are forgotten', () => {
  const clocks = new ClockOffsets();
  for (let n = 0; n < 1000; n++) clocks.observe(`process ${n}`, AHEAD_MS, 1);
  clocks.observe('process 0', AHEAD_MS, 2);
  clocks.observe('one more', AHEAD_MS, 3);
  expect(clocks.latestLocalTimeOf('process 0', AHEAD_MS)).toBeLessThan(Infinity);
  expect(clocks.latestLocalTimeOf('process 1', AHEAD_MS)).toBe(Infinity);
  expect(clocks.latestLocalTimeOf('process 2', AHEAD_MS)).toBeLessThan(Infinity);
});
