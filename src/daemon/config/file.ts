/**
 * The configuration file, and what outweighs it: defaults, then the file, then the environment, then
 * the command line.
 *
 * Every complaint says where: line and column of the file, or the variable or option it came by.
 */

import { readFileSync } from 'node:fs';
import { type Document, LineCounter, parseDocument, visit } from 'yaml';
import { type ConfigError, reasonOf } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import { type Config, readConfig } from './read.ts';
import { offsetOf } from './yaml-position.ts';

/** A value from elsewhere than the file. */
export interface Outweighing {
  /** Where it belongs, such as `['listen', 'line']`. */
  readonly path: readonly [string] | readonly [string, string];
  readonly value: unknown;
  /** Where it came from, such as `SLUICE_LINE` or `--line`. */
  readonly from: string;
}

/** The configuration, or lines that say what is wrong with it. */
export type Loaded =
  | { readonly config: Config; readonly file: string | undefined }
  | { readonly problems: readonly string[] };

/** A larger file is not a configuration. */
const FILE_BYTES_MAX = 4 * 1024 * 1024;

/** What YAML lets one write once and use often; more of it is a bomb. */
const ALIASES_MAX = 100;

/** The variables that are heard, and what they stand for. */
const VARIABLES: Readonly<Record<string, Outweighing['path']>> = {
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
export function fromEnvironment(env: NodeJS.ProcessEnv): Outweighing[] {
  return Object.entries(VARIABLES).flatMap(([from, path]) => {
    const text = env[from];
    if (text === undefined || text === '') return [];
    if (path[0] === 'peers' && path[1] === 'udp') return [peersFrom(text, from)];
    return [{ path, from, value: path[0] === 'listen' ? addresses(text) : text }];
  });
}

/** Other daemons, with commas between them; `off`: none, whatever a file says. */
export const peersFrom = (text: string, from: string): Outweighing =>
  text === 'off'
    ? { path: ['peers'], value: false, from }
    : { path: ['peers', 'udp'], value: addresses(text), from };

/** Addresses with commas between them; `off`: none. */
export const addresses = (text: string): unknown =>
  text === 'off' ? false : text.split(',').map((own) => own.trim());

/** Reads a configuration; without a file, one made of defaults and what outweighs them. */
export function loadConfig(file: string | undefined, outweighing: readonly Outweighing[]): Loaded {
  if (file === undefined) return finish(undefined, '', {}, outweighing);
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    return { problems: [`cannot read ${file}: ${reasonOf(error)}`] };
  }
  if (text.length > FILE_BYTES_MAX)
    return { problems: [`${file} is too large to be a configuration`] };
  // Somebody is about to write it, or had no room to: not the moment to drop every limit there is.
  if (text.trim() === '') return { problems: [`${file} is empty; {} stands for the defaults`] };
  return readText(file, text, outweighing);
}

/** The same for a text that was read already. */
export function readText(
  file: string,
  text: string,
  outweighing: readonly Outweighing[] = [],
): Loaded {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const wrong = document.errors.length > 0 ? document.errors : strayAliases(document);
  if (wrong.length > 0) {
    const tell = ({ code, message, pos }: YamlError): string =>
      pointAt(file, text, lines, pos[0], IN_OTHER_WORDS[code] ?? message);
    return { problems: toldOf(onceEach(wrong), tell) };
  }
  try {
    const value: unknown = document.toJS({ maxAliasCount: ALIASES_MAX });
    return finish(file, text, value ?? {}, outweighing, document, lines);
  } catch (error) {
    return { problems: [`${file}: ${reasonOf(error)}`] };
  }
}

interface YamlError {
  readonly code: string;
  readonly message: string;
  readonly pos: readonly number[];
}

/** Where several brackets are open, its parser misses the end of each at the same place. */
const onceEach = (wrong: readonly YamlError[]): readonly YamlError[] => [
  ...new Map(wrong.map((own) => [`${own.pos[0]} ${own.message}`, own])).values(),
];

const ALIAS = 'BAD_ALIAS';

/** What its parser says to programmers, said to people. */
const IN_OTHER_WORDS: Readonly<Record<string, string>> = {
  [ALIAS]: "a text that begins with * needs quotes, as in '*.example.org'",
  MULTIPLE_DOCS: 'expected one configuration, got another one after ---',
};

/** Names after a star that nothing has: a pattern without its quotes, most likely. */
function strayAliases(document: Document.Parsed): YamlError[] {
  const found: YamlError[] = [];
  let seen = 0;
  visit(document, {
    Alias(_, alias) {
      if (++seen > ALIASES_MAX) return visit.BREAK;
      if (alias.resolve(document) === undefined)
        found.push({ code: ALIAS, message: '', pos: [alias.range?.[0] ?? 0] });
      return undefined;
    },
  });
  return found;
}

function finish(
  file: string | undefined,
  text: string,
  value: unknown,
  outweighing: readonly Outweighing[],
  document?: Document.Parsed,
  lines?: LineCounter,
): Loaded {
  const read = readConfig([...outweighing].sort(keysLast).reduce(put, value));
  if ('config' in read) return { config: read.config, file };
  const placed = oncePerField(read.errors).map((error) => ({
    error,
    offset: offsetOf(document?.contents ?? null, error.field),
    other: outweighing.find(({ path }) => concerns(path.join('.'), error)),
  }));
  // In the order of the file, as one goes through it to mend them.
  placed.sort((a, b) => a.offset - b.offset);
  const problems = toldOf(placed, ({ error, offset, other }) => {
    if (other) return `${other.from}: ${error.message}`;
    if (!file || !lines) return error.message;
    const pointed = pointAt(file, text, lines, offset, error.message);
    return HOLDS_SECRETS.test(error.field) ? pointed.split('\n', 1)[0] : pointed;
  });
  return { problems };
}

/** Whoever has mended so many looks again. */
const PROBLEMS_MAX = 20;

/** As many of them as one can mend at once, and how many more there are. */
function toldOf<T>(found: readonly T[], tell: (one: T) => string): readonly string[] {
  const told = found.slice(0, PROBLEMS_MAX).map(tell);
  const untold = found.length - told.length;
  return untold > 0 ? [...told, `and ${untold} more`] : told;
}

/** Of a field, what was found first: the rest follows from it. */
function oncePerField(errors: readonly ConfigError[]): readonly ConfigError[] {
  const first = new Map<string, ConfigError>();
  for (const error of errors) if (!first.has(error.field)) first.set(error.field, error);
  return [...first.values()];
}

/** Fields whose line is not shown, in case it ends up in a log. */
const HOLDS_SECRETS = /^(?:admin|resp|peers|pool|groups)(?:\.|$)|\.(?:redis|etcd)(?:\.|$)/;

/** Lines that hold a secret, whatever is wrong with them. */
const LOOKS_SECRET = /(?:token|password|key)["']?\s*:|:\/\/\S*@/i;

const concerns = (path: string, { field }: ConfigError): boolean =>
  field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`);

/** Of peers or groups: it belongs to a section that others make. */
const isKey = ({ path: [, second] }: Outweighing): boolean => second === 'key';

const keysLast = (a: Outweighing, b: Outweighing): number => Number(isKey(a)) - Number(isKey(b));

/** The value with one thing in it set. */
function put(value: unknown, outweighing: Outweighing): unknown {
  if (!isRecord(value)) return value; // nonsense stays nonsense, and is told
  const {
    path: [first, second],
    value: own,
  } = outweighing;
  const hasSection = value[first] !== undefined && value[first] !== false;
  if (isKey(outweighing) && !hasSection) return value; // a key alone makes no fleet
  if (second === undefined) return { ...value, [first]: own };
  const inner = isShort(first, value[first]) ? {} : (value[first] ?? {});
  return isRecord(inner) ? { ...value, [first]: { ...inner, [second]: own } } : value;
}

/** A section without options of its own: a snapshot's file, or none at all. */
const isShort = (section: string, value: unknown): boolean =>
  (section === 'snapshot' && typeof value === 'string') || value === false;

/** `file:line:column: what`, the line itself unless it holds a secret, and a mark below the place. */
function pointAt(
  file: string,
  text: string,
  lines: LineCounter,
  offset: number,
  message: string,
): string {
  const { line, col } = lines.linePos(Math.min(offset, text.length));
  const source = text.split('\n')[line - 1] ?? '';
  if (LOOKS_SECRET.test(source)) return `${file}:${line}:${col}: ${message}`;
  const shown = source.slice(0, LINE_CHARS_MAX).trimEnd();
  const number = String(line).padStart(5);
  const mark = `${' '.repeat(Math.min(col - 1, LINE_CHARS_MAX))}^`;
  return `${file}:${line}:${col}: ${message}\n${number} | ${shown}\n      | ${mark}`;
}

const LINE_CHARS_MAX = 160;
