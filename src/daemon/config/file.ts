/**
 * Loads the configuration. Precedence, lowest first: defaults, the YAML file, environment variables, flags.
 *
 * Every error says where its value stands: line and column of the file, or the variable or flag.
 */

import { closeSync, openSync, readSync } from 'node:fs';
import { type CST, type Document, Lexer, LineCounter, Parser, parseDocument, visit } from 'yaml';
import type { BackendModule, SectionOverride } from '../../backends/daemon-backend.ts';
import { type ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import { BACKENDS } from '../backends/registry.ts';
import { type Config, readConfig } from './read.ts';
import { yamlOffsetOf } from './yaml-position.ts';

/** A value of an environment variable or a flag. */
export interface ConfigOverride {
  /** The field that it sets, such as `['listen', 'line']`. */
  readonly path: readonly [string] | readonly [string, string];
  readonly value: unknown;
  /** Its origin, such as `SLUICE_LINE` or `--line`. */
  readonly source: string;
}

/** The configuration, or its mistakes as text. */
export type LoadResult = { readonly config: Config } | { readonly problems: readonly string[] };

const MAX_FILE_BYTES = 4 * 1024 * 1024;

/** More aliases are an alias bomb. */
const MAX_ALIASES = 100;

/** Collections within collections. A deeper text would exhaust the stack of the YAML composer, which ends the process. */
const MAX_NESTING = 64;

/** Fields of one object: the parser compares each with all others. */
const MAX_FIELDS = 2000;

/** More errors are not located in the file, as each takes a search. */
const MAX_LOCATED = 100;

/** A field that an environment variable sets and, with `flag`, a flag of `serve`. */
interface Setting {
  readonly variable: string;
  readonly flag?: string | undefined;
  readonly path: ConfigOverride['path'];
  readonly kind: SectionOverride['kind'];
}

/** Settings of the daemon itself; each backend declares its own. */
const DAEMON_SETTINGS: readonly Setting[] = [
  { variable: 'SLUICE_LINE', flag: 'line', path: ['listen', 'line'], kind: 'addresses' },
  { variable: 'SLUICE_RESP', flag: 'resp', path: ['listen', 'resp'], kind: 'addresses' },
  { variable: 'SLUICE_HTTP', flag: 'http', path: ['listen', 'http'], kind: 'addresses' },
  { variable: 'SLUICE_ADMIN_TOKEN', path: ['admin', 'token'], kind: 'text' },
  { variable: 'SLUICE_RESP_PASSWORD', path: ['resp', 'password'], kind: 'text' },
  { variable: 'SLUICE_SNAPSHOT', flag: 'snapshot', path: ['snapshot', 'file'], kind: 'text' },
  { variable: 'SLUICE_LOG', flag: 'log', path: ['log', 'format'], kind: 'text' },
  { variable: 'SLUICE_UNMATCHED', path: ['unmatched'], kind: 'text' },
];

const settingsOf = (modules: readonly BackendModule[]): readonly Setting[] => [
  ...DAEMON_SETTINGS,
  ...modules.flatMap(({ name, overrides = [] }) =>
    overrides.map(({ field, variable, flag, kind }): Setting => {
      return { variable, flag: flag?.name, path: [name, field], kind };
    }),
  ),
];

/** The names of all variables that set a field. */
export const variableNames = (modules: readonly BackendModule[]): string[] =>
  settingsOf(modules).map(({ variable }) => variable);

/** The overrides of the environment; an empty variable is none. */
export const fromEnvironment = (
  env: NodeJS.ProcessEnv,
  modules: readonly BackendModule[] = BACKENDS,
): ConfigOverride[] =>
  settingsOf(modules).flatMap((setting) =>
    overrideOf(setting, setting.variable, env[setting.variable] || undefined),
  );

/** The overrides of the flags of `serve`; the texts of a repeated one are joined with commas. */
export const fromFlags = (
  flags: Readonly<Record<string, string | string[] | boolean | undefined>>,
  modules: readonly BackendModule[],
): ConfigOverride[] =>
  settingsOf(modules).flatMap((setting) => {
    const { flag = '' } = setting;
    return overrideOf(setting, `--${flag}`, flags[flag]?.toString());
  });

/** A list has commas between its parts; `off` is no address, and removes the section of a backend. */
function overrideOf(
  { path, kind }: Setting,
  source: string,
  text: string | undefined,
): ConfigOverride[] {
  if (text === undefined) return [];
  if (kind === 'text') return [{ path, value: text, source }];
  const [section] = path;
  if (kind === 'addresses' && text === 'off')
    return [{ path: section === 'listen' ? path : [section], value: false, source }];
  return [{ path, value: text.split(',').map((address) => address.trim()), source }];
}

/** Loads a configuration; without a file, the defaults and the overrides. */
export function loadConfig(
  file: string | undefined,
  overrides: readonly ConfigOverride[],
  modules: readonly BackendModule[] = BACKENDS,
): LoadResult {
  if (file === undefined) return buildConfig({}, overrides, modules);
  let text: string | undefined;
  try {
    text = readBounded(file);
  } catch (error) {
    return { problems: [`cannot read ${file}: ${errorMessageOf(error)}`] };
  }
  if (text === undefined) return { problems: [`${file} is too large to be a configuration`] };
  // An editor is about to write it, or the disk is full: a reload must not drop every limit.
  if (text.trim() === '') return { problems: [`${file} is empty; {} stands for the defaults`] };
  return parseConfigText(file, text, overrides, modules);
}

/** The text of a file; undefined if it has too many bytes, as a device without end has. */
function readBounded(file: string): string | undefined {
  const bytes = Buffer.allocUnsafe(MAX_FILE_BYTES + 1);
  const descriptor = openSync(file, 'r');
  let length = 0;
  try {
    for (let read = 1; read > 0 && length < bytes.length; length += read)
      read = readSync(descriptor, bytes, length, bytes.length - length, null);
  } finally {
    closeSync(descriptor);
  }
  return length > MAX_FILE_BYTES ? undefined : bytes.toString('utf8', 0, length);
}

/** The same for the text of a file. */
export function parseConfigText(
  file: string,
  text: string,
  overrides: readonly ConfigOverride[] = [],
  modules: readonly BackendModule[] = BACKENDS,
): LoadResult {
  const lines = new LineCounter();
  const exceeded = exceededBound(text);
  if (exceeded) {
    const line = text.slice(0, exceeded.at).split('\n').length;
    return { problems: [`${file}:${line}: expected at most ${exceeded.bound}`] };
  }
  const document = parseDocument(text, {
    lineCounter: lines,
    prettyErrors: false,
    logLevel: 'error',
  });
  const source = { file, text, lines, document };
  const errors = document.errors.length > 0 ? document.errors : undefinedAliases(document);
  if (errors.length > 0) {
    const format = ({ code, message, pos }: YamlError): string =>
      formatWithSource(source, pos[0], FRIENDLY_MESSAGES[code] ?? message);
    const unique = uniqueErrors(errors);
    return { problems: formatProblems(unique, unique.length, format) };
  }
  try {
    const value: unknown = document.toJS({ maxAliasCount: MAX_ALIASES + 1 }); // with the anchor
    return buildConfig(value ?? {}, overrides, modules, source);
  } catch (error) {
    return { problems: [`${file}: ${errorMessageOf(error)}`] };
  }
}

/** A bound that a text exceeds, found without recursion and before the document is composed. */
function exceededBound(text: string): { readonly at: number; readonly bound: string } | undefined {
  const parser = new Parser();
  let aliases = 0;
  let previous = '';
  for (const lexeme of new Lexer().lex(text)) {
    for (const _ of parser.next(lexeme)); // what it yields is complete
    if (lexeme.startsWith('*') && previous !== SCALAR_LEXEME) aliases++;
    const { stack, offset: at } = parser;
    const top = stack.at(-1);
    const isMap = top?.type === 'block-map' || (top?.type === 'flow-collection' && isFlowMap(top));
    if (stack.length > MAX_NESTING + 2) return { at, bound: `${MAX_NESTING} levels of nesting` }; // with document and scalar
    if (isMap && top.items.length > MAX_FIELDS) return { at, bound: `${MAX_FIELDS} fields` };
    if (aliases > MAX_ALIASES) return { at, bound: `${MAX_ALIASES} aliases` };
    previous = lexeme;
  }
  return undefined;
}

/** Precedes the text of a scalar. */
const SCALAR_LEXEME = '\x1f';

const isFlowMap = ({ start }: CST.FlowCollection): boolean => start.type === 'flow-map-start';

interface YamlError {
  readonly code: string;
  readonly message: string;
  readonly pos: readonly number[];
}

/** With several open brackets, the parser reports the end of each at the same position. */
const uniqueErrors = (errors: readonly YamlError[]): readonly YamlError[] => [
  ...new Map(errors.map((error) => [`${error.pos[0]} ${error.message}`, error])).values(),
];

const BAD_ALIAS_CODE = 'BAD_ALIAS';

/** Messages in place of those of the YAML parser. */
const FRIENDLY_MESSAGES: Readonly<Record<string, string>> = {
  [BAD_ALIAS_CODE]: "a string that begins with * needs quotes, as in '*.example.org'",
  MULTIPLE_DOCS: 'expected one configuration, got another one after ---',
};

/** Aliases without an anchor: most likely patterns without quotes. */
function undefinedAliases(document: Document.Parsed): YamlError[] {
  const found: YamlError[] = [];
  visit(document, {
    Alias(_, alias) {
      if (alias.resolve(document) === undefined)
        found.push({ code: BAD_ALIAS_CODE, message: '', pos: [alias.range?.[0] ?? 0] });
    },
  });
  return found;
}

interface ConfigSource {
  readonly file: string;
  readonly text: string;
  readonly lines: LineCounter;
  readonly document: Document.Parsed;
}

function buildConfig(
  value: unknown,
  overrides: readonly ConfigOverride[],
  modules: readonly BackendModule[],
  source?: ConfigSource,
): LoadResult {
  const merged = [...overrides].sort(secretKeysLast).reduce(applyOverride, value);
  const result = readConfig(merged, modules);
  if ('config' in result) return result;
  const errors = firstPerField(result.errors);
  const located = errors.slice(0, MAX_LOCATED).map((error) => ({
    error,
    offset: yamlOffsetOf(source?.document.contents ?? null, error.field),
    override: overrides.find(({ path }) => isErrorAt(path.join('.'), error)),
  }));
  located.sort((a, b) => a.offset - b.offset); // in the order of the file
  const secretFields = secretFieldsOf(modules);
  const problems = formatProblems(located, errors.length, ({ error, offset, override }) => {
    if (override) return `${override.source}: ${error.message}`;
    if (!source) return error.message;
    const pointed = formatWithSource(source, offset, error.message);
    return secretFields.test(error.field) ? pointed.split('\n', 1)[0] : pointed;
  });
  return { problems };
}

/** More are not shown at once. */
const MAX_PROBLEMS = 20;

function formatProblems<T>(
  found: readonly T[],
  total: number,
  format: (one: T) => string,
): readonly string[] {
  const shown = found.slice(0, MAX_PROBLEMS).map(format);
  const hidden = total - shown.length;
  return hidden > 0 ? [...shown, `and ${hidden} more`] : shown;
}

/** The first error of each field: later ones follow from it. */
function firstPerField(errors: readonly ConfigError[]): readonly ConfigError[] {
  const first = new Map<string, ConfigError>();
  for (const error of errors) if (!first.has(error.field)) first.set(error.field, error);
  return [...first.values()];
}

/** Fields whose line is not shown, as it may hold a secret and end up in a log: sections and options of backends. */
function secretFieldsOf(modules: readonly BackendModule[]): RegExp {
  const names = (has: 'readSection' | 'readLimit'): string[] =>
    modules.filter((module) => module[has]).map(({ name }) => name);
  const sections = ['admin', 'resp', ...names('readSection')].join('|');
  const fields = ['/', ...names('readLimit')].join('|'); // never empty, which would match everything
  return new RegExp(`^(?:${sections})(?:\\.|$)|\\.(?:${fields})(?:\\.|$)`);
}

/** Lines that look like a secret, whatever the error is. */
const LOOKS_SECRET = /(?:token|password|key)["']?\s*:|:\/\/\S*@/i;

const isErrorAt = (path: string, { field }: ConfigError): boolean =>
  field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`);

/** The secret key of a backend: it belongs to a section that another override may create. */
const isSecretKey = ({ path: [, second] }: ConfigOverride): boolean => second === 'key';

const secretKeysLast = (a: ConfigOverride, b: ConfigOverride): number =>
  Number(isSecretKey(a)) - Number(isSecretKey(b));

function applyOverride(value: unknown, override: ConfigOverride): unknown {
  if (!isRecord(value)) return value; // reported by `readConfig`
  const [first, second] = override.path;
  const hasSection = value[first] !== undefined && value[first] !== false;
  if (isSecretKey(override) && !hasSection) return value; // a key alone configures no backend
  if (second === undefined) return { ...value, [first]: override.value };
  const inner = isShorthand(first, value[first]) ? {} : (value[first] ?? {});
  return isRecord(inner) ? { ...value, [first]: { ...inner, [second]: override.value } } : value;
}

/** A section that is not an object: the file of a snapshot, the format of the log, or `false`. */
const isShorthand = (section: string, value: unknown): boolean =>
  (['snapshot', 'log'].includes(section) && typeof value === 'string') || value === false;

/** `file:line:column: message`, the line itself unless it holds a secret, and a mark below the position. */
function formatWithSource(
  { file, text, lines }: ConfigSource,
  offset: number,
  message: string,
): string {
  const { line, col } = lines.linePos(Math.min(offset, text.length));
  const source = text.split('\n')[line - 1] ?? '';
  if (source.length > MAX_SEARCHED_CHARS || LOOKS_SECRET.test(source))
    return `${file}:${line}:${col}: ${message}`;
  const shown = source.slice(0, MAX_LINE_CHARS).trimEnd();
  const number = String(line).padStart(5);
  const mark = `${' '.repeat(Math.min(col - 1, MAX_LINE_CHARS))}^`;
  return `${file}:${line}:${col}: ${message}\n${number} | ${shown}\n      | ${mark}`;
}

const MAX_LINE_CHARS = 160;

/** A longer line is not shown: the search for secrets takes quadratic time. */
const MAX_SEARCHED_CHARS = 2000;
