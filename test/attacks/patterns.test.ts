import fc from 'fast-check';
import { expect, test } from 'vitest';
import { toBinaryKey } from '../../src/daemon/keys/binary-key.ts';
import { readPattern } from '../../src/daemon/keys/pattern.ts';

/** The longest key of the default bounds, different each time. */
const longKeys = (text: string): string[] =>
  Array.from({ length: 30 }, (_, n) => text.repeat(4090 / text.length) + n);

test.each([
  ['a long literal after a star', `*${'a'.repeat(500)}b`, 'a'],
  ['a long literal between stars', `*${'ab'.repeat(250)}c*`, 'ab'],
  ['many stars', '*a*a*a*a*a*a*b', 'a'],
])('glob with %s: a key of 4 KB takes less than 3 ms', (_, glob, text) => {
  const pattern = readPattern({ glob }, 'match');
  const times = longKeys(text).map((key) => {
    const startedAt = performance.now();
    expect(pattern.matches(key)).toBe(false);
    return performance.now() - startedAt;
  });
  expect(Math.min(...times)).toBeLessThan(3); // a stall and other processes delay some of them, not all
});

test('glob without ?: decides like a regular expression, for any characters', () => {
  const part = fc.constantFrom('*', 'a', 'ab', 'é', '😀', '.', '\ufffd', '\u{10ffff}');
  const text = (parts: readonly string[]): string => parts.join('');
  const glob = fc.array(part, { minLength: 1, maxLength: 8 }).map(text);
  const key = fc.array(part, { maxLength: 12 }).map(text);
  fc.assert(
    fc.property(glob, key, (pattern, name) => {
      const source = pattern.replaceAll('.', '\\.').replaceAll('*', '.*');
      const expected = new RegExp(`^${source}$`, 'su').test(name);
      expect(readPattern({ glob: pattern }, 'match').matches(toBinaryKey(name))).toBe(expected);
    }),
    { numRuns: 5000 },
  );
});
