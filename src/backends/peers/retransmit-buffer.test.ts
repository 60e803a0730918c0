import { describe, expect, test } from 'vitest';
import { History } from './retransmit-buffer.ts';

const report = (n: number): Uint8Array => Uint8Array.of(n, n);

const again = (history: History, ranges: readonly number[], most: number): Uint8Array[] =>
  history.again(ranges, most).map(({ bytes }) => bytes);

describe('a history of reports', () => {
  test('gives again what was missed, in order, and no more than asked for', () => {
    const history = new History(1000, 1000);
    for (let n = 1; n <= 5; n++) history.add(report(n), n);
    expect(again(history, [2, 2, 5, 9], 10)).toEqual([report(2), report(3), report(5)]);
    expect(again(history, [1, 5], 2)).toEqual([report(1), report(2)]);
    expect([history.first, history.last]).toEqual([1, 5]);
  });

  test('forgets what is too old, and says what is the oldest', () => {
    const history = new History(100, 1000);
    for (let n = 1; n <= 5; n++) history.add(report(n), n * 50);
    history.forget(251);
    expect(history.first).toBe(4);
    expect(again(history, [1, 9], 10)).toEqual([report(4), report(5)]);
    history.forget(10_000);
    expect([history.first, history.last]).toEqual([6, 5]);
    expect(again(history, [1, 9], 10)).toEqual([]);
  });

  test('knows what was made since', () => {
    const history = new History(100, 1000);
    expect(history.firstSince(0)).toBe(1);
    for (let n = 1; n <= 5; n++) history.add(report(n), n * 50);
    expect([0, 50, 51, 250, 251].map((at) => history.firstSince(at))).toEqual([1, 1, 2, 5, 6]);
    history.forget(251);
    expect(history.firstSince(0)).toBe(4);
    expect(history.again([4, 1], 1)[0].at).toBe(200);
  });

  test('is bounded in bytes, whatever its age', () => {
    const history = new History(Infinity, 6);
    for (let n = 1; n <= 5; n++) history.add(report(n), 0);
    expect(history.isTooLarge).toBe(true);
    history.forget(0);
    expect([history.first, history.isTooLarge]).toEqual([3, false]);
  });
});
