/**
 * Reads the section `limits`: each limit has a name, a rule, patterns for its keys, and at most one deciding backend.
 *
 *     limits:
 *       per-client:
 *         bucket: { rate: 10/s, burst: 20 }
 *         match: 'ip:*'
 *         overrides:
 *           - { match: ['ip:10.1.2.3', 'ip:10.9.0.0/16'], bucket: { rate: 100/s } }
 *       total:
 *         bucket: { rate: 1000/s }
 *         per: limit        # one bucket for all keys
 *         always: true      # in addition to the most specific limit
 *
 * Of the limits that match a key the most specific one applies, and with it all that have `always`.
 */

import type {
  AnyBackendFactory,
  BackendModule,
  BackendSection,
  LimitBackend,
} from '../../backends/daemon-backend.ts';
import { described, isNonEmptyString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireValidName } from '../../core/name.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import {
  createLimiter,
  hintForRule,
  LIMIT_KINDS,
  type LimiterOptions,
  RULE_OF_OPTION,
} from '../../limiter/limiter.ts';
import { BACKENDS } from '../backends/registry.ts';
import { MATCH_ALL, type Pattern, readPatterns } from '../keys/pattern.ts';
import type { ReadLines } from '../keys/text-file.ts';
import { requireEffective, shadowProblem } from './ineffective.ts';
import { describeRule, hashOf } from './rule-name.ts';

/** A rule as it was written: the options of `limiter()` without its name. */
export type RuleOptions = Pick<LimiterOptions, 'limit' | 'maxKeys' | 'permitTimeout'>;

/** Another rule for some keys. Overrides of one name have one rule and share a limiter, which counts per key. */
export interface KeyOverrideConfig {
  /** The name of the limiter within its limit: as configured, or a description of the rule. */
  readonly name: string;
  /** Patterns of which a key has to match one. */
  readonly match: readonly Pattern[];
  readonly rule: RuleOptions;
}

export interface LimitConfig {
  readonly name: string;
  readonly rule: RuleOptions;
  /** Patterns of which a key has to match one. */
  readonly match: readonly Pattern[];
  /** Applies in addition to the most specific limit. */
  readonly always: boolean;
  /** Whether every key has its own count, or all matching keys have one together. */
  readonly per: 'key' | 'limit';
  /** Counts and reports, but never denies. */
  readonly shadow: boolean;
  /** Whether HTTP responses show its name and what is left. */
  readonly expose: boolean;
  readonly allow: readonly Pattern[];
  readonly deny: readonly Pattern[];
  readonly overrides: readonly KeyOverrideConfig[];
  /** The backend that decides, then the one that wraps it; empty: the limit is local. */
  readonly backends: readonly LimitBackend[];
}

export interface BackendSections {
  readonly modules: readonly BackendModule[];
  /** The sections that were written; undefined where one has mistakes. */
  readonly sections: ReadonlyMap<string, BackendSection | undefined>;
}

/** What a limit may refer to: sections of backends, and files with patterns. */
export interface LimitsContext extends BackendSections {
  readonly readLines?: ReadLines | undefined;
}

const NO_SECTIONS: LimitsContext = { modules: BACKENDS, sections: new Map() };

/** More limits than this should be keys of one limit. */
const MAX_LIMITS = 1000;
const MAX_OVERRIDES = 10_000;

/** Limiters of one limit: each has a table for its keys, and metrics. */
const MAX_OVERRIDE_RULES = 1000;

/** Reads all limits in the order they were written. @throws {ConfigError} with all mistakes of all limits. */
export function readLimits(
  value: unknown,
  path: string,
  context: LimitsContext = NO_SECTIONS,
): readonly LimitConfig[] {
  const fields = new OptionReader(path, value, 'limits by name');
  const names = fields.names();
  if (names.length > MAX_LIMITS) {
    throw new ConfigError(
      path,
      `at most ${MAX_LIMITS} limits`,
      described(`${names.length} of them`),
    );
  }
  return readEach(names, (name) => readLimit(name, fields.get(name), fields.pathOf(name), context));
}

function readLimit(
  name: string,
  value: unknown,
  path: string,
  context: LimitsContext,
): LimitConfig {
  const fields = OptionReader.collecting(path, value, 'an object with a rule, such as bucket');
  fields.tryRead(() => requireValidName(name, path));
  const patterns = (list: string): readonly Pattern[] =>
    fields.tryRead(() => readPatterns(fields.get(list), fields.pathOf(list), context.readLines)) ??
    [];
  const match = patterns('match');
  const given = fields.get('match');
  if (Array.isArray(given) && given.length === 0) fields.report('match', 'at least one pattern');
  const limit: LimitConfig = {
    name,
    match: match.length > 0 ? match : [MATCH_ALL],
    always: fields.boolean('always', false),
    per: fields.oneOf('per', ['key', 'limit'] as const, 'key'),
    shadow: fields.boolean('shadow', false),
    expose: fields.boolean('expose', fields.get('per') !== 'limit'),
    allow: patterns('allow'),
    deny: patterns('deny'),
    ...readRulesAndBackends(fields, context),
  };
  if (limit.per === 'limit' && limit.overrides.length > 0) {
    fields.report('overrides', 'left out when all keys have one count together (per: limit)');
  }
  if (limit.per === 'limit' && fields.has('maxKeys'))
    fields.report('maxKeys', 'left out when all keys have one count together (per: limit)');
  const shadowed = limit.shadow && limit.rule ? rulesOf(limit) : [];
  const problem = shadowProblem(shadowed.map((rule) => rule.limit));
  if (problem !== undefined) fields.report('shadow', problem);
  fields.finish();
  return limit;
}

/** The different rules of a limit: its own, and those of its overrides. */
const rulesOf = ({ rule, overrides }: Pick<LimitConfig, 'rule' | 'overrides'>): RuleOptions[] => [
  rule,
  ...new Set(overrides.map((override) => override.rule)),
];

function readRulesAndBackends(
  fields: OptionReader,
  context: LimitsContext,
): Pick<LimitConfig, 'rule' | 'overrides' | 'backends'> {
  const named = readNamedBackends(fields, context);
  // A backend with a message for unsupported rules is tried after the rule was read by itself.
  const tried = dryRunFactoryOf(named.filter(({ unsupported }) => unsupported === undefined));
  const overrides = fields.tryRead(() => readOverrides(fields, tried, context.readLines)) ?? [];
  const rule = fields.tryRead(() => readRule(fields, tried)) as RuleOptions;
  const rules = rule ? rulesOf({ rule, overrides }) : [];
  const supports = (backend: LimitBackend): boolean =>
    rules.every((options) => isSupported(options, backend.dryRun()));
  for (const backend of named) {
    const { name, unsupported } = backend;
    if (unsupported !== undefined && !supports(backend)) fields.report(name, unsupported);
  }
  const backends = [...defaultBackends(fields, context).filter(supports), ...named];
  return { rule, overrides, backends };
}

/** The backends that a limit names: at most one that decides, then at most one that wraps it. */
function readNamedBackends(fields: OptionReader, context: BackendSections): LimitBackend[] {
  const deciding: string[] = [];
  const backends: LimitBackend[] = [];
  for (const module of context.modules) {
    const { name, wrapper } = module;
    if (!isNamed(fields, module)) continue;
    const conflict = deciding.find((other) => !wrapper || wrapper.excludes.includes(other));
    if (conflict !== undefined) {
      fields.tryRead(() => {
        throw new ConfigError(
          fields.pathOf(name),
          `left out beside ${conflict}`,
          described('both'),
        );
      });
    } else if (!wrapper) deciding.push(name);
    const backend = readNamedBackend(fields, module, context);
    if (backend) backends.push(backend);
  }
  return backends;
}

const isNamed = (fields: OptionReader, { name, readLimit: readOptions }: BackendModule): boolean =>
  fields.has(name) && (readOptions !== undefined || fields.get(name) !== false);

function readNamedBackend(
  fields: OptionReader,
  { name, readLimit: readOptions }: BackendModule,
  { sections }: BackendSections,
): LimitBackend | undefined {
  if (readOptions) return fields.tryRead(() => readOptions(fields.get(name), fields.pathOf(name)));
  if (!fields.boolean(name, false)) return undefined;
  if (!sections.has(name))
    fields.report(name, `left out, or a section \`${name}\` beside \`limits\``);
  return sections.get(name)?.limit;
}

/** Backends of sections that apply to limits which name no deciding backend and do not refuse them. */
function defaultBackends(fields: OptionReader, { modules, sections }: BackendSections) {
  const deciding = modules.filter(({ wrapper }) => !wrapper);
  if (deciding.some((module) => isNamed(fields, module))) return [];
  return deciding.flatMap(({ name }) => {
    const section = sections.get(name);
    return section?.isDefault && !fields.has(name) ? [section.limit] : [];
  });
}

/** The factory for a dry run of a limit, wrapped from the first backend to the last. */
export const dryRunFactoryOf = (backends: readonly LimitBackend[]): AnyBackendFactory | undefined =>
  backends.reduce<AnyBackendFactory | undefined>(
    (inner, backend) => backend.dryRun(inner),
    undefined,
  );

/** Whether a valid rule is also valid with this backend. */
function isSupported(rule: RuleOptions, backend: AnyBackendFactory): boolean {
  try {
    createLimiter({ ...rule, backend });
    return true;
  } catch (error) {
    if (error instanceof ConfigError) return false;
    throw error;
  }
}

function readOverrides(
  limit: OptionReader,
  backend: AnyBackendFactory | undefined,
  readLines: ReadLines | undefined,
): readonly KeyOverrideConfig[] {
  const value = limit.get('overrides');
  const path = limit.pathOf('overrides');
  if (value === undefined) return [];
  const expected = 'a list of objects with `match` and a rule';
  if (!Array.isArray(value)) throw new ConfigError(path, expected, value);
  if (value.length > MAX_OVERRIDES) {
    const got = described(`${value.length} of them`);
    throw new ConfigError(path, `at most ${MAX_OVERRIDES} overrides`, got);
  }
  const seen = new Set<string>();
  const rules = new NamedRules(backend, limit.path);
  const overrides = readEach(value, (item, n) => {
    const expectedItem = 'an object with `match` and a rule';
    const fields = OptionReader.collecting(`${path}[${n}]`, item, expectedItem);
    const match = fields.tryRead(() => readMatch(fields, seen, readLines));
    const named = fields.tryRead(() => rules.read(fields));
    fields.finish();
    return { match, ...named } as KeyOverrideConfig;
  });
  if (rules.size > MAX_OVERRIDE_RULES) {
    const got = described(`${rules.size} of them`);
    throw new ConfigError(path, `at most ${MAX_OVERRIDE_RULES} different rules`, got);
  }
  return overrides;
}

/** The patterns of an override; `seen` are those of the other overrides. */
function readMatch(
  fields: OptionReader,
  seen: Set<string>,
  readLines: ReadLines | undefined,
): readonly Pattern[] {
  const match = readPatterns(fields.get('match'), fields.pathOf('match'), readLines);
  if (match.length === 0) fields.report('match', 'a pattern or a list of patterns');
  if (match.some(({ text }) => seen.has(text)))
    fields.report('match', 'unlike that of the other overrides');
  for (const { text } of match) seen.add(text);
  return match;
}

/** The rules of one limit's overrides by name. Thousands of overrides have a few rules, each of which is validated once. */
class NamedRules {
  readonly #backend: AnyBackendFactory | undefined;
  readonly #limitPath: string;
  readonly #valid = new Map<string, RuleOptions>();
  readonly #byName = new Map<string, RuleOptions>();

  constructor(backend: AnyBackendFactory | undefined, limitPath: string) {
    this.#backend = backend;
    this.#limitPath = limitPath;
  }

  get size(): number {
    return this.#byName.size;
  }

  /** Reads a rule, and its name if it has one. */
  read(fields: OptionReader): Pick<KeyOverrideConfig, 'name' | 'rule'> | undefined {
    const given = fields.optional('name', isNonEmptyString, 'a name');
    if (given !== undefined) fields.tryRead(() => requireValidName(given, fields.pathOf('name')));
    const rule = this.#readRule(fields);
    if (rule === undefined) return undefined;
    const name = given ?? this.#nameOf(rule);
    const other = this.#byName.get(name);
    if (other && other !== rule) fields.report('name', 'a name that no other rule has');
    this.#byName.set(name, rule);
    return { name, rule };
  }

  /** Equal rules are one object. */
  #readRule(fields: OptionReader): RuleOptions | undefined {
    const written = writtenRule(fields);
    if (written === undefined) return undefined;
    const text = fingerprint(written);
    const known = this.#valid.get(text);
    if (known) return known;
    validateRule(written, fields, this.#backend, this.#limitPath);
    this.#valid.set(text, written);
    return written;
  }

  #nameOf(rule: RuleOptions): string {
    const name = describeRule(rule);
    const other = this.#byName.get(name);
    return other === undefined || other === rule ? name : `${name} #${hashOf(fingerprint(rule))}`;
  }
}

/** Reads the one rule among the fields and validates it. */
function readRule(
  fields: OptionReader,
  backend: AnyBackendFactory | undefined,
): RuleOptions | undefined {
  const rule = writtenRule(fields);
  if (rule) validateRule(rule, fields, backend, fields.path);
  return rule;
}

/** The one rule among the fields, as it was written. */
function writtenRule(fields: OptionReader): RuleOptions | undefined {
  for (const name of ['maxKeys', 'permitTimeout']) fields.get(name);
  const kinds = LIMIT_KINDS.filter((kind) => fields.has(kind));
  const unknown = fields.names().filter((name) => !fields.knownNames().includes(name));
  if (kinds.length === 0 && unknown.length > 0) {
    for (const name of unknown) {
      const rule = RULE_OF_OPTION.get(name);
      if (rule) fields.report(name, 'inside a rule', hintForRule(rule, name));
    }
    return undefined; // most likely a misspelt rule: `finish` reports it and suggests the close name
  }
  if (kinds.length !== 1) {
    const got = kinds.length === 0 ? 'none' : kinds.join(' and ');
    const expected = `a limit with one of ${LIMIT_KINDS.join(', ')} (several: \`all: [...]\`)`;
    throw new ConfigError(fields.path, expected, described(got));
  }
  const [kind] = kinds;
  const bounds = ['maxKeys', 'permitTimeout'].filter((name) => fields.has(name));
  return {
    limit: { [kind]: fields.get(kind) },
    ...Object.fromEntries(bounds.map((name) => [name, fields.get(name)])),
  } as unknown as RuleOptions;
}

/** Validates a rule by creating a limiter. */
function validateRule(
  rule: RuleOptions,
  fields: OptionReader,
  backend: AnyBackendFactory | undefined,
  limitPath: string,
): void {
  try {
    createLimiter({ ...rule, ...(backend && { backend }) }, { path: fields.path });
  } catch (error) {
    if (!(error instanceof ConfigError) || error.field.startsWith(limitPath)) throw error;
    throw error.prefixedWith(fields.path, 'limit'); // a rule stands in the limit itself
  }
  requireEffective(rule.limit, fields.path);
}

/** Rules with the same fingerprint are the same: a reload keeps their counts. */
export const fingerprint = (rule: RuleOptions): string => JSON.stringify(sortFields(rule));

/** The order in which fields were written makes no difference. */
function sortFields(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortFields);
  if (!isRecord(value)) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([name, field]) => [name, sortFields(field)]));
}
