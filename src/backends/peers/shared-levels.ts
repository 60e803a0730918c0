/**
 * What peers exchange of a limit besides hits: how much of each rule is spent, as the time until nothing is.
 *
 *     bucket   its time to full
 *     window   the part of the limit that counts, as a part of the window; the receiver counts it from now on
 *
 * Levels are compared (`anti-entropy.ts`) where a limit has buckets only: a difference between buckets would last, one
 * between windows is gone when the window has passed. Hits are predicted (`prediction.ts`) where a limit is one rule.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import { maxOveruseOf } from '../../policies/bucket.ts';
import type { Policy, State } from '../../policies/policy.ts';
import type { WindowTerms } from '../../policies/window.ts';
import { bindingLevel, raiseLevels, timeToFull } from './bucket-levels.ts';

export interface SharedLevels {
  /** Rules of the limit. */
  readonly rules: number;
  /** Whether hits add up linearly, so that predicted hits can be taken back. */
  readonly isAdditive: boolean;
  /** The level that use beyond the cost can cause. */
  readonly maxLevel: number;
  /** Units spent; 0 where levels are not compared. */
  level(state: State, i: number, now: Millis): number;
  /** Of each rule. */
  timesToFull(state: State, i: number, now: Millis): readonly Millis[];
  /** Raises each rule to at least a peer's level, plus hits that the peer has yet to count. */
  raise(state: State, i: number, now: Millis, peerTimes: readonly Millis[], hits: number): void;
  /** Takes back units that were counted a moment ago; without it, a settlement does. */
  lower?(state: State, i: number, now: Millis, units: number): void;
}

/** Undefined if a rule of the limit cannot count hits of peers. */
export function sharedLevelsOf(policy: Policy): SharedLevels | undefined {
  const { buckets } = policy;
  if (!buckets) return ruleByRule(policy);
  const largest = Math.max(...buckets.map(({ burst }) => burst));
  return {
    rules: buckets.length,
    isAdditive: buckets.length === 1 && buckets[0].maxDebt === Infinity,
    maxLevel: largest + Math.max(...buckets.map(maxOveruseOf)),
    level: (state, i, now) => bindingLevel(buckets, state, i, now),
    timesToFull: (state, i, now) => timeToFull(buckets, state, i, now),
    raise: (state, i, now, peerTimes, hits) => raiseLevels(buckets, state, i, now, peerTimes, hits),
  };
}

/** A window, or `all` of windows and buckets. */
function ruleByRule(policy: Policy): SharedLevels | undefined {
  const rules = rulesOf(policy, 0);
  if (policy.kind === 'window') return windowLevels(policy);
  if (!rules.every(({ policy: { kind, buckets } }) => kind === 'window' || buckets))
    return undefined;
  const levels = rules.map((rule) => sharedLevelsOfRule(rule.policy));
  const maxLevels = levels.map(({ maxLevel }) => maxLevel);
  return {
    rules: rules.length,
    isAdditive: false,
    maxLevel: Math.min(...maxLevels),
    level: () => 0,
    timesToFull: (state, i, now) =>
      levels.flatMap((one, n) => one.timesToFull(state, i + rules[n].offset, now)),
    raise(state, i, now, peerTimes, hits) {
      for (const [n, one] of levels.entries())
        one.raise(state, i + rules[n].offset, now, [peerTimes[n]], hits);
    },
  };
}

const sharedLevelsOfRule = (policy: Policy): SharedLevels =>
  (policy.buckets && sharedLevelsOf(policy)) || windowLevels(policy);

function windowLevels(policy: Policy): SharedLevels {
  const { limit, perMs, stepMs } = policy.terms as WindowTerms;
  const countOf = (state: State, i: number, now: Millis): number =>
    limit - policy.keyState(state, i, now).remaining;
  return {
    rules: 1,
    isAdditive: true,
    maxLevel: Infinity,
    level: () => 0,
    timesToFull: (state, i, now) => [(countOf(state, i, now) * perMs) / limit],
    raise(state, i, now, [peerMs], hits) {
      const count = Math.min((peerMs * limit) / perMs + hits, MAX_AMOUNT);
      const missing = count - countOf(state, i, now);
      if (missing > 0) policy.update(state, i, { hits: missing }, now);
    },
    /** A step may have begun since they were counted. */
    lower(state, i, now, units) {
      const least = countOf(state, i, now) - units;
      for (const dueAt of [now, now - stepMs]) {
        const used = least - countOf(state, i, now);
        if (used < 0) policy.settle(state, i, { outcome: 'ok', cost: 0, used, dueAt }, now);
      }
    },
  };
}

interface PlacedRule {
  readonly policy: Policy;
  readonly offset: number;
}

/** The rules of a limit and where their numbers begin. */
const rulesOf = (policy: Policy, offset: number): PlacedRule[] =>
  policy.kind === 'all'
    ? (policy.terms as readonly PlacedRule[]).flatMap((part) =>
        rulesOf(part.policy, offset + part.offset),
      )
    : [{ policy, offset }];
