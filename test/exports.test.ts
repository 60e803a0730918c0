/** Every exported name is listed in docs/reference/names.md under its entry, and has a comment at its declaration. */

import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';

interface Export {
  readonly name: string;
  /** Its name at its declaration, and the file of that. */
  readonly declaredAs: string;
  readonly file: string;
}

const { exports } = JSON.parse(readFileSync('package.json', 'utf8')) as {
  exports: Record<string, string | { default: string }>;
};

const entries = Object.entries(exports).flatMap(([path, to]) =>
  typeof to === 'string'
    ? []
    : [
        {
          entry: join('sluice', path),
          file: to.default.replace('./dist/esm/', 'src/').replace(/js$/, 'ts'),
        },
      ],
);

const page = readFileSync('docs/reference/names.md', 'utf8').split(/^## /m);

describe.each(entries)('$entry', ({ entry, file }) => {
  const names = exportsOf(file);

  test('docs/reference/names.md: lists its exports, and no others', () => {
    const [title, ...lines] = (page.find((part) => part.startsWith(`${entry}\n`)) ?? '').split(
      '\n',
    );
    expect(title).toBe(entry);
    const listed = lines
      .join('\n')
      .replaceAll(/\]\([^)]*\)/g, '')
      .matchAll(/`(\w+)(?:\(\w+\))?`/g);
    const onPage = new Set([...listed].map(([, name]) => name).filter((name) => !WORDS.has(name)));
    expect([...onPage].sort()).toEqual(names.map(({ name }) => name).sort());
  });

  test('has a comment at every declaration', () => {
    expect(names.filter((each) => !isExplained(each)).map(({ name }) => name)).toEqual([]);
  });
});

/** Code on the page that is no exported name. */
const WORDS = new Set(['retryAfterMs', 'instanceof', 'verdict', 'code']);

/** What a file exports: re-exports and its own declarations. */
function exportsOf(file: string): Export[] {
  const source = readFileSync(file, 'utf8');
  const reExported = [...source.matchAll(/^export (?:type )?\{([^}]*)\} from '([^']+)'/gm)].flatMap(
    ([, list, from]) =>
      list.split(',').flatMap((part) => {
        const [declaredAs, name = declaredAs] = part
          .trim()
          .replace(/^type /, '')
          .split(' as ');
        return declaredAs === '' ? [] : [{ name, declaredAs, file: join(dirname(file), from) }];
      }),
  );
  const declared = [...new Set([...source.matchAll(DECLARED)].map(([, name]) => name))];
  return [...reExported, ...declared.map((name) => ({ name, declaredAs: name, file }))];
}

const DECLARED = /^export (?:abstract )?(?:interface|type|class|const|function) (\w+)/gm;

/** Whether a comment stands right before the declaration; for overloads, before the first. */
function isExplained({ declaredAs, file }: Export): boolean {
  const source = readFileSync(file, 'utf8');
  const declared = new RegExp(
    `^export (?:abstract )?(?:interface|type|class|const|function) ${declaredAs}\\b`,
    'm',
  ).exec(source);
  if (declared) return source.slice(0, declared.index).endsWith('*/\n');
  const [, from] = new RegExp(`import .*\\b${declaredAs}\\b.* from '([^']+)'`).exec(source) ?? [];
  return (
    from !== undefined &&
    isExplained({ name: declaredAs, declaredAs, file: join(dirname(file), from) })
  );
}
