import type { AnyBackendFactory } from '../../backends/daemon-backend.ts';
import { described } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, type OptionReader } from '../../core/options.ts';
import { requireUnits } from '../../limiter/bare-durations.ts';
import {
  createLimiter,
  hintForRule,
  LIMIT_KINDS,
  type LimiterOptions,
  RULE_OF_OPTION,
} from '../../limiter/limiter.ts';
import { requireEffective } from './ineffective.ts';

/** A rule as it was written: the options of `limiter()` without its name. */
export type RuleOptions = Pick<LimiterOptions, 'limit' | 'maxKeys' | 'permitTimeout'>;

/** Reads the one rule among the fields and validates it. */
export function readRule(
  fields: OptionReader,
  backend: AnyBackendFactory | undefined,
): RuleOptions | undefined {
  const rule = writtenRule(fields);
  if (rule) validateRule(rule, fields, backend, fields.path);
  return rule;
}

/** The one rule among the fields, as it was written. */
export function writtenRule(fields: OptionReader): RuleOptions | undefined {
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
export function validateRule(
  rule: RuleOptions,
  fields: OptionReader,
  backend: AnyBackendFactory | undefined,
  limitPath: string,
): void {
  try {
    createLimiter({ ...rule, ...(backend && { backend }) }, { path: fields.path });
  } catch (error) {
    const isConfigError = error instanceof ConfigError;
    if (!isConfigError || [limitPath, fields.path].some((path) => error.field.startsWith(path)))
      throw error;
    throw error.prefixedWith(fields.path, 'limit'); // a rule stands in the limit itself
  }
  requireEffective(rule.limit, fields.path);
  requireUnits(rule, fields.path);
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
