import { expect, test } from 'vitest';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import { ClockOffsets } from './clock-offsets.ts';

// The remote clock is 1,000,000 ms ahead: local time 0 is remote time 1,000,000.
const AHEAD_MS = 1_000_000;

test('ClockOffsets: the bound is as tight as the youngest register read', () => {
  const offsets = new ClockOffsets();
  expect(offsets.latestLocalTimeOf('a', AHEAD_MS)).toBe(Infinity);
  offsets.observe('a', AHEAD_MS, 5000); // written 5 s ago, which the reader cannot know
  expect(offsets.latestLocalTimeOf('a', AHEAD_MS + 100)).toBeCloseTo(5100, 0);
  offsets.observe('a', AHEAD_MS + 6000, 6003);
  expect(offsets.latestLocalTimeOf('a', AHEAD_MS + 6100)).toBeGreaterThanOrEqual(6103);
  expect(offsets.latestLocalTimeOf('a', AHEAD_MS + 6100)).toBeLessThan(6104);
  offsets.observe('a', AHEAD_MS + 6500, 9000); // an older register does not improve the bound
  expect(offsets.latestLocalTimeOf('a', AHEAD_MS + 9000)).toBeLessThan(9006);
  expect(offsets.latestLocalTimeOf('b', AHEAD_MS)).toBe(Infinity);
});

test('ClockOffsets: the bound holds for a clock at the slowest allowed rate', () => {
  const offsets = new ClockOffsets();
  const remote = (local: number): number => AHEAD_MS + local * (1 - CLOCK_DRIFT_RATE);
  for (let at = 0; at < 20_000; at += 1000) {
    offsets.observe('a', remote(at), at + 1);
    for (const laterMs of [0, 10, 5000, 60_000]) {
      expect(offsets.latestLocalTimeOf('a', remote(at + laterMs))).toBeGreaterThanOrEqual(
        at + laterMs,
      );
    }
  }
});

test('ClockOffsets: the bound recovers within a minute after a clock stood still', () => {
  const offsets = new ClockOffsets();
  const SUSPENDED_MS = 10_000;
  offsets.observe('a', AHEAD_MS, 1);
  for (let at = SUSPENDED_MS; at < SUSPENDED_MS + 60_000; at += 1000)
    offsets.observe('a', AHEAD_MS + at - SUSPENDED_MS, at + 1);
  const at = SUSPENDED_MS + 61_000;
  offsets.observe('a', AHEAD_MS + at - SUSPENDED_MS, at + 1);
  expect(offsets.latestLocalTimeOf('a', AHEAD_MS + at - SUSPENDED_MS)).toBeGreaterThanOrEqual(at);
});

test('ClockOffsets: evicts the least recently seen process', () => {
  const offsets = new ClockOffsets();
  for (let n = 0; n < 1000; n++) offsets.observe(`process ${n}`, AHEAD_MS, 1);
  offsets.observe('process 0', AHEAD_MS, 2);
  offsets.observe('one more', AHEAD_MS, 3);
  expect(offsets.latestLocalTimeOf('process 0', AHEAD_MS)).toBeLessThan(Infinity);
  expect(offsets.latestLocalTimeOf('process 1', AHEAD_MS)).toBe(Infinity);
  expect(offsets.latestLocalTimeOf('process 2', AHEAD_MS)).toBeLessThan(Infinity);
});
