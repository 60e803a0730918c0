/**
 * What peers exchange of a limit besides hits: how much of each rule is spent, as the time until nothing is.
 *
 *     bucket   its time to full
 *     window   the part of the limit that counts, as a part of the window; the receiver counts it from now on
 *     lockout  its count and its lock, in numbers above 0; what changes them is not hits (`lockout-backend.ts`)
 *
 * Levels are compared (`anti-entropy.ts`) where a limit has buckets only: a difference between buckets would last, one
 * between windows is gone when the window has passed. Hits are predicted (`prediction.ts`) where a limit is one rule.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import { maxOveruseOf } from '../../policies/bucket.ts';
import { LOCKOUT_FIGURES } from '../../policies/lockout-sharing.ts';
import type { LockoutSharing, PlacedRule, Policy, State } from '../../policies/policy.ts';
import type { WindowTerms } from '../../policies/window.ts';
import { bindingLevel, raiseLevels, timeToFull } from './bucket-levels.ts';

export interface SharedLevels {
  /** Numbers of a key in a state transfer: one for each rule, more for a lock-out. */
  readonly numbers: number;
  /** False if hits change nothing. */
  readonly countsHits: boolean;
  /** Whether hits add up linearly, so that predicted hits can be taken back. */
  readonly isAdditive: boolean;
  /** Whether nodes compare its levels. */
  readonly isCompared: boolean;
  /** The level at which nothing is left. */
  readonly capacity: number;
  /** The level that use beyond the cost can cause. */
  readonly maxLevel: number;
  /** Units spent; 0 where hits are not additive and levels are not compared. */
  level(state: State, i: number, now: Millis): number;
  /** Of each rule. */
  timesToFull(state: State, i: number, now: Millis): readonly Millis[];
  /** Raises each rule to at least a peer's level, plus hits that the peer has yet to count. */
  raise(state: State, i: number, now: Millis, peerTimes: readonly Millis[], hits: number): void;
  /** Counts hits of a peer, where not all rules of the limit do; without it, an update does. */
  addHits?(state: State, i: number, hits: number, now: Millis): void;
  /** Takes back units that were counted a moment ago; without it, a settlement does. */
  lower?(state: State, i: number, now: Millis, units: number): void;
}

/** Undefined if a rule of the limit cannot count hits of peers. */
export function sharedLevelsOf(policy: Policy): SharedLevels | undefined {
  const { buckets } = policy;
  if (!buckets) return ruleByRule(policy);
  const largest = Math.max(...buckets.map(({ burst }) => burst));
  return {
    numbers: buckets.length,
    countsHits: true,
    isAdditive: buckets.length === 1 && buckets[0].maxDebt === Infinity,
    isCompared: true,
    capacity: largest,
    maxLevel: largest + Math.max(...buckets.map(maxOveruseOf)),
    level: (state, i, now) => bindingLevel(buckets, state, i, now),
    timesToFull: (state, i, now) => timeToFull(buckets, state, i, now),
    raise: (state, i, now, peerTimes, hits) => raiseLevels(buckets, state, i, now, peerTimes, hits),
  };
}

/** A window, a lock-out, or `all` of these and of buckets. */
function ruleByRule(policy: Policy): SharedLevels | undefined {
  if (!policy.rules) return levelsOfRule(policy);
  const parts: PlacedLevels[] = [];
  let from = 0;
  for (const rule of policy.rules) {
    const levels = levelsOfRule(rule.policy);
    if (!levels) return undefined;
    parts.push({ ...rule, levels, from });
    from += levels.numbers;
  }
  return {
    numbers: from,
    countsHits: parts.some(({ levels }) => levels.countsHits),
    isAdditive: false,
    isCompared: false,
    capacity: Infinity,
    maxLevel: Math.min(...parts.map(({ levels }) => levels.maxLevel)),
    level: () => 0,
    timesToFull: (state, i, now) =>
      parts.flatMap(({ levels, offset }) => levels.timesToFull(state, i + offset, now)),
    raise(state, i, now, peerTimes, hits) {
      for (const { levels, offset, from } of parts) {
        const times = peerTimes.slice(from, from + levels.numbers);
        levels.raise(state, i + offset, now, times, hits);
      }
    },
    addHits(state, i, hits, now) {
      for (const { levels, policy: rule, offset } of parts)
        if (levels.countsHits) rule.update(state, i + offset, { hits }, now);
    },
  };
}

interface PlacedLevels extends PlacedRule {
  readonly levels: SharedLevels;
  /** Where its numbers begin. */
  readonly from: number;
}

function levelsOfRule(policy: Policy): SharedLevels | undefined {
  if (policy.buckets) return sharedLevelsOf(policy);
  if (policy.kind === 'window') return windowLevels(policy);
  return policy.lockoutSharing && lockoutLevels(policy.lockoutSharing);
}

/** Figures are sent plus 1: a number of a page is above 0. */
const lockoutLevels = (sharing: LockoutSharing): SharedLevels => ({
  numbers: LOCKOUT_FIGURES,
  countsHits: false,
  isAdditive: false,
  isCompared: false,
  capacity: Infinity,
  maxLevel: Infinity,
  level: () => 0,
  timesToFull: (state, i, now) => sharing.figures(state, i, now).map((figure) => figure + 1),
  raise(state, i, now, peerTimes) {
    const figures = peerTimes.map((figure) => figure - 1);
    sharing.raise(state, i, figures, now);
  },
});

/** Predicted hits were counted no longer ago than this, but for a small part. */
const LOWERED_WITHIN_MS: Millis = 400;

function windowLevels(policy: Policy): SharedLevels {
  const { limit, perMs, stepMs } = policy.terms as WindowTerms;
  const countOf = (state: State, i: number, now: Millis): number =>
    limit - policy.keyState(state, i, now).remaining;
  return {
    numbers: 1,
    countsHits: true,
    isAdditive: true,
    isCompared: false,
    capacity: limit,
    maxLevel: Infinity,
    level: (state, i, now) => Math.max(0, countOf(state, i, now)),
    timesToFull: (state, i, now) => [(countOf(state, i, now) * perMs) / limit],
    raise(state, i, now, [peerMs], hits) {
      const count = Math.min((peerMs * limit) / perMs + hits, MAX_AMOUNT);
      const missing = count - countOf(state, i, now);
      if (missing > 0) policy.update(state, i, { hits: missing }, now);
    },
    /** Steps may have begun since they were counted. Taken from the oldest, units never count for too short a time. */
    lower(state, i, now, units) {
      const least = countOf(state, i, now) - units;
      for (let agoMs = LOWERED_WITHIN_MS; agoMs > -stepMs; agoMs -= stepMs) {
        const used = least - countOf(state, i, now);
        if (used >= 0) return;
        const dueAt = now - Math.max(0, agoMs);
        policy.settle(state, i, { outcome: 'ok', cost: 0, used, dueAt }, now);
      }
    },
  };
}
