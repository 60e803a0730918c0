/**
 * docs/reference/api.md, made from the source: each entry of the package, each exported name with its comment, and each member of
 * an exported interface with its type.
 */

import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

export interface Export {
  readonly name: string;
  /** Its name at its declaration, and the file of that. */
  readonly declaredAs: string;
  readonly file: string;
}

export interface Entry {
  readonly entry: string;
  readonly file: string;
}

/** A member of an interface. */
export interface Member {
  readonly name: string;
  readonly isOptional: boolean;
  readonly type: string;
  readonly comment: string;
}

const { exports } = JSON.parse(readFileSync('package.json', 'utf8')) as {
  exports: Record<string, string | { default: string }>;
};

/** Entry points and the files of their source. */
export const ENTRIES: readonly Entry[] = Object.entries(exports).flatMap(([path, to]) =>
  typeof to === 'string'
    ? []
    : [
        {
          entry: join('sluice', path),
          file: to.default.replace('./dist/esm/', 'src/').replace(/js$/, 'ts'),
        },
      ],
);

const DECLARED = /^export (?:abstract )?(?:interface|type|class|const|function) (\w+)/gm;

/** What a file exports: re-exports and its own declarations. */
export function exportsOf(file: string): Export[] {
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

/** A declaration: its kind, the comment right before it (for overloads, before the first), and the text after its name. */
export interface Declaration {
  readonly kind: string;
  readonly comment: string;
  readonly body: string;
}

export function declarationOf({ declaredAs, file }: Export): Declaration | undefined {
  const source = readFileSync(file, 'utf8');
  const found = new RegExp(
    `^export (?:abstract )?(interface|type|class|const|function) ${declaredAs}\\b`,
    'm',
  ).exec(source);
  if (found)
    return {
      kind: found[1],
      comment: commentBefore(source.slice(0, found.index)),
      body: source.slice(found.index + found[0].length),
    };
  const [, from] = new RegExp(`import .*\\b${declaredAs}\\b.* from '([^']+)'`).exec(source) ?? [];
  return from === undefined
    ? undefined
    : declarationOf({ name: declaredAs, declaredAs, file: join(dirname(file), from) });
}

/** The comment that ends a text, without its stars and tags; empty if the text does not end with one. */
function commentBefore(text: string): string {
  if (!text.endsWith('*/\n')) return '';
  const body = text.slice(text.lastIndexOf('/**') + 3, -3);
  return plain(
    body
      .replace(/^ *\* ?/gm, '')
      .replace(/@(?:param|throws|returns)/g, '· $&')
      .replace(/@param (\w+)/g, '`$1`:')
      .replace(/@(throws|returns)/g, '$1'),
  ).replace(/^· /, '');
}

const plain = (text: string): string => text.replace(/\s+/g, ' ').trim();

/** The members of an interface, from the text after its name. */
export function membersOf(body: string): Member[] {
  if (/^[^{]*\{\}/.test(body)) return [];
  const inside = body.slice(body.indexOf('{') + 1, body.indexOf('\n}'));
  const member =
    /(?:^ {2}\/\*\*((?:(?!\*\/)[\s\S])*)\*\/\n)?^ {2}(?:readonly )?(\w+)(\??)(:|\(|<)([\s\S]*?);$(?=\n {2}\S|\n*$(?![\s\S]))/gm;
  return [...inside.matchAll(member)].map(([, comment = '', name, optional, opener, type]) => ({
    name,
    isOptional: optional === '?',
    type: plain((opener === ':' ? type : `${opener}${type}`).replace(/\/\*\*[\s\S]*?\*\//g, '')),
    comment: plain(comment.replace(/^ *\* ?/gm, '')),
  }));
}

const cell = (text: string): string => text.replaceAll('|', '\\|');

const KINDS: Readonly<Record<string, string>> = { const: 'value', interface: 'type' };

function entryText({ entry, file }: Entry): string {
  const all = exportsOf(file).map((own) => ({ name: own.name, ...declarationOf(own) }));
  all.sort((a, b) => a.name.localeCompare(b.name, 'en'));
  const rows = all.map(
    ({ name, kind = '', comment = '' }) =>
      `| \`${name}\` | ${KINDS[kind] ?? kind} | ${cell(comment)} |`,
  );
  const interfaces = all
    .filter(({ kind }) => kind === 'interface')
    .flatMap(({ name, body = '' }) => {
      const members = membersOf(body);
      if (members.length === 0) return [];
      const lines = members.map(
        ({ name: own, isOptional, type, comment }) =>
          `| \`${own}${isOptional ? '?' : ''}\` | \`${cell(type)}\` | ${cell(comment)} |`,
      );
      return [
        `### ${entry}: ${name}`,
        ['| member | type | meaning |', '| --- | --- | --- |', ...lines].join('\n'),
      ];
    });
  const table = ['| name | kind | meaning |', '| --- | --- | --- |', ...rows].join('\n');
  return [`## ${entry}`, table, ...interfaces].join('\n\n');
}

/** The whole page. */
export const apiPage = (): string =>
  `# API

<!-- generated by \`npm run docs:api\` from the types; do not edit -->

Everything that can be imported, by entry point: \`import { limiter, type Decision } from 'sluice'\`. A member with \`?\` is optional. Names that are not listed here may change.
[library.md](library.md) explains how the parts work together.

${ENTRIES.map(entryText).join('\n\n')}
`;
