/** Every name that can be imported stands on docs/names.md, under its entry, and has a word about it where it is declared. */

import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';

interface Export {
  readonly name: string;
  /** What it is called where it is declared, and in which file that is. */
  readonly own: string;
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
          file: to.default.replace('./dist/', 'src/').replace(/js$/, 'ts'),
        },
      ],
);

const page = readFileSync('docs/names.md', 'utf8').split(/^## /m);

describe.each(entries)('$entry', ({ entry, file }) => {
  const names = exportsOf(file);

  test('has its names on the page, and no others', () => {
    const [title, ...lines] = (page.find((part) => part.startsWith(`${entry}\n`)) ?? '').split(
      '\n',
    );
    expect(title).toBe(entry);
    const told = lines
      .join('\n')
      .replaceAll(/\]\([^)]*\)/g, '')
      .matchAll(/`(\w+)(?:\(\w+\))?`/g);
    const onPage = new Set([...told].map(([, name]) => name).filter((name) => !WORDS.has(name)));
    expect([...onPage].sort()).toEqual(names.map(({ name }) => name).sort());
  });

  test('says of each what it is', () => {
    expect(names.filter((own) => !isExplained(own)).map(({ name }) => name)).toEqual([]);
  });
});

/** What the page has to say in code and is no name. */
const WORDS = new Set(['retryAfterMs', 'instanceof', 'verdict', 'code']);

/** What a file exports: what it takes from others, and its own. */
function exportsOf(file: string): Export[] {
  const source = readFileSync(file, 'utf8');
  const taken = [...source.matchAll(/^export (?:type )?\{([^}]*)\} from '([^']+)'/gm)].flatMap(
    ([, list, from]) =>
      list.split(',').flatMap((part) => {
        const [own, name = own] = part
          .trim()
          .replace(/^type /, '')
          .split(' as ');
        return own === '' ? [] : [{ name, own, file: join(dirname(file), from) }];
      }),
  );
  const made = [...new Set([...source.matchAll(DECLARED)].map(([, name]) => name))];
  return [...taken, ...made.map((name) => ({ name, own: name, file }))];
}

const DECLARED = /^export (?:abstract )?(?:interface|type|class|const|function) (\w+)/gm;

/** Whether a comment stands right before its declaration; where it is handed on, before the first one. */
function isExplained({ own, file }: Export): boolean {
  const source = readFileSync(file, 'utf8');
  const declared = new RegExp(
    `^export (?:abstract )?(?:interface|type|class|const|function) ${own}\\b`,
    'm',
  ).exec(source);
  if (declared) return source.slice(0, declared.index).endsWith('*/\n');
  const [, from] = new RegExp(`import .*\\b${own}\\b.* from '([^']+)'`).exec(source) ?? [];
  return from !== undefined && isExplained({ name: own, own, file: join(dirname(file), from) });
}
