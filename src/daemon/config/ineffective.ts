import { ConfigError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import { writtenRules } from '../../limiter/bare-durations.ts';
import type { LimiterOptions } from '../../limiter/limiter.ts';

type Limit = LimiterOptions['limit'];

const NO_PARTITION = 'no protocol of a daemon names a partition; write one limit for each';
const NO_LEVEL = 'no protocol of a daemon names a level; write one limit for each';

/** Why an option of a rule does nothing in a daemon. */
const INEFFECTIVE: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  spacing: {
    reserve:
      'a daemon reserves nothing; a client waits with `wait`, or retries after the time in the refusal',
  },
  concurrency: { partitions: NO_PARTITION, priorities: NO_LEVEL },
  adaptive: { partitions: NO_PARTITION, priorities: NO_LEVEL },
};

const NEED_OUTCOMES = ['concurrency', 'adaptive', 'busy'];

/** @throws {ConfigError} for the first option without effect of a valid limit */
export function requireEffective(limit: Limit, path: string): void {
  for (const { kind, options, path: rulePath } of writtenRules(limit, path)) {
    if (!isRecord(options)) continue;
    for (const [name, reason] of Object.entries(INEFFECTIVE[kind] ?? {})) {
      const given = options[name] ?? 0; // a reserve of 0 is none
      if (given !== 0) throw new ConfigError(`${rulePath}.${name}`, `left out: ${reason}`, given);
    }
  }
}

/** Why a limit cannot be in shadow mode; undefined if it can. */
export function shadowProblem(limits: readonly Limit[]): string | undefined {
  const kinds = limits.flatMap((limit) => writtenRules(limit, '')).map(({ kind }) => kind);
  const found = kinds.find((kind) => NEED_OUTCOMES.includes(kind));
  const why = 'it needs the outcome of calls and gets none in shadow mode';
  return found && `false beside ${found}: ${why}; try it on some keys with \`match\``;
}
