/**
 * Which limits a key would meet, and why: in a few lines, without asking any of them.
 */

import type { LimitConfig } from '../config/limits.ts';
import { bestMatch } from '../keys/pattern.ts';
import type { Applied, Route, RoutesConfig, Settled } from './routes.ts';

export interface Explained {
  /** What happens, in a sentence. */
  readonly summary: string;
  readonly limits: readonly ExplainedLimit[];
}

export interface ExplainedLimit {
  readonly name: string;
  readonly isApplied: boolean;
  /** The rule as it was written. */
  readonly rule: unknown;
  readonly reason: string;
}

export function explainRoute(route: Route, config: RoutesConfig, tag: string): Explained {
  const applied = route.applied.map((own) => ({
    name: own.name,
    isApplied: true,
    rule: ruleOf(own),
    reason: whyApplied(own),
  }));
  const others = config.limits
    .filter((limit) => !route.applied.some((own) => own.limit === limit))
    .map((limit) => ({
      name: limit.name,
      isApplied: false,
      rule: limit.rule.limit,
      reason: whyNot(limit, route, config, tag),
    }));
  return { summary: summaryOf(route), limits: [...applied, ...others] };
}

function summaryOf({ settled, applied }: Route): string {
  if (settled)
    return `${settled.isAllowed ? 'always allowed' : 'always denied'}: ${whySettled(settled)}`;
  const active = applied.filter(({ limit }) => !limit.shadow);
  if (active.length === 0) return 'always allowed: only limits in shadow mode are for it';
  return active.length === 1
    ? 'one limit decides'
    : `${active.length} limits decide, all or nothing`;
}

function whySettled({ reason, limit, by }: Settled): string {
  if (reason === 'unmatched') return 'no limit is for it (unmatched)';
  const whose = limit === undefined ? 'the' : `limit ${limit}'s`;
  return `${whose} ${reason === 'allow-list' ? 'allow' : 'deny'} list has ${by?.text}`;
}

const ruleOf = ({ limit, name }: Applied): unknown =>
  (limit.overrides.find(({ match }) => name === `${limit.name}[${match.text}]`)?.rule ?? limit.rule)
    .limit;

function whyApplied({ limit, name, by }: Applied): string {
  const what = name === limit.name ? `matches ${by.text}` : `has an override for ${by.text}`;
  const how = limit.always ? 'applies always' : 'is the most specific';
  const notes = [
    limit.per === 'limit' && 'all keys count together',
    limit.shadow && 'shadow mode: counts, never refuses',
    limit.redis && 'shared through Redis',
    limit.etcd && 'shared through etcd',
    limit.groups && 'shared with other groups',
  ].filter((note) => note !== false && note !== undefined);
  return [`${what}, ${how}`, ...notes].join('; ');
}

function whyNot(
  limit: LimitConfig,
  { applied, settled }: Route,
  { limits }: RoutesConfig,
  tag: string,
): string {
  const by = bestMatch(limit.match, tag);
  if (!by) return `does not match ${limit.match.map(({ text }) => text).join(', ')}`;
  if (settled) return 'not asked';
  if (bestMatch(limit.allow, tag)) return 'its allow list has the key';
  const first = applied.find((own) => !own.limit.always)?.limit;
  // One that excuses the key is still the one that was for it.
  const excused = limits.find(
    (own) => !own.always && bestMatch(own.match, tag) && bestMatch(own.allow, tag),
  );
  return `matches ${by.text}, but ${(first ?? excused)?.name ?? 'another one'} is more specific`;
}
