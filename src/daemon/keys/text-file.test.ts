import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { readPatterns } from './pattern.ts';
import { lineReader } from './text-file.ts';

const place = createTempDir();
afterAll(() => place.remove());

const read = (value: unknown) => readPatterns(value, 'deny', lineReader(place.path));

describe('pattern file', () => {
  test('a list with a file: has the patterns of its lines, without comments and empty lines', () => {
    place.file(
      'blocked.txt',
      '# since March\n10.0.0.0/8   # a network\r\n\n  mallory \na#b\nbot-*\t# a glob\n#last',
    );
    const texts = read(['first', { file: 'blocked.txt' }, 'last']).map(({ text }) => text);
    expect(texts).toEqual(['first', '10.0.0.0/8', 'mallory', 'a#b', 'bot-*', 'last']);
  });

  test('a prefix: stands before each line', () => {
    place.file('addresses.txt', '10.0.0.0/8\n192.0.2.1\n');
    const [network, address] = read({ file: 'addresses.txt', prefix: 'ip:' });
    expect(network.matches('ip:10.7.7.7')).toBe(true);
    expect(address.exactKey).toBe('ip:192.0.2.1');
  });

  test('a line with a mistake: the error names file, line and how many others there are', () => {
    place.file('bad.txt', 'fine\n10.1.2.3/8\n10.0.0.0/99\n');
    expect(() => read([{ file: 'bad.txt' }])).toThrow(
      'expected `deny[0].file` to be a file with one entry a line, got "bad.txt"; ' +
        'bad.txt:2: expected a network without host bits: "10.0.0.0/8", got "10.1.2.3/8"; and 1 more lines',
    );
  });

  test('a file that is missing, no file, too large or misspelt: is an error', () => {
    mkdirSync(join(place.path, 'folder'));
    place.file('many.txt', 'x\n'.repeat(500_001));
    place.file('large.txt', 'x'.repeat(16 * 1024 * 1024 + 1));
    expect(() => read({ file: 'none.txt' })).toThrow('a file that can be read (ENOENT');
    expect(() => read({ file: 'folder' })).toThrow('(not a regular file)');
    expect(() => read({ file: '/dev/zero' })).toThrow('(not a regular file)');
    expect(() => read({ file: 'many.txt' })).toThrow('at most 500000 lines');
    expect(() => read({ file: 'large.txt' })).toThrow('(more than 16777216 bytes)');
    expect(() => read({ file: 'none.txt', glob: 'x' })).toThrow('`deny.glob`');
    expect(() => read({ file: 7 })).toThrow('`deny.file` to be a file name, got 7');
  });
});
