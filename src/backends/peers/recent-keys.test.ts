import { describe, expect, test } from 'vitest';
import { LevelComparison, MAX_COMPARED_KEYS, RecentKeys } from './recent-keys.ts';

/** How far a node moves that asked when it stood at `before`, and stands at `now` when this comes. */
function movedBy(
  { before, now, there }: { before: number; now: number; there: number },
  meanwhile: (comparison: LevelComparison) => void = () => {},
  receivedSeq = 7,
): number[] {
  const comparison = new LevelComparison(1, 2, 7);
  comparison.add(5, 1, 2, before);
  meanwhile(comparison);
  const moves: number[] = [];
  const answer = [5, 1, 2, there];
  comparison.applyCorrections(
    answer,
    receivedSeq,
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
    const own = (comparison: LevelComparison): void => comparison.recordReported(8, [5, 1, 2, 3]);
    expect(movedBy({ before: 90, now: 93, there: 90 }, own)).toEqual([]);
    expect(movedBy({ before: 90, now: 93, there: 93 }, own, 8)).toEqual([]);
    const theirs = (comparison: LevelComparison): void =>
      comparison.recordReceived([5, 1, 2, 4, 5, 9, 9, 1]);
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
    const recentKeys = new RecentKeys();
    recentKeys.sample([9, 1, 2, 5]);
    recentKeys.sample([3, 1, 2, 1]);
    recentKeys.sample([9, 1, 2, 8]);
    expect(recentKeys.drain()).toEqual([3, 1, 2, 1, 9, 1, 2, 1]);
    expect(recentKeys.isEmpty).toBe(true);
  });

  test('is never more than is compared', () => {
    const recentKeys = new RecentKeys();
    for (let n = 0; n < 1000; n++) recentKeys.sample([1, n, n, 1]);
    expect(recentKeys.drain()).toHaveLength(MAX_COMPARED_KEYS * 4);
  });
});
