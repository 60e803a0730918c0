/**
 * How a key stands, and why: which rule says no, how much each has left, and until when.
 */

import type { Millis } from '../core/clock.ts';
import type { KeyState, KeyStatus, RuleStatus } from '../policies/policy.ts';

/** A rule by its name: the limit's own, with the rule's kind behind it where there are several. */
export interface NamedRuleStatus extends RuleStatus {
  readonly name: string;
}

/** How a key stands with a limit, and with each rule of it. */
export interface Inspection extends KeyState {
  /** The limit's name. */
  readonly name: string;
  /** How long until one call fits: 0 now, Infinity never; left out if a call in flight must settle. */
  readonly opensInMs?: Millis;
  /** What says no to one call right now: the name of a rule, or `pause`; left out if nothing does. */
  readonly by?: string;
  /** Every rule of the limit, in the order they were written. */
  readonly rules: readonly NamedRuleStatus[];
}

/** What keeps everybody out while the other side wants nothing. */
const COOLDOWN = 'cooldown';

/**
 * What was seen is added to, not copied: a server looks with every request it tells about its limit, and
 * copying cost more than all the rest.
 */
export function inspectionOf(
  name: string,
  { state, rules: statuses }: KeyStatus,
  cooldownMs: Millis,
): Inspection {
  const rules = nameRules(name, statuses);
  const { opensInMs, by } = bindingRule(rules, cooldownMs);
  const inspection = state as Mutable<Inspection>;
  inspection.name = name;
  inspection.rules = rules;
  if (opensInMs !== undefined) inspection.opensInMs = opensInMs;
  if (by !== undefined) inspection.by = by;
  return inspection;
}

type Mutable<T> = { -readonly [Name in keyof T]: T[Name] };

const OPEN: Pick<Inspection, 'opensInMs' | 'by'> = { opensInMs: 0 };

/** What binds most: the rule one would have to wait for longest, or for a call to settle. */
export function bindingRule(
  rules: readonly NamedRuleStatus[],
  cooldownMs: Millis,
): Pick<Inspection, 'opensInMs' | 'by'> {
  let opensInMs = cooldownMs;
  let by = cooldownMs > 0 ? COOLDOWN : undefined;
  let unknown: string | undefined; // opens when a call settles
  for (const rule of rules) {
    if (rule.opensInMs === undefined) unknown ??= rule.name;
    else if (rule.opensInMs > opensInMs) [opensInMs, by] = [rule.opensInMs, rule.name];
  }
  if (by !== undefined) return { opensInMs, by };
  return unknown === undefined ? OPEN : { by: unknown };
}

export function nameRules(name: string, statuses: readonly RuleStatus[]): NamedRuleStatus[] {
  if (statuses.length === 1) return [nameRule(statuses[0], name)];
  const seen = new Map<string, number>();
  return statuses.map((status) => {
    const nth = (seen.get(status.kind) ?? 0) + 1;
    seen.set(status.kind, nth);
    return nameRule(status, `${name}.${status.kind}${nth > 1 ? `-${nth}` : ''}`);
  });
}

function nameRule(status: RuleStatus, name: string): NamedRuleStatus {
  const named = status as Mutable<NamedRuleStatus>;
  named.name = name;
  return named;
}
