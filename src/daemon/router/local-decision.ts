import { allow, type Decision } from '../../core/decision.ts';
import { CLOSED, COOLDOWN, type NamedRuleStatus } from '../../limiter/inspection.ts';
import { decisionOfRefusal, type Permit } from '../../limiter/permit.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import {
  ALLOWED,
  type CheckResult,
  type KeyStatus,
  type RoutedRequest,
  remainingIn,
} from './request.ts';
import { limiterKeyOf, type Route } from './route.ts';

/** The result of the local limits, and the permits taken for it. */
export interface LocalResult {
  readonly result: CheckResult;
  readonly permits: readonly Permit[];
}

/** A limit on calls in flight is only peeked at: without a permit nothing would end the call. */
export function checkLocal({ route, key, cost }: RoutedRequest): LocalResult {
  if (route.singleLimiter) {
    const decision = route.singleLimiter.check(key, cost);
    return { result: resultOf(route.singleLimiter, decision), permits: [] };
  }
  let free = Number.MAX_SAFE_INTEGER;
  for (const applied of route.concurrencyLimits) {
    const decision = applied.limiter.peek(limiterKeyOf(applied, key), cost);
    if (decision.verdict !== 'deny') {
      free = Math.min(free, remainingIn({ decision }) + cost); // a peek takes nothing
      continue;
    }
    applied.limiter.recordDecision(limiterKeyOf(applied, key), cost, decision, 0);
    return { result: { decision, limit: applied.name }, permits: [] };
  }
  const result = route.local?.checkNamed(key, cost) ?? ALLOWED;
  if (result.decision.verdict === 'deny' || free >= remainingIn(result))
    return { result, permits: [] };
  return { result: { decision: allow(free) }, permits: [] };
}

export function acquireLocal({ route, key, cost }: RoutedRequest): LocalResult {
  const permit = route.localWithPermits?.tryAcquire(key, cost);
  if (!permit) return { result: ALLOWED, permits: [] };
  if (permit.verdict === 'allow') return { result: statusOf(route, key), permits: [permit] };
  return { result: { decision: decisionOfRefusal(permit), limit: permit.limit }, permits: [] };
}

/** `remaining` of the local limits after a permit was taken: a permit does not have it. */
export function statusOf({ applied, remote }: Route, key: string): CheckResult {
  const rules: NamedRuleStatus[] = [];
  let remaining = Number.MAX_SAFE_INTEGER;
  for (const each of applied) {
    if (each.limit.shadow || !(each.limiter instanceof SyncLimiter)) continue;
    for (const rule of each.limiter.inspect(limiterKeyOf(each, key)).rules) {
      rules.push(rule);
      remaining = Math.min(remaining, Math.max(0, rule.remaining));
    }
  }
  const decision = allow(remaining);
  return remote.length > 0 ? { decision } : { decision, rules };
}

/** The smallest `remaining` of a key in several limits; 0 in a cool-down. Limits without a status are left out. */
export function leastRemaining(statuses: readonly KeyStatus[]): number {
  let least = Number.MAX_SAFE_INTEGER;
  for (const status of statuses) {
    if (!('rules' in status)) continue;
    const isShut = status.by === COOLDOWN || status.by === CLOSED;
    least = Math.min(least, isShut ? 0 : Math.max(0, status.remaining));
  }
  return least;
}

export const resultOf = ({ name }: SyncLimiter, decision: Decision): CheckResult =>
  decision.verdict === 'deny' ? { decision, limit: name } : { decision };
