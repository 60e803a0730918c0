import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import * as express from '../src/adapters/express.ts';
import * as fastify from '../src/adapters/fastify.ts';
import * as hono from '../src/adapters/hono.ts';
import * as http from '../src/adapters/http/index.ts';
import * as node from '../src/adapters/node.ts';

const page = readFileSync('docs/reference/http-middleware.md', 'utf8');

test('docs/reference/http-middleware.md: documents every option', () => {
  const source = readFileSync('src/adapters/http/settings.ts', 'utf8');
  const [, body = ''] = /export interface RequestOptions<\w+> \{([\s\S]*?)\n\}/.exec(source) ?? [];
  const options = [...body.matchAll(/^ {2}readonly (\w+)\??:/gm)].map(([, name]) => name);
  options.push('hook'); // Fastify only
  expect(options.length).toBeGreaterThan(10);
  expect(options.filter((name) => !new RegExp(`^\\| \`${name}\\b`, 'm').test(page))).toEqual([]);
});

test.each(Object.entries({ express, fastify, hono, node, http }))(
  'docs/reference/http-middleware.md: imports all that sluice/%s exports, and nothing else',
  (entry, exported) => {
    const imports = page.matchAll(new RegExp(`import \\{ (\\w+) \\} from 'sluice/${entry}'`, 'g'));
    const named = new Set([...imports].map(([, name]) => name));
    expect([...named].toSorted()).toEqual(Object.keys(exported).toSorted());
  },
);
