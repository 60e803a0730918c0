import { describe, expect, test } from 'vitest';
import { apiPage, declarationOf, ENTRIES, exportsOf } from './support/api-page.ts';

describe.each(ENTRIES)('$entry', ({ file }) => {
  const names = exportsOf(file);

  test('has a comment at every declaration', () => {
    const bare = names.filter((own) => (declarationOf(own)?.comment ?? '') === '');
    expect(bare.map(({ name }) => name)).toEqual([]);
  });
});

test('docs/reference/api.md is what `npm run docs:api` makes', async () => {
  await expect(apiPage()).toMatchFileSnapshot('../docs/reference/api.md');
});
