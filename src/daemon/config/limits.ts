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

import type { ShareMaker } from '../../backends/backend.ts';
import { alone } from '../../backends/peers/backend.ts';
import { undivided } from '../../backends/pool/backend.ts';
import type { RemoteShareMaker } from '../../backends/remote-backend.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireName } from '../../core/name.ts';
import { Fields, isRecord, readEach } from '../../core/options.ts';
import { engineOf, LIMIT_KINDS, type LimiterOptions } from '../../limiter/limiter.ts';
import { EVERYTHING, type Pattern, readPattern, readPatterns } from '../keys/pattern.ts';
import { type EtcdConfig, readEtcd } from './etcd.ts';
import type { GroupsConfig } from './groups.ts';
import { type RedisConfig, readRedis, trial } from './redis.ts';

/** A rule as it was written: what `limiter()` takes, but for its name. */
export type RuleOptions = Pick<LimiterOptions, 'limit' | 'keysMax' | 'holdMax'>;

export interface OverrideConfig {
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
  readonly overrides: readonly OverrideConfig[];
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
export interface Others {
  readonly hasPeers: boolean;
  readonly hasPool: boolean;
  readonly hasGroups: boolean;
  /** Not there either if what was written makes no sense. */
  readonly groups: GroupsConfig | undefined;
}

const NOBODY: Others = { hasPeers: false, hasPool: false, hasGroups: false, groups: undefined };

/** More limits than this are data, and belong into keys. */
const LIMITS_MAX = 1000;
const OVERRIDES_MAX = 10_000;

/**
 * Reads all limits, in the order they were written. @throws {ConfigError} with all that is wrong with any of them.
 */
export function readLimits(
  value: unknown,
  path: string,
  others: Others = NOBODY,
): readonly LimitConfig[] {
  const fields = new Fields(path, value, 'limits by name');
  const names = fields.names();
  if (names.length > LIMITS_MAX) {
    throw new ConfigError(path, `at most ${LIMITS_MAX} limits`, `${names.length} of them`);
  }
  return readEach(names, (name) => readLimit(name, fields.raw(name), fields.at(name), others));
}

function readLimit(name: string, value: unknown, path: string, others: Others): LimitConfig {
  const fields = Fields.patient(path, value, 'an object with a rule, such as bucket');
  fields.attempt(() => requireName(name, path));
  const patterns = (list: string): readonly Pattern[] =>
    fields.attempt(() => readPatterns(fields.raw(list), fields.at(list))) ?? [];
  const match = patterns('match');
  const limit: LimitConfig = {
    name,
    match: match.length > 0 ? match : [EVERYTHING],
    always: fields.flag('always', false),
    per: fields.oneOf('per', ['key', 'limit'] as const, 'key'),
    shadow: fields.flag('shadow', false),
    allow: patterns('allow'),
    deny: patterns('deny'),
    ...readRules(fields, others),
  };
  if (limit.per === 'limit' && limit.overrides.length > 0) {
    fields.complain('overrides', 'left out when all keys have one count together (per: limit)');
  }
  fields.done();
  return limit;
}

/** The rule, those of single keys, and who else spends from them. */
function readRules(
  fields: Fields,
  { hasPeers, hasPool, hasGroups, groups: section }: Others,
): Pick<LimitConfig, 'rule' | 'overrides' | 'redis' | 'etcd' | 'peers' | 'pool' | 'groups'> {
  const read = <T>(name: string, reader: (value: unknown, path: string) => T): T | undefined =>
    fields.has(name) ? fields.attempt(() => reader(fields.raw(name), fields.at(name))) : undefined;
  const redis = read('redis', readRedis);
  const etcd = read('etcd', readEtcd);
  fields.attempt(() => {
    if (redis && etcd) throw new ConfigError(fields.at('etcd'), 'left out beside redis', 'both');
  });
  const decider = redis ? trial(redis) : etcd?.trial;
  const asked = fields.optional('peers', isFlag, 'true or false');
  const who = redis ? 'Redis' : 'etcd';
  if (asked && decider) fields.complain('peers', `left out of a limit that ${who} decides`);
  if (asked && !hasPeers) {
    fields.complain('peers', 'left out, or a section `peers` beside `limits` to say who they are');
  }
  const pool = fields.flag('pool', false);
  if (pool && (decider || asked))
    fields.complain('pool', 'left out of a limit that is shared otherwise');
  if (pool && !hasPool) fields.complain('pool', 'left out, or a section `pool` beside `limits`');
  const isGrouped = fields.flag('groups', false);
  if (isGrouped && pool) fields.complain('groups', 'left out beside pool');
  if (isGrouped && !hasGroups) {
    fields.complain(
      'groups',
      'left out, or a section `groups` beside `limits` to say who they are',
    );
  }
  const groups = isGrouped ? section : undefined;
  const share = groups ? groups.trial(decider) : decider;
  const overrides = fields.attempt(() => readOverrides(fields, share)) ?? [];
  const rule = fields.attempt(() => readRule(fields, share)) as RuleOptions;
  const rules = rule ? [rule, ...overrides.map((own) => own.rule)] : [];
  const isForPeers = (own: RuleOptions): boolean => canBeShared(own, alone);
  const peers = asked ?? (hasPeers && !decider && !pool && rules.every(isForPeers));
  if (asked && !rules.every(isForPeers)) {
    fields.complain('peers', 'left out: peers can keep buckets together, and nothing else');
  }
  if (pool && !rules.every((own) => canBeShared(own, undivided))) {
    fields.complain('pool', 'left out: this limit cannot be divided');
  }
  return { redis, etcd, overrides, rule, peers, pool, groups };
}

const isFlag = (value: unknown): value is boolean => typeof value === 'boolean';

/** Whether a rule that makes sense also does when it is shared. */
function canBeShared(rule: RuleOptions, share: ShareMaker): boolean {
  try {
    engineOf({ ...rule, share });
    return true;
  } catch (error) {
    if (error instanceof ConfigError) return false;
    throw error;
  }
}

function readOverrides(
  limit: Fields,
  share: RemoteShareMaker | ShareMaker | undefined,
): readonly OverrideConfig[] {
  const value = limit.raw('overrides');
  const path = limit.at('overrides');
  if (value === undefined) return [];
  const expected = 'a list of objects with `match` and a rule';
  if (!Array.isArray(value)) throw new ConfigError(path, expected, value);
  if (value.length > OVERRIDES_MAX) {
    throw new ConfigError(path, `at most ${OVERRIDES_MAX} overrides`, `${value.length} of them`);
  }
  const seen = new Set<string>();
  return readEach(value, (own, n) => {
    const fields = Fields.patient(`${path}[${n}]`, own, 'an object with `match` and a rule');
    const match = fields.attempt(() => readPattern(fields.raw('match'), fields.at('match')));
    if (match && seen.has(match.text)) {
      fields.complain('match', 'unlike that of the other overrides');
    }
    if (match) seen.add(match.text);
    const rule = fields.attempt(() => readRule(fields, share));
    fields.done();
    return { match, rule } as OverrideConfig;
  });
}

/** The one rule among the fields, tried out so that what is wrong with it is known now. */
function readRule(fields: Fields, share: RemoteShareMaker | ShareMaker | undefined): RuleOptions {
  for (const name of ['keysMax', 'holdMax']) fields.raw(name);
  const kinds = LIMIT_KINDS.filter((kind) => fields.has(kind));
  const stray = fields.names().find((name) => !fields.knows(name));
  if (kinds.length === 0 && stray !== undefined) {
    throw new ConfigError(fields.at(stray), `one of ${LIMIT_KINDS.join(', ')}`, stray);
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
  const bounds = ['keysMax', 'holdMax'].filter((name) => fields.has(name));
  const rule = {
    limit: { [kind]: fields.raw(kind) },
    ...Object.fromEntries(bounds.map((name) => [name, fields.raw(name)])),
  } as unknown as RuleOptions;
  try {
    engineOf({ ...rule, ...(share && { share }) }, { path: fields.path });
  } catch (error) {
    if (!(error instanceof ConfigError) || error.field.startsWith(fields.path)) throw error;
    throw error.within(fields.path);
  }
  return rule;
}

/** The same text, the same rule: its counts may live on. */
export const fingerprint = (rule: RuleOptions): string => JSON.stringify(sorted(rule));

/** Without the order in which people happened to write things. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isRecord(value)) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([name, own]) => [name, sorted(own)]));
}
