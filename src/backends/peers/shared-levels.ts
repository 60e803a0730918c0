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
import type { Policy, Sharing, State } from '../../policies/policy.ts';

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
  lower?(state: State, i: number, units: number, now: Millis): void;
}

/** The levels of a policy; undefined if one of its rules cannot count hits of peers. */
export function sharedLevelsOf(policy: Policy): SharedLevels | undefined {
  let numbers = 0;
  const parts: SharedPart[] = [];
  for (const { policy: rule, offset } of policy.rules) {
    const { share } = rule;
    if (!share) return undefined;
    parts.push({ rule, share, offset, from: numbers });
    numbers += share.figureCount;
  }
  const shares = parts.map(({ share }) => share);
  const lone = shares.length === 1 ? shares[0] : undefined;
  const maxDebts = shares.map(({ maxDebt = Infinity }) => maxDebt);
  const isCompared = shares.every(({ maxDebt }) => maxDebt !== undefined);
  const counting = parts.filter(({ share }) => !share.events);
  const largest = Math.max(...shares.map(({ capacity }) => capacity));
  return {
    numbers,
    countsHits: counting.length > 0,
    isAdditive: lone?.isAdditive ?? false,
    isCompared,
    capacity: isCompared || lone ? largest : Infinity,
    maxLevel: isCompared
      ? largest + Math.max(...maxDebts)
      : Math.min(...shares.map(({ capacity }, n) => capacity + maxDebts[n])),
    level: isCompared ? bindingLevel(parts, largest) : (lone?.level ?? (() => 0)),
    timesToFull: (state, i, now) =>
      parts.flatMap(({ share, offset }) => share.figures(state, i + offset, now)),
    raise(state, i, now, peerTimes, hits) {
      for (const { share, offset, from } of parts) {
        const figures = peerTimes.slice(from, from + share.figureCount);
        share.raise(state, i + offset, figures, hits, now);
      }
    },
    ...(!isCompared &&
      !lone && {
        addHits(state: State, i: number, hits: number, now: Millis): void {
          for (const { rule, offset } of counting) rule.update(state, i + offset, { hits }, now);
        },
      }),
    ...(lone?.lower && { lower: lone.lower }),
  };
}

interface SharedPart {
  readonly rule: Policy;
  readonly share: Sharing;
  readonly offset: number;
  /** Where its numbers begin in a state transfer. */
  readonly from: number;
}

/**
 * How far the bucket that binds is from empty, expressed as tokens spent of the largest bucket: one more
 * hit raises it by one, no matter which bucket binds.
 */
function bindingLevel(parts: readonly SharedPart[], largest: number): SharedLevels['level'] {
  return (state, i, now) => {
    let level = -Infinity;
    for (let n = 0; n < parts.length; n++) {
      const { share, offset } = parts[n];
      level = Math.max(level, share.level(state, i + offset, now) - share.capacity);
    }
    return level + largest;
  };
}
