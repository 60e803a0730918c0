import type { RateValue } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, type OptionReader } from '../../core/options.ts';
import { requireUnits } from '../../limiter/bare-durations.ts';
import { createLimiter, type LimiterOptions } from '../../limiter/limiter.ts';
import { requireEffective, shadowProblem } from '../config/ineffective.ts';
import { dryRunFactoryOf, type LimitConfig } from '../config/limits.ts';
import type { RuleOptions } from '../config/rule.ts';
import { overrideName } from '../router/limiter-registry.ts';

type Limit = LimiterOptions['limit'];
type Fields = Readonly<Record<string, unknown>>;

/** How a rate is written in each kind of rule. */
const WITH_RATE: Readonly<
  Record<string, (old: Fields, rate: RateValue, given: unknown) => Fields>
> = {
  bucket: ({ burst: _, ...old }, _rate, given) => ({ ...old, rate: given }),
  window: (old, { count, periodMs }) => ({ ...old, limit: count, per: periodMs }),
  spacing: (old, { count, periodMs }) => ({ ...old, every: periodMs / count }),
};

/** Kinds whose rate is a number of calls. */
const WITH_COUNT: Readonly<Record<string, (old: unknown, given: unknown) => unknown>> = {
  concurrency(old, given) {
    const limit = Number.isNaN(Number(given)) ? given : Number(given);
    return isRecord(old) ? { ...old, limit } : limit;
  },
};

/** Reads `rate` and `burst`, or `rule`. @throws {ConfigError} if the limit cannot have such a rule */
export function readOverrideRule(fields: OptionReader, limit: LimitConfig): Limit {
  const given = fields.get('rule');
  const rule = given === undefined ? withRate(fields, limit) : given;
  if (given !== undefined && (fields.has('rate') || fields.has('burst')))
    fields.throwFor('rule', 'left out beside `rate`');
  const valid = validRule(rule, limit);
  if (given !== undefined) requireUnits({ limit: given }, 'rule'); // a rate has its unit
  return valid;
}

/** The rule, if the limit can have it. @throws {ConfigError} */
export function validRule(rule: unknown, { name, backends, shadow }: LimitConfig): Limit {
  const backend = dryRunFactoryOf(backends);
  createLimiter({ limit: rule as Limit, ...(backend && { backend }) }, { path: 'rule' });
  requireEffective(rule as Limit, 'rule');
  const problem = shadow ? shadowProblem([rule as Limit]) : undefined;
  if (problem) throw new ConfigError('rule', `for limit ${name} with \`shadow\`: ${problem}`, rule);
  return rule as Limit;
}

function withRate(fields: OptionReader, { name, rule }: LimitConfig): Fields {
  const [[kind, options]] = Object.entries(rule.limit);
  if (Object.hasOwn(WITH_COUNT, kind))
    return { [kind]: WITH_COUNT[kind](options, fields.get('rate')) };
  if (!Object.hasOwn(WITH_RATE, kind)) {
    const expected = `left out: limit ${name} is \`${kind}\`, which takes a \`rule\``;
    throw new ConfigError('rate', expected, fields.get('rate'));
  }
  const rate = fields.rate('rate');
  const burst = fields.has('burst') ? { burst: fields.number('burst', { above: 0 }) } : {};
  return { [kind]: { ...WITH_RATE[kind](options as Fields, rate, fields.get('rate')), ...burst } };
}

/** Keys with the same override share a limiter, whose name does not contain a key. */
export const overrideLimiterName = (limit: string, rule: Limit): string =>
  overrideName(limit, `override ${JSON.stringify(rule).replace(/["{}]/g, '')}`);

/** The options of the override's limiter. */
export const overrideOptions = ({ rule }: LimitConfig, limit: Limit): RuleOptions => ({
  ...rule,
  limit,
});
