import { existsSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';

const architecture = readFileSync('ARCHITECTURE.md', 'utf8');
const contributing = readFileSync('CONTRIBUTING.md', 'utf8');

/** Paths in backticks, such as `policies/limit.ts` or `test/layers.test.ts`. */
const pathsIn = (page: string): string[] =>
  [...page.matchAll(/`((?:[\w-]+\/)+[\w.-]+\.(?:ts|mjs))`/g)].map(([, path]) => path ?? '');

const isFile = (path: string): boolean => existsSync(path) || existsSync(`src/${path}`);

describe.each([
  ['ARCHITECTURE.md', architecture],
  ['CONTRIBUTING.md', contributing],
])('%s', (_name, page) => {
  test('names only files that exist', () => {
    expect(pathsIn(page).length).toBeGreaterThan(5);
    const named = pathsIn(page).filter((path) => !path.includes('/yours.'));
    expect(named.filter((path) => !isFile(path))).toEqual([]);
  });
});

test('ARCHITECTURE.md: every bound stands in the file named with it', () => {
  const bounds = [...architecture.matchAll(/((?:`[A-Z_]+`(?:, | and )?)+) in `([\w/.-]+\.ts)`/g)];
  expect(bounds.length).toBeGreaterThan(30);
  const missing = bounds.flatMap(([, names = '', path = '']) => {
    const source = readFileSync(`src/${path}`, 'utf8');
    return [...names.matchAll(/`([A-Z_]+)`/g)]
      .map(([, name]) => name ?? '')
      .filter((name) => !new RegExp(`const ${name}\\b`).test(source))
      .map((name) => `${path}: ${name}`);
  });
  expect(missing).toEqual([]);
});
