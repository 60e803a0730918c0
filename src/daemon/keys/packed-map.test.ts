import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { PackedMap } from './packed-map.ts';

const binaryKey = fc
  .array(fc.constantFrom(0, 1, 97, 98, 255), { maxLength: 6 })
  .map((bytes) => String.fromCharCode(...bytes));

describe('packed map', () => {
  test('random keys: finds the first value of each, here and in a copy for another thread', () => {
    fc.assert(
      fc.property(fc.array(binaryKey, { maxLength: 100 }), binaryKey, (keys, other) => {
        const expected = new Map<string, number>();
        const packed = new PackedMap();
        for (const [n, key] of keys.entries()) {
          packed.add(key, n * 3);
          if (!expected.has(key)) expected.set(key, n * 3);
        }
        const copy = new PackedMap(structuredClone(packed.data));
        for (const map of [packed, copy]) {
          for (const key of [...keys, other]) expect(map.get(key)).toBe(expected.get(key) ?? -1);
          expect(keys.map((_, n) => map.keyAt(n))).toEqual(keys);
          expect(map.size).toBe(keys.length);
        }
      }),
      { numRuns: 300 },
    );
  });

  test('a key with a character of two bytes is not there', () => {
    const packed = new PackedMap();
    packed.add('a', 1);
    expect(packed.get('š')).toBe(-1); // its lower byte is that of `a`
  });
});
