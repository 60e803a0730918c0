/** What docs/http.md says is what there is. */

import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import * as http from '../src/adapters/http.ts';

const page = readFileSync('docs/http.md', 'utf8');

test('docs/http.md documents every option', () => {
  const source = readFileSync('src/adapters/http/settings.ts', 'utf8');
  const [, body = ''] = /export interface RequestOptions<\w+> \{([\s\S]*?)\n\}/.exec(source) ?? [];
  const options = [...body.matchAll(/^ {2}readonly (\w+)\??:/gm)].map(([, name]) => name);
  options.push('hook'); // of Fastify alone
  expect(options.length).toBeGreaterThan(10);
  expect(options.filter((name) => !new RegExp(`^\\| \`${name}\\b`, 'm').test(page))).toEqual([]);
});

test('docs/http.md imports nothing that is not there, and leaves nothing out', () => {
  const named = [...page.matchAll(/import \{ (\w+) \} from 'sluice\/http'/g)].map(
    ([, name]) => name,
  );
  expect(named.toSorted()).toEqual(Object.keys(http).toSorted());
});
