/**
 * The configuration file, and what outweighs it: defaults, then the file, then the environment, then
 * the command line.
 *
 * Every complaint says where: line and column of the file, or the variable or option it came by.
 */

import { readFileSync } from 'node:fs';
import { type Document, LineCounter, parseDocument, visit } from 'yaml';
import { type ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import { type Config, readConfig } from './read.ts';
import { yamlOffsetOf } from './yaml-position.ts';

/** A value from elsewhere than the file. */
export interface ConfigOverride {
  /** Where it belongs, such as `['listen', 'line']`. */
  readonly path: readonly [string] | readonly [string, string];
  readonly value: unknown;
  /** Where it came from, such as `SLUICE_LINE` or `--line`. */
  readonly source: string;
}

/** The configuration, or lines that say what is wrong with it. */
export type LoadResult =
  | { readonly config: Config; readonly file: string | undefined }
  | { readonly problems: readonly string[] };

/** A larger file is not a configuration. */
const MAX_FILE_BYTES = 4 * 1024 * 1024;

/** What YAML lets one write once and use often; more of it is a bomb. */
const MAX_ALIASES = 100;

/** The variables that are heard, and what they stand for. */
const ENVIRONMENT_VARIABLES: Readonly<Record<string, ConfigOverride['path']>> = {
  SLUICE_LINE: ['listen', 'line'],
  SLUICE_RESP: ['listen', 'resp'],
  SLUICE_HTTP: ['listen', 'http'],
  SLUICE_ADMIN_TOKEN: ['admin', 'token'],
  SLUICE_RESP_PASSWORD: ['resp', 'password'],
  SLUICE_SNAPSHOT: ['snapshot', 'file'],
  SLUICE_PEERS: ['peers', 'udp'],
  SLUICE_PEERS_KEY: ['peers', 'key'],
  SLUICE_GROUPS_KEY: ['groups', 'key'],
  SLUICE_LOG: ['log'],
  SLUICE_UNMATCHED: ['unmatched'],
};

/** What the environment says. Addresses may be several, with commas between them. */
export function fromEnvironment(env: NodeJS.ProcessEnv): ConfigOverride[] {
  return Object.entries(ENVIRONMENT_VARIABLES).flatMap(([from, path]) => {
    const text = env[from];
    if (text === undefined || text === '') return [];
    if (path[0] === 'peers' && path[1] === 'udp') return [peersOverride(text, from)];
    return [{ path, source: from, value: path[0] === 'listen' ? splitAddresses(text) : text }];
  });
}

/** Other daemons, with commas between them; `off`: none, whatever a file says. */
export const peersOverride = (text: string, from: string): ConfigOverride =>
  text === 'off'
    ? { path: ['peers'], value: false, source: from }
    : { path: ['peers', 'udp'], value: splitAddresses(text), source: from };

/** Addresses with commas between them; `off`: none. */
export const splitAddresses = (text: string): unknown =>
  text === 'off' ? false : text.split(',').map((own) => own.trim());

/** Reads a configuration; without a file, one made of defaults and what outweighs them. */
export function loadConfig(
  file: string | undefined,
  overrides: readonly ConfigOverride[],
): LoadResult {
  if (file === undefined) return buildConfig(undefined, '', {}, overrides);
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    return { problems: [`cannot read ${file}: ${errorMessageOf(error)}`] };
  }
  if (text.length > MAX_FILE_BYTES)
    return { problems: [`${file} is too large to be a configuration`] };
  // Somebody is about to write it, or had no room to: not the moment to drop every limit there is.
  if (text.trim() === '') return { problems: [`${file} is empty; {} stands for the defaults`] };
  return parseConfigText(file, text, overrides);
}

/** The same for a text that was read already. */
export function parseConfigText(
  file: string,
  text: string,
  overrides: readonly ConfigOverride[] = [],
): LoadResult {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const wrong = document.errors.length > 0 ? document.errors : undefinedAliases(document);
  if (wrong.length > 0) {
    const tell = ({ code, message, pos }: YamlError): string =>
      formatWithSource(file, text, lines, pos[0], FRIENDLY_MESSAGES[code] ?? message);
    return { problems: formatProblems(uniqueErrors(wrong), tell) };
  }
  try {
    const value: unknown = document.toJS({ maxAliasCount: MAX_ALIASES });
    return buildConfig(file, text, value ?? {}, overrides, document, lines);
  } catch (error) {
    return { problems: [`${file}: ${errorMessageOf(error)}`] };
  }
}

interface YamlError {
  readonly code: string;
  readonly message: string;
  readonly pos: readonly number[];
}

/** Where several brackets are open, its parser misses the end of each at the same place. */
const uniqueErrors = (wrong: readonly YamlError[]): readonly YamlError[] => [
  ...new Map(wrong.map((own) => [`${own.pos[0]} ${own.message}`, own])).values(),
];

const BAD_ALIAS_CODE = 'BAD_ALIAS';

/** What its parser says to programmers, said to people. */
const FRIENDLY_MESSAGES: Readonly<Record<string, string>> = {
  [BAD_ALIAS_CODE]: "a text that begins with * needs quotes, as in '*.example.org'",
  MULTIPLE_DOCS: 'expected one configuration, got another one after ---',
};

/** Names after a star that nothing has: a pattern without its quotes, most likely. */
function undefinedAliases(document: Document.Parsed): YamlError[] {
  const found: YamlError[] = [];
  let seen = 0;
  visit(document, {
    Alias(_, alias) {
      if (++seen > MAX_ALIASES) return visit.BREAK;
      if (alias.resolve(document) === undefined)
        found.push({ code: BAD_ALIAS_CODE, message: '', pos: [alias.range?.[0] ?? 0] });
      return undefined;
    },
  });
  return found;
}

function buildConfig(
  file: string | undefined,
  text: string,
  value: unknown,
  overrides: readonly ConfigOverride[],
  document?: Document.Parsed,
  lines?: LineCounter,
): LoadResult {
  const read = readConfig([...overrides].sort(secretKeysLast).reduce(applyOverride, value));
  if ('config' in read) return { config: read.config, file };
  const placed = firstPerField(read.errors).map((error) => ({
    error,
    offset: yamlOffsetOf(document?.contents ?? null, error.field),
    other: overrides.find(({ path }) => isErrorAt(path.join('.'), error)),
  }));
  // In the order of the file, as one goes through it to mend them.
  placed.sort((a, b) => a.offset - b.offset);
  const problems = formatProblems(placed, ({ error, offset, other }) => {
    if (other) return `${other.source}: ${error.message}`;
    if (!file || !lines) return error.message;
    const pointed = formatWithSource(file, text, lines, offset, error.message);
    return HOLDS_SECRETS.test(error.field) ? pointed.split('\n', 1)[0] : pointed;
  });
  return { problems };
}

/** Whoever has mended so many looks again. */
const MAX_PROBLEMS = 20;

/** As many of them as one can mend at once, and how many more there are. */
function formatProblems<T>(found: readonly T[], tell: (one: T) => string): readonly string[] {
  const told = found.slice(0, MAX_PROBLEMS).map(tell);
  const untold = found.length - told.length;
  return untold > 0 ? [...told, `and ${untold} more`] : told;
}

/** Of a field, what was found first: the rest follows from it. */
function firstPerField(errors: readonly ConfigError[]): readonly ConfigError[] {
  const first = new Map<string, ConfigError>();
  for (const error of errors) if (!first.has(error.field)) first.set(error.field, error);
  return [...first.values()];
}

/** Fields whose line is not shown, in case it ends up in a log. */
const HOLDS_SECRETS = /^(?:admin|resp|peers|pool|groups)(?:\.|$)|\.(?:redis|etcd)(?:\.|$)/;

/** Lines that hold a secret, whatever is wrong with them. */
const LOOKS_SECRET = /(?:token|password|key)["']?\s*:|:\/\/\S*@/i;

const isErrorAt = (path: string, { field }: ConfigError): boolean =>
  field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`);

/** Of peers or groups: it belongs to a section that others make. */
const isSecretKey = ({ path: [, second] }: ConfigOverride): boolean => second === 'key';

const secretKeysLast = (a: ConfigOverride, b: ConfigOverride): number =>
  Number(isSecretKey(a)) - Number(isSecretKey(b));

/** The value with one thing in it set. */
function applyOverride(value: unknown, override: ConfigOverride): unknown {
  if (!isRecord(value)) return value; // nonsense stays nonsense, and is told
  const {
    path: [first, second],
    value: own,
  } = override;
  const hasSection = value[first] !== undefined && value[first] !== false;
  if (isSecretKey(override) && !hasSection) return value; // a key alone makes no fleet
  if (second === undefined) return { ...value, [first]: own };
  const inner = isShorthand(first, value[first]) ? {} : (value[first] ?? {});
  return isRecord(inner) ? { ...value, [first]: { ...inner, [second]: own } } : value;
}

/** A section without options of its own: a snapshot's file, or none at all. */
const isShorthand = (section: string, value: unknown): boolean =>
  (section === 'snapshot' && typeof value === 'string') || value === false;

/** `file:line:column: what`, the line itself unless it holds a secret, and a mark below the place. */
function formatWithSource(
  file: string,
  text: string,
  lines: LineCounter,
  offset: number,
  message: string,
): string {
  const { line, col } = lines.linePos(Math.min(offset, text.length));
  const source = text.split('\n')[line - 1] ?? '';
  if (LOOKS_SECRET.test(source)) return `${file}:${line}:${col}: ${message}`;
  const shown = source.slice(0, MAX_LINE_CHARS).trimEnd();
  const number = String(line).padStart(5);
  const mark = `${' '.repeat(Math.min(col - 1, MAX_LINE_CHARS))}^`;
  return `${file}:${line}:${col}: ${message}\n${number} | ${shown}\n      | ${mark}`;
}

const MAX_LINE_CHARS = 160;
