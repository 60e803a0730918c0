import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Timeline } from './timeline.ts';

test('timeline: runs callbacks in order of time, and of scheduling within an instant', () => {
  const timeline = new Timeline();
  const log: string[] = [];
  const record = (name: string) => () => log.push(`${timeline.now} ${name}`);
  timeline.scheduleAfter(20, record('late'));
  timeline.scheduleAfter(10, record('first'));
  timeline.scheduleAfter(10, record('second'));
  timeline.scheduleAfter(10, () => timeline.scheduleAfter(0, record('third, scheduled meanwhile')));

  expect(timeline.runNextInstant()).toBe(true);
  expect(log).toEqual(['10 first', '10 second', '10 third, scheduled meanwhile']);
  expect(timeline.runNextInstant()).toBe(true);
  expect(log.at(-1)).toBe('20 late');
  expect(timeline.runNextInstant()).toBe(false);
});

test('timeline: keeps the order for any delays', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(50), { maxLength: 200 }), (spans) => {
      const timeline = new Timeline();
      const done: [at: number, order: number][] = [];
      spans.forEach((span, order) => {
        timeline.scheduleAfter(span, () => done.push([timeline.now, order]));
      });
      while (timeline.runNextInstant());
      const sorted = spans
        .map((span, order): [number, number] => [span, order])
        .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      expect(done).toEqual(sorted);
    }),
  );
});
