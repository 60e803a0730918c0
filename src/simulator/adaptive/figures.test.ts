import { expect, test } from 'vitest';
import { LevelFigures, ValueFigures } from './figures.ts';

test('level figures: a level holds for the time before its sample; the first starts the clock', () => {
  const levels = new LevelFigures();
  levels.add(9, 1000);
  levels.add(1, 2000); // one second at 1
  levels.add(3, 5000); // three seconds at 3
  levels.add(7, 5000); // no time at 7
  expect(levels.figures()).toEqual({ min: 1, max: 3, mode: 3, mean: 10 / 4 });
});

test('level figures: the mode of two levels with equal durations is the higher one', () => {
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

test('level figures: durations are equal regardless of the number of samples', () => {
  const levels = new LevelFigures();
  levels.add(0, 0);
  for (let n = 1; n <= 10; n++) levels.add(9, n * 100); // ten tenths of a second
  levels.add(3, 2000); // one whole second
  expect(levels.figures().mode).toBe(9);
});

test('value figures: the mean is weighted by time, minimum and maximum count every sample but the first', () => {
  const spans = new ValueFigures();
  spans.add(100, 0);
  spans.add(2, 1000);
  spans.add(8, 1000); // no time, but a sample
  spans.add(4, 4000);
  expect(spans.figures()).toMatchObject({ min: 2, max: 8, mean: (2 + 4 * 3) / 4 });
});
