import { describe, expect, test } from 'vitest';
import { zipf } from '../../../test/support/zipf.ts';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { SpaceSaving } from './space-saving.ts';

const hasher = createHasher([3, 5, 7, 9], 'latin1');

function add(counts: SpaceSaving<string>, key: string): void {
  hasher.hash(key);
  const slot = counts.add(hasher.low, hasher.high);
  if (counts.valueAt(slot) === undefined) counts.setValueAt(slot, key);
}

/** Compares every reported count with the truth. */
function expectWithinError(counts: SpaceSaving<string>, truth: ReadonlyMap<string, number>): void {
  for (const { value, count, error } of counts.top(1000))
    expect(Math.abs(count - (truth.get(value) ?? 0)), value).toBeLessThanOrEqual(error);
}

describe('space-saving', () => {
  test('few keys: every count is exact', () => {
    const counts = new SpaceSaving<string>();
    for (let n = 0; n < 500; n++) for (let hit = 0; hit <= n % 7; hit++) add(counts, `k${n}`);
    const top = counts.top(1000);
    expect(top).toHaveLength(500);
    expect(
      top.every(({ value, count, error }) => error === 0 && count === 1 + (+value.slice(1) % 7)),
    ).toBe(true);
  });

  test.each([1, 2, 3])(
    'Zipf over 100,000 keys, seed %i: the top 10 are the true ones, counts within the error',
    (seed) => {
      const counts = new SpaceSaving<string>();
      const truth = new Map<string, number>();
      const draw = zipf(100_000, seededRandom(seed));
      for (let n = 0; n < 300_000; n++) {
        const key = `client-${draw()}`;
        truth.set(key, (truth.get(key) ?? 0) + 1);
        add(counts, key);
      }
      const expected = [...truth].sort((a, b) => b[1] - a[1]).slice(0, 10);
      expect(counts.top(10).map(({ value }) => value)).toEqual(expected.map(([key]) => key));
      expectWithinError(counts, truth);
      for (const { error } of counts.top(10)) expect(error).toBeLessThan(300_000 / 256);
      expect(counts.total).toBe(300_000);
    },
  );

  test('random streams, merged or not: counts stay within the error, and no frequent key is missing', () => {
    const random = seededRandom(11);
    for (let round = 0; round < 30; round++) {
      const keys = 1 + Math.floor(random() * 3000);
      const skew = 1 + random() * 3;
      const merged = new SpaceSaving<string>();
      const truth = new Map<string, number>();
      for (let part = 0; part < 3; part++) {
        const counts = new SpaceSaving<string>();
        for (let n = 0; n < 4000; n++) {
          const key = `${round}-${Math.floor(random() ** skew * keys)}`;
          truth.set(key, (truth.get(key) ?? 0) + 1);
          add(counts, key);
        }
        merged.merge(counts);
      }
      expectWithinError(merged, truth);
      const found = new Set(merged.top(1000).map(({ value }) => value));
      for (const [key, count] of truth)
        if (count > 12_000 / 64) expect(found.has(key), key).toBe(true);
      expect(merged.total).toBe(12_000);
    }
  });

  test('a frequent key among a million others: is found', () => {
    const counts = new SpaceSaving<string>();
    for (let n = 0; n < 1_000_000; n++) {
      hasher.hash(n % 50 === 0 ? 'often' : `k${n}`);
      const slot = counts.add(hasher.low, hasher.high);
      if (n % 50 === 0) counts.setValueAt(slot, 'often');
    }
    const [first] = counts.top(1);
    expect(first.value).toBe('often');
    expect(first.count).toBeGreaterThanOrEqual(20_000);
    expect(first.count - first.error).toBeLessThanOrEqual(20_000);
  });
});
