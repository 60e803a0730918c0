/** What a URL asks for, taken apart. */

import { describe, expect, test } from 'vitest';
import { readParameters, ValidationProblem } from './parameters.ts';

const NAMES = ['limit', 'key'];

const read = (text: string) => readParameters(text, 0, NAMES);
const wrong = (text: string): string => {
  const complaint = read(text);
  return complaint instanceof ValidationProblem ? complaint.detail : `no complaint about ${text}`;
};

describe('parameters', () => {
  test('come in any order, from any place on', () => {
    expect(readParameters('/check?key=alice&limit=api', 7, NAMES)).toEqual(['api', 'alice']);
    expect(read('')).toEqual([undefined, undefined]);
    expect(read('&&key=a&')).toEqual([undefined, 'a']);
    expect(read('key')).toEqual([undefined, '']);
    expect(read('key=a=b')).toEqual([undefined, 'a=b']);
  });

  test('are bytes: one character for each', () => {
    expect(read('key=caf%C3%a9+7%2B1')).toEqual([undefined, 'caf\xc3\xa9 7+1']);
    expect(read('key=%ff%00')).toEqual([undefined, '\xff\0']);
    expect(read('key=caf\xc3\xa9')).toEqual([undefined, 'caf\xc3\xa9']);
  });

  test('that make no sense are complained about', () => {
    for (const bad of ['key=%', 'key=%a', 'key=%zz', 'key=%-1', 'key=%1g', 'key=a%4']) {
      expect(wrong(bad)).toMatch(/^expected `key` to be percent-encoded, with .*, got "/);
    }
    expect(wrong('key=a&key=b')).toBe('expected `key` to be given once, got "b"');
    expect(wrong('key=&key=a')).toBe('expected `key` to be given once, got "a"');
    expect(wrong('kye=a')).toBe('expected one of limit, key, got "kye"');
    expect(wrong('__proto__=a')).toContain('got "__proto__"');
  });
});
