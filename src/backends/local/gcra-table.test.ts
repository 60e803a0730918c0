import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/index.ts';
import { GcraTable } from './gcra-table.ts';

const SECOND = 1000;

function setUp(maxKeys = 1000, now = 1_700_000_000_000) {
  const clock = new VirtualClock(now);
  const own = createHasher([1, 2]);
  const gcraTable = new GcraTable({ hasher: own, clock, maxKeys });
  return { clock, own, table: gcraTable, ask: asker(gcraTable) };
}

/** Asks for one key: a burst of 4 and one a second. */
const asker =
  (gcraTable: GcraTable) =>
  (key: string, quantity = 1): boolean => {
    const bytes = Buffer.from(`<${key}>`);
    gcraTable.throttle(bytes, 1, bytes.length - 1, 5, 1, SECOND, quantity);
    return !gcraTable.isLimited;
  };

describe('gcra table', () => {
  test('gcra table: keeps keys apart by their bytes', () => {
    const { ask, table } = setUp();
    expect([ask('a', 5), ask('a'), ask('b')]).toEqual([true, false, true]);
    expect([table.keys, table.allowed, table.denied]).toEqual([2, 2, 1]);
  });

  test('gcra table: a quantity of 0 is not counted', () => {
    const { ask, table } = setUp();
    expect(ask('a', 0)).toBe(true);
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
    const { ask, table } = setUp(100);
    ask('alice', 5);
    for (let n = 0; n < 10_000; n++) ask(`flood ${n}`, 1);
    expect(table.keys).toBeLessThanOrEqual(100);
    expect(table.evicted).toBeGreaterThan(0);
    expect(ask('alice')).toBe(false);
  });

  test('gcra table: restores in a successor with another origin of time', () => {
    const { ask, table, own, clock } = setUp();
    ask('alice', 5);
    ask('bob', 1);
    const copy = table.snapshot();
    clock.advance(2 * SECOND);
    const successor = new GcraTable({ hasher: own, clock });
    successor.restore(copy);
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
