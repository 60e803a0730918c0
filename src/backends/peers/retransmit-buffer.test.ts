import { describe, expect, test } from 'vitest';
import { RetransmitBuffer } from './retransmit-buffer.ts';

const report = (n: number): Uint8Array => Uint8Array.of(n, n);

const bytesIn = (buffer: RetransmitBuffer, ranges: readonly number[], max: number): Uint8Array[] =>
  buffer.reportsIn(ranges, max).map(({ bytes }) => bytes);

describe('retransmit buffer', () => {
  test('returns the reports of the ranges in order, at most `max`', () => {
    const buffer = new RetransmitBuffer(1000, 1000);
    for (let n = 1; n <= 5; n++) buffer.add(report(n), n);
    expect(bytesIn(buffer, [2, 2, 5, 9], 10)).toEqual([report(2), report(3), report(5)]);
    expect(bytesIn(buffer, [1, 5], 2)).toEqual([report(1), report(2)]);
    expect([buffer.firstSeq, buffer.lastSeq]).toEqual([1, 5]);
  });

  test('evicts reports that are too old, and knows the oldest one left', () => {
    const buffer = new RetransmitBuffer(100, 1000);
    for (let n = 1; n <= 5; n++) buffer.add(report(n), n * 50);
    buffer.evict(251);
    expect(buffer.firstSeq).toBe(4);
    expect(bytesIn(buffer, [1, 9], 10)).toEqual([report(4), report(5)]);
    buffer.evict(10_000);
    expect([buffer.firstSeq, buffer.lastSeq]).toEqual([6, 5]);
    expect(bytesIn(buffer, [1, 9], 10)).toEqual([]);
  });

  test('stays within twice its size while nothing is evicted', () => {
    const buffer = new RetransmitBuffer(1000, 100);
    for (let n = 1; n <= 10_000; n++) buffer.add(report(n), 0);
    expect(buffer.lastSeq).toBe(10_000);
    expect(buffer.lastSeq - buffer.firstSeq).toBeLessThanOrEqual(100);
  });

  test('finds the first report since a time', () => {
    const buffer = new RetransmitBuffer(100, 1000);
    expect(buffer.firstSeqSince(0)).toBe(1);
    for (let n = 1; n <= 5; n++) buffer.add(report(n), n * 50);
    expect([0, 50, 51, 250, 251].map((at) => buffer.firstSeqSince(at))).toEqual([1, 1, 2, 5, 6]);
    buffer.evict(251);
    expect(buffer.firstSeqSince(0)).toBe(4);
    expect(buffer.reportsIn([4, 1], 1)[0].sentAt).toBe(200);
  });

  test('is bounded in bytes, regardless of age', () => {
    const buffer = new RetransmitBuffer(Infinity, 6);
    for (let n = 1; n <= 5; n++) buffer.add(report(n), 0);
    expect(buffer.isOverCapacity).toBe(true);
    buffer.evict(0);
    expect([buffer.firstSeq, buffer.isOverCapacity]).toEqual([3, false]);
  });
});
