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
import { Fields } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { type News, opening, type Part, type Policy, type State } from './policy.ts';

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
const DUST = 1e-9;

/** How far ahead a member of a small pool looks for its turn before it just says "next second". */
const TURNS_MAX = 1024;

const SECOND = 0; // of the last call; NaN before the first
const POOL = 1; //   tokens this second, over all members
const LEFT = 2; //   tokens not yet taken: with a rank of the own part, else of the whole pool
const TAKEN = 3; //  own tokens taken this second and not given back
const SIZE = 4; //   members
const RANK = 5; //   which of them this is; -1 if it does not know
const WIDTH = 6;

export function ramp(options: RampOptions, path = 'ramp'): Policy {
  const fields = Fields.patient(path, options);
  const max = fields.positive('max');
  const min = fields.number('min', { above: 0, max });
  const overMs = fields.duration('over');
  const mode = fields.oneOf('mode', RAMP_MODES, 'relaxed');
  const threshold = fields.number('threshold', { min: 0, max: 100 }, 100);
  const coolDownSeconds = Math.ceil(fields.duration('coolDown', 0) / 1000);
  const rampDown = fields.number('rampDown', { min: 0, max: 100 }, 100);
  const resumeForMs = fields.duration('resumeFor', Infinity);
  fields.done();

  const slope = ((max - min) * 1000) / overMs;
  const slopeDown = (slope * rampDown) / 100;
  const within = (pool: number): number => Math.min(max, Math.max(min, pool));

  /** The part that is spent here, if all keys have been told of one. */
  let own: Part | undefined;

  /** What would be left of this second, had nobody else been heard of. */
  const ownLeft = (state: State, i: number): number => {
    const whole = isRanked(state, i) ? partOf(state, i) : wholeOf(state[i + POOL]);
    return whole - state[i + TAKEN] * price(state, i);
  };

  /**
   * Brings a key to a part that nobody else uses in this second: if it has grown, what it has grown by is there
   * at once.
   */
  const regrow = (state: State, i: number, { size, rank }: Part): void => {
    if (state[i + SIZE] === size && state[i + RANK] === rank) return;
    const heard = Math.max(0, ownLeft(state, i) - state[i + LEFT]);
    const [wasRanked, before] = [isRanked(state, i), price(state, i)];
    state[i + SIZE] = size;
    state[i + RANK] = rank;
    // With a rank others are heard of in tokens of the part, without one in those of the whole pool.
    const still = wasRanked === isRanked(state, i) ? heard : (heard / before) * price(state, i);
    state[i + LEFT] = Math.max(0, ownLeft(state, i) - still) || 0;
  };

  /** Brings a key to a part that others may have used before in this second. */
  const align = (state: State, i: number, { size, rank }: Part): void => {
    if (state[i + SIZE] === size && state[i + RANK] === rank) return;
    const left = state[i + LEFT] / price(state, i);
    const wasRanked = isRanked(state, i);
    state[i + SIZE] = size;
    state[i + RANK] = rank;
    if (wasRanked && !isRanked(state, i)) state[i + LEFT] = left * price(state, i);
    if (!wasRanked && isRanked(state, i)) {
      state[i + LEFT] = Math.max(0, Math.min(left, partOf(state, i) - state[i + TAKEN])) || 0;
    }
  };

  const isUsed = (state: State, i: number): boolean => {
    const [left, taken] = [state[i + LEFT], state[i + TAKEN]];
    // A member with no part this second has used all of it: that is no fault of its own.
    const of = isRanked(state, i) ? taken + left : state[i + POOL];
    return (of - left + DUST) * 100 >= threshold * of;
  };

  /** The pool of a second `gap` later, from what happened in the last one that had a call. */
  const nextPool = (state: State, i: number, gap: number): number => {
    const pool = state[i + POOL];
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
    state[i + POOL] = pool;
    state[i + LEFT] = isRanked(state, i) ? partOf(state, i) : wholeOf(pool);
    state[i + TAKEN] = 0;
  };

  /** Brings the state to the second of `now`. Nothing happens twice in a second. */
  const roll = (state: State, i: number, now: Millis): void => {
    if (own) regrow(state, i, own);
    const second = Math.floor(now / 1000);
    const last = state[i + SECOND];
    if (Number.isNaN(last)) open(state, i, second, state[i + POOL]);
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
    if (needed > wholeOf(max)) return NEVER;

    const climb = mode === 'scheduled' ? Math.ceil((needed - pool) / slope - DUST) : 1;
    const first = slope > 0 ? Math.max(1, climb) : 1;
    const turns = rank < 0 ? 1 : Math.min(size, TURNS_MAX);
    for (let gap = first; gap < first + turns; gap++) {
      const hoped = mode === 'scheduled' ? pool + slope * gap : pool + slope;
      if (share(within(hoped), size, rank, second + gap) >= cost) {
        return Math.ceil((second + gap) * 1000 - now);
      }
    }
    return Math.ceil((second + 1) * 1000 - now);
  };

  const begin = (state: State, i: number, pool: number): void => {
    state[i + SECOND] = Number.NaN;
    state[i + POOL] = pool;
    state[i + LEFT] = 0;
    state[i + TAKEN] = 0;
  };

  const kind = 'ramp';
  const pace = [min, max, slope, slopeDown];
  const formula = [...pace, RAMP_MODES.indexOf(mode), threshold, coolDownSeconds];
  const policy: Policy = {
    kind,
    width: WIDTH,
    exactTime: false,
    learns: false,
    reserves: false,
    isBySecond: true,
    ...(options.resumeFor !== undefined && { resumeForMs }),
    expireMs: Infinity,
    formulas: [{ kind, numbers: formula }],

    start(state, i, now, freshAt = now) {
      begin(state, i, min);
      state[i + SIZE] = 1;
      state[i + RANK] = -1;
      if (freshAt <= now) return;
      // The second it was forgotten in has nothing left, and the next one begins at `min`.
      open(state, i, Math.floor((freshAt - 1) / 1000), min - slope);
      state[i + LEFT] = 0;
    },

    ask(state, i, cost, now) {
      requireCost(cost);
      if (cost === 0) return allow(spare(peek(state, i, now), 0));
      roll(state, i, now);
      if (cost > spare(state, i) + DUST) return deny(retryAfter(state, i, cost, now));
      state[i + TAKEN] += cost;
      state[i + LEFT] = Math.max(0, state[i + LEFT] - cost * price(state, i));
      return allow(spare(state, i));
    },

    available(state, i, now) {
      roll(state, i, now);
      return spare(state, i);
    },

    /** Tokens that were granted this second and not used go back; late ones are gone. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      const isLate = Math.floor(now / 1000) > state[i + SECOND];
      if (isLate || Math.floor(dueAt / 1000) !== state[i + SECOND]) return;
      const back = Math.min(unused, state[i + TAKEN]); // never more than was handed out
      const left = state[i + LEFT] + back * price(state, i);
      state[i + TAKEN] -= back;
      state[i + LEFT] = Math.max(0, Math.min(wholeOf(state[i + POOL]), left));
    },

    hear(state, i, news: News, now) {
      if ('poolSize' in news) {
        align(state, i, { size: news.poolSize, rank: news.rank ?? -1 });
      } else if ('hits' in news) {
        roll(state, i, now);
        state[i + LEFT] = Math.max(0, state[i + LEFT] - news.hits);
      } else if ('resume' in news) {
        const isNew = Number.isNaN(state[i + SECOND]); // too late once it has a pool of its own
        if (isNew && now - news.reachedAt <= resumeForMs) begin(state, i, within(news.resume));
      } else {
        return false;
      }
      return true;
    },

    divide(part) {
      own = part;
    },

    pace: (state, i, now) => wholeOf(peek(state, i, now)[POOL]) / scratch[SIZE],

    // A pool that has climbed is worth keeping. One at `min` is a new one as soon as its second is
    // over, unless the clock alone would have made it climb meanwhile.
    forgetAt(state, i) {
      const second = state[i + SECOND];
      if (isMember(state, i) && !own) return Infinity;
      if (Number.isNaN(second)) return state[i + POOL] === min ? -Infinity : Infinity;
      if (max === min) return (second + 1) * 1000;
      if (mode !== 'go-back-n' || slopeDown === 0) return Infinity;
      const climbed = within(state[i + POOL] + slope) - min;
      return (second + 1 + coolDownSeconds + Math.ceil(climbed / slopeDown)) * 1000;
    },

    evictAt(state, i) {
      if (isMember(state, i) && !own) return Infinity; // begun anew it would think it is alone
      return Number.isNaN(state[i + SECOND]) ? -Infinity : (state[i + SECOND] + 1) * 1000;
    },

    view(state, i, now) {
      const then = peek(state, i, now);
      return { remaining: spare(then, 0), pool: within(then[POOL]) };
    },

    standings(state, i, now) {
      roll(state, i, now);
      const remaining = spare(state, i);
      const terms = { quota: partOf(state, i), windowMs: 1000 };
      const freshInMs = Math.ceil((state[i + SECOND] + 1) * 1000 - now);
      return [{ kind, ...terms, remaining, freshInMs, ...opening(policy, state, i, now) }];
    },
  };
  return policy;
}

const wholeOf = (pool: number): number => Math.floor(pool + DUST);

const isRanked = (state: State, i: number): boolean => state[i + RANK] >= 0;

const isMember = (state: State, i: number): boolean => state[i + SIZE] !== 1 || isRanked(state, i);

/** What a token counts against `LEFT`: who has no part of its own to count takes it from all. */
const price = (state: State, i: number): number => (isRanked(state, i) ? 1 : state[i + SIZE]);

/** One member's part of a pool in a given second. */
export function share(pool: number, size: number, rank: number, second: number): number {
  const whole = wholeOf(pool);
  const even = Math.floor(whole / size);
  const rest = whole - even * size;
  if (rank < 0 || rest === 0) return even;
  const turn = rank + second - Math.floor((rank + second) / size) * size; // also before the origin of time
  return even + (turn < rest ? 1 : 0);
}

const partOf = (state: State, i: number): number =>
  share(state[i + POOL], state[i + SIZE], state[i + RANK], state[i + SECOND]);

/**
 * What this member may still take this second: no more than its part, and no more than its copy of
 * the pool has left. They differ when the size changed on the way, or others were heard of.
 */
function spare(state: State, i: number): number {
  const ofPart = partOf(state, i) - state[i + TAKEN];
  const ofPool = Math.floor(state[i + LEFT] / price(state, i) + DUST);
  return Math.max(0, Math.min(ofPart, ofPool));
}
