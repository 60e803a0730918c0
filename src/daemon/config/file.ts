/**
 * Loads the configuration. Precedence, lowest first: defaults, the YAML file, environment variables, flags. A variable or a
 * flag that weakens what the file says is an error.
 *
 * Every error says where its value stands: line and column of the file, or the variable or flag.
 */

import { dirname } from 'node:path';
import type { BackendModule, SectionOverride } from '../../backends/daemon-backend.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import {
  formatListenAddress,
  isLoopback,
  type ListenAddress,
  readListenAddresses,
} from '../../core/listen-address.ts';
import { isRecord } from '../../core/options.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import { BACKENDS } from '../backends/registry.ts';
import { lineReader, readBounded } from '../keys/text-file.ts';
import { comparePositions, isFieldAt, type MergedConfig, mergeIncluded } from './include.ts';
import { type Config, DEFAULT_ADDRESS, readConfigInSteps } from './read.ts';
import type { ReadLists } from './read-lists.ts';
import { formatProblems, formatWithSource, parseYaml } from './yaml-source.ts';

/** A value of an environment variable or a flag. */
export interface ConfigOverride {
  /** The field that it sets, such as `['listen', 'line']`. */
  readonly path: readonly [string] | readonly [string, string];
  readonly value: unknown;
  /** Its origin, such as `SLUICE_LINE` or `--line`. */
  readonly source: string;
  /** With `--override`: it may weaken what the file says. */
  readonly isForced?: boolean;
}

/** The values of a configuration, files and overrides merged, and the folder that its paths refer to. */
export interface PlainConfig {
  readonly value: unknown;
  readonly folder: string;
}

/** The configuration, or its mistakes as text. */
export type LoadResult =
  | { readonly config: Config; readonly plain: PlainConfig }
  | { readonly problems: readonly string[] };

const MAX_FILE_BYTES = 4 * 1024 * 1024;

/** More errors are not located in the file, as each takes a search. */
const MAX_LOCATED = 100;

/** A field that an environment variable sets and, with `flag`, a flag of `serve`. */
interface Setting {
  readonly variable: string;
  readonly flag?: string | undefined;
  readonly path: ConfigOverride['path'];
  readonly kind: SectionOverride['kind'] | 'number';
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
  { variable: 'SLUICE_LOG_LEVEL', flag: 'log-level', path: ['log', 'level'], kind: 'text' },
  { variable: 'SLUICE_WORKERS', flag: 'workers', path: ['workers'], kind: 'number' },
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
  if (kind === 'number') return [{ path, value: Number.isNaN(+text) ? text : +text, source }];
  if (kind === 'text') return [{ path, value: text, source }];
  const [section] = path;
  if (kind === 'addresses' && text === 'off')
    return [{ path: section === 'listen' ? path : [section], value: false, source }];
  return [{ path, value: text.split(',').map((address) => address.trim()), source }];
}

/** Loads a configuration; without a file, the defaults and the overrides. */
export const loadConfig = (
  file: string | undefined,
  overrides: readonly ConfigOverride[],
  modules?: readonly BackendModule[],
): LoadResult => runAtOnce(loadConfigInSteps(file, overrides, modules));

export function* loadConfigInSteps(
  file: string | undefined,
  overrides: readonly ConfigOverride[],
  modules: readonly BackendModule[] = BACKENDS,
): Steps<LoadResult> {
  if (file === undefined) return yield* buildConfig({}, overrides, modules);
  let text: string | undefined;
  try {
    text = readBounded(file, MAX_FILE_BYTES);
  } catch (error) {
    return { problems: [`cannot read ${file}: ${errorMessageOf(error)}`] };
  }
  if (text === undefined) return { problems: [`${file} is too large to be a configuration`] };
  // An editor is about to write it, or the disk is full: a reload must not drop every limit.
  if (text.trim() === '') return { problems: [`${file} is empty; {} stands for the defaults`] };
  return yield* readText(file, text, overrides, modules);
}

/** `loadConfig` with the text of the file. */
export const parseConfigText = (
  file: string,
  text: string,
  overrides: readonly ConfigOverride[] = [],
  modules: readonly BackendModule[] = BACKENDS,
): LoadResult => runAtOnce(readText(file, text, overrides, modules));

function* readText(
  file: string,
  text: string,
  overrides: readonly ConfigOverride[],
  modules: readonly BackendModule[],
): Steps<LoadResult> {
  const main = parseYaml(file, text);
  if ('problems' in main) return main;
  const merged = mergeIncluded(main, MAX_FILE_BYTES);
  if ('problems' in merged) return merged;
  return yield* buildConfig(merged.value, overrides, modules, merged);
}

/** The configuration of values that were valid when they were loaded; a file that they name may have changed since. */
export function* readPlainConfig(
  plain: PlainConfig,
  modules: readonly BackendModule[],
  lists: ReadLists,
): Steps<LoadResult> {
  const result = yield* readConfigInSteps(plain.value, modules, lineReader(plain.folder), lists);
  return 'config' in result
    ? { config: result.config, plain }
    : { problems: result.errors.map(({ message }) => message) };
}

function* buildConfig(
  value: unknown,
  overrides: readonly ConfigOverride[],
  modules: readonly BackendModule[],
  sources?: MergedConfig,
): Steps<LoadResult> {
  const weakened = sources ? weakenings(sources, overrides) : [];
  if (weakened.length > 0) return { problems: weakened };
  const merged = [...overrides].sort(secretKeysLast).reduce(applyOverride, value);
  const plain = { value: merged, folder: dirname(sources?.file ?? '') };
  const result = yield* readConfigInSteps(merged, modules, lineReader(plain.folder));
  if ('config' in result) return { config: result.config, plain };
  const errors = firstPerField(result.errors);
  const located = errors.slice(0, MAX_LOCATED).map((error) => ({
    error,
    position: sources?.locate(error.field),
    override: overrides.find(({ path }) => isFieldAt(path.join('.'), error.field)),
  }));
  located.sort((a, b) => comparePositions(a.position, b.position)); // in the order of the files
  const secretFields = secretFieldsOf(modules);
  const problems = formatProblems(located, errors.length, ({ error, position, override }) => {
    if (override) return `${override.source}: ${error.message}`;
    if (!position) return error.message;
    const pointed = formatWithSource(position.source, position.offset, error.message);
    return secretFields.test(error.field) ? pointed.split('\n', 1)[0] : pointed;
  });
  return { problems };
}

/** Errors about variables and flags that weaken the files, each with both places; a flag replaces a variable. */
function weakenings(sources: MergedConfig, overrides: readonly ConfigOverride[]): string[] {
  const byField = new Map(overrides.map((override) => [override.path.join('.'), override]));
  return [...byField].flatMap(([field, override]) => {
    const why = override.isForced ? undefined : weakenedBy(override, sources.value);
    if (why === undefined) return [];
    const { source, offset } = sources.locate(field);
    const text = override.value === false ? 'off' : override.value;
    const message = `${override.source} (${text}) would weaken \`${field}\`, ${why}: change one of them, or allow it with --override`;
    return formatWithSource(source, offset, message);
  });
}

/** Says what the override would weaken; undefined: nothing. A file without `listen` says nothing about listeners. */
function weakenedBy(
  { path: [section, field], value }: ConfigOverride,
  file: unknown,
): string | undefined {
  if (!isRecord(file)) return undefined;
  if (section === 'unmatched')
    return file.unmatched === 'deny' && value !== 'deny' ? 'which is deny' : undefined;
  if (value === false && file[section] && field === undefined)
    return 'by which daemons share limits';
  if (section !== 'listen' || !isRecord(file.listen)) return undefined;
  const protocol = field as keyof typeof DEFAULT_ADDRESS;
  const given = addressesOf(value);
  if (!given) return undefined; // reported where it is read
  const said = addressesOf(file.listen[protocol] ?? DEFAULT_ADDRESS[protocol]);
  if (!said) return 'which has a mistake';
  const isAsOpen = (address: ListenAddress): boolean =>
    said.some((each) => guardOf(each) === '' && isCoveredBy(address, each));
  if (given.every(isAsOpen)) return undefined;
  const texts = said.map((each) => `${formatListenAddress(each)}${guardOf(each)}`);
  return `which is ${texts.join(', ') || 'off'}`;
}

function addressesOf(value: unknown): readonly ListenAddress[] | undefined {
  try {
    return readListenAddresses(value, '');
  } catch (error) {
    if (error instanceof ConfigError) return undefined;
    throw error;
  }
}

/** The protection of an address that no override can set: TLS, or the mode of a socket file. */
function guardOf(listen: ListenAddress): string {
  if (listen.kind === 'tcp') return listen.tls ? ' with TLS' : '';
  return listen.mode === undefined ? '' : ' with a mode';
}

/** True if all hosts that can connect to one address can connect to the other; false for two different interfaces. */
function isCoveredBy(one: ListenAddress, other: ListenAddress): boolean {
  const isSame = one.kind === 'tcp' && other.kind === 'tcp' && one.host === other.host;
  const level = openness(one);
  return openness(other) > level || (openness(other) === level && (level !== 2 || isSame));
}

/** The more hosts can connect, the higher. */
function openness(listen: ListenAddress): number {
  if (isLoopback(listen)) return listen.kind === 'unix' ? 0 : 1;
  return listen.kind === 'tcp' && /^[0.:]+$/.test(listen.host) ? 3 : 2; // 0.0.0.0, ::
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
