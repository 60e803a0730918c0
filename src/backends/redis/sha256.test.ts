import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { sha256Base64Url } from './sha256.ts';

const expected = (text: string): string => createHash('sha256').update(text).digest('base64url');

test('sha256Base64Url: the digest of Node, for every length up to three blocks', () => {
  const random = seededRandom(1);
  for (let length = 0; length <= 192; length++) {
    const text = Array.from({ length }, () => String.fromCharCode(random() * 128)).join('');
    expect(sha256Base64Url(text)).toBe(expected(text));
  }
});

test('sha256Base64Url: the digest of Node, for any characters, lone surrogates, and long texts', () => {
  const random = seededRandom(2);
  for (let round = 0; round < 200; round++) {
    const length = Math.floor(random() * 3000);
    const text = Array.from({ length }, () => String.fromCharCode(random() * 65_536)).join('');
    expect(sha256Base64Url(text)).toBe(expected(text));
  }
  expect(sha256Base64Url('x'.repeat(1_000_000))).toBe(expected('x'.repeat(1_000_000)));
  expect(sha256Base64Url('\ud800 😀')).toBe(expected('\ud800 😀'));
});
