/**
 * Ramp: a pool of tokens a second that grows from `min` to `max`.
 *
 * For a resource that must be warmed up, or a fleet that must not arrive all at once. Each second
 * has a pool; a caller takes up to n of it and gives back what it did not use; leftovers are gone
 * when the second is over. By how much the next pool differs is the mode, with
 * slope = (max - min) / over:
 *
 * | mode         | at the first call of a later second, `gap` seconds after the last one          |
 * | ------------ | ------------------------------------------------------------------------------ |
 * | scheduled    | + slope × gap: the clock alone decides                                         |
 * | relaxed      | + slope: somebody came                                                         |
 * | only-if-used | + slope if at least `threshold` % of the last pool was used                    |
 * | go-back-n    | the same, but - slope if it was not, and - slope for every second without call |
 *
 * Always within [min, max], and only whole tokens are handed out. The pool itself is a real number,
 * so that a slope of a sixth of a token is not lost.
 *
 * Members of a pool of k each keep a copy of the same rule. One that knows only k may take
 * floor(pool / k), and what it takes counts k times against its copy. One that also knows its rank
 * gets its turn at the remainder: it goes round by rank and second, and over all members adds up to
 * exactly the whole pool.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { type Feedback, type Policy, type PoolPosition, type State, timeToOpen } from './policy.ts';

export const RAMP_MODES = ['scheduled', 'relaxed', 'only-if-used', 'go-back-n'] as const;
/** What makes a pool grow. */
export type RampMode = (typeof RAMP_MODES)[number];

/** A pool of tokens that is new every second and grows. */
export interface RampOptions {
  /** Tokens a second at the start. */
  readonly min: number;
  /** Tokens a second once the ramp is climbed. */
  readonly max: number;
  /** How long the climb takes at its fastest. */
  readonly over: Duration;
  /** What makes the pool grow. Default relaxed. */
  readonly mode?: RampMode;
  /** only-if-used, go-back-n: how many percent of a pool count as used. Default 100. */
  readonly threshold?: number;
  /** go-back-n: so long a silence is not punished. Default: every second counts. */
  readonly coolDown?: Duration;
  /** go-back-n: how steep it goes down, in percent of the slope up. Default 100. */
  readonly rampDown?: number;
  /** How old a pool reached before a restart may be to be taken up again. Default: any age. */
  readonly resumeFor?: Duration;
}

/** Sixty sixths must be ten: what floating-point dust may be missing from a whole token. */
const EPSILON = 1e-9;

/** How far ahead a member of a small pool looks for its turn before it just says "next second". */
const MAX_LOOKAHEAD_SECONDS = 1024;

const SECOND = 0; // of the last call; NaN before the first
const TOKENS = 1; //   tokens this second, over all members
const REMAINING = 2; //   tokens not yet taken: with a rank of the own part, else of the whole pool
const TAKEN = 3; //  own tokens taken this second and not given back
const POOL_SIZE = 4; //   members
const RANK = 5; //   which of them this is; -1 if it does not know
const WIDTH = 6;

export function ramp(options: RampOptions, path = 'ramp'): Policy {
  const reader = OptionReader.collecting(path, options);
  const max = reader.positive('max');
  const min = reader.number('min', { above: 0, max });
  const overMs = reader.duration('over');
  const mode = reader.oneOf('mode', RAMP_MODES, 'relaxed');
  const threshold = reader.number('threshold', { min: 0, max: 100 }, 100);
  const coolDownSeconds = Math.ceil(reader.duration('coolDown', 0) / 1000);
  const rampDown = reader.number('rampDown', { min: 0, max: 100 }, 100);
  const resumeForMs = reader.duration('resumeFor', Infinity);
  reader.finish();

  const slope = ((max - min) * 1000) / overMs;
  const slopeDown = (slope * rampDown) / 100;
  const within = (pool: number): number => Math.min(max, Math.max(min, pool));

  /** The part that is spent here, if all keys have been told of one. */
  let own: PoolPosition | undefined;

  /** What would be left of this second, had nobody else been heard of. */
  const ownLeft = (state: State, i: number): number => {
    const whole = hasRank(state, i) ? quotaOf(state, i) : wholeTokens(state[i + TOKENS]);
    return whole - state[i + TAKEN] * unitCost(state, i);
  };

  /**
   * Brings a key to a part that nobody else uses in this second: if it has grown, what it has grown by is there
   * at once.
   */
  const regrow = (state: State, i: number, { size, rank }: PoolPosition): void => {
    if (state[i + POOL_SIZE] === size && state[i + RANK] === rank) return;
    const heard = Math.max(0, ownLeft(state, i) - state[i + REMAINING]);
    const [wasRanked, before] = [hasRank(state, i), unitCost(state, i)];
    state[i + POOL_SIZE] = size;
    state[i + RANK] = rank;
    // With a rank others are heard of in tokens of the part, without one in those of the whole pool.
    const still = wasRanked === hasRank(state, i) ? heard : (heard / before) * unitCost(state, i);
    state[i + REMAINING] = Math.max(0, ownLeft(state, i) - still) || 0;
  };

  /** Brings a key to a part that others may have used before in this second. */
  const align = (state: State, i: number, { size, rank }: PoolPosition): void => {
    if (state[i + POOL_SIZE] === size && state[i + RANK] === rank) return;
    const left = state[i + REMAINING] / unitCost(state, i);
    const wasRanked = hasRank(state, i);
    state[i + POOL_SIZE] = size;
    state[i + RANK] = rank;
    if (wasRanked && !hasRank(state, i)) state[i + REMAINING] = left * unitCost(state, i);
    if (!wasRanked && hasRank(state, i)) {
      state[i + REMAINING] = Math.max(0, Math.min(left, quotaOf(state, i) - state[i + TAKEN])) || 0;
    }
  };

  const isUsed = (state: State, i: number): boolean => {
    const [left, taken] = [state[i + REMAINING], state[i + TAKEN]];
    // A member with no part this second has used all of it: that is no fault of its own.
    const of = hasRank(state, i) ? taken + left : state[i + TOKENS];
    return (of - left + EPSILON) * 100 >= threshold * of;
  };

  /** The pool of a second `gap` later, from what happened in the last one that had a call. */
  const nextPool = (state: State, i: number, gap: number): number => {
    const pool = state[i + TOKENS];
    switch (mode) {
      case 'scheduled':
        return within(pool + slope * gap);
      case 'relaxed':
        return within(pool + slope);
      case 'only-if-used':
        return within(isUsed(state, i) ? pool + slope : pool);
      case 'go-back-n': {
        const silent = Math.max(0, gap - 1 - coolDownSeconds);
        const step = isUsed(state, i) ? slope : -slopeDown;
        return within(within(pool + step) - slopeDown * silent);
      }
    }
  };

  const open = (state: State, i: number, second: number, pool: number): void => {
    state[i + SECOND] = second;
    state[i + TOKENS] = pool;
    state[i + REMAINING] = hasRank(state, i) ? quotaOf(state, i) : wholeTokens(pool);
    state[i + TAKEN] = 0;
  };

  /** Brings the state to the second of `now`. Nothing happens twice in a second. */
  const roll = (state: State, i: number, now: Millis): void => {
    if (own) regrow(state, i, own);
    const second = Math.floor(now / 1000);
    const last = state[i + SECOND];
    if (Number.isNaN(last)) open(state, i, second, state[i + TOKENS]);
    else if (second > last) open(state, i, second, nextPool(state, i, second - last));
  };

  // Looking must not count as a call, so it happens on a copy.
  const scratch = new Float64Array(WIDTH);
  const peek = (state: State, i: number, now: Millis): State => {
    for (let n = 0; n < scratch.length; n++) scratch[n] = state[i + n];
    roll(scratch, 0, now);
    return scratch;
  };

  /**
   * When an ask that was just refused can be worth repeating: at the start of some later second.
   * Only the scheduled pool is sure to have grown by then; the others grow when somebody calls.
   */
  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const [second, pool, , , size, rank] = state.subarray(i, i + WIDTH);
    // With a turn at the remainder, a part can be one larger than an even one.
    const needed = rank < 0 ? cost * size : (cost - 1) * size + 1;
    if (needed > wholeTokens(max)) return NEVER;

    const climb = mode === 'scheduled' ? Math.ceil((needed - pool) / slope - EPSILON) : 1;
    const first = slope > 0 ? Math.max(1, climb) : 1;
    const turns = rank < 0 ? 1 : Math.min(size, MAX_LOOKAHEAD_SECONDS);
    for (let gap = first; gap < first + turns; gap++) {
      const hoped = mode === 'scheduled' ? pool + slope * gap : pool + slope;
      if (memberQuota(within(hoped), size, rank, second + gap) >= cost) {
        return Math.ceil((second + gap) * 1000 - now);
      }
    }
    return Math.ceil((second + 1) * 1000 - now);
  };

  const begin = (state: State, i: number, pool: number): void => {
    state[i + SECOND] = Number.NaN;
    state[i + TOKENS] = pool;
    state[i + REMAINING] = 0;
    state[i + TAKEN] = 0;
  };

  const kind = 'ramp';
  const pace = [min, max, slope, slopeDown];
  const formula = [...pace, RAMP_MODES.indexOf(mode), threshold, coolDownSeconds];
  const policy: Policy = {
    kind,
    width: WIDTH,
    needsExactTime: false,
    needsOutcome: false,
    canReserve: false,
    isPerSecond: true,
    ...(options.resumeFor !== undefined && { resumeForMs }),
    expireMs: Infinity,
    specs: [{ kind, params: formula }],

    init(state, i, now, freshAt = now) {
      begin(state, i, min);
      state[i + POOL_SIZE] = 1;
      state[i + RANK] = -1;
      if (freshAt <= now) return;
      // The second it was forgotten in has nothing left, and the next one begins at `min`.
      open(state, i, Math.floor((freshAt - 1) / 1000), min - slope);
      state[i + REMAINING] = 0;
    },

    check(state, i, cost, now) {
      requireCost(cost);
      if (cost === 0) return allow(remainingOf(peek(state, i, now), 0));
      roll(state, i, now);
      if (cost > remainingOf(state, i) + EPSILON) return deny(retryAfter(state, i, cost, now));
      state[i + TAKEN] += cost;
      state[i + REMAINING] = Math.max(0, state[i + REMAINING] - cost * unitCost(state, i));
      return allow(remainingOf(state, i));
    },

    available(state, i, now) {
      roll(state, i, now);
      return remainingOf(state, i);
    },

    /** Tokens that were granted this second and not used go back; late ones are gone. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      const isLate = Math.floor(now / 1000) > state[i + SECOND];
      if (isLate || Math.floor(dueAt / 1000) !== state[i + SECOND]) return;
      const back = Math.min(unused, state[i + TAKEN]); // never more than was handed out
      const left = state[i + REMAINING] + back * unitCost(state, i);
      state[i + TAKEN] -= back;
      state[i + REMAINING] = Math.max(0, Math.min(wholeTokens(state[i + TOKENS]), left));
    },

    update(state, i, feedback: Feedback, now) {
      if ('poolSize' in feedback) {
        align(state, i, { size: feedback.poolSize, rank: feedback.rank ?? -1 });
      } else if ('hits' in feedback) {
        roll(state, i, now);
        state[i + REMAINING] = Math.max(0, state[i + REMAINING] - feedback.hits);
      } else if ('resume' in feedback) {
        const isNew = Number.isNaN(state[i + SECOND]); // too late once it has a pool of its own
        if (isNew && now - feedback.reachedAt <= resumeForMs)
          begin(state, i, within(feedback.resume));
      } else {
        return false;
      }
      return true;
    },

    divide(position) {
      own = position;
    },

    ratePerSecond: (state, i, now) => wholeTokens(peek(state, i, now)[TOKENS]) / scratch[POOL_SIZE],

    // A pool that has climbed is worth keeping. One at `min` is a new one as soon as its second is
    // over, unless the clock alone would have made it climb meanwhile.
    removableAt(state, i) {
      const second = state[i + SECOND];
      if (isMember(state, i) && !own) return Infinity;
      if (Number.isNaN(second)) return state[i + TOKENS] === min ? -Infinity : Infinity;
      if (max === min) return (second + 1) * 1000;
      if (mode !== 'go-back-n' || slopeDown === 0) return Infinity;
      const climbed = within(state[i + TOKENS] + slope) - min;
      return (second + 1 + coolDownSeconds + Math.ceil(climbed / slopeDown)) * 1000;
    },

    evictableAt(state, i) {
      if (isMember(state, i) && !own) return Infinity; // begun anew it would think it is alone
      return Number.isNaN(state[i + SECOND]) ? -Infinity : (state[i + SECOND] + 1) * 1000;
    },

    keyState(state, i, now) {
      const then = peek(state, i, now);
      return { remaining: remainingOf(then, 0), pool: within(then[TOKENS]) };
    },

    ruleStatuses(state, i, now) {
      roll(state, i, now);
      const remaining = remainingOf(state, i);
      const terms = { quota: quotaOf(state, i), windowMs: 1000 };
      const freshInMs = Math.ceil((state[i + SECOND] + 1) * 1000 - now);
      return [{ kind, ...terms, remaining, freshInMs, ...timeToOpen(policy, state, i, now) }];
    },
  };
  return policy;
}

const wholeTokens = (pool: number): number => Math.floor(pool + EPSILON);

const hasRank = (state: State, i: number): boolean => state[i + RANK] >= 0;

const isMember = (state: State, i: number): boolean =>
  state[i + POOL_SIZE] !== 1 || hasRank(state, i);

/** What a token counts against `LEFT`: who has no part of its own to count takes it from all. */
const unitCost = (state: State, i: number): number =>
  hasRank(state, i) ? 1 : state[i + POOL_SIZE];

/** One member's part of a pool in a given second. */
export function memberQuota(pool: number, size: number, rank: number, second: number): number {
  const whole = wholeTokens(pool);
  const even = Math.floor(whole / size);
  const rest = whole - even * size;
  if (rank < 0 || rest === 0) return even;
  const turn = rank + second - Math.floor((rank + second) / size) * size; // also before the origin of time
  return even + (turn < rest ? 1 : 0);
}

const quotaOf = (state: State, i: number): number =>
  memberQuota(state[i + TOKENS], state[i + POOL_SIZE], state[i + RANK], state[i + SECOND]);

/**
 * What this member may still take this second: no more than its part, and no more than its copy of
 * the pool has left. They differ when the size changed on the way, or others were heard of.
 */
function remainingOf(state: State, i: number): number {
  const ofPart = quotaOf(state, i) - state[i + TAKEN];
  const ofPool = Math.floor(state[i + REMAINING] / unitCost(state, i) + EPSILON);
  return Math.max(0, Math.min(ofPart, ofPool));
}
