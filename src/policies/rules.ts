import type { PlacedRule, Policy, RuleSpec } from './policy.ts';

/** Completes a policy that is one rule. */
export function asRule<P extends Policy>(spec: RuleSpec | undefined, parts: Omit<P, 'rules'>): P {
  const rules: PlacedRule[] = [];
  const policy = Object.assign(parts, { rules }) as unknown as P;
  rules.push({ policy, offset: 0, spec });
  return policy;
}

/** The rules of a limit as numbers; undefined if one learns from its own calls. */
export function specsOf({ rules }: Policy): readonly RuleSpec[] | undefined {
  const specs = rules.flatMap(({ spec }) => spec ?? []);
  return specs.length === rules.length ? specs : undefined;
}

export interface NamedRule extends PlacedRule {
  readonly name: string;
}

/** The rules of a limit with their names in a refusal. */
export function rulesOf({ rules }: Policy): readonly NamedRule[] {
  const names = ruleNamesOf(rules.map(({ policy }) => policy.kind));
  return rules.map((rule, n) => ({ ...rule, name: names[n] }));
}

/** The names of rules: their kinds, numbered where a kind occurs again: `bucket`, `window`, `bucket-2`. */
export function ruleNamesOf(kinds: readonly string[]): string[] {
  return kinds.map((kind, n) => {
    let nth = 1;
    for (let before = 0; before < n; before++) if (kinds[before] === kind) nth++;
    return nth > 1 ? `${kind}-${nth}` : kind;
  });
}

/** The names of the rules of a limit that has several; else none, because a refusal need not name the only one. */
export const namesOfRules = ({ rules }: Policy): readonly string[] =>
  rules.length > 1 ? ruleNamesOf(rules.map(({ policy }) => policy.kind)) : [];

/** Whether a limit is `all` of its rules. */
export const isJoint = (limit: Policy): boolean => limit.rules[0].policy !== limit;

/** Whether a level of the rule above its capacity is a debt, so that units can be taken ahead and returned at any time. */
export const keepsDebt = ({ policy }: PlacedRule): boolean => policy.share?.maxDebt !== undefined;

/** Whether a rule of the limit keeps calls an interval apart. */
export const hasInterval = ({ queue }: Policy): boolean => (queue?.minIntervalMs ?? 0) > 0;

/** The layout of a state: a rule with another layout cannot read it. The steps of a window are numbered by their length. */
export const layoutOf = (limit: Policy): string =>
  (specsOf(limit) ?? [])
    .map(({ kind, params }) => (kind === 'window' ? `${kind}-${params[1]}x${params[2]}` : kind))
    .join('+');
