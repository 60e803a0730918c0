import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { toBinaryKey } from './binary-key.ts';
import { bestMatch, type Pattern, readPattern } from './pattern.ts';
import { PatternIndex } from './pattern-index.ts';
import { PatternTable } from './pattern-table.ts';

const indexOf = (patterns: readonly Pattern[]): PatternIndex<Pattern> =>
  PatternIndex.of(patterns, (pattern) => pattern);

const patternsOf = (written: readonly unknown[]): Pattern[] =>
  written.map((value, n) => readPattern(value, `match[${n}]`));

/** Counts how many patterns are tried one by one. */
class Tries {
  count = 0;
  readonly counted = (pattern: Pattern): Pattern => ({
    ...pattern,
    matches: (key) => {
      this.count++;
      return pattern.matches(key);
    },
  });
}

describe('pattern index', () => {
  const text = fc.string({
    unit: fc.constantFrom('a', 'b', 'é', '😀', '\ufffd'),
    minLength: 1,
    maxLength: 3,
  });
  const written = fc.oneof(
    text,
    fc
      .tuple(fc.constantFrom('*', '?', ''), text, fc.constantFrom('*', '?', 'a*b'))
      .map((parts) => parts.join('')),
    text.map((prefix) => ({ prefix })),
    text.map((letters) => ({ regex: `${letters}+` })),
    fc.constant('*'),
    fc.constantFrom(
      ...['10.0.0.0/8', '10.1.0.0/16', 'a:10.1.2.3/32', 'a:0.0.0.0/0', '::/0', 'a:2001:db8::/32'],
      ...['10.1.2.3', '10.1.*', 'a:2001:db8:1::/48', '::ffff:0:0/96', 'b-2001:db8::/32'],
    ),
  );
  const bytes = fc.array(fc.constantFrom(...Buffer.from('aaabbé😀\ufffd'), 0xff), { maxLength: 8 });
  const binaryKey = fc.oneof(
    text.map(toBinaryKey),
    fc.constantFrom(
      ...[
        '10.1.2.3',
        'a:10.1.2.3',
        '::ffff:10.1.2.3',
        'a:2001:db8:1::7',
        'b-2001:db8::9',
        '10.9.9.9',
      ],
    ),
    bytes.map((values) => Buffer.from(values).toString('latin1')),
  );

  test('random patterns: finds the same as trying each of them', () => {
    fc.assert(
      fc.property(fc.array(written, { maxLength: 12 }), binaryKey, (values, key) => {
        const patterns = patternsOf(values);
        const best = bestMatch(patterns, key);
        expect(indexOf(patterns).best(key)).toBe(best);
        const copy = PatternTable.from(structuredClone(PatternTable.of(patterns).data));
        const number = copy.best(key);
        expect(number < 0 ? undefined : copy.textAt(number)).toBe(best?.text);
      }),
      { numRuns: 3000 },
    );
  });

  test('thousands of patterns: tries only those whose literal prefix matches', () => {
    const tries = new Tries();
    const thousands = Array.from({ length: 5000 }, (_, n) => [
      `u${n}`,
      `u${n}:*`,
      { prefix: `u${n}/` },
    ]);
    const index = indexOf(patternsOf(thousands.flat()).map(tries.counted));
    expect(index.best('unknown')).toBeUndefined();
    expect(index.best('u4711')?.text).toBe('u4711');
    expect(tries.count).toBe(0);
    expect(index.best('u4711:7')?.text).toBe('u4711:*');
    expect(tries.count).toBe(1);
  });

  test('9,900 globs with several stars: tries only those whose literals occur in a long key', () => {
    const tries = new Tries();
    const globs = Array.from({ length: 3300 }, (_, n) => [
      ...[`*a${n}*b*c*d*`, `user:*a${n}?b*c*`, `*bot-${n}-*`],
    ]);
    const index = indexOf(patternsOf(globs.flat()).map(tries.counted));
    const long = 'a1b2c3d4e5'.repeat(50);
    for (const key of [
      long,
      `user:${long}`,
      `user:${'a'.repeat(495)}`,
      `user:${'é'.repeat(250)}`,
    ]) {
      tries.count = 0;
      index.best(key);
      expect(tries.count, key).toBeLessThan(100);
    }
    expect(index.best(`x bot-3007-y ${long}`)?.text).toBe('*bot-3007-*');
    expect(index.best(`user:a12xb${long}`)?.text).toBe('user:*a12?b*c*');
    expect(index.best(`user:a12${long}`)?.text).toBe('*a12*b*c*d*');
  });

  test('random globs and keys: finds the pattern that trying each one finds', () => {
    const random = seededRandom(7);
    const pick = (from: readonly string[]): string => from[Math.floor(random() * from.length)];
    const textOf = (from: readonly string[], most: number): string =>
      Array.from({ length: 1 + Math.floor(random() * most) }, () => pick(from)).join('');
    const letters = ['a', 'b', 'c', 'é', '🙂', '\ufffd'];
    const pieces = [...letters, '*', '*', '?', 'ab', 'bca'];
    for (let run = 0; run < 20; run++) {
      const texts = new Set(Array.from({ length: 200 }, () => textOf(pieces, 7)));
      const patterns = patternsOf([...texts, { regex: 'a.*b' }]);
      const index = indexOf(patterns);
      for (let n = 0; n < 50; n++) {
        const bytes = Buffer.from(textOf(letters, 9));
        if (random() < 0.3) bytes[Math.floor(random() * bytes.length)] = 0xff;
        const key = bytes.toString('latin1');
        expect(index.best(key)?.text, key).toBe(bestMatch(patterns, key)?.text);
      }
    }
  });

  test('100,000 networks: finds one of them in a few lookups, without a try', () => {
    const networks = Array.from({ length: 100_000 }, (_, n) => {
      const bits = 20 + (n % 5);
      return `ip:${20 + (n >> 15)}.${(n >> 7) & 255}.${(n & 127) << 1}.0/${n & 1 ? 24 : bits > 23 ? bits : 23}`;
    });
    const patterns = patternsOf(networks).map((pattern) => ({
      ...pattern,
      matches: () => {
        throw new Error('tried one by one');
      },
    }));
    const index = indexOf(patterns);
    const lookups = vi.spyOn(Map.prototype, 'get');
    expect(index.best('ip:20.0.2.77')?.text).toBe('ip:20.0.2.0/24');
    expect(index.best('ip:9.9.9.9')).toBeUndefined();
    expect(lookups.mock.calls.length).toBeLessThan(10);
    lookups.mockRestore();
  });
});
