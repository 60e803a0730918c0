/**
 * Ramp: a token quota per second that grows from `min` to `max`.
 *
 * For a resource that must be warmed up, or a fleet that must not start at full rate. Each second has a
 * number of tokens, the level. A caller takes up to n tokens and gives back what it did not use; what is
 * left expires with the second. The mode decides how the level changes, with slope = (max - min) / over:
 *
 * | mode         | at the first call of a later second, `gap` seconds after the last one          |
 * | ------------ | ------------------------------------------------------------------------------ |
 * | scheduled    | + slope × gap: by the clock alone                                              |
 * | relaxed      | + slope: by calls                                                              |
 * | only-if-used | + slope if at least `threshold` % of the last level was used                   |
 * | go-back-n    | the same, but - slope if it was not, and - slope for every second without call |
 *
 * The level stays within [min, max], and only whole tokens are granted. The level itself is a real
 * number, so that a slope of a sixth of a token is not lost. After `resumeFor` without a call it is `min`.
 *
 * In a pool of k members each member keeps a copy of the same rule. A member that knows only k may take
 * floor(level / k), and what it takes counts k times against its copy. A member that also knows its rank
 * gets turns at the remainder: these rotate by rank and second, and over all members add up to exactly
 * the whole level.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import {
  COUNTS_ONLY,
  type Policy,
  type PoolPosition,
  type RuleSpec,
  type State,
  simulatedQueue,
  timeToOpen,
} from './policy.ts';
import { asRule } from './rules.ts';

export const RAMP_MODES = ['scheduled', 'relaxed', 'only-if-used', 'go-back-n'] as const;
/** What makes the level of a ramp grow. */
export type RampMode = (typeof RAMP_MODES)[number];

/** Ramp: a token quota per second that grows. */
export interface RampOptions {
  /** Tokens a second at the start. */
  readonly min: number;
  /** Tokens a second at the end of the ramp. */
  readonly max: number;
  /** Time from `min` to `max` at the fastest. */
  readonly over: Duration;
  /** What makes the level grow. Default relaxed. */
  readonly mode?: RampMode | undefined;
  /** only-if-used, go-back-n: the percentage of a level that counts as used. Default 100. */
  readonly threshold?: number | undefined;
  /** go-back-n: idle time that does not lower the level. Default: every idle second does. */
  readonly coolDown?: Duration | undefined;
  /** go-back-n: slope down, in percent of the slope up. Default 100. */
  readonly rampDown?: number | undefined;
  /**
   * How long a level outlives the last call of its key, in this process, in a store or in a snapshot, in whole seconds:
   * after that the ramp begins again at `min`. Default: any time.
   */
  readonly resumeFor?: Duration | undefined;
}

/** Sixty sixths must be ten: floating-point error tolerated in a whole token. */
const EPSILON = 1e-9;

/** How many seconds ahead a member searches for its turn before it decides "next second". */
const MAX_LOOKAHEAD_SECONDS = 1024;

const SECOND = 0; //     of the last call; NaN before the first
const TOKENS = 1; //     the level: tokens this second, over all members
const REMAINING = 2; //  tokens not yet taken: with a rank of this member's quota, else of the whole level
const TAKEN = 3; //      tokens this member took this second and did not give back
const POOL_SIZE = 4; //  members
const RANK = 5; //       this member's rank; -1 if unknown
const WIDTH = 6;

export function ramp(options: RampOptions, path = 'ramp'): Policy {
  const reader = OptionReader.collecting(path, options);
  const max = reader.positive('max');
  const min = reader.positive('min');
  if (min > max) reader.report('min', `at most \`max\` (min ${min} exceeds max ${max})`);
  const overMs = reader.duration('over');
  const mode = reader.oneOf('mode', RAMP_MODES, 'relaxed');
  const threshold = reader.number('threshold', { min: 0, max: 100 }, 100);
  const coolDownSeconds = Math.ceil(reader.duration('coolDown', 0) / 1000);
  const rampDown = reader.number('rampDown', { min: 0, max: 100 }, 100);
  const resumeForMs = reader.duration('resumeFor', Infinity);
  const resumeForSeconds = Math.ceil(resumeForMs / 1000);
  reader.finish();

  const slope = ((max - min) * 1000) / overMs;
  const slopeDown = (slope * rampDown) / 100;
  const clamp = (level: number): number => Math.min(max, Math.max(min, level));

  const isUsed = (state: State, i: number): boolean => {
    const [remaining, taken] = [state[i + REMAINING], state[i + TAKEN]];
    // A member whose quota is 0 this second has used all of it: it could not use more.
    const quota = hasRank(state, i) ? taken + remaining : state[i + TOKENS];
    return (quota - remaining + EPSILON) * 100 >= threshold * quota;
  };

  /** The level of a second `gap` later, from what happened in the last second that had a call. */
  const nextLevel = (state: State, i: number, gap: number): number => {
    const level = state[i + TOKENS];
    if (gap > resumeForSeconds) return min;
    switch (mode) {
      case 'scheduled':
        return clamp(level + slope * gap);
      case 'relaxed':
        return clamp(level + slope);
      case 'only-if-used':
        return clamp(isUsed(state, i) ? level + slope : level);
      case 'go-back-n': {
        const idleSeconds = Math.max(0, gap - 1 - coolDownSeconds);
        const step = isUsed(state, i) ? slope : -slopeDown;
        return clamp(clamp(level + step) - slopeDown * idleSeconds);
      }
    }
  };

  /**
   * When a check that was just refused is worth repeating: at the start of a later second. Only the
   * scheduled level is sure to have grown by then; the other modes grow by calls.
   */
  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const [second, level, , , size, rank] = state.subarray(i, i + WIDTH);
    // With turns at the remainder, a quota can be one larger than an even one.
    const needed = rank < 0 ? cost * size : (cost - 1) * size + 1;
    if (needed > wholeTokens(max)) return NEVER;

    const secondsToGrow = mode === 'scheduled' ? Math.ceil((needed - level) / slope - EPSILON) : 1;
    const first = slope > 0 ? Math.max(1, secondsToGrow) : 1;
    const turns = rank < 0 ? 1 : Math.min(size, MAX_LOOKAHEAD_SECONDS);
    for (let gap = first; gap < first + turns; gap++) {
      const grown = mode === 'scheduled' ? level + slope * gap : level + slope;
      const expected = gap > resumeForSeconds ? min : grown;
      if (memberQuota(clamp(expected), size, rank, second + gap) >= cost) {
        return Math.ceil((second + gap) * 1000 - now);
      }
    }
    return Math.ceil((second + 1) * 1000 - now);
  };

  const kind = 'ramp';
  const growth = [min, max, slope, slopeDown];
  const params = [...growth, RAMP_MODES.indexOf(mode), threshold, coolDownSeconds];
  if (options.resumeFor !== undefined) params.push(resumeForSeconds);
  const scratch = new Float64Array(WIDTH);

  const rampAt = (position?: PoolPosition): Policy => {
    /** Advances the state to the second of `now`; a second begins once. */
    const advance = (state: State, i: number, now: Millis): void => {
      if (position) resize(state, i, position);
      const second = Math.floor(now / 1000);
      const last = state[i + SECOND];
      if (Number.isNaN(last)) beginSecond(state, i, second, state[i + TOKENS]);
      else if (second > last) beginSecond(state, i, second, nextLevel(state, i, second - last));
    };

    /** The state at `now`. Reading must not count as a call, so it advances a scratch copy. */
    const stateAt = (state: State, i: number, now: Millis): State => {
      for (let n = 0; n < scratch.length; n++) scratch[n] = state[i + n];
      advance(scratch, 0, now);
      return scratch;
    };

    /** A new key would not know its pool size, so a key that was given one is kept. */
    const mustKeepSize = (state: State, i: number): boolean => !position && isMember(state, i);

    const spec: RuleSpec = { kind, params };
    const policy: Policy = asRule(spec, {
      kind,
      width: WIDTH,
      traits: COUNTS_ONLY,

      init(state, i, now, freshAt = now) {
        begin(state, i, min);
        state[i + POOL_SIZE] = 1;
        state[i + RANK] = -1;
        if (freshAt <= now) return;
        // The second of its eviction has nothing left, and the next one begins at `min`.
        beginSecond(state, i, Math.floor((freshAt - 1) / 1000), min - slope);
        state[i + REMAINING] = 0;
      },

      check(state, i, cost, now) {
        requireCost(cost);
        if (cost === 0) return allow(remainingOf(stateAt(state, i, now), 0));
        advance(state, i, now);
        if (cost > remainingOf(state, i) + EPSILON) return deny(retryAfter(state, i, cost, now));
        state[i + TAKEN] += cost;
        state[i + REMAINING] = Math.max(0, state[i + REMAINING] - cost * unitCost(state, i));
        return allow(remainingOf(state, i));
      },

      available(state, i, now) {
        advance(state, i, now);
        return remainingOf(state, i);
      },

      /** Returns tokens that were granted this second and not used; later they have expired. */
      settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
        const unused = outcome === 'ignored' ? cost : cost - used;
        const isLate = Math.floor(now / 1000) > state[i + SECOND];
        if (isLate || Math.floor(dueAt / 1000) !== state[i + SECOND]) return;
        const returned = Math.min(unused, state[i + TAKEN]); // never more than was granted
        const remaining = state[i + REMAINING] + returned * unitCost(state, i);
        state[i + TAKEN] -= returned;
        state[i + REMAINING] = Math.max(0, Math.min(wholeTokens(state[i + TOKENS]), remaining));
      },

      update(state, i, feedback, now) {
        if ('poolSize' in feedback) {
          rebase(state, i, feedback.poolSize, feedback.rank ?? -1);
        } else if ('hits' in feedback) {
          advance(state, i, now);
          state[i + REMAINING] = Math.max(0, state[i + REMAINING] - feedback.hits);
        } else if ('resume' in feedback) {
          const isNew = Number.isNaN(state[i + SECOND]); // too late once it has a level
          if (isNew && now - feedback.reachedAt <= resumeForMs)
            begin(state, i, clamp(feedback.resume));
        } else {
          return false;
        }
        return true;
      },

      /** The level is kept within the new bounds; what was taken in this second stays taken. */
      convertFrom: () => (state, i, source, j) => {
        for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
        const granted = grantedOf(state, i) - state[i + REMAINING];
        state[i + TOKENS] = clamp(state[i + TOKENS]);
        if (!Number.isNaN(state[i + SECOND]))
          state[i + REMAINING] = Math.max(0, grantedOf(state, i) - granted);
      },

      chain: {
        advance,
        /** By whole seconds, rounded down: the second of the last call may be the next one. */
        setBack(state, i, byMs) {
          state[i + SECOND] -= Math.floor(byMs / 1000);
        },
      },

      divide: {
        ofPool: rampAt,
        ratePerSecond: (state, i, now) =>
          wholeTokens(stateAt(state, i, now)[TOKENS]) / scratch[POOL_SIZE],
        ...(options.resumeFor !== undefined && { resumeForMs }),
      },
      queue: simulatedQueue(() => policy),

      // A level above `min` is kept for `resumeFor`. A level of `min` is a new one as soon as its second is
      // over, unless the clock alone would have raised it meanwhile.
      freshAt(state, i, isLenient) {
        const second = state[i + SECOND];
        if (mustKeepSize(state, i)) return Infinity;
        if (isLenient) return Number.isNaN(second) ? -Infinity : (second + 1) * 1000;
        if (Number.isNaN(second)) return state[i + TOKENS] === min ? -Infinity : Infinity;
        if (max === min) return (second + 1) * 1000;
        const forgottenAt = (second + 1 + resumeForSeconds) * 1000;
        if (mode !== 'go-back-n' || slopeDown === 0) return forgottenAt;
        const aboveMin = clamp(state[i + TOKENS] + slope) - min;
        const loweredAt = (second + 1 + coolDownSeconds + Math.ceil(aboveMin / slopeDown)) * 1000;
        return Math.min(forgottenAt, loweredAt);
      },

      keyState(state, i, now) {
        const then = stateAt(state, i, now);
        return { remaining: remainingOf(then, 0), level: clamp(then[TOKENS]) };
      },

      ruleStatuses(state, i, now) {
        advance(state, i, now);
        const remaining = remainingOf(state, i);
        const terms = { quota: quotaOf(state, i), windowMs: 1000 };
        const freshInMs = Math.ceil((state[i + SECOND] + 1) * 1000 - now);
        return [{ kind, ...terms, remaining, freshInMs, ...timeToOpen(policy, state, i, now) }];
      },
    });
    return policy;
  };
  return rampAt();
}

/** Begins a key at a level, before its first second. */
function begin(state: State, i: number, level: number): void {
  state[i + SECOND] = Number.NaN;
  state[i + TOKENS] = level;
  state[i + REMAINING] = 0;
  state[i + TAKEN] = 0;
}

function beginSecond(state: State, i: number, second: number, level: number): void {
  state[i + SECOND] = second;
  state[i + TOKENS] = level;
  state[i + REMAINING] = grantedOf(state, i);
  state[i + TAKEN] = 0;
}

/**
 * Moves a key to another pool position whose part no other member uses in this second: what the part has
 * grown by is available at once.
 */
function resize(state: State, i: number, { size, rank }: PoolPosition): void {
  if (state[i + POOL_SIZE] === size && state[i + RANK] === rank) return;
  const reported = Math.max(0, unspent(state, i) - state[i + REMAINING]);
  const [wasRanked, costBefore] = [hasRank(state, i), unitCost(state, i)];
  state[i + POOL_SIZE] = size;
  state[i + RANK] = rank;
  // With a rank, hits elsewhere count in tokens of the quota; without one in tokens of the whole level.
  const isSameUnit = wasRanked === hasRank(state, i);
  const converted = isSameUnit ? reported : (reported / costBefore) * unitCost(state, i);
  state[i + REMAINING] = Math.max(0, unspent(state, i) - converted) || 0;
}

/** Moves a key to a pool position whose part other members may have used before in this second. */
function rebase(state: State, i: number, size: number, rank: number): void {
  if (state[i + POOL_SIZE] === size && state[i + RANK] === rank) return;
  const remaining = state[i + REMAINING] / unitCost(state, i);
  const wasRanked = hasRank(state, i);
  state[i + POOL_SIZE] = size;
  state[i + RANK] = rank;
  if (wasRanked && !hasRank(state, i)) state[i + REMAINING] = remaining * unitCost(state, i);
  if (!wasRanked && hasRank(state, i)) {
    const quota = quotaOf(state, i) - state[i + TAKEN];
    state[i + REMAINING] = Math.max(0, Math.min(remaining, quota)) || 0;
  }
}

/** What `REMAINING` begins a second with. */
const grantedOf = (state: State, i: number): number =>
  hasRank(state, i) ? quotaOf(state, i) : wholeTokens(state[i + TOKENS]);

/** What would be left of this second without hits reported from elsewhere. */
function unspent(state: State, i: number): number {
  return grantedOf(state, i) - state[i + TAKEN] * unitCost(state, i);
}

const wholeTokens = (level: number): number => Math.floor(level + EPSILON);

const hasRank = (state: State, i: number): boolean => state[i + RANK] >= 0;

const isMember = (state: State, i: number): boolean =>
  state[i + POOL_SIZE] !== 1 || hasRank(state, i);

/** What a token counts against `REMAINING`: without a rank it counts for every member. */
const unitCost = (state: State, i: number): number =>
  hasRank(state, i) ? 1 : state[i + POOL_SIZE];

/** One member's quota of a level in a given second. */
export function memberQuota(level: number, size: number, rank: number, second: number): number {
  const whole = wholeTokens(level);
  const even = Math.floor(whole / size);
  const remainder = whole - even * size;
  if (rank < 0 || remainder === 0) return even;
  const turn = rank + second - Math.floor((rank + second) / size) * size; // also before the origin of time
  return even + (turn < remainder ? 1 : 0);
}

const quotaOf = (state: State, i: number): number =>
  memberQuota(state[i + TOKENS], state[i + POOL_SIZE], state[i + RANK], state[i + SECOND]);

/**
 * What this member may still take this second: at most its quota, and at most what its copy of the level
 * has left. They differ if the size changed meanwhile, or hits elsewhere were reported.
 */
function remainingOf(state: State, i: number): number {
  const ofQuota = quotaOf(state, i) - state[i + TAKEN];
  const ofLevel = Math.floor(state[i + REMAINING] / unitCost(state, i) + EPSILON);
  return Math.max(0, Math.min(ofQuota, ofLevel));
}
