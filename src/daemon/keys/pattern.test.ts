import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { toBinaryKey } from './binary-key.ts';
import { bestMatch, MATCH_ALL, readPattern, readPatterns } from './pattern.ts';

const matches = (pattern: unknown, key: string): boolean =>
  readPattern(pattern, 'match').matches(toBinaryKey(key));

describe('pattern', () => {
  test.each([
    ['alice', 'alice', true],
    ['alice', 'alice2', false],
    ['ip:*', 'ip:10.0.0.1', true],
    ['ip:*', 'ip:', true],
    ['ip:*', 'xip:1', false],
    ['*.example.org', 'a.b.example.org', true],
    ['user-?', 'user-1', true],
    ['user-?', 'user-12', false],
    ['user-?', 'user-ä', true],
    ['a*b*c', 'aXbYbZc', true],
    ['a*b*c', 'aXcYb', false],
    [{ exact: 'a*b' }, 'a*b', true],
    [{ exact: 'a*b' }, 'aXb', false],
    [{ prefix: 'a*' }, 'a*b', true],
    [{ prefix: 'a*' }, 'ab', false],
    [{ prefix: 'grün' }, 'grüner', true],
    [{ glob: 'x' }, 'x', true],
    [{ regex: 'user-[0-9]+' }, 'user-12', true],
    [{ regex: 'user-[0-9]+' }, 'my user-12', false],
    [{ regex: 'ä+' }, 'ää', true],
    ['*', '', true],
  ])('%j matches %j: %j', (pattern, key, expected) => {
    expect(matches(pattern, key)).toBe(expected);
  });

  test.each([
    [7, /`match` to be a key, a glob/],
    [{}, /`match` to be a key, a glob/],
    [{ prefix: 'a', glob: 'b' }, /`match` to be a key, a glob/],
    [{ suffix: 'a' }, /`match` to be a key, a glob/],
    [{ prefix: '' }, /`match\.prefix` to be a string of at least one character/],
    [{ regex: '(?=a)' }, /`match\.regex` to be a regular expression \(.*\), got "\(\?=a\)"/],
    ['x'.repeat(1001), /`match` to be at most 1000 characters/],
  ])('%j: is refused', (pattern, message) => {
    expect(() => readPattern(pattern, 'match')).toThrow(message);
  });

  test('expressions that make backtracking engines hang: take linear time', () => {
    const long = 'a'.repeat(4096);
    expect(matches({ regex: '(a+)+b' }, long)).toBe(false);
    expect(matches({ regex: '(a|aa)+$' }, `${long}b`)).toBe(false);
    expect(matches('*a*a*a*a*a*a*a*a*b', long)).toBe(false);
  });

  test('glob: matches like the equivalent regular expression', () => {
    const letters = fc.constantFrom('a', 'b', '*', '?');
    const glob = fc.array(letters, { maxLength: 8 }).map((parts) => parts.join(''));
    const key = fc
      .array(fc.constantFrom('a', 'b', 'c'), { maxLength: 10 })
      .map((parts) => parts.join(''));
    fc.assert(
      fc.property(glob, key, (pattern, text) => {
        fc.pre(pattern !== '');
        const source = pattern.replaceAll('*', '.*').replaceAll('?', '.');
        expect(matches({ glob: pattern }, text)).toBe(new RegExp(`^${source}$`).test(text));
      }),
    );
  });
});

describe('pattern precedence', () => {
  const written = [
    '*',
    { regex: 'ip:.*' },
    'ip:*',
    { prefix: 'ip:10.' },
    'ip:10.?.0.1',
    'ip:10.0.0.1',
  ];
  const patterns = readPatterns(written, 'match');
  const best = (key: string): string | undefined => bestMatch(patterns, toBinaryKey(key))?.text;

  test.each([
    ['ip:10.0.0.1', 'ip:10.0.0.1'],
    ['ip:10.9.0.1', 'ip:10.?.0.1'],
    ['ip:10.77.0.2', 'ip:10.*'],
    ['ip:1.1.1.1', 'ip:*'],
    ['alice', '*'],
  ])('key %s: %s is the most specific', (key, expected) => {
    expect(best(key)).toBe(expected);
  });

  test('regular expression: before *, after patterns with literal characters', () => {
    const both = readPatterns([{ regex: '.*' }, '*', 'a*'], 'match');
    expect(bestMatch(both, 'b')?.text).toBe('/.*/');
    expect(bestMatch(both, 'ab')?.text).toBe('a*');
  });

  test('equally specific: the first in the list wins', () => {
    const both = readPatterns(['a*', '*b'], 'match');
    expect(bestMatch(both, 'ab')?.text).toBe('a*');
  });

  test('no pattern matches: returns undefined', () => {
    expect(bestMatch([], 'a')).toBeUndefined();
    expect(MATCH_ALL.matches('')).toBe(true);
  });
});
