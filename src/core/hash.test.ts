import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createHasher, randomHashSeed } from './hash.ts';
import { seededRandom } from './random.ts';

const hashesOf = (keys: readonly string[], seed = 1): bigint[] => {
  const h = createHasher(randomHashSeed(seededRandom(seed)));
  return keys.map((key) => {
    h.hash(key);
    return (BigInt(h.high >>> 0) << 32n) | BigInt(h.low >>> 0);
  });
};

const numbered = (count: number): string[] =>
  Array.from({ length: count }, (_, n) => `user:${n}@example.org`);

describe('the hash of a key', () => {
  test('is the same every time, remembered or not', () => {
    const keys = numbered(5_000);
    const once = hashesOf(keys);
    const twice = hashesOf([...keys, ...keys]);
    expect(twice.slice(0, 5_000)).toEqual(once);
    expect(twice.slice(5_000)).toEqual(once);
  });

  test('differs from process to process', () => {
    expect(hashesOf(['alice'], 1)).not.toEqual(hashesOf(['alice'], 2));
  });

  test('tells half a million similar keys apart', () => {
    const hashes = hashesOf(numbered(500_000));
    expect(new Set(hashes).size).toBe(500_000);
  });

  test('tells keys apart that differ in one character, anywhere', () => {
    const base = 'x'.repeat(33);
    const keys = [base];
    for (let at = 0; at < base.length; at++) {
      for (const other of ['y', 'z', '\0', 'é', '🔑']) {
        keys.push(base.slice(0, at) + other + base.slice(at + 1));
      }
    }
    keys.push(base.slice(1), `${base}x`, `${base}\0`, '', '\0');
    expect(new Set(hashesOf(keys)).size).toBe(keys.length);
  });

  test('spreads keys evenly over the low bits, where a table looks', () => {
    const buckets = new Array<number>(1024).fill(0);
    for (const hash of hashesOf(numbered(102_400))) buckets[Number(hash & 1023n)]++;
    // A hundred to a bucket, give or take six deviations of ten.
    expect(Math.min(...buckets)).toBeGreaterThan(40);
    expect(Math.max(...buckets)).toBeLessThan(160);
  });

  test('is spread as evenly over the high bits', () => {
    const buckets = new Array<number>(1024).fill(0);
    for (const hash of hashesOf(numbered(102_400))) buckets[Number(hash >> 54n)]++;
    expect(Math.min(...buckets)).toBeGreaterThan(40);
    expect(Math.max(...buckets)).toBeLessThan(160);
  });

  test('of bytes is the hash of the text with a character for each byte', () => {
    const h = createHasher(randomHashSeed(seededRandom(3)));
    const bytes = fc.uint8Array({ maxLength: 40 });
    fc.assert(
      fc.property(bytes, fc.nat(5), fc.nat(5), (key, before, after) => {
        const around = new Uint8Array(before + key.length + after).fill(7);
        around.set(key, before);
        h.hash(String.fromCharCode(...key));
        const named = [h.low, h.high];
        h.hashBytes(around, before, before + key.length);
        expect([h.low, h.high]).toEqual(named);
      }),
    );
  });
});
