import { expect, test } from 'vitest';
import { LevelFigures, ValueFigures } from './figures.ts';

test('a level counts for the time up to its sample; the first sample only starts the clock', () => {
  const levels = new LevelFigures();
  levels.add(9, 1000);
  levels.add(1, 2000); // one second at 1
  levels.add(3, 5000); // three seconds at 3
  levels.add(7, 5000); // no time at 7
  expect(levels.figures()).toEqual({ min: 1, max: 3, mode: 3, mean: 10 / 4 });
});

test('of two levels that lasted equally long the higher is the mode', () => {
  const levels = new LevelFigures();
  for (const [level, at] of [
    [0, 0],
    [5, 1000],
    [2, 2000],
  ] as const) {
    levels.add(level, at);
  }
  expect(levels.figures().mode).toBe(5);
});

test('equally long is equally long, in whatever pieces', () => {
  const levels = new LevelFigures();
  levels.add(0, 0);
  for (let n = 1; n <= 10; n++) levels.add(9, n * 100); // ten tenths of a second
  levels.add(3, 2000); // and a whole one
  expect(levels.figures().mode).toBe(9);
});

test('spans are weighted by time, but every sample but the first counts for the extremes', () => {
  const spans = new ValueFigures();
  spans.add(100, 0);
  spans.add(2, 1000);
  spans.add(8, 1000); // no time, but it was seen
  spans.add(4, 4000);
  expect(spans.figures()).toMatchObject({ min: 2, max: 8, mean: (2 + 4 * 3) / 4 });
});
