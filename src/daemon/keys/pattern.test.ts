import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { readLimits } from '../config/limits.ts';
import { toBinaryKey } from './binary-key.ts';
import { bestMatch, MATCH_ALL, readPattern, readPatterns } from './pattern.ts';
import type { ReadLines } from './text-file.ts';

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
    ['10.0.0.0/8', '10.255.0.1', true],
    ['10.0.0.0/8', '11.0.0.1', false],
    ['10.0.0.0/8', 'ip:10.0.0.1', false],
    ['10.0.0.0/8', '10.0.0.0/8', false],
    ['ip:10.0.0.0/8', 'ip:10.1.2.3', true],
    ['ip:10.0.0.0/8', '10.1.2.3', false],
    ['ip:10.0.0.0/8', 'ip:::ffff:10.1.2.3', true],
    ['ip:10.0.0.0/8', 'ip:::ffff:a01:203', true],
    ['ip:10.0.0.0/8', 'ip:10.1.2.3:80', false],
    ['ip:10.0.0.0/8', 'ip:10.1.2.3.example', false],
    ['0.0.0.0/0', '203.0.113.9', true],
    ['0.0.0.0/0', '2001:db8::1', false],
    ['::/0', '2001:db8::1', true],
    ['::/0', '203.0.113.9', false],
    ['2001:db8::/32', '2001:db8:ffff::1', true],
    ['2001:db8::/32', '2001:DB8:0:0:0:0:0:1', true],
    ['2001:db8::/32', '2001:db9::1', false],
    ['ip:2001:db8::/33', 'ip:2001:db8:7fff::1', true],
    ['ip:2001:db8::/33', 'ip:2001:db8:8000::1', false],
    ['10.1.2.3/32', '10.1.2.3', true],
    ['c:2001:db8::/32', 'c:2001:db8::1', true],
    ['c:2001:db8::/32', '2001:db8::1', false],
    ['::/0', '7::9', false],
    ['straße 7|10.0.0.0/8', 'straße 7|10.9.9.9', true],
    [{ cidr: 'ip:10.0.0.0/8' }, 'ip:10.1.2.3', true],
    [{ exact: '10.0.0.0/8' }, '10.0.0.0/8', true],
    [{ exact: '10.0.0.0/8' }, '10.1.2.3', false],
    ['files/7', 'files/7', true],
    ['v1.2/3', 'v1.2/3', true],
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
    ['10.1.2.3/8', /`match` to be a network without host bits: "10.0.0.0\/8", got "10.1.2.3\/8"/],
    ['ip:10.1.2.3/31', /without host bits: "ip:10.1.2.2\/31"/],
    ['2001:db8::1/32', /without host bits: "2001:db8::\/32"/],
    ['ip:10.0.0.0/33', /to be a network such as .*, got "ip:10.0.0.0\/33"; write { exact: … }/],
    ['2001:db8::/129', /to be a network such as/],
    ['10.0.0/8', /to be a network such as/],
    ['300.0.0.0/8', /to be a network such as/],
    [{ cidr: '10.0.0.1' }, /`match\.cidr` to be a network such as/],
    [{ cidr: 'alice/8' }, /`match\.cidr` to be a network such as/],
  ])('%j: is refused', (pattern, message) => {
    expect(() => readPattern(pattern, 'match')).toThrow(message);
  });

  test('expressions that make backtracking engines hang: take linear time', () => {
    const long = 'a'.repeat(4096);
    expect(matches({ regex: '(a+)+b' }, long)).toBe(false);
    expect(matches({ regex: '(a|aa)+$' }, `${long}b`)).toBe(false);
    expect(matches('*a*a*a*a*a*a*a*a*b', long)).toBe(false);
  });

  test('more than 100 regular expressions in a list: are refused, with what to write instead', () => {
    const list = (count: number) =>
      Array.from({ length: count }, (_, n) => ({ regex: `bot-${n}.*` }));
    expect(readPatterns([...list(100), 'ip:*', 'alice'], 'deny')).toHaveLength(102);
    expect(() => readPatterns([...list(101), 'ip:*'], 'deny')).toThrow(
      'expected `deny` to be a list with at most 100 regular expressions: write prefixes, globs or networks, of which there may be many, or join expressions with |, got 101',
    );
    const overrides = list(101).map((match) => ({ match, bucket: { rate: '1/s' } }));
    expect(() => readLimits({ api: { bucket: { rate: '1/s' }, overrides } }, 'limits')).toThrow(
      'expected `limits.api.overrides` to be a list with at most 100 regular expressions',
    );
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

  test('networks: after exact keys, before globs, the longest prefix first', () => {
    const both = readPatterns(
      ['ip:10.1.2.*', 'ip:10.0.0.0/8', 'ip:10.1.0.0/16', 'ip:10.1.2.3', 'ip:2001:db8::/32'],
      'match',
    );
    const bestOf = (key: string) => bestMatch(both, key)?.text;
    expect(bestOf('ip:10.1.2.3')).toBe('ip:10.1.2.3');
    expect(bestOf('ip:10.1.2.4')).toBe('ip:10.1.0.0/16');
    expect(bestOf('ip:10.2.2.4')).toBe('ip:10.0.0.0/8');
    expect(bestOf('ip:2001:db8::4')).toBe('ip:2001:db8::/32');
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

describe('pattern: what looks like a network and is none is refused', () => {
  test.each([
    ['ip10.0.0.0/8', 'ip:10.0.0.0/8'],
    ['ip:10.0.0.0/255.0.0.0', 'ip:10.0.0.0/8'],
    ['10.1.2.3/255.255.0.0', '10.1.0.0/16'],
    ['ip:10.0.0.0/8 ', 'ip:10.0.0.0/8'],
    [' 10.0.0.0/8', '10.0.0.0/8'],
    ['10.0.0.0 / 8', '10.0.0.0/8'],
    ['ip2001:db8::/32', 'ip:2001:db8::/32'],
    ['ip2001:db8:0:0:0:0:0:0/32', 'ip:2001:db8::/32'],
  ])('%s: the error names %s', (text, meant) => {
    expect(() => readPattern(text, 'deny[0]')).toThrow(`write "${meant}", or write { exact: … }`);
    expect(readPattern(meant, 'deny[0]').network).toBeDefined();
    expect(readPattern({ exact: text }, 'deny[0]').exactKey).toBe(text);
  });

  test('[2001:db8::]/32: brackets of an IPv6 address are dropped', () => {
    const network = readPattern('[2001:db8::]/32', 'deny[0]');
    expect(network.matches('2001:db8:7::1')).toBe(true);
    expect(network.matches('2001:db9::1')).toBe(false);
  });

  test.each(['10.0.0.0/255.0.255.0', '10.0.0/8', 'ip:10.0.0.0/33'])(
    '%s: a network that cannot be meant',
    (text) => expect(() => readPattern(text, 'key')).toThrow('a network such as'),
  );

  test.each([
    'GET /v1/users/7',
    'order:2001:77/3',
    'cache::dead/12',
    'v1.2.3/4',
    'a/b',
    'x/255.0.0.0',
  ])('%s: a key', (text) => expect(readPattern(text, 'key').exactKey).toBe(text));

  test('a file whose prefix ends with a letter', () => {
    const lines: ReadLines = function* (_file, _path, read) {
      yield;
      return [read('10.0.0.0/8')];
    };
    const read = () => readPatterns({ file: 'nets.txt', prefix: 'ip' }, 'deny', lines);
    expect(read).toThrow('write "ip:10.0.0.0/8"');
  });
});
