import { describe, expect, test } from 'vitest';
import { readParameters, ValidationProblem } from './parameters.ts';

const NAMES = ['limit', 'key'];

const read = (text: string) => readParameters(text, 0, NAMES);
const problemOf = (text: string): string => {
  const problem = read(text);
  return problem instanceof ValidationProblem ? problem.detail : `no problem in ${text}`;
};

describe('parameters', () => {
  test('any order, from an offset: returns values in the order of the names', () => {
    expect(readParameters('/check?key=alice&limit=api', 7, NAMES)).toEqual(['api', 'alice']);
    expect(read('')).toEqual([undefined, undefined]);
    expect(read('&&key=a&')).toEqual([undefined, 'a']);
    expect(read('key')).toEqual([undefined, '']);
    expect(read('key=a=b')).toEqual([undefined, 'a=b']);
  });

  test('percent-encoding: decodes to one character per byte', () => {
    expect(read('key=caf%C3%a9+7%2B1')).toEqual([undefined, 'caf\xc3\xa9 7+1']);
    expect(read('key=%ff%00')).toEqual([undefined, '\xff\0']);
    expect(read('key=caf\xc3\xa9')).toEqual([undefined, 'caf\xc3\xa9']);
  });

  test('invalid, repeated or unknown: returns a problem', () => {
    for (const invalid of ['key=%', 'key=%a', 'key=%zz', 'key=%-1', 'key=%1g', 'key=a%4']) {
      expect(problemOf(invalid)).toMatch(/^expected `key` to be percent-encoded, with .*, got "/);
    }
    expect(problemOf('key=a&key=b')).toBe('expected `key` to be given once, got "b"');
    expect(problemOf('key=&key=a')).toBe('expected `key` to be given once, got "a"');
    expect(problemOf('kye=a')).toBe('expected one of limit, key, got "kye"');
    expect(problemOf('__proto__=a')).toContain('got "__proto__"');
  });
});
