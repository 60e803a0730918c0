import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import type { KeyConverter } from '../../policies/policy.ts';
import { collectSlices, type TableSlices } from '../table-slices.ts';
import { KeyTable, TableMemory } from './table.ts';

const hasher = createHasher([1, 2, 3, 4]);

/** A rule with two numbers: the time until which the key is in use, and a value that a test stores. */
const lifecycle = {
  width: 2,
  init: (state: Float64Array, i: number, now: number, freshAt: number) => {
    state[i] = Math.max(now, freshAt);
    state[i + 1] = 0;
  },
  freshAt: (state: Float64Array, i: number) => state[i],
};

const createTable = (maxKeys = 10_000_000): KeyTable => new KeyTable(lifecycle, hasher, maxKeys);

function put(table: KeyTable, key: string, value: number, until: number, now: number): void {
  const i = table.findOrAdd(key, now);
  table.storage[i] = until;
  table.storage[i + 1] = value;
}

const get = (table: KeyTable, key: string): number | undefined => {
  const i = table.find(key);
  return i < 0 ? undefined : table.storage[i + 1];
};

/** The values of all slices, by the hash of their keys; an entry has `stride` floats. */
function valuesOf(slices: readonly Float64Array[], stride = 3): Map<string, number[]> {
  const found = new Map<string, number[]>();
  for (const slice of slices) {
    const hashes = new Int32Array(slice.buffer);
    for (let at = 0; at < slice.length; at += stride) {
      const id = `${hashes[at * 2]} ${hashes[at * 2 + 1]}`;
      found.set(id, [...(found.get(id) ?? []), slice[at + 2]]);
    }
  }
  return found;
}

const idOf = (key: string): string => {
  hasher.hash(key);
  return `${hasher.low} ${hasher.high}`;
};

describe('key tables that share memory', () => {
  const SHARED_BYTES = 2 ** 23;
  const flood = (table: KeyTable, keys: number): void => {
    for (let n = 0; n < keys; n++) put(table, `key ${n}`, n, 1e9, n);
  };

  test('key tables that share memory: floods of keys stay within it, and each table grows', () => {
    const memory = new TableMemory(SHARED_BYTES);
    const tables = [1, 2, 3].map(() => new KeyTable(lifecycle, hasher, memory));
    for (const table of tables) {
      flood(table, 100_000);
      const bytes = tables.reduce((sum, { storage }) => sum + storage.byteLength, 0);
      expect(bytes).toBeLessThanOrEqual(SHARED_BYTES);
      expect(table.size).toBeGreaterThan(10_000);
      expect(table.evicted).toBe(100_000 - table.size);
    }
    expect(tables.map(({ evicted }) => evicted > 0)).toEqual([false, false, true]);
  });

  test('key table that is detached: others get its memory', () => {
    const memory = new TableMemory(SHARED_BYTES);
    const [first, second] = [1, 2].map(() => new KeyTable(lifecycle, hasher, memory));
    flood(first, 200_000);
    const { size } = first;
    first.detach();
    flood(second, 200_000);
    expect(second.size).toBe(size);
  });

  test('key table with maxKeys of its own: keeps that many, whatever the others take', () => {
    const memory = new TableMemory(0);
    flood(new KeyTable(lifecycle, hasher, memory), 1000);
    const own = createTable(50_000);
    flood(own, 60_000);
    expect(own.size).toBe(50_000);
  });
});

describe('key table', () => {
  test('key table: keeps every key in use while it grows, shrinks and grows again', () => {
    const random = seededRandom(7);
    const table = createTable();
    const expected = new Map<string, { value: number; until: number }>();
    let next = 0;
    for (let now = 0; now < 60_000; now++) {
      // A flood, then few new keys while those of the flood expire, then a flood.
      const isFlood = now < 20_000 || now > 45_000;
      const key = `k${random() < (isFlood ? 0.9 : 0.5) ? next++ : Math.floor(random() * next)}`;
      const until = now + (isFlood ? 15_000 : 200) * random();
      const known = expected.get(key);
      if (known && known.until > now) expect(get(table, key)).toBe(known.value);
      put(table, key, now, until, now);
      expected.set(key, { value: now, until });
    }
    let inUse = 0;
    for (const [key, { value, until }] of expected) {
      if (until <= 60_000) continue;
      inUse++;
      expect([key, get(table, key)]).toEqual([key, value]);
    }
    expect(inUse).toBeGreaterThan(5000);
    expect(table.size).toBeGreaterThanOrEqual(inUse);
  });

  test('key table: keys that are removable before each of their calls stay while they are called', () => {
    let begun = 0;
    const counted = {
      ...lifecycle,
      init: (state: Float64Array, i: number, now: number, freshAt: number) => {
        begun++;
        lifecycle.init(state, i, now, freshAt);
      },
    };
    const table = new KeyTable(counted, hasher, 10_000_000);
    for (let n = 0; n < 100_000; n++) put(table, `k${n % 1000}`, n, n / 200, n / 200);
    expect(begun).toBeLessThan(4000); // some are dropped while the table grows
  });

  test('key table: keys that have been removable for a second are removed', () => {
    const table = createTable();
    for (let n = 0; n < 100_000; n++) put(table, `k${n}`, n, n, n); // one each millisecond
    expect(table.size).toBeLessThan(2000);
    expect(table.bytes).toBeLessThan(200_000);
  });

  test('key table: a flood of keys that are removable at once stays within maxKeys and leaves no debts', () => {
    const table = createTable(500);
    for (let n = 0; n < 100_000; n++) put(table, `k${n}`, n, n / 1000, n / 1000);
    expect(table.size).toBeLessThanOrEqual(500);
    expect(table.evicted).toBe(0);
  });

  test('key table: a new key moves few others, however many there are', () => {
    let looks = 0;
    const counted = {
      ...lifecycle,
      freshAt: (state: Float64Array, i: number) => {
        looks++;
        return state[i];
      },
    };
    const table = new KeyTable(counted, hasher, 10_000_000);
    let most = 0;
    for (let n = 0; n < 250_000; n++) {
      looks = 0;
      put(table, `key-${n}`, n, n < 240_000 ? 1 : Infinity, 0);
      most = Math.max(most, looks);
    }
    // All keys but 10,000 expire, and the table shrinks.
    const peak = table.bytes;
    for (let n = 0; n < 200_000; n++) {
      looks = 0;
      put(table, `late-${n}`, n, 3 + n, 2 + n);
      most = Math.max(most, looks);
    }
    expect(table.bytes).toBeLessThan(peak / 2);
    expect(most).toBeLessThan(2000); // 0.1 ms; it was 209,715 when all keys moved at once
    for (let n = 240_000; n < 250_000; n += 7) expect(get(table, `key-${n}`)).toBe(n);
  });

  test.each([820, 52_429, 52_500, 60_000])(
    'key table: with at most %i keys it evicts one for each more, also while keys are moved',
    (maxKeys) => {
      const table = createTable(maxKeys);
      let largest = 0;
      for (let n = 0; n < 70_000; n++) {
        put(table, `k${n}`, n, 1e6 + n, n);
        largest = Math.max(largest, table.size);
      }
      expect([largest, table.size, table.evicted]).toEqual([maxKeys, maxKeys, 70_000 - maxKeys]);
    },
  );

  test.each([1, 2, 3, 4])(
    'key table: slices that are read between other calls hold each lasting key once, seed %i',
    (seed) => {
      const random = seededRandom(seed);
      const table = createTable();
      const lasting = Array.from({ length: 3000 }, (_, n) => `lasting-${n}`);
      for (const key of lasting) put(table, key, 0, Infinity, 0);
      for (let n = 0; n < 20_000; n++) put(table, `brief-${n}`, 0, 500 * random(), 0);
      const slices: Float64Array[] = [];
      const known = new Map(lasting.map((key) => [key, new Set([0])]));
      let now = 0;
      const reading: TableSlices = table.slices(() => now);
      const isGrowing = seed % 2 === 0;
      for (let slice = reading.next(); !slice.done; slice = reading.next()) {
        slices.push(slice.value);
        // Short-lived keys expire and are removed, which moves others; or the table grows, twice.
        for (let n = 0; n < (isGrowing ? 4000 : 1500); n++) {
          now += isGrowing ? 0.001 : 0.1;
          put(table, `new-${seed}-${now}`, 0, now + (isGrowing ? 1e6 : 20), now);
        }
        for (let n = 0; n < 100; n++) {
          const key = lasting[Math.floor(random() * lasting.length)];
          put(table, key, now, Infinity, now);
          known.get(key)?.add(now);
        }
      }
      const found = valuesOf(slices);
      for (const key of lasting) {
        const values = found.get(idOf(key)) ?? [];
        expect([key, values.length]).toEqual([key, 1]);
        expect(known.get(key)?.has(values[0])).toBe(true);
      }
    },
  );

  test('key table: a snapshot holds what the old block has too, and debts of evicted keys', () => {
    const table = createTable(60_000);
    for (let n = 0; n < 53_000; n++) put(table, `k${n}`, n, Infinity, 0); // moves from 52,428 on
    const { entries, debtUntil } = collectSlices(table.slices(() => 1));
    expect([entries.length, debtUntil]).toEqual([53_000 * 3, undefined]);
    const next = createTable(60_000);
    next.restore({ entries, debtUntil }, 1);
    for (let n = 0; n < 53_000; n += 101) expect(get(next, `k${n}`)).toBe(n);
    expect(next.size).toBe(53_000);
  });
});

/** Another rule with `width` numbers, and its converter: a key that is converted twice has a different value. */
const wider = (width: number) => ({ ...lifecycle, width });
const addMillion: KeyConverter = (state, i, source, j) => {
  state[i] = source[j];
  state[i + 1] = source[j + 1] + 1_000_000;
};

describe('key table: change of the rule', () => {
  test.each([
    ['as many numbers', 2, 1],
    ['as many numbers', 2, 2],
    ['more numbers', 3, 1],
    ['more numbers', 3, 2],
  ])('with %s (%i) every key is converted once, seed %i', (_name, width, seed) => {
    const random = seededRandom(seed);
    const table = createTable(60_000);
    const keys = seed === 2 ? 26_000 : 20_000; // the table grows at 26,214
    const expected = new Map<string, { value: number; until: number }>();
    const write = (key: string, value: number, until: number, now: number): void => {
      put(table, key, value, until, now);
      expected.set(key, { value, until });
    };
    for (let n = 0; n < keys; n++) write(`k${n}`, n, random() < 0.5 ? 400 : 1e9, 0);
    const later: KeyConverter = (state, i, source, j, at) => {
      addMillion(state, i, source, j, at);
      state[i] += 300;
    };
    table.change(wider(width), later, 1);
    for (const [key, { value, until }] of expected)
      expected.set(key, { value: value + 1_000_000, until: until + 300 });
    // Keys are read, written, added and removed while others are converted; with the second seed the table grows, too.
    for (let now = 1; table.moveSlots(2, now / 10); now++) {
      const key = `k${Math.floor(random() * keys)}`;
      const known = expected.get(key);
      if (known && known.until > now / 10)
        expect([key, get(table, key)]).toEqual([key, known.value]);
      if (random() < 0.8) write(`new-${now}`, now, 1e9, now / 10);
      if (random() < 0.1) table.forget(key, now / 10);
      if (table.find(key) < 0) expected.delete(key);
    }
    const found = valuesOf([collectSlices(table.slices(() => 1e8)).entries], 1 + width);
    for (const [key, { value, until }] of expected)
      if (until > 1e8) expect([key, found.get(idOf(key))]).toEqual([key, [value]]);
    expect(found.size).toBeGreaterThan(9000);
  });

  test.each([2, 3])('a snapshot, a scan and an eviction see converted keys, width %i', (width) => {
    const table = createTable(1000);
    for (let n = 0; n < 1000; n++) put(table, `k${n}`, n, 5000 + n, 0);
    const later: KeyConverter = (state, i, source, j, at) => {
      addMillion(state, i, source, j, at);
      state[i] = source[j] + 10_000;
    };
    table.change(wider(width), later, 1);
    const values = [...valuesOf([collectSlices(table.slices(() => 1)).entries], 1 + width)];
    expect(values.every(([, [value]]) => value >= 1_000_000)).toBe(true);
    const scanned: number[] = [];
    table.scan(0, 5000, 1, (_low, _high, i, storage) => scanned.push(storage[i + 1]));
    expect([scanned.length, Math.min(...scanned)]).toEqual([1000, 1_000_000]);
    put(table, 'another', 0, 1e9, 1);
    const { debtUntil } = collectSlices(table.slices(() => 1));
    expect(Math.max(...(debtUntil ?? []))).toBeGreaterThanOrEqual(15_000);
  });

  test('a rule with as many numbers needs no other block of memory', () => {
    const table = createTable();
    for (let n = 0; n < 10_000; n++) put(table, `k${n}`, n, 1e9, 0);
    const { bytes } = table;
    expect(table.createBlock(wider(2))).toBeUndefined();
    table.change(wider(2), addMillion, 1);
    expect([table.bytes, table.isMoving]).toEqual([bytes, true]);
    while (table.moveSlots(100, 1));
    expect([table.bytes, table.isMoving]).toEqual([bytes, false]);
    table.change(wider(3), addMillion, 2);
    expect(table.bytes).toBeGreaterThan(2 * bytes);
  });

  test('a change that follows at once converts each key by both rules', () => {
    const table = createTable();
    for (let n = 0; n < 500; n++) put(table, `k${n}`, n, 1e9, 0);
    table.change(wider(2), addMillion, 1);
    table.moveSlots(300, 1);
    table.change(wider(2), addMillion, 2);
    for (let n = 0; n < 500; n++) expect(get(table, `k${n}`)).toBe(2_000_000 + n);
  });

  test.each([2, 3])('a copy has the keys of both, width %i; the source is as before', (width) => {
    const source = createTable();
    for (let n = 0; n < 500; n++) put(source, `k${n}`, n, 1e9, 0);
    source.change(wider(2), addMillion, 1);
    const copy = new KeyTable(wider(width), hasher, 10_000);
    expect(copy.copyFrom(source, addMillion, 2, false)).toBe(true);
    for (let n = 0; n < 500; n += 2) expect(get(copy, `k${n}`)).toBe(2_000_000 + n);
    while (copy.moveSlots(100, 2));
    for (let n = 0; n < 500; n++) expect(get(copy, `k${n}`)).toBe(2_000_000 + n);
    for (let n = 0; n < 500; n++) expect(get(source, `k${n}`)).toBe(1_000_000 + n);
  });

  test.each([2, 3])('the last copy takes the memory of its source, width %i', (width) => {
    const source = createTable();
    for (let n = 0; n < 500; n++) put(source, `k${n}`, n, 1e9, 0);
    const { storage } = source;
    const copy = new KeyTable(wider(width), hasher, 10_000);
    expect(copy.copyFrom(source, addMillion, 2, true)).toBe(true);
    if (width === 2) expect(copy.storage).toBe(storage);
    expect([source.size, copy.size]).toEqual([0, 500]);
    put(source, 'k7', 7, 1e9, 3); // a call that ends late
    for (let n = 0; n < 500; n++) expect(get(copy, `k${n}`)).toBe(1_000_000 + n);
    expect(get(source, 'k8')).toBeUndefined();
  });
});

/** If the clock hand were in use, it would shrink the table: 290,000 keys would take minutes of probing. */
test.each([150_000, 290_000, 400_000])(
  'restore: %i keys, all are there, without a pause',
  (count) => {
    const table = createTable();
    for (let n = 0; n < count; n++) put(table, `key ${n}`, n, 1e6, 0);
    const next = createTable();
    next.restore(collectSlices(table.slices(() => 0)), 0);
    expect(next.size).toBe(count);
    for (let n = 0; n < count; n += 997) expect(get(next, `key ${n}`)).toBe(n);
  },
  20_000,
);
