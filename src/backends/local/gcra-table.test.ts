import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/index.ts';
import { GcraTable } from './gcra-table.ts';

const SECOND = 1000;

function setUp(maxKeys = 1000, now = 1_700_000_000_000) {
  const clock = new VirtualClock(now);
  const hasher = createHasher([1, 2]);
  const table = new GcraTable({ hasher, clock, maxKeys });
  return { clock, hasher, table, check: checker(table) };
}

/** Checks one key: a burst of 4 and one a second. */
const checker =
  (table: GcraTable) =>
  (key: string, quantity = 1): boolean => {
    const bytes = Buffer.from(`<${key}>`);
    table.throttle(bytes, 1, bytes.length - 1, 5, 1, SECOND, quantity);
    return !table.isLimited;
  };

describe('gcra table', () => {
  test('gcra table: keeps keys apart by their bytes', () => {
    const { check, table } = setUp();
    expect([check('a', 5), check('a'), check('b')]).toEqual([true, false, true]);
    expect([table.keys, table.allowed, table.denied]).toEqual([2, 2, 1]);
  });

  test('gcra table: a quantity of 0 is not counted', () => {
    const { check, table } = setUp();
    expect(check('a', 0)).toBe(true);
    expect([table.allowed, table.denied]).toEqual([0, 0]);
  });

  test('gcra table: holds a million a second within a few per mille after a long uptime', () => {
    const { clock, table } = setUp();
    clock.advance(100 * 86_400 * SECOND);
    const key = Buffer.from('k');
    let taken = 0;
    for (let n = 0; n < 2000; n++) {
      table.throttle(key, 0, 1, 1000, 1_000_000, SECOND, 1);
      if (!table.isLimited) taken++;
    }
    expect(taken).toBeGreaterThanOrEqual(995);
    expect(taken).toBeLessThanOrEqual(1005);
  });

  test('gcra table: refuses invalid terms and takes nothing', () => {
    const { table } = setUp();
    const key = Buffer.from('k');
    const throttle = (limit: number, count: number, periodMs: number, quantity: number) =>
      table.throttle(key, 0, 1, limit, count, periodMs, quantity);
    expect([
      throttle(0, 1, 1, 1),
      throttle(1, 0, 1, 1),
      throttle(1, -1, 1, 1),
      throttle(1, 1, 0, 1),
      throttle(1, 1, 1, -1),
      throttle(9e15, 1, 9e18, 1),
    ]).toEqual([false, false, false, false, false, false]);
    expect(table.keys).toBe(0);
  });

  test('gcra table: eviction grants no fresh burst', () => {
    const { check, table } = setUp(100);
    check('alice', 5);
    for (let n = 0; n < 10_000; n++) check(`flood ${n}`, 1);
    expect(table.keys).toBeLessThanOrEqual(100);
    expect(table.evicted).toBeGreaterThan(0);
    expect(check('alice')).toBe(false);
  });

  test('gcra table: restores in a successor with another origin of time', () => {
    const { check, table, hasher, clock } = setUp();
    check('alice', 5);
    check('bob', 1);
    const copy = table.snapshot();
    clock.advance(2 * SECOND);
    const successor = new GcraTable({ hasher, clock });
    successor.restore(copy);
    const stands = (key: string): number[] => {
      checker(successor)(key, 0);
      return [successor.remaining, successor.resetAfterMs];
    };
    expect([stands('alice'), stands('bob')]).toEqual([
      [2, 3000],
      [5, 0],
    ]);
  });
});
