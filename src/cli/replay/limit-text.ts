/**
 * A limit on the command line: words, or the form of configuration files.
 *
 *     bucket 10/s burst 20                 the name of the rule, its first option, then names and values
 *     window 100 per 1m
 *     bucket: { rate: 10/s, burst: 20 }    YAML, as in a configuration
 */

import { isRecord } from '../../core/options.ts';
import { parseYaml } from '../../daemon/config/yaml-source.ts';
import { requireUnits } from '../../limiter/bare-durations.ts';
import { LIMIT_KINDS } from '../../limiter/limiter.ts';
import { CommandError, parseFlagValue } from '../framework/command.ts';

/** The option whose name may be left out. */
const FIRST_OPTION: Readonly<Record<string, string>> = {
  bucket: 'rate',
  spacing: 'every',
  window: 'limit',
  quota: 'limit',
  lockout: 'after',
};

/** One limit, or all of several. @throws {CommandError} @throws {ConfigError} for a duration without a unit */
export function parseLimits(texts: readonly string[]): unknown {
  const limits = texts.map(parseLimit);
  const limit = limits.length === 1 ? limits[0] : { all: limits };
  requireUnits({ limit }, '--limit');
  return limit;
}

function parseLimit(text: string): unknown {
  const [kind, ...words] = text.trim().split(/\s+/);
  if (LIMIT_KINDS.includes(kind)) return { [kind]: optionsOf(kind, words, text) };
  const parsed = parseYaml('--limit', text);
  if ('problems' in parsed) throw new CommandError(parsed.problems[0]);
  if (isRecord(parsed.value)) return parsed.value;
  throw new CommandError(
    `expected \`--limit\` to be a limit such as "bucket 10/s burst 20" or "window 100 per 1m", got "${text}"`,
  );
}

function optionsOf(kind: string, words: readonly string[], text: string): Record<string, unknown> {
  const first = FIRST_OPTION[kind];
  const isNamed = words.length % 2 === 0;
  if (words.length === 0 || (!isNamed && first === undefined))
    throw new CommandError(
      `expected \`--limit\` to have options after ${kind}, as names and values, got "${text}"`,
    );
  const pairs = isNamed ? words : [first, ...words];
  const options: Record<string, unknown> = {};
  for (let n = 0; n < pairs.length; n += 2) options[pairs[n]] = parseFlagValue(pairs[n + 1]);
  return options;
}

/** `bucket 10/s burst 20`, where words can say it; otherwise JSON. */
export function formatLimit(limit: unknown): string {
  const [[kind, options] = [], ...others] = isRecord(limit) ? Object.entries(limit) : [];
  const isPlain = isRecord(options) && Object.values(options).every((value) => !isRecord(value));
  if (kind === undefined || others.length > 0 || !isPlain || Array.isArray(options))
    return JSON.stringify(limit);
  const words = Object.entries(options).map(([name, value]) =>
    name === FIRST_OPTION[kind] ? `${value}` : `${name} ${value}`,
  );
  return [kind, ...words].join(' ');
}
