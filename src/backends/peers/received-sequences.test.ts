import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Heard } from './received-sequences.ts';

describe('reports that were heard', () => {
  test('count once each, in whatever order they come', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 30 })), (seqs) => {
        const heard = new Heard(0);
        const counted = seqs.filter((seq) => heard.accept(seq));
        expect(counted.sort((a, b) => a - b)).toEqual([...new Set(seqs)].sort((a, b) => a - b));
      }),
    );
  });

  test('those that are missing are known', () => {
    const heard = new Heard(5);
    for (const seq of [6, 8, 9, 13]) heard.accept(seq);
    expect(heard.missing(10)).toEqual([7, 1, 10, 3]);
    expect(heard.missing(1)).toEqual([7, 1]);
    heard.accept(7);
    expect(heard.missing(10)).toEqual([10, 3]);
  });

  test('the last one is missed when a beat tells of it', () => {
    const heard = new Heard(0);
    heard.accept(1);
    heard.noteLast(2);
    expect(heard.missing(10)).toEqual([2, 1]);
    expect(heard.isComplete).toBe(false);
  });

  test('what is given up is counted as lost and does not count when it comes after all', () => {
    const heard = new Heard(0);
    for (const seq of [2, 4]) heard.accept(seq);
    heard.giveUp(3);
    expect(heard.lost).toBe(2);
    expect(heard.isComplete).toBe(true);
    expect([1, 2, 3, 4].map((seq) => heard.accept(seq))).toEqual([false, false, false, false]);
  });

  test('is bounded: far behind, the oldest are given up', () => {
    const heard = new Heard(0);
    heard.accept(2 ** 52);
    expect(heard.lost).toBeGreaterThan(2 ** 52 - 5000);
    expect(heard.missing(1000)[1]).toBeLessThan(5000);
  });
});
