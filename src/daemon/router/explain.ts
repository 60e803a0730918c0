/**
 * Which limits a key would meet, and why: in a few lines, without asking any of them.
 */

import type { LimitConfig } from '../config/limits.ts';
import { bestMatch } from '../keys/pattern.ts';
import type { AppliedLimit, Route, RoutesConfig, StaticVerdict } from './routes.ts';

export interface Explanation {
  /** What happens, in a sentence. */
  readonly summary: string;
  readonly limits: readonly LimitExplanation[];
}

export interface LimitExplanation {
  readonly name: string;
  readonly isApplied: boolean;
  /** The rule as it was written. */
  readonly rule: unknown;
  readonly reason: string;
}

export function explainRoute(route: Route, config: RoutesConfig, key: string): Explanation {
  const applied = route.applied.map((own) => ({
    name: own.name,
    isApplied: true,
    rule: ruleOf(own),
    reason: describeApplied(own),
  }));
  const others = config.limits
    .filter((limit) => !route.applied.some((own) => own.limit === limit))
    .map((limit) => ({
      name: limit.name,
      isApplied: false,
      rule: limit.rule.limit,
      reason: describeNotApplied(limit, route, config, key),
    }));
  return { summary: summaryOf(route), limits: [...applied, ...others] };
}

function summaryOf({ staticVerdict, applied }: Route): string {
  if (staticVerdict)
    return `${staticVerdict.isAllowed ? 'always allowed' : 'always denied'}: ${describeStaticVerdict(staticVerdict)}`;
  const active = applied.filter(({ limit }) => !limit.shadow);
  if (active.length === 0) return 'always allowed: only limits in shadow mode are for it';
  return active.length === 1
    ? 'one limit decides'
    : `${active.length} limits decide, all or nothing`;
}

function describeStaticVerdict({ reason, limit, pattern }: StaticVerdict): string {
  if (reason === 'unmatched') return 'no limit is for it (unmatched)';
  const whose = limit === undefined ? 'the' : `limit ${limit}'s`;
  return `${whose} ${reason === 'allow-list' ? 'allow' : 'deny'} list has ${pattern?.text}`;
}

const ruleOf = ({ limit, name }: AppliedLimit): unknown =>
  (limit.overrides.find(({ match }) => name === `${limit.name}[${match.text}]`)?.rule ?? limit.rule)
    .limit;

function describeApplied({ limit, name, pattern }: AppliedLimit): string {
  const what =
    name === limit.name ? `matches ${pattern.text}` : `has an override for ${pattern.text}`;
  const how = limit.always ? 'applies always' : 'is the most specific';
  const notes = [
    limit.per === 'limit' && 'all keys count together',
    limit.shadow && 'shadow mode: counts, never refuses',
    ...limit.backends.map(({ note }) => note),
  ].filter((note) => note !== false && note !== undefined);
  return [`${what}, ${how}`, ...notes].join('; ');
}

function describeNotApplied(
  limit: LimitConfig,
  { applied, staticVerdict }: Route,
  { limits }: RoutesConfig,
  key: string,
): string {
  const by = bestMatch(limit.match, key);
  if (!by) return `does not match ${limit.match.map(({ text }) => text).join(', ')}`;
  if (staticVerdict) return 'not asked';
  if (bestMatch(limit.allow, key)) return 'its allow list has the key';
  const first = applied.find((own) => !own.limit.always)?.limit;
  // One that excuses the key is still the one that was for it.
  const excused = limits.find(
    (own) => !own.always && bestMatch(own.match, key) && bestMatch(own.allow, key),
  );
  return `matches ${by.text}, but ${(first ?? excused)?.name ?? 'another one'} is more specific`;
}
