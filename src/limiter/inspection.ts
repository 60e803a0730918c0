import type { Millis } from '../core/clock.ts';
import { NEVER } from '../core/decision.ts';
import type { KeyState, KeyStatus, RuleStatus } from '../policies/policy.ts';
import { ruleNamesOf } from '../policies/rules.ts';

export { ruleNamesOf } from '../policies/rules.ts';

/** A rule's status with its name: the limit's name, followed by the rule's kind where there are several. */
export interface NamedRuleStatus extends RuleStatus {
  readonly name: string;
}

/** The status of a key in a limit, and in each of its rules. */
export interface Inspection extends KeyState {
  /** The limit's name. */
  readonly name: string;
  /** Time until one call fits: 0 now, Infinity never; left out if a call in flight must settle. */
  readonly opensInMs?: Millis;
  /** The rule that refuses a call now, `cooldown` or `closed`; left out if a call fits. */
  readonly by?: string;
  /** Every rule of the limit, in the order of its options. */
  readonly rules: readonly NamedRuleStatus[];
}

/** `by` of a key in Retry-After cool-down. */
export const COOLDOWN = 'cooldown';

/** `by` of a closed limiter. */
export const CLOSED = 'closed';

/**
 * Extends the status in place: a server inspects the key for the headers of every request, and copying cost more than
 * the rest.
 */
export function inspectionOf(
  name: string,
  { state, rules: statuses }: KeyStatus,
  cooldownMs: Millis,
  isClosed: boolean,
): Inspection {
  const rules = nameRules(name, statuses);
  const { opensInMs, by } = bindingRule(rules, cooldownMs, isClosed);
  const inspection = state as Mutable<Inspection>;
  inspection.name = name;
  inspection.rules = rules;
  if (opensInMs !== undefined) inspection.opensInMs = opensInMs;
  if (by !== undefined) inspection.by = by;
  return inspection;
}

type Mutable<T> = { -readonly [Name in keyof T]: T[Name] };

const OPEN: Pick<Inspection, 'opensInMs' | 'by'> = { opensInMs: 0 };

/** The binding rule: the one with the longest wait, or one that waits for a call to settle. */
export function bindingRule(
  rules: readonly NamedRuleStatus[],
  cooldownMs: Millis,
  isClosed: boolean,
): Pick<Inspection, 'opensInMs' | 'by'> {
  if (isClosed) return { opensInMs: NEVER, by: CLOSED };
  let opensInMs = cooldownMs;
  let by = cooldownMs > 0 ? COOLDOWN : undefined;
  let untimed: string | undefined; // opens when a call settles
  for (const rule of rules) {
    if (rule.opensInMs === undefined) untimed ??= rule.name;
    else if (rule.opensInMs > opensInMs) [opensInMs, by] = [rule.opensInMs, rule.name];
  }
  if (by !== undefined) return { opensInMs, by };
  return untimed === undefined ? OPEN : { by: untimed };
}

/** The status of a call in several limits. */
export function combineInspections(name: string, each: readonly Inspection[]): Inspection {
  const rules = each.flatMap((one) => one.rules);
  const cooldowns = each.filter(({ by }) => by === COOLDOWN);
  const cooldownMs = Math.max(0, ...cooldowns.map(({ opensInMs = 0 }) => opensInMs));
  const isClosed = each.some(({ by }) => by === CLOSED);
  const remaining = Math.min(...each.map((one) => one.remaining));
  return { remaining, name, ...bindingRule(rules, cooldownMs, isClosed), rules };
}

export function nameRules(name: string, statuses: readonly RuleStatus[]): NamedRuleStatus[] {
  if (statuses.length === 1) return [nameRule(statuses[0], name)];
  const names = ruleNamesOf(statuses.map(({ kind }) => kind));
  return statuses.map((status, n) => nameRule(status, `${name}.${names[n]}`));
}

function nameRule(status: RuleStatus, name: string): NamedRuleStatus {
  const named = status as Mutable<NamedRuleStatus>;
  named.name = name;
  return named;
}
