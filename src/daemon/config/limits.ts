/**
 * The limits of a configuration: each a rule with a name, and which keys it is for.
 *
 *     limits:
 *       per-client:
 *         bucket: { rate: 10/s, burst: 20 }
 *         match: 'ip:*'
 *         overrides:
 *           - { match: 'ip:10.1.2.3', bucket: { rate: 100/s } }
 *       everybody:
 *         bucket: { rate: 1000/s }
 *         per: limit        # one bucket for all keys
 *         always: true      # besides whichever other limit applies
 *
 * Of the limits that match a key the most specific one applies, and with it all that say `always`.
 */

import type { BackendFactory } from '../../backends/backend.ts';
import { dryRunPeers } from '../../backends/peers/backend.ts';
import { dryRunPool } from '../../backends/pool/backend.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireValidName } from '../../core/name.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import { createLimiter, LIMIT_KINDS, type LimiterOptions } from '../../limiter/limiter.ts';
import { MATCH_ALL, type Pattern, readPattern, readPatterns } from '../keys/pattern.ts';
import { type EtcdConfig, readEtcd } from './etcd.ts';
import type { GroupsConfig } from './groups.ts';
import { dryRunRedis, type RedisConfig, readRedis } from './redis.ts';

/** A rule as it was written: what `limiter()` takes, but for its name. */
export type RuleOptions = Pick<LimiterOptions, 'limit' | 'maxKeys' | 'permitTimeout'>;

export interface KeyOverrideConfig {
  readonly match: Pattern;
  readonly rule: RuleOptions;
}

export interface LimitConfig {
  readonly name: string;
  readonly rule: RuleOptions;
  /** Any of them. */
  readonly match: readonly Pattern[];
  /** Applies besides the most specific one. */
  readonly always: boolean;
  /** Whether every key has a count of its own, or all keys that match have one together. */
  readonly per: 'key' | 'limit';
  /** Counts and tells, but never refuses. */
  readonly shadow: boolean;
  readonly allow: readonly Pattern[];
  readonly deny: readonly Pattern[];
  readonly overrides: readonly KeyOverrideConfig[];
  readonly redis: RedisConfig | undefined;
  readonly etcd: EtcdConfig | undefined;
  /** Whether it is kept together with the fleet. */
  readonly peers: boolean;
  /** Whether it is divided in the pool. */
  readonly pool: boolean;
  /** With which groups it is shared; none: undefined. */
  readonly groups: GroupsConfig | undefined;
}

/** Which others a configuration has, to share limits with. */
export interface ConfiguredBackends {
  readonly hasPeers: boolean;
  readonly hasPool: boolean;
  readonly hasGroups: boolean;
  /** Not there either if what was written makes no sense. */
  readonly groups: GroupsConfig | undefined;
}

const NO_BACKENDS: ConfiguredBackends = {
  hasPeers: false,
  hasPool: false,
  hasGroups: false,
  groups: undefined,
};

/** More limits than this are data, and belong into keys. */
const MAX_LIMITS = 1000;
const MAX_OVERRIDES = 10_000;

/**
 * Reads all limits, in the order they were written. @throws {ConfigError} with all that is wrong with any of them.
 */
export function readLimits(
  value: unknown,
  path: string,
  others: ConfiguredBackends = NO_BACKENDS,
): readonly LimitConfig[] {
  const fields = new OptionReader(path, value, 'limits by name');
  const names = fields.names();
  if (names.length > MAX_LIMITS) {
    throw new ConfigError(path, `at most ${MAX_LIMITS} limits`, `${names.length} of them`);
  }
  return readEach(names, (name) => readLimit(name, fields.get(name), fields.pathOf(name), others));
}

function readLimit(
  name: string,
  value: unknown,
  path: string,
  others: ConfiguredBackends,
): LimitConfig {
  const fields = OptionReader.collecting(path, value, 'an object with a rule, such as bucket');
  fields.tryRead(() => requireValidName(name, path));
  const patterns = (list: string): readonly Pattern[] =>
    fields.tryRead(() => readPatterns(fields.get(list), fields.pathOf(list))) ?? [];
  const match = patterns('match');
  const limit: LimitConfig = {
    name,
    match: match.length > 0 ? match : [MATCH_ALL],
    always: fields.boolean('always', false),
    per: fields.oneOf('per', ['key', 'limit'] as const, 'key'),
    shadow: fields.boolean('shadow', false),
    allow: patterns('allow'),
    deny: patterns('deny'),
    ...readRulesAndBackends(fields, others),
  };
  if (limit.per === 'limit' && limit.overrides.length > 0) {
    fields.report('overrides', 'left out when all keys have one count together (per: limit)');
  }
  fields.finish();
  return limit;
}

/** The rule, those of single keys, and who else spends from them. */
function readRulesAndBackends(
  fields: OptionReader,
  { hasPeers, hasPool, hasGroups, groups: section }: ConfiguredBackends,
): Pick<LimitConfig, 'rule' | 'overrides' | 'redis' | 'etcd' | 'peers' | 'pool' | 'groups'> {
  const read = <T>(name: string, reader: (value: unknown, path: string) => T): T | undefined =>
    fields.has(name)
      ? fields.tryRead(() => reader(fields.get(name), fields.pathOf(name)))
      : undefined;
  const redis = read('redis', readRedis);
  const etcd = read('etcd', readEtcd);
  fields.tryRead(() => {
    if (redis && etcd)
      throw new ConfigError(fields.pathOf('etcd'), 'left out beside redis', 'both');
  });
  const decider = redis ? dryRunRedis(redis) : etcd?.dryRunFactory;
  const asked = fields.optional('peers', isBoolean, 'true or false');
  const who = redis ? 'Redis' : 'etcd';
  if (asked && decider) fields.report('peers', `left out of a limit that ${who} decides`);
  if (asked && !hasPeers) {
    fields.report('peers', 'left out, or a section `peers` beside `limits` to say who they are');
  }
  const pool = fields.boolean('pool', false);
  if (pool && (decider || asked))
    fields.report('pool', 'left out of a limit that is shared otherwise');
  if (pool && !hasPool) fields.report('pool', 'left out, or a section `pool` beside `limits`');
  const isGrouped = fields.boolean('groups', false);
  if (isGrouped && pool) fields.report('groups', 'left out beside pool');
  if (isGrouped && !hasGroups) {
    fields.report('groups', 'left out, or a section `groups` beside `limits` to say who they are');
  }
  const groups = isGrouped ? section : undefined;
  const backend = groups ? groups.dryRunFactory(decider) : decider;
  const overrides = fields.tryRead(() => readOverrides(fields, backend)) ?? [];
  const rule = fields.tryRead(() => readRule(fields, backend)) as RuleOptions;
  const rules = rule ? [rule, ...overrides.map((own) => own.rule)] : [];
  const isForPeers = (own: RuleOptions): boolean => supportsBackend(own, dryRunPeers);
  const peers = asked ?? (hasPeers && !decider && !pool && rules.every(isForPeers));
  if (asked && !rules.every(isForPeers)) {
    fields.report('peers', 'left out: peers can keep buckets together, and nothing else');
  }
  if (pool && !rules.every((own) => supportsBackend(own, dryRunPool))) {
    fields.report('pool', 'left out: this limit cannot be divided');
  }
  return { redis, etcd, overrides, rule, peers, pool, groups };
}

const isBoolean = (value: unknown): value is boolean => typeof value === 'boolean';

/** Whether a rule that makes sense also does when it is shared. */
function supportsBackend(rule: RuleOptions, backend: BackendFactory): boolean {
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
  backend: RemoteBackendFactory | BackendFactory | undefined,
): readonly KeyOverrideConfig[] {
  const value = limit.get('overrides');
  const path = limit.pathOf('overrides');
  if (value === undefined) return [];
  const expected = 'a list of objects with `match` and a rule';
  if (!Array.isArray(value)) throw new ConfigError(path, expected, value);
  if (value.length > MAX_OVERRIDES) {
    throw new ConfigError(path, `at most ${MAX_OVERRIDES} overrides`, `${value.length} of them`);
  }
  const seen = new Set<string>();
  return readEach(value, (own, n) => {
    const fields = OptionReader.collecting(
      `${path}[${n}]`,
      own,
      'an object with `match` and a rule',
    );
    const match = fields.tryRead(() => readPattern(fields.get('match'), fields.pathOf('match')));
    if (match && seen.has(match.text)) {
      fields.report('match', 'unlike that of the other overrides');
    }
    if (match) seen.add(match.text);
    const rule = fields.tryRead(() => readRule(fields, backend));
    fields.finish();
    return { match, rule } as KeyOverrideConfig;
  });
}

/** The one rule among the fields, tried out so that what is wrong with it is known now. */
function readRule(
  fields: OptionReader,
  backend: RemoteBackendFactory | BackendFactory | undefined,
): RuleOptions {
  for (const name of ['maxKeys', 'permitTimeout']) fields.get(name);
  const kinds = LIMIT_KINDS.filter((kind) => fields.has(kind));
  const stray = fields.names().find((name) => !fields.wasRead(name));
  if (kinds.length === 0 && stray !== undefined) {
    throw new ConfigError(fields.pathOf(stray), `one of ${LIMIT_KINDS.join(', ')}`, stray);
  }
  if (kinds.length !== 1) {
    const got = kinds.length === 0 ? 'none' : kinds.join(' and ');
    const others = 'several belong into `all: [...]`';
    throw new ConfigError(
      fields.path,
      `a limit with one of ${LIMIT_KINDS.join(', ')} (${others})`,
      got,
    );
  }
  const [kind] = kinds;
  const bounds = ['maxKeys', 'permitTimeout'].filter((name) => fields.has(name));
  const rule = {
    limit: { [kind]: fields.get(kind) },
    ...Object.fromEntries(bounds.map((name) => [name, fields.get(name)])),
  } as unknown as RuleOptions;
  try {
    createLimiter({ ...rule, ...(backend && { backend }) }, { path: fields.path });
  } catch (error) {
    if (!(error instanceof ConfigError) || error.field.startsWith(fields.path)) throw error;
    throw error.prefixedWith(fields.path);
  }
  return rule;
}

/** The same text, the same rule: its counts may live on. */
export const fingerprint = (rule: RuleOptions): string => JSON.stringify(sortFields(rule));

/** Without the order in which people happened to write things. */
function sortFields(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortFields);
  if (!isRecord(value)) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([name, own]) => [name, sortFields(own)]));
}
