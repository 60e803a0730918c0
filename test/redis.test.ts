import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const page = readFileSync('docs/reference/redis.md', 'utf8');

test('docs/reference/redis.md documents every option', () => {
  const source = readFileSync('src/backends/redis/options.ts', 'utf8');
  const [, body = ''] = /export interface RedisOptions \{([\s\S]*?)\n\}/.exec(source) ?? [];
  const options = [...body.matchAll(/^ {2}readonly (\w+)\??:/gm)].map(([, name]) => name);
  expect(options.length).toBeGreaterThan(3);
  expect(options.filter((name) => !page.includes(`| \`${name}\` |`))).toEqual([]);
});
