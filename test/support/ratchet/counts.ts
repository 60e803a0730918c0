/** Counts the size of the repository from the texts of its files: lines, files, members of interfaces, comparisons, words. */

/** Path from the root of the repository, and text. */
export type Texts = ReadonlyMap<string, string>;

export interface Count {
  readonly name: string;
  readonly value: number;
  /** The number by folder, file, interface or function: a failure names the ones that grew. */
  readonly where?: Readonly<Record<string, number>>;
}

const MAX_LINES = 400;

/** The interfaces between the parts of the library; one that is gone counts 0. */
const INTERFACES = ['Policy', 'Backend', 'RemoteBackend'];

export const isSource = (path: string): boolean =>
  /^(?:packages\/.+\/)?src\/.+\.ts$/.test(path) &&
  !/\.(?:test|test-d|bench)\.ts$/.test(path) &&
  !/\/(?:testing-support|test-support|fixtures)\//.test(path);

const isTest = (path: string): boolean => /\.test\.(?:ts|mjs|tsx)$/.test(path);

const isDocs = (path: string): boolean =>
  /^(?:docs\/.+\.md|README\.md|ARCHITECTURE\.md|CONTRIBUTING\.md)$/.test(path) &&
  !path.endsWith('reference/api.md');

const isManifest = (path: string): boolean => /^(?:packages\/[^/]+\/)?package\.json$/.test(path);

export const isCounted = (path: string): boolean =>
  [isSource, isTest, isDocs, isManifest].some((holds) => holds(path));

const linesOf = (text: string): number => text.split('\n').length - 1;

const folderOf = (path: string): string => path.slice(0, path.lastIndexOf('/'));

/** Folders below src/: `backends`, `redis` of a file of backends/redis. A package's own folder is no part of it. */
const sourceFolders = (path: string): string[] =>
  path
    .replace(/^(?:packages\/.+\/)?src\//, '')
    .split('/')
    .slice(0, -1);

const topFolder = (path: string): string => sourceFolders(path)[0] ?? 'src itself';

/** The first two names of a path, where a test or a page is listed: `docs/reference`, `src/limiter`, `README.md`. */
const areaOf = (path: string): string => path.split('/').slice(0, -1).slice(0, 2).join('/') || path;

const sumOf = (numbers: Iterable<number>): number => [...numbers].reduce((sum, n) => sum + n, 0);

/** The sum of a number over files, in total and by group; groups with 0 are left out. */
function sumBy(
  name: string,
  texts: Texts,
  numberOf: (text: string, path: string) => number,
  groupOf: (path: string) => string,
): Count {
  const where: Record<string, number> = {};
  for (const [path, text] of texts) {
    const number = numberOf(text, path);
    if (number > 0) where[groupOf(path)] = (where[groupOf(path)] ?? 0) + number;
  }
  return { name, value: sumOf(Object.values(where)), where };
}

const filter = (texts: Texts, holds: (path: string) => boolean): Texts =>
  new Map([...texts].filter(([path]) => holds(path)));

const highest = (name: string, where: Readonly<Record<string, number>>): Count => {
  const value = Math.max(0, ...Object.values(where));
  return {
    name,
    value,
    where: Object.fromEntries(Object.entries(where).filter(([, n]) => n === value)),
  };
};

/** The number of files, by folder. */
export const folderCount = (name: string, files: readonly string[]): Count =>
  sumBy(name, new Map(files.map((file) => [file, ''])), () => 1, folderOf);

/** Lines of each folder of src/ and of each folder of src/backends/, nested folders included. */
function linesByFolder(sources: Texts): Count[] {
  const lines: Record<string, number> = {};
  for (const [path, text] of sources) {
    const [top = 'src itself', ...rest] = sourceFolders(path);
    const nested = top === 'backends' ? [`backends/${rest[0] ?? 'itself'}`] : [];
    for (const folder of [top, ...nested]) lines[folder] = (lines[folder] ?? 0) + linesOf(text);
  }
  return Object.entries(lines).map(([folder, value]) => ({
    name: `source lines: ${folder}`,
    value,
  }));
}

interface Member {
  readonly isOptional: boolean;
  /** Its type as written; empty for a method. */
  readonly type: string;
}

interface Declaration {
  readonly bases: readonly string[];
  readonly members: readonly Member[];
}

const withoutComments = (text: string): string =>
  text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/\/\/.*$/gm, '');

/** Members of a body as the formatter writes it: each begins after two spaces, its further lines have more. */
function membersIn(body: string): Member[] {
  const start = /^ {2}(?:readonly )?[a-zA-Z]\w*(\??)\s*([(:<])/;
  return withoutComments(body)
    .split(/^(?= {2}\w)/m)
    .flatMap((text) => {
      const [begin, optional, kind] = start.exec(text) ?? [];
      if (begin === undefined) return [];
      const type = kind === ':' ? text.slice(begin.length).trim().replace(/;$/, '') : '';
      return [{ isOptional: optional === '?', type }];
    });
}

/** Exported interfaces and object types of the source, by name. */
function declarationsIn(sources: Texts): Map<string, Declaration> {
  const declarations = new Map<string, Declaration>();
  for (const text of sources.values()) {
    const found = text.matchAll(
      /^export (?:interface|abstract class|type) (\w+)(?:<[^{]*?>)?(?:\s+extends ([\w\s,<>]+?))?\s*(?:= )?\{\n([\s\S]*?)^\}/gm,
    );
    for (const [, name, bases = '', body] of found) {
      const names = bases.split(',').map((base) => base.trim().replace(/<.*/, ''));
      declarations.set(name, { bases: names.filter(Boolean), members: membersIn(body) });
    }
  }
  return declarations;
}

/** The members of an interface, inherited ones included. */
function membersOf(
  name: string,
  declarations: ReadonlyMap<string, Declaration>,
  seen: Set<string>,
): Member[] {
  const declaration = declarations.get(name);
  if (!declaration || seen.has(name)) return [];
  seen.add(name);
  return [
    ...declaration.members,
    ...declaration.bases.flatMap((base) => membersOf(base, declarations, seen)),
  ];
}

/**
 * The object types that a member's type consists of: `Sharing` of `share?: Sharing | undefined`. Types of parameters,
 * results and elements of an array are data that passes through the interface: `Decision`, `Settlement`, `RuleSpec[]`.
 */
const facetsOf = ({ type }: Member): string[] =>
  type
    .split(/[|&]/)
    .map((part) => part.trim().replace(/^(?:Readonly|Partial|Required|NonNullable)<(.+)>$/, '$1'))
    .filter((part) => /^\w+$/.test(part));

/** Members of an object type written in place: `stats: { keys: number; bytes: number }`. */
const inlineMembers = ({ type }: Member): number =>
  type.startsWith('{') ? type.split(';').filter((line) => /\w\??\s*[:(]/.test(line)).length : 0;

/**
 * Members of the interfaces, and of their facets.
 *
 * A facet is an exported object type that is the type of a member; its members are members of the interface with one
 * more name before them. Facets of facets count too, and each type once. So a member that moves into a facet still counts.
 */
function memberCounts(sources: Texts): Count[] {
  const declarations = declarationsIn(sources);
  const top: Record<string, number> = {};
  const optional: Record<string, number> = {};
  const withFacets: Record<string, number> = {};
  const isCountedType = new Set(INTERFACES);
  const visit = (name: string): Member[] => {
    const members = membersOf(name, declarations, new Set());
    if (members.length > 0) withFacets[name] = members.length + sumOf(members.map(inlineMembers));
    for (const facet of members.flatMap(facetsOf)) {
      if (isCountedType.has(facet)) continue;
      isCountedType.add(facet);
      visit(facet);
    }
    return members;
  };
  for (const name of INTERFACES) {
    const members = visit(name);
    if (members.length === 0) continue;
    top[name] = members.length;
    optional[name] = members.filter(({ isOptional }) => isOptional).length;
  }
  const countOf = (name: string, where: Record<string, number>): Count => ({
    name,
    value: sumOf(Object.values(where)),
    where,
  });
  return [
    countOf('interface members', top),
    countOf('interface members, optional', optional),
    countOf('interface members with facets', withFacets),
  ];
}

const KIND_COMPARISON =
  /\bkind\s*(?:===|!==)\s*'(?:bucket|spacing|window|quota|ramp|concurrency|adaptive|busy|lockout|all)'|case '(?:bucket|spacing|window|quota|ramp|concurrency|adaptive|busy|lockout)'/;

const TYPE_SWITCH = /instanceof \w*(?:Limiter|Backend)\b|\bisRemote\b|instanceof Promise\b/;

const linesWith =
  (pattern: RegExp) =>
  (text: string): number =>
    text.split('\n').filter((line) => pattern.test(line)).length;

const scriptsOf = (manifest: string): number =>
  Object.keys((JSON.parse(manifest) as { scripts?: object }).scripts ?? {}).length;

/** All counts that need no running code. */
export function countsOf(texts: Texts): Count[] {
  const sources = filter(texts, isSource);
  const one = (): number => 1;
  const lengths = Object.fromEntries([...sources].map(([path, text]) => [path, linesOf(text)]));
  const long = Object.fromEntries(Object.entries(lengths).filter(([, n]) => n > MAX_LINES));
  const outsidePolicies = filter(sources, (path) => !path.includes('/policies/'));
  const records = filter(texts, (path) => /^docs\/decisions\/[^/]+\.md$/.test(path));
  return [
    sumBy('source lines', sources, linesOf, topFolder),
    ...linesByFolder(sources),
    sumBy('source files', sources, one, topFolder),
    { name: `files above ${MAX_LINES} lines`, value: Object.keys(long).length, where: long },
    highest('longest file', lengths),
    highest('largest folder, files', folderCount('', [...sources.keys()]).where ?? {}),
    ...memberCounts(sources),
    sumBy('comparisons of a kind', outsidePolicies, linesWith(KIND_COMPARISON), topFolder),
    sumBy('switches on a type', sources, linesWith(TYPE_SWITCH), topFolder),
    sumBy('test lines', filter(texts, isTest), linesOf, areaOf),
    sumBy('package scripts', filter(texts, isManifest), scriptsOf, (path) => path),
    sumBy('words of docs', filter(texts, isDocs), (text) => text.split(/\s+/).length, areaOf),
    sumBy('decision records', records, one, folderOf),
  ];
}
