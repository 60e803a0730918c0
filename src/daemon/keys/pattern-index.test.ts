import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { toBinaryKey } from './binary-key.ts';
import { bestMatch, type Pattern, readPattern } from './pattern.ts';
import { PatternIndex } from './pattern-index.ts';

const indexOf = (patterns: readonly Pattern[]): PatternIndex<Pattern> =>
  new PatternIndex(patterns, (own) => own);

const patternsOf = (written: readonly unknown[]): Pattern[] =>
  written.map((own, n) => readPattern(own, `match[${n}]`));

describe('an index of patterns', () => {
  const text = fc.string({
    unit: fc.constantFrom('a', 'b', 'é', '😀', '\ufffd'),
    minLength: 1,
    maxLength: 3,
  });
  const written = fc.oneof(
    text,
    fc
      .tuple(fc.constantFrom('*', '?', ''), text, fc.constantFrom('*', '?', 'a*b'))
      .map((own) => own.join('')),
    text.map((prefix) => ({ prefix })),
    text.map((own) => ({ regex: `${own}+` })),
    fc.constant('*'),
  );
  const bytes = fc.array(fc.constantFrom(...Buffer.from('aaabbé😀\ufffd'), 0xff), { maxLength: 8 });
  const tag = fc.oneof(
    text.map(toBinaryKey),
    bytes.map((own) => Buffer.from(own).toString('latin1')),
  );

  test('finds what trying each of them finds', () => {
    fc.assert(
      fc.property(fc.array(written, { maxLength: 12 }), tag, (own, key) => {
        const patterns = patternsOf(own);
        expect(indexOf(patterns).best(key)).toBe(bestMatch(patterns, key));
      }),
      { numRuns: 3000 },
    );
  });

  test('tries none of thousands that begin otherwise', () => {
    let tries = 0;
    const counted = (own: Pattern): Pattern => ({
      ...own,
      matches: (key) => {
        tries++;
        return own.matches(key);
      },
    });
    const thousands = Array.from({ length: 5000 }, (_, n) => [
      `u${n}`,
      `u${n}:*`,
      { prefix: `u${n}/` },
    ]);
    const index = indexOf(patternsOf(thousands.flat()).map(counted));
    expect(index.best('stranger')).toBeUndefined();
    expect(index.best('u4711')?.text).toBe('u4711');
    expect(tries).toBe(0);
    expect(index.best('u4711:7')?.text).toBe('u4711:*');
    expect(tries).toBe(1);
  });
});
