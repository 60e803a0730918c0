import { describe, expect, test } from 'vitest';
import { COMPARED_MAX, Comparison, Lately } from './recent-keys.ts';

/** How far a node moves that asked when it stood at `before`, and stands at `now` when this comes. */
function movedBy(
  { before, now, there }: { before: number; now: number; there: number },
  meanwhile: (comparison: Comparison) => void = () => {},
  heardUpTo = 7,
): number[] {
  const comparison = new Comparison(1, 2, 7);
  comparison.add(5, 1, 2, before);
  meanwhile(comparison);
  const moves: number[] = [];
  const answer = [5, 1, 2, there];
  comparison.moves(
    answer,
    heardUpTo,
    () => now,
    (_limit, _low, _high, by) => moves.push(by),
  );
  return moves;
}

describe('two nodes that compare how they stand', () => {
  test('the one that asked goes half of the way', () => {
    expect(movedBy({ before: 90, now: 90, there: 94 })).toEqual([2]);
    expect(movedBy({ before: 94, now: 94, there: 90 })).toEqual([-2]);
  });

  test('what others told meanwhile is no difference: half of it had come when it was answered', () => {
    expect(movedBy({ before: 90, now: 94, there: 92 })).toEqual([]);
  });

  test('a burst in just that moment says nothing, and what is seen beyond it counts', () => {
    expect(movedBy({ before: 0, now: 100, there: 99 })).toEqual([]);
    expect(movedBy({ before: 0, now: 100, there: 1 })).toEqual([]);
    expect(movedBy({ before: 0, now: 100, there: 104 })).toEqual([2]);
  });

  test('nor is what the two of them served and the other could not know', () => {
    const own = (comparison: Comparison): void => comparison.told(8, [5, 1, 2, 3]);
    expect(movedBy({ before: 90, now: 93, there: 90 }, own)).toEqual([]);
    expect(movedBy({ before: 90, now: 93, there: 93 }, own, 8)).toEqual([]);
    const theirs = (comparison: Comparison): void => comparison.heard([5, 1, 2, 4, 5, 9, 9, 1]);
    expect(movedBy({ before: 90, now: 94, there: 94 }, theirs)).toEqual([]);
    expect(movedBy({ before: 90, now: 93, there: 94 }, own)).toEqual([2]);
    expect(movedBy({ before: 90, now: 93, there: 97 }, own, 8)).toEqual([2]);
    expect(movedBy({ before: 90, now: 94, there: 98 }, theirs)).toEqual([2]);
  });

  test('nobody moves by an answer from before its reports were counted, or for a key that is as good as new', () => {
    expect(movedBy({ before: 90, now: 90, there: 94 }, undefined, 6)).toEqual([]);
    expect(movedBy({ before: 90, now: 0, there: 94 })).toEqual([]);
  });
});

describe('what was served lately', () => {
  test('is each key once, by limit, and then nothing', () => {
    const lately = new Lately();
    lately.note([9, 1, 2, 5]);
    lately.note([3, 1, 2, 1]);
    lately.note([9, 1, 2, 8]);
    expect(lately.take()).toEqual([3, 1, 2, 1, 9, 1, 2, 1]);
    expect(lately.isEmpty).toBe(true);
  });

  test('is never more than is compared', () => {
    const lately = new Lately();
    for (let n = 0; n < 1000; n++) lately.note([1, n, n, 1]);
    expect(lately.take()).toHaveLength(COMPARED_MAX * 4);
  });
});
