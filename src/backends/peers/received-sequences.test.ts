import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ReceivedSequences } from './received-sequences.ts';

describe('received sequences', () => {
  test('accept each report once, in any order', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 30 })), (seqs) => {
        const received = new ReceivedSequences(0);
        const counted = seqs.filter((seq) => received.accept(seq));
        expect(counted.sort((a, b) => a - b)).toEqual([...new Set(seqs)].sort((a, b) => a - b));
      }),
    );
  });

  test('missing reports are known as ranges', () => {
    const received = new ReceivedSequences(5);
    for (const seq of [6, 8, 9, 13]) received.accept(seq);
    expect(received.missingRanges(10)).toEqual([7, 1, 10, 3]);
    expect(received.missingRanges(1)).toEqual([7, 1]);
    received.accept(7);
    expect(received.missingRanges(10)).toEqual([10, 3]);
  });

  test('a heartbeat reveals that the last report is missing', () => {
    const received = new ReceivedSequences(0);
    received.accept(1);
    received.noteHighest(2);
    expect(received.missingRanges(10)).toEqual([2, 1]);
    expect(received.isComplete).toBe(false);
  });

  test('a skipped report counts as lost, and is not accepted later', () => {
    const received = new ReceivedSequences(0);
    for (const seq of [2, 4]) received.accept(seq);
    received.skipTo(3);
    expect(received.lost).toBe(2);
    expect(received.isComplete).toBe(true);
    expect([1, 2, 3, 4].map((seq) => received.accept(seq))).toEqual([false, false, false, false]);
  });

  test('gaps are bounded: the oldest missing reports are skipped', () => {
    const received = new ReceivedSequences(0);
    received.accept(2 ** 52);
    expect(received.lost).toBeGreaterThan(2 ** 52 - 5000);
    expect(received.missingRanges(1000)[1]).toBeLessThan(5000);
  });
});
