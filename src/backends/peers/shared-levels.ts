/**
 * Levels of a limit that peers exchange besides hits: the use of each rule, as the time until it is 0.
 *
 *     bucket   its time to full
 *     window   the counted part of the limit, as a part of the window; the receiver counts it from now on
 *     lockout  its count and its lock, in numbers above 0; hits do not change them (`lockout-backend.ts`)
 *
 * Levels are compared (`anti-entropy.ts`) if a limit has buckets only: a difference between buckets would remain, a
 * difference between windows disappears with the window. Hits are predicted (`prediction.ts`) if a limit is one rule.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import { maxOveruseOf } from '../../policies/bucket.ts';
import { LOCKOUT_FIGURES } from '../../policies/lockout-sharing.ts';
import type { LockoutSharing, PlacedRule, Policy, State } from '../../policies/policy.ts';
import type { WindowTerms } from '../../policies/window.ts';
import { bindingLevel, raiseLevels, timeToFull } from './bucket-levels.ts';

export interface SharedLevels {
  /** Numbers of a key in a state transfer: one per rule, more for a lock-out. */
  readonly numbers: number;
  /** False if hits change no rule. */
  readonly countsHits: boolean;
  /** Whether hits add up linearly, so that predicted hits can be released. */
  readonly isAdditive: boolean;
  /** Whether nodes compare its levels. */
  readonly isCompared: boolean;
  /** The level at which no units remain. */
  readonly capacity: number;
  /** The level that overuse can reach: use beyond the cost. */
  readonly maxLevel: number;
  /** Units spent; 0 if hits are not additive and levels are not compared. */
  level(state: State, i: number, now: Millis): number;
  /** The time to full of each rule. */
  timesToFull(state: State, i: number, now: Millis): readonly Millis[];
  /** Raises each rule to at least a peer's level, plus hits that the peer has not counted yet. */
  raise(state: State, i: number, now: Millis, peerTimes: readonly Millis[], hits: number): void;
  /** Counts hits of a peer if not all rules of the limit count them; without it, an update does. */
  addHits?(state: State, i: number, hits: number, now: Millis): void;
  /** Subtracts units that were counted recently; without it, a settlement does. */
  lower?(state: State, i: number, now: Millis, units: number): void;
}

/** The levels of a policy; undefined if one of its rules cannot count hits of peers. */
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

/** Levels of a window, a lock-out, or `all` of these and of buckets. */
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
  /** Offset of its numbers. */
  readonly from: number;
}

function levelsOfRule(policy: Policy): SharedLevels | undefined {
  if (policy.buckets) return sharedLevelsOf(policy);
  if (policy.kind === 'window') return windowLevels(policy);
  return policy.lockoutSharing && lockoutLevels(policy.lockoutSharing);
}

/** Numbers are sent plus 1, because a number of a page is above 0. */
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

/** Predicted hits were counted within this time, except for a small part. */
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
    /** Steps may have begun since the units were counted. Subtracting from the oldest ones never shortens a count. */
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
