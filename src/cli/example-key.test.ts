import { expect, test } from 'vitest';
import { readPattern } from '../daemon/keys/pattern.ts';
import { NO_PATTERNS, PatternTable } from '../daemon/keys/pattern-table.ts';
import { exampleKey } from './example-key.ts';

const tableOf = (texts: readonly string[]) =>
  PatternTable.of(texts.map((text) => readPattern(text, 'list')));

const keyFor = (match: readonly unknown[], lists: { allow?: string[]; deny?: string[] } = {}) =>
  exampleKey({
    limits: [
      {
        match: match.map((pattern) => readPattern(pattern, 'match')),
        allow: NO_PATTERNS,
        deny: NO_PATTERNS,
        always: false,
      },
    ],
    unmatched: 'allow',
    allow: tableOf(lists.allow ?? []),
    deny: tableOf(lists.deny ?? []),
  });

test.each([
  ['*', 'alice'],
  ['ip:*', 'ip:192.0.2.1'],
  ['user:*', 'user:alice'],
  ['user:*:orders', 'user:alice:orders'],
  ['shard-??', 'shard-11'],
  ['ip:10.0.*', 'ip:10.0.1'],
  ['job:7', 'job:7'],
  ['ip:10.0.0.0/8', 'ip:10.0.0.0'],
  ['ip:2001:db8::/32', 'ip:2001:db8::'],
  [{ prefix: 'ip:' }, 'ip:192.0.2.1'],
  [{ regex: 'user-[0-9]+' }, 'user-42'],
])('example key: %j is tried with %s', (pattern, key) => {
  expect(keyFor([pattern])).toBe(key);
});

test('example key: a key on a list is not counted, so another one is used', () => {
  expect(keyFor(['*'], { allow: ['alice'] })).toBe('user:alice');
  expect(keyFor(['ip:*', 'user:*'], { deny: ['ip:*'] })).toBe('user:alice');
});

test('example key: a key that a shell or a URL would read otherwise is not used', () => {
  expect(keyFor(["it's", '%s', 'a b', '-n', 'job:7'])).toBe('job:7');
});

test('example key: without a key that matches, alice', () => {
  expect(keyFor([{ regex: 'x{40}' }])).toBe('alice');
});

test('example key: with `unmatched: deny`, one that a limit without always counts', () => {
  const lists = { allow: NO_PATTERNS, deny: NO_PATTERNS };
  const limitOf = (pattern: string, always: boolean) => ({
    match: [readPattern(pattern, 'match')],
    always,
    ...lists,
  });
  const limits = [limitOf('*', true), limitOf('ip:*', false)];
  expect(exampleKey({ limits, unmatched: 'deny', ...lists })).toBe('ip:192.0.2.1');
  expect(exampleKey({ limits, unmatched: 'allow', ...lists })).toBe('alice');
});
