/** Explains which limits match a key, and why, without a check. */

import type { LimitConfig } from '../config/limits.ts';
import { bestMatch } from '../keys/pattern.ts';
import { overrideName } from './limiter-registry.ts';
import type { AppliedLimit, Route, RoutesConfig, StaticVerdict } from './routes.ts';

export interface Explanation {
  /** The result in one sentence. */
  readonly summary: string;
  readonly limits: readonly LimitExplanation[];
}

export interface LimitExplanation {
  readonly name: string;
  readonly isApplied: boolean;
  /** True for a limit in shadow mode. */
  readonly shadow?: boolean;
  readonly rule: unknown;
  readonly reason: string;
}

export function explainRoute(route: Route, config: RoutesConfig, key: string): Explanation {
  const applied = route.applied.map((each) => ({
    name: each.name,
    isApplied: true,
    ...(each.limit.shadow && { shadow: true }),
    rule: ruleOf(each),
    reason: describeApplied(each, key),
  }));
  const others = config.limits
    .filter((limit) => !route.applied.some((each) => each.limit === limit))
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
  if (active.length === 0) return 'always allowed: only limits in shadow mode match';
  return active.length === 1
    ? 'one limit decides'
    : `${active.length} limits decide, all or nothing`;
}

function describeStaticVerdict({ reason, limit, pattern }: StaticVerdict): string {
  if (reason === 'unmatched') return 'no limit matches (unmatched)';
  const owner = limit === undefined ? 'the' : `limit ${limit}'s`;
  return `${owner} ${reason === 'allow-list' ? 'allow' : 'deny'} list has ${pattern?.text}`;
}

const ruleOf = ({ limit, name }: AppliedLimit): unknown =>
  (
    limit.overrides.find(({ match }) => name === overrideName(limit.name, match.text))?.rule ??
    limit.rule
  ).limit;

function describeApplied({ limit, name, pattern }: AppliedLimit, key: string): string {
  const match =
    name === limit.name ? `matches ${pattern.text}` : `has an override for ${pattern.text}`;
  const scope = limit.always ? 'applies always' : 'is the most specific';
  const cause = bestMatch(limit.match, key) ? `${match}, ${scope}` : 'named in the request';
  const notes = [
    limit.per === 'limit' && 'one count for all keys',
    limit.shadow && 'shadow mode: counts, never refuses',
    ...limit.backends.map(({ note }) => note),
  ].filter((note) => note !== false && note !== undefined);
  return [cause, ...notes].join('; ');
}

function describeNotApplied(
  limit: LimitConfig,
  { applied, staticVerdict }: Route,
  { limits }: RoutesConfig,
  key: string,
): string {
  const match = bestMatch(limit.match, key);
  if (!match) return `does not match ${limit.match.map(({ text }) => text).join(', ')}`;
  if (staticVerdict) return 'not checked';
  if (bestMatch(limit.allow, key)) return 'its allow list has the key';
  const first = applied.find((each) => !each.limit.always)?.limit;
  // A limit whose allow list has the key is still the most specific one.
  const exempt = limits.find(
    (each) => !each.always && bestMatch(each.match, key) && bestMatch(each.allow, key),
  );
  return `matches ${match.text}, but ${(first ?? exempt)?.name ?? 'another limit'} is more specific`;
}
