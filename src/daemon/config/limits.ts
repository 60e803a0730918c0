/** The most specific limit that matches a key applies, and with it all matching limits that have `always`. */

import type {
  AnyBackendFactory,
  BackendModule,
  BackendSection,
  LimitBackend,
} from '../../backends/daemon-backend.ts';
import { described } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireValidName } from '../../core/name.ts';
import { OptionReader, readEachInSteps } from '../../core/options.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import { BACKENDS } from '../backends/registry.ts';
import { MATCH_ALL, type Pattern, readPatternsInSteps } from '../keys/pattern.ts';
import { NO_PATTERNS, PatternTable } from '../keys/pattern-table.ts';
import type { ReadLines } from '../keys/text-file.ts';
import { shadowProblem } from './ineffective.ts';
import { NamedRules } from './named-rules.ts';
import { FAIL_MODES, type FailMode } from './overload.ts';
import { NO_OVERRIDES, type Overrides, readOverrides } from './overrides.ts';
import { readPlans } from './plans.ts';
import type { ReadLists } from './read-lists.ts';
import { type RuleOptions, readRule } from './rule.ts';

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
  /** Whether HTTP responses show its name and `remaining`. */
  readonly expose: boolean;
  /** The fail mode for checks that are shed; undefined: that of `overload.fail`. */
  readonly overload?: FailMode | undefined;
  /** The order of its waiting calls. Default fifo. */
  readonly queue?: 'fifo' | 'fair';
  readonly allow: PatternTable;
  readonly deny: PatternTable;
  /** Other rules for some keys. */
  readonly overrides: Overrides;
  /** Rules that keys have by their plan, in place of the limit's own. */
  readonly plans: ReadonlyMap<string, RuleOptions>;
  /** The backend that decides, then the one that wraps it; empty: the limit is local. */
  readonly backends: readonly LimitBackend[];
}

export interface BackendSections {
  readonly modules: readonly BackendModule[];
  /** The sections that were written; undefined where one has mistakes. */
  readonly sections: ReadonlyMap<string, BackendSection | undefined>;
}

/** The sections that a limit may refer to: backends, pattern files, and plans. */
export interface LimitsContext extends BackendSections {
  readonly readLines?: ReadLines | undefined;
  /** The section `plans`, as it was written. */
  readonly plans?: unknown;
  /** Lists that were read already. */
  readonly lists?: ReadLists | undefined;
}

const NO_SECTIONS: LimitsContext = { modules: BACKENDS, sections: new Map() };

/** More limits than this should be keys of one limit. */
const MAX_LIMITS = 1000;

/** Reads all limits in the order they were written. @throws {ConfigError} with all mistakes of all limits. */
export const readLimits = (
  value: unknown,
  path: string,
  context?: LimitsContext,
): readonly LimitConfig[] => runAtOnce(readLimitsInSteps(value, path, context));

export function* readLimitsInSteps(
  value: unknown,
  path: string,
  context: LimitsContext = NO_SECTIONS,
): Steps<readonly LimitConfig[]> {
  const fields = new OptionReader(path, value, 'limits by name');
  const names = fields.names();
  if (names.length > MAX_LIMITS) {
    throw new ConfigError(
      path,
      `at most ${MAX_LIMITS} limits`,
      described(`${names.length} of them`),
    );
  }
  return yield* readEachInSteps(names, (name) =>
    readLimit(name, fields.get(name), fields.pathOf(name), context),
  );
}

function* readLimit(
  limitName: string,
  value: unknown,
  path: string,
  context: LimitsContext,
): Steps<LimitConfig> {
  const fields = OptionReader.collecting(path, value, 'an object with a rule, such as bucket');
  fields.tryRead(() => requireValidName(limitName, path));
  const patterns = function* (list: string): Steps<readonly Pattern[]> {
    const read = readPatternsInSteps(fields.get(list), fields.pathOf(list), context.readLines);
    return (yield* fields.tryReadInSteps(read)) ?? [];
  };
  const list = function* (name: 'allow' | 'deny'): Steps<PatternTable> {
    const known = context.lists?.patterns(name, limitName);
    if (known || !fields.has(name)) return known ?? NO_PATTERNS;
    return yield* PatternTable.inSteps(yield* patterns(name));
  };
  const match = yield* patterns('match');
  const given = fields.get('match');
  if (Array.isArray(given) && given.length === 0) fields.report('match', 'at least one pattern');
  const limit: LimitConfig = {
    name: limitName,
    match: match.length > 0 ? match : [MATCH_ALL],
    always: fields.boolean('always', false),
    per: fields.oneOf('per', ['key', 'limit'] as const, 'key'),
    shadow: fields.boolean('shadow', false),
    expose: fields.boolean('expose', fields.get('per') !== 'limit'),
    overload: fields.has('overload') ? fields.oneOf('overload', FAIL_MODES) : undefined,
    queue: fields.oneOf('queue', ['fifo', 'fair'] as const, 'fifo'),
    allow: yield* list('allow'),
    deny: yield* list('deny'),
    ...(yield* readRulesAndBackends(fields, context, limitName)),
  };
  for (const name of ['overrides', 'plans', 'maxKeys'])
    if (limit.per === 'limit' && !isEmptyList(fields.get(name)))
      fields.report(name, 'left out when all keys have one count together (per: limit)');
  const shadowed = limit.shadow && limit.rule ? rulesOf(limit) : [];
  const problem = shadowProblem(shadowed.map((rule) => rule.limit));
  if (problem !== undefined) fields.report('shadow', problem);
  fields.finish();
  return limit;
}

const isEmptyList = (value: unknown): boolean =>
  value === undefined || (Array.isArray(value) && value.length === 0);

/** The different rules of a limit: its own, and those of its plans and overrides. */
const rulesOf = ({
  rule,
  overrides,
  plans,
}: Pick<LimitConfig, 'rule' | 'overrides' | 'plans'>): RuleOptions[] => [
  rule,
  ...new Set([...plans.values(), ...overrides.rules.map((named) => named.rule)]),
];

function* readRulesAndBackends(
  fields: OptionReader,
  context: LimitsContext,
  limitName: string,
): Steps<Pick<LimitConfig, 'rule' | 'overrides' | 'plans' | 'backends'>> {
  const deciding = readNamedBackends(fields, context);
  // A backend with a message for unsupported rules is tried after the rule was read by itself.
  const tried = dryRunFactoryOf(deciding.filter(({ unsupported }) => unsupported === undefined));
  const named = new NamedRules(tried, fields.path);
  const plans = fields.tryRead(() => readPlans(fields, named, context.plans)) ?? new Map();
  const readingOverrides = readOverrides(fields, named, context.readLines);
  const overrides =
    context.lists?.overrides(limitName) ??
    (yield* fields.tryReadInSteps(readingOverrides)) ??
    NO_OVERRIDES;
  const rule = fields.tryRead(() => readRule(fields, tried)) as RuleOptions;
  const rules = rule ? rulesOf({ rule, overrides, plans }) : [];
  for (const backend of deciding) {
    const { name, unsupported } = backend;
    if (unsupported !== undefined && !(yield* supportsAll(rules, backend)))
      fields.report(name, unsupported);
  }
  const backends: LimitBackend[] = [];
  for (const backend of defaultBackends(fields, context))
    if (yield* supportsAll(rules, backend)) backends.push(backend);
  return { rule, overrides, plans, backends: [...backends, ...deciding] };
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

/** Whether valid rules are also valid with this backend. */
function* supportsAll(rules: readonly RuleOptions[], backend: LimitBackend): Steps<boolean> {
  for (const rule of rules) {
    if (!isSupported(rule, backend.dryRun())) return false;
    yield;
  }
  return true;
}

function isSupported(rule: RuleOptions, backend: AnyBackendFactory): boolean {
  try {
    createLimiter({ ...rule, backend });
    return true;
  } catch (error) {
    if (error instanceof ConfigError) return false;
    throw error;
  }
}
