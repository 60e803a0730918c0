/**
 * Option tables of docs/reference: their type column is made from the options interfaces of the source.
 *
 *     | option of `limiter` | type | default | meaning |
 */

import { readdirSync, readFileSync } from 'node:fs';
import { type Member, membersOf } from './api-page.ts';

/** A table of a page: the start of its header, or the section it is the first table of; the interfaces it lists. */
export interface OptionTable {
  readonly page: string;
  readonly header?: string;
  readonly section?: string;
  readonly interfaces: readonly string[];
}

const policy = (kind: string, ...interfaces: string[]): OptionTable => ({
  page: 'docs/reference/limits.md',
  section: `## ${kind}:`,
  interfaces,
});

const table = (page: string, header: string, ...interfaces: string[]): OptionTable => ({
  page: `docs/reference/${page}.md`,
  header: `| option of ${header} |`,
  interfaces,
});

export const OPTION_TABLES: readonly OptionTable[] = [
  policy('bucket', 'BucketOptions'),
  policy('spacing', 'SpacingOptions'),
  policy('window', 'WindowOptions'),
  policy('quota', 'QuotaOptions'),
  policy('ramp', 'RampOptions'),
  policy('concurrency', 'ConcurrencyOptions'),
  policy('adaptive', 'AdaptiveOptions'),
  table('limits', 'the rule `aimd`', 'AimdOptions'),
  policy('busy', 'BusyOptions'),
  policy('lockout', 'LockoutOptions'),
  table('library', '`limiter`', 'LimiterOptions', 'QueueOptions'),
  table('library', '`throttle`', 'CallOptions'),
  table('library', '`retry`', 'RetryOptions'),
  table('redis', '`redis(client, options)`', 'RedisOptions'),
  table('etcd', '`etcd(options)`', 'EtcdOptions', 'EtcdConnectionOptions'),
  table('durable-objects', '`durableObjects(namespace, options)`', 'DurableObjectsOptions'),
  table('peers', '`peers`', 'PeersOptions'),
  table('pool', '`pool`', 'PoolOptions'),
  table('groups', '`groups`', 'GroupsOptions'),
  table('groups', 'a group', 'GroupOptions'),
  table('client', '`connect`', 'ClientOptions'),
  table('fetch', '`throttleFetch`', 'FetchCallOptions'),
  table('metrics', '`logLimiting`', 'LogOptions'),
  table('metrics', '`instrument`', 'InstrumentOptions'),
  table('peers', '`udp` with a group', 'UdpGroupOptions'),
  table('peers', '`udp` with peers', 'UdpPeersOptions'),
  table('http-middleware', '`rateLimit`', 'RequestOptions'),
];

/** A row that documents one option of its interfaces. */
export interface OptionRow {
  readonly line: number;
  readonly cells: readonly string[];
  readonly member: Member;
}

const sources = (): string[] =>
  readdirSync('src', { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts') && !/\.test\.ts$|^(?:simulator|cli)\//.test(path))
    .map((path) => readFileSync(`src/${path}`, 'utf8'));

/** The file that declares an options interface. */
export const sourceOfOptions = (name: string): string =>
  sources().find((source) => new RegExp(`^export interface ${name}\\b`, 'm').test(source)) ?? '';

let interfaceMembers: Map<string, Member[]> | undefined;

/** Members of all exported options interfaces, by name. */
export function optionsOf(name: string): readonly Member[] {
  interfaceMembers ??= new Map(
    sources().flatMap((source) =>
      [...source.matchAll(/^export interface (\w+Options)\b/gm)].map(
        (found): [string, Member[]] => [
          found[1],
          membersOf(source.slice(found.index + found[0].length)),
        ],
      ),
    ),
  );
  const members = interfaceMembers.get(name);
  if (members === undefined) throw new Error(`the source has no interface ${name}`);
  return members;
}

const cellsOf = (line: string): string[] =>
  line
    .slice(1, line.lastIndexOf('|'))
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim());

/** The rows of a table that name one option; `queue.max` is the option `max`. */
export function rowsOf(
  lines: readonly string[],
  { header, section, interfaces, page }: OptionTable,
): OptionRow[] {
  const from = section === undefined ? 0 : lines.findIndex((line) => line.startsWith(section));
  const start = lines.findIndex((line, n) => n >= from && line.startsWith(header ?? '| option |'));
  if (from < 0 || start < 0) throw new Error(`${page} has no table ${header ?? section}`);
  const members = interfaces.flatMap((name) => optionsOf(name));
  const rows: OptionRow[] = [];
  for (let line = start + 2; lines[line]?.startsWith('|'); line++) {
    const cells = cellsOf(lines[line]);
    const [, name] = /^`(?:\w+\.)?(\w+)(?:\([^`]*\))?`$/.exec(cells[0]) ?? [];
    const member = members.find((own) => own.name === name);
    if (member !== undefined) rows.push({ line, cells, member });
  }
  return rows;
}

/** The type as a table shows it. */
export const shownType = ({ type }: Member): string =>
  `\`${withoutParentheses(type.replace(/ ?\| undefined$/, '')).replaceAll('|', '\\|')}\``;

/** A function type beside `undefined` stands in parentheses. */
function withoutParentheses(type: string): string {
  const inner = /^\((.*)\)$/s.exec(type)?.[1] ?? '';
  let depth = 0;
  for (const char of inner) {
    if (char === '(') depth++;
    if (char === ')' && depth-- === 0) return type; // they are two pairs
  }
  return inner === '' ? type : inner;
}

/** A page with the types of the source in its tables. */
export function withTypes(page: string): string {
  const lines = readFileSync(page, 'utf8').split('\n');
  for (const own of OPTION_TABLES.filter((each) => each.page === page))
    for (const { line, cells, member } of rowsOf(lines, own))
      lines[line] = `| ${[cells[0], shownType(member), ...cells.slice(2)].join(' | ')} |`;
  return lines.join('\n');
}
