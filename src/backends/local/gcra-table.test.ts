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

describe('gcra table: terms chosen by a hostile client', () => {
  /** Takes from new keys with the longest debt that is accepted, until all hash buckets have evicted some. */
  function flood(table: GcraTable, keys: number): number {
    let accepted = 0;
    for (let n = 0; n < keys; n++) {
      const key = Buffer.from(`evil ${n}`);
      for (const days of [10_000_000, 365, 2]) {
        const limit = days * 86_400;
        if (!table.throttle(key, 0, key.length, limit, 1, SECOND, limit)) continue;
        accepted++;
        break;
      }
    }
    return accepted;
  }

  /** How many of 200 fresh keys, at a burst of 16 and 30 a minute, are allowed a call. */
  function freshAllowed(table: GcraTable, round: number): number {
    let allowed = 0;
    for (let n = 0; n < 200; n++) {
      const key = Buffer.from(`fresh ${round} ${n}`);
      table.throttle(key, 0, key.length, 16, 30, 60 * SECOND, 1);
      if (!table.isLimited) allowed++;
      else expect(table.retryAfterMs).toBeLessThanOrEqual(2 * SECOND);
      expect(table.resetAfterMs).toBeLessThanOrEqual(32 * SECOND);
    }
    return allowed;
  }

  test('gcra table: a fresh key owes at most one burst of its own after evictions', () => {
    const { table, clock } = setUp(100_000);
    expect(flood(table, 300_000)).toBe(300_000);
    freshAllowed(table, 1);
    clock.advance(2 * SECOND);
    expect(freshAllowed(table, 1)).toBeGreaterThan(170); // the same keys, one interval later; some were evicted
    clock.advance(2 * 86_400 * SECOND);
    expect(freshAllowed(table, 2)).toBe(200); // the longest debt is over
  });

  test('gcra table: a restart keeps no debt longer than the bound, and none longer than a burst', () => {
    const { table, clock, hasher } = setUp(1000);
    flood(table, 100_000);
    const snapshot = table.snapshot();
    const poisoned = {
      entries: snapshot.entries.map((value, n) => (n % 2 === 1 ? 1e15 : value)),
      debtUntil: snapshot.debtUntil?.map(() => 1e15),
    };
    const next = new GcraTable({ hasher, clock, maxKeys: 1000 });
    next.restore(poisoned);
    freshAllowed(next, 1);
    clock.advance(2 * 86_400 * SECOND);
    expect(freshAllowed(next, 2)).toBe(200);
    const evil = Buffer.from('evil 99999');
    next.throttle(evil, 0, evil.length, 16, 30, 60 * SECOND, 1);
    expect(next.isLimited).toBe(false);
  });

  test('gcra table: an evicted key gets no fresh burst with the same terms', () => {
    const { table, check } = setUp(1000);
    expect(check('a', 5)).toBe(true);
    flood(table, 100_000);
    expect(check('a')).toBe(false);
  });
});
