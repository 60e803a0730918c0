import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { toBinaryKey } from './binary-key.ts';
import { bestMatch, type Pattern, readPattern } from './pattern.ts';
import { PatternIndex } from './pattern-index.ts';

const indexOf = (patterns: readonly Pattern[]): PatternIndex<Pattern> =>
  new PatternIndex(patterns, (pattern) => pattern);

const patternsOf = (written: readonly unknown[]): Pattern[] =>
  written.map((value, n) => readPattern(value, `match[${n}]`));

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
  );
  const bytes = fc.array(fc.constantFrom(...Buffer.from('aaabbé😀\ufffd'), 0xff), { maxLength: 8 });
  const binaryKey = fc.oneof(
    text.map(toBinaryKey),
    bytes.map((values) => Buffer.from(values).toString('latin1')),
  );

  test('random patterns: finds the same as trying each of them', () => {
    fc.assert(
      fc.property(fc.array(written, { maxLength: 12 }), binaryKey, (values, key) => {
        const patterns = patternsOf(values);
        expect(indexOf(patterns).best(key)).toBe(bestMatch(patterns, key));
      }),
      { numRuns: 3000 },
    );
  });

  test('thousands of patterns: tries only those whose literal prefix matches', () => {
    let tries = 0;
    const counted = (pattern: Pattern): Pattern => ({
      ...pattern,
      matches: (key) => {
        tries++;
        return pattern.matches(key);
      },
    });
    const thousands = Array.from({ length: 5000 }, (_, n) => [
      `u${n}`,
      `u${n}:*`,
      { prefix: `u${n}/` },
    ]);
    const index = indexOf(patternsOf(thousands.flat()).map(counted));
    expect(index.best('unknown')).toBeUndefined();
    expect(index.best('u4711')?.text).toBe('u4711');
    expect(tries).toBe(0);
    expect(index.best('u4711:7')?.text).toBe('u4711:*');
    expect(tries).toBe(1);
  });
});
