import { describe, expect, test } from 'vitest';
import { MAX_AMOUNT } from '../../core/options.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { type SharedLevels, sharedLevelsOf } from './shared-levels.ts';

describe('bucket levels', () => {
  /** The first bucket fills fast and is small, the second fills slowly and is large. */
  const limit = { all: [{ bucket: { rate: 10, burst: 10 } }, { bucket: { rate: 1, burst: 60 } }] };
  const policy = createPolicy(limit, seededRandom(1));
  const levels = sharedLevelsOf(policy) as SharedLevels;

  /** Both buckets after `hits` at an instant. */
  function bothAfter(hits: number, at: number) {
    const state = new Float64Array(policy.width);
    policy.init(state, 0, at);
    policy.update(state, 0, { hits }, at);
    return {
      levelAt: (now: number) => levels.level(state, 0, now),
      timesToFullAt: (now: number) => levels.timesToFull(state, 0, now),
      raiseAt: (now: number, times: readonly number[], hits: number) =>
        levels.raise(state, 0, now, times, hits),
    };
  }

  test('bucket levels: the bucket with the least left binds, expressed in tokens of the largest', () => {
    expect(bothAfter(6, 0).levelAt(0)).toBe(56); // the small bucket has 4 units left
    expect(bothAfter(7, 0).levelAt(0)).toBe(57);
    expect(bothAfter(6, 0).levelAt(500)).toBe(51);
    expect(bothAfter(60, 0).levelAt(6_000)).toBe(54); // the small one is full, the large one has 6 left
    expect(bothAfter(6, 1_000).levelAt(400)).toBe(56); // time that goes backwards stands still
  });

  test('bucket levels: each bucket has its own time to full', () => {
    expect(bothAfter(6, 0).timesToFullAt(0)).toEqual([600, 6_000]);
    expect(bothAfter(6, 0).timesToFullAt(500)).toEqual([100, 5_500]);
    expect(bothAfter(6, 0).timesToFullAt(700)).toEqual([0, 5_300]);
    expect(bothAfter(6, 1_000).timesToFullAt(400)).toEqual([600, 6_000]);
  });

  test('bucket levels: raising to a peer never fills a bucket sooner than the peer or than before', () => {
    const both = bothAfter(6, 0);
    both.raiseAt(500, [300, 300], 1);
    expect(both.timesToFullAt(500)).toEqual([400, 5_500]); // 300 ms, and one pending hit
  });

  test.each([
    [{ bucket: { rate: 2000, burst: 10, maxDebt: 5 } }, -5],
    [{ bucket: { rate: 2000, burst: 10 } }, -MAX_AMOUNT],
  ])(
    'bucket levels: a peer that reports an absurd time to full causes a bounded debt',
    (limit, remaining) => {
      const policy = createPolicy(limit, seededRandom(1));
      const state = new Float64Array(policy.width);
      policy.init(state, 0, 0);
      sharedLevelsOf(policy)?.raise(state, 0, 0, [Number.MAX_VALUE], 0);
      expect(policy.keyState(state, 0, 0).remaining).toBe(remaining);
    },
  );
});
