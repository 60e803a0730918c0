import { createPolicy } from '../../policies/limit.ts';
import { aimdNetflix } from './aimd-netflix.ts';
import { envoyGradient } from './envoy.ts';
import { gradient2 } from './gradient2.ts';
import { type CreateRule, fixedRule, learntRule, policyRule } from './rule.ts';
import { vegas } from './vegas.ts';

const RULES: Readonly<Record<string, CreateRule>> = {
  delay: (random, now) => policyRule(createPolicy({ adaptive: {} }, random), now),
  aimd: (random, now) => policyRule(createPolicy({ adaptive: { rule: 'aimd' } }, random), now),
  vegas: (random) => learntRule(vegas(random)),
  gradient2: () => learntRule(gradient2()),
  envoy: (random) => learntRule(envoyGradient(random)),
  'aimd-netflix': () => learntRule(aimdNetflix()),
};

export const RULE_NAMES: readonly string[] = Object.keys(RULES);

/** The rules that are compared unless others are named. */
export const DEFAULT_RULES: readonly string[] = ['delay', 'aimd'];

/** The most calls that `fixed:N` may allow in flight. */
export const MAX_FIXED = 1000;

/** The rule of a name; `fixed:20` is a limit of 20 that does not learn. Undefined if there is none. */
export function findRule(name: string): CreateRule | undefined {
  const [, digits] = /^fixed:(\d{1,4})$/.exec(name) ?? [];
  if (digits === undefined) return Object.hasOwn(RULES, name) ? RULES[name] : undefined;
  const limit = Number(digits);
  return limit >= 1 && limit <= MAX_FIXED ? () => fixedRule(limit) : undefined;
}
