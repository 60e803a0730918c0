import { expect, test } from 'vitest';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { Arrival, Overload } from './overload.ts';
import { OverloadLog } from './overload-log.ts';

function setUp(isOpen = true) {
  const clock = new VirtualClock(0);
  const overload = new Overload(clock, { maxAgeMs: 100, isOpen });
  const lines: string[] = [];
  const log = new OverloadLog(
    (level, message, fields) => lines.push(`${level} ${message} ${JSON.stringify(fields)}`),
    clock,
    overload,
  );
  /** Sheds `count` checks at this instant. */
  const shed = (count: number): void => {
    const now = clock.now();
    overload.begin(1000, 0, new Arrival(overload, now), now);
    for (let n = 0; n < count; n++) overload.countShed(!isOpen);
  };
  return { clock, shed, log, lines };
}

const BEGAN = 'warn overloaded: checks that are too old are shed {"maxAgeMs":100,"fail":"open"}';

test('overload log: one line when checks begin to be shed, one when none was for 5 s', () => {
  const { clock, shed, lines } = setUp();
  for (let n = 0; n < 30; n++) {
    shed(100);
    clock.advance(1000);
  }
  expect(lines).toEqual([BEGAN]);
  clock.advance(3000);
  expect(lines).toHaveLength(1);
  clock.advance(2000);
  expect(lines).toEqual([BEGAN, 'info overload has ended {"shed":3000,"denied":0,"seconds":29}']);
});

test('overload log: overloads that follow each other have one pair of lines a minute', () => {
  const { clock, shed, lines } = setUp();
  for (let n = 0; n < 60; n++) {
    shed(1);
    clock.advance(10_000);
  }
  expect(lines.filter((line) => line === BEGAN)).toHaveLength(10);
  expect(lines).toHaveLength(20);
});

test('overload log: a daemon that stops logs the end, and says how many were denied', () => {
  const { shed, log, lines } = setUp(false);
  log.stop();
  expect(lines).toEqual([]);
  shed(7);
  log.stop();
  expect(lines.map((line) => line.replace(/^.*\{/, '{'))).toEqual([
    '{"maxAgeMs":100,"fail":"closed"}',
    '{"shed":7,"denied":7,"seconds":0.1}',
  ]);
});
