import { describe, expect, test } from 'vitest';
import { LevelComparison, MAX_COMPARED_KEYS, RecentKeys } from './level-comparison.ts';

/** The correction of a node whose level was `before` at the request and is `now` at the reply. */
function movedBy(
  { before, now, there }: { before: number; now: number; there: number },
  meanwhile: (comparison: LevelComparison) => void = () => {},
  receivedSeq = 7,
): number[] {
  const comparison = new LevelComparison(1, 2, 7);
  comparison.add(5, 1, 2, before);
  meanwhile(comparison);
  const moves: number[] = [];
  const reply = [5, 1, 2, there];
  comparison.applyCorrections(
    reply,
    receivedSeq,
    () => now,
    (_limit, _low, _high, by) => moves.push(by),
  );
  return moves;
}

describe('level comparison', () => {
  test('corrects half of the difference', () => {
    expect(movedBy({ before: 90, now: 90, there: 94 })).toEqual([2]);
    expect(movedBy({ before: 94, now: 94, there: 90 })).toEqual([-2]);
  });

  test('assumes that half of the third-party hits came before the reply', () => {
    expect(movedBy({ before: 90, now: 94, there: 92 })).toEqual([]);
  });

  test('ignores a difference that a burst during the request explains, and counts the rest', () => {
    expect(movedBy({ before: 0, now: 100, there: 99 })).toEqual([]);
    expect(movedBy({ before: 0, now: 100, there: 1 })).toEqual([]);
    expect(movedBy({ before: 0, now: 100, there: 104 })).toEqual([2]);
  });

  test('leaves out hits of both nodes that were reported during the request', () => {
    const local = (comparison: LevelComparison): void => comparison.recordReported(8, [5, 1, 2, 3]);
    expect(movedBy({ before: 90, now: 93, there: 90 }, local)).toEqual([]);
    expect(movedBy({ before: 90, now: 93, there: 93 }, local, 8)).toEqual([]);
    const remote = (comparison: LevelComparison): void =>
      comparison.recordReceived([5, 1, 2, 4, 5, 9, 9, 1]);
    expect(movedBy({ before: 90, now: 94, there: 94 }, remote)).toEqual([]);
    expect(movedBy({ before: 90, now: 93, there: 94 }, local)).toEqual([2]);
    expect(movedBy({ before: 90, now: 93, there: 97 }, local, 8)).toEqual([2]);
    expect(movedBy({ before: 90, now: 94, there: 98 }, remote)).toEqual([2]);
  });

  test('ignores a reply that lacks reports from before the request, and a key whose bucket is full', () => {
    expect(movedBy({ before: 90, now: 90, there: 94 }, undefined, 6)).toEqual([]);
    expect(movedBy({ before: 90, now: 0, there: 94 })).toEqual([]);
  });
});

describe('recent keys', () => {
  test('drain returns each key once, grouped by limit, and empties the sample', () => {
    const recentKeys = new RecentKeys();
    recentKeys.sample([9, 1, 2, 5]);
    recentKeys.sample([3, 1, 2, 1]);
    recentKeys.sample([9, 1, 2, 8]);
    expect(recentKeys.drain()).toEqual([3, 1, 2, 1, 9, 1, 2, 1]);
    expect(recentKeys.isEmpty).toBe(true);
  });

  test('are bounded by MAX_COMPARED_KEYS', () => {
    const recentKeys = new RecentKeys();
    for (let n = 0; n < 1000; n++) recentKeys.sample([1, n, n, 1]);
    expect(recentKeys.drain()).toHaveLength(MAX_COMPARED_KEYS * 4);
  });
});
