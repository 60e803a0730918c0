import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Timeline } from './timeline.ts';

test('things happen in time, and at one instant in the order they were arranged', () => {
  const timeline = new Timeline();
  const story: string[] = [];
  const say = (what: string) => () => story.push(`${timeline.now} ${what}`);
  timeline.scheduleAfter(20, say('late'));
  timeline.scheduleAfter(10, say('first'));
  timeline.scheduleAfter(10, say('second'));
  timeline.scheduleAfter(10, () => timeline.scheduleAfter(0, say('third, arranged on the spot')));

  expect(timeline.runNextInstant()).toBe(true);
  expect(story).toEqual(['10 first', '10 second', '10 third, arranged on the spot']);
  expect(timeline.runNextInstant()).toBe(true);
  expect(story.at(-1)).toBe('20 late');
  expect(timeline.runNextInstant()).toBe(false);
});

test('whatever is arranged comes in order', () => {
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
