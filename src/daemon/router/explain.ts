import type { LimitConfig } from '../config/limits.ts';
import { toKeyText } from '../keys/binary-key.ts';
import { matchedKeyOf } from '../keys/canonical-key.ts';
import type { Pattern } from '../keys/pattern.ts';
import type { Route, StaticVerdict } from './route.ts';
import type { LimitMatch, RouteTable } from './routes.ts';

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

/** `table` is the one that found the route. */
export function explainRoute(route: Route, table: RouteTable, key: string): Explanation {
  const { limits } = table;
  const applied = route.applied.map(({ limit, name, runtimeRule }) => {
    const match = table.matchOf(limit, key);
    const plan = match.override || name === limit.name ? undefined : planOf(name);
    const rule = match.override?.rule ?? limit.plans.get(plan ?? '') ?? limit.rule;
    return {
      name,
      isApplied: true,
      ...(limit.shadow && { shadow: true }),
      rule: runtimeRule ?? rule.limit,
      reason: runtimeRule
        ? 'has a run-time override for the key'
        : describeApplied(limit, match, plan),
    };
  });
  const others = limits
    .filter((limit) => !route.applied.some((each) => each.limit === limit))
    .map((limit) => ({
      name: limit.name,
      isApplied: false,
      rule: limit.rule.limit,
      reason: describeNotApplied(limit, route, table, key),
    }));
  const { canonicalKey, staticVerdict } = route;
  const counted =
    canonicalKey === undefined || staticVerdict ? '' : `; counted as ${toKeyText(canonicalKey)}`;
  const hasAlways = limits.some((limit) => limit.always && table.matchOf(limit, key).pattern);
  return { summary: summaryOf(route, hasAlways) + counted, limits: [...applied, ...others] };
}

function summaryOf({ staticVerdict, applied }: Route, hasAlways: boolean): string {
  if (staticVerdict) {
    const { until, isAllowed } = staticVerdict;
    const denied =
      until === undefined ? 'always denied' : `denied until ${new Date(until).toISOString()}`;
    const cause = describeStaticVerdict(staticVerdict, hasAlways);
    return `${isAllowed ? 'always allowed' : denied}: ${cause}`;
  }
  const active = applied.filter(({ limit }) => !limit.shadow);
  if (active.length === 0) return 'always allowed: only limits in shadow mode match';
  return active.length === 1
    ? 'one limit decides'
    : `${active.length} limits decide, all or nothing`;
}

/** `hasAlways`: a limit with `always` matches the key. */
function describeStaticVerdict(verdict: StaticVerdict, hasAlways: boolean): string {
  const { reason, limit, pattern, note } = verdict;
  if (reason === 'banned') return `a ban has ${pattern?.text}${note ? ` (${note})` : ''}`;
  if (reason === 'unmatched')
    return `no limit matches${hasAlways ? ' but those with always' : ''} (unmatched)`;
  const owner = limit === undefined ? 'the' : `limit ${limit}'s`;
  return `${owner} ${reason === 'allow-list' ? 'allow' : 'deny'} list has ${pattern?.text}`;
}

/** The plan in the name of a limiter, `limit[plan]`. */
const planOf = (name: string): string => name.slice(name.indexOf('[') + 1, -1);

function describeApplied(
  limit: LimitConfig,
  { pattern, override }: LimitMatch,
  plan: string | undefined,
): string {
  const match = override ? `has an override for ${override.pattern}` : `matches ${pattern?.text}`;
  const scope = limit.always ? 'applies always' : 'is the most specific';
  const cause = pattern ? `${match}, ${scope}` : 'named in the request';
  const notes = [
    plan !== undefined && `has the plan ${plan}`,
    limit.per === 'limit' && 'one count for all keys',
    limit.shadow && 'shadow mode: counts, never refuses',
    ...limit.backends.map(({ note }) => note),
  ].filter((note) => note !== false && note !== undefined);
  return [cause, ...notes].join('; ');
}

function describeNotApplied(
  limit: LimitConfig,
  { applied, staticVerdict }: Route,
  table: RouteTable,
  key: string,
): string {
  const { pattern } = table.matchOf(limit, key);
  if (!pattern) return `does not match ${describePatterns(limit.match)}`;
  if (staticVerdict) return 'not checked';
  const isExempt = ({ allow }: LimitConfig): boolean => allow.best(matchedKeyOf(key)) >= 0;
  if (isExempt(limit)) return 'its allow list has the key';
  const first = applied.find((each) => !each.limit.always)?.limit;
  // A limit whose allow list has the key is still the most specific one.
  const exempt = table.limits.find(
    (each) => !each.always && table.matchOf(each, key).pattern && isExempt(each),
  );
  return `matches ${pattern.text}, but ${(first ?? exempt)?.name ?? 'another limit'} is more specific`;
}

/** A list from a file may have thousands. */
const MAX_SHOWN_PATTERNS = 5;

function describePatterns(patterns: readonly Pattern[]): string {
  const hidden = patterns.length - MAX_SHOWN_PATTERNS;
  const shown = patterns.slice(0, MAX_SHOWN_PATTERNS).map(({ text }) => text);
  return shown.join(', ') + (hidden > 0 ? ` and ${hidden} more` : '');
}
