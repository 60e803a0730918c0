import { describe, expect, test } from 'vitest';
import { hasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/index.ts';
import { Cells } from './gcra-table.ts';

const SECOND = 1000;

function setUp(keysMax = 1000, now = 1_700_000_000_000) {
  const clock = new VirtualClock(now);
  const own = hasher([1, 2]);
  const cells = new Cells({ hasher: own, clock, keysMax });
  return { clock, own, cells, ask: asker(cells) };
}

/** Asks for one key: a burst of 4 and one a second. */
const asker =
  (cells: Cells) =>
  (key: string, quantity = 1): boolean => {
    const bytes = Buffer.from(`<${key}>`);
    cells.throttle(bytes, 1, bytes.length - 1, 5, 1, SECOND, quantity);
    return !cells.isLimited;
  };

describe('cells', () => {
  test('keep keys apart, and find them by their bytes', () => {
    const { ask, cells } = setUp();
    expect([ask('a', 5), ask('a'), ask('b')]).toEqual([true, false, true]);
    expect([cells.keys, cells.allowed, cells.denied]).toEqual([2, 2, 1]);
  });

  test('do not count who only looks', () => {
    const { ask, cells } = setUp();
    expect(ask('a', 0)).toBe(true);
    expect([cells.allowed, cells.denied]).toEqual([0, 0]);
  });

  test('hold a million a second to a few in a thousand, late in a long life', () => {
    const { clock, cells } = setUp();
    clock.advance(100 * 86_400 * SECOND);
    const key = Buffer.from('k');
    let taken = 0;
    for (let n = 0; n < 2000; n++) {
      cells.throttle(key, 0, 1, 1000, 1_000_000, SECOND, 1);
      if (!cells.isLimited) taken++;
    }
    expect(taken).toBeGreaterThanOrEqual(995);
    expect(taken).toBeLessThanOrEqual(1005);
  });

  test('refuse terms that make no sense, and take nothing', () => {
    const { cells } = setUp();
    const key = Buffer.from('k');
    const throttle = (limit: number, count: number, periodMs: number, quantity: number) =>
      cells.throttle(key, 0, 1, limit, count, periodMs, quantity);
    expect([
      throttle(0, 1, 1, 1),
      throttle(1, 0, 1, 1),
      throttle(1, -1, 1, 1),
      throttle(1, 1, 0, 1),
      throttle(1, 1, 1, -1),
      throttle(9e15, 1, 9e18, 1),
    ]).toEqual([false, false, false, false, false, false]);
    expect(cells.keys).toBe(0);
  });

  test('never give a fresh burst because somebody made room', () => {
    const { ask, cells } = setUp(100);
    ask('alice', 5);
    for (let n = 0; n < 10_000; n++) ask(`flood ${n}`, 1);
    expect(cells.keys).toBeLessThanOrEqual(100);
    expect(cells.evicted).toBeGreaterThan(0);
    expect(ask('alice')).toBe(false);
  });

  test('live on in a successor that was made at another time', () => {
    const { ask, cells, own, clock } = setUp();
    ask('alice', 5);
    ask('bob', 1);
    const copy = cells.copy();
    clock.advance(2 * SECOND);
    const successor = new Cells({ hasher: own, clock });
    successor.takeOver(copy);
    const stands = (key: string): number[] => {
      asker(successor)(key, 0);
      return [successor.remaining, successor.resetAfterMs];
    };
    expect([stands('alice'), stands('bob')]).toEqual([
      [2, 3000],
      [5, 0],
    ]);
  });
});
