/**
 * Adaptive: a limit on calls in flight that finds its own value.
 *
 * For a sink of unknown capacity: fill it, do not drown it. Additive increase, multiplicative
 * decrease, steered by two signals: how long calls take compared to what has become normal, and
 * whether the other side asks for less (busy, timeout).
 *
 *              ┌── window: since the last adjustment ──┐
 *     settle ─▶│ mean RTT · back pressure? · reached?  │── once per normal RTT ──▶ limit ±
 *              └───────────────────────────────────────┘         │
 *                    past: moving mean and variance ◀────────────┘
 *
 * Grow by one if the limit was reached, nobody complained and the window was no slower than normal.
 * Shrink to `decreaseRatio` of it if somebody complained or the window lies outside the band of
 * `deviationScale` deviations. A cut cancels nothing: calls in flight finish, and until enough of
 * them have, nobody new starts.
 *
 * Only a finished call adjusts: without news there is nothing to learn from.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER, type Outcome, WHEN_SETTLED } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from './cost.ts';
import { type Policy, type State, timeToOpen } from './policy.ts';

/** As many calls in flight as the other side can take. */
export interface AdaptiveOptions {
  /** Calls allowed in flight at the start. Default 1. */
  readonly initial?: number;
  /** The most it will ever allow. Default 200. */
  readonly max?: number;
  /** What a cut leaves of the limit. Nearer to 1 is gentler. Default 0.9. */
  readonly decreaseRatio?: number;
  /** Weight of the newest window in the moving mean. Larger follows faster. Default 0.4. */
  readonly alpha?: number;
  /** How many deviations above the mean count as slower. Larger tolerates more. Default 2.5. */
  readonly deviationScale?: number;
  /** Measure, but never move from this many: a plain concurrency limit. */
  readonly fixed?: number;
  /** Double instead of adding one, until the first cut. Default false. */
  readonly slowStart?: boolean;
  /** Delay each adjustment by up to this part of the mean, so that clients do not move in step. Default 0. */
  readonly jitter?: number;
  /** Parts of the limit kept for some calls: `{ live: 0.9, batch: 0.1 }`. What one leaves, others use. */
  readonly partitions?: Readonly<Record<string, number>>;
}

/**
 * Means are rounded to a microsecond. No timer measures finer, and without it a mean of equal
 * numbers can come out a trillionth larger than they are, which reads as "slower than normal".
 */
const roundToMicros = (ms: Millis): Millis => Math.round(ms * 1000) / 1000;

/** What was learnt about a sink that has not been called for so long is worth nothing any more. */
const STALE_MS = 60_000;

const LIMIT = 0;
export const IN_FLIGHT = 1;
const LIMIT_REACHED = 2; //       1 if the limit was reached in this window
const BACK_PRESSURE = 3; //      1 if somebody complained in this window
const WINDOW_SUM = 4; //    of the round-trip times of successes in this window
const WINDOW_COUNT = 5;
export const MEAN_RTT = 6; //     NaN before anything was learnt
const RTT_VARIANCE = 7;
const NEXT_ADJUST_AT = 8;
const IN_SLOW_START = 9; //      1 until the first cut
const WIDTH = 10;

/** What the rule does beyond the doors of every policy. */
export interface AdaptivePolicy extends Policy {
  /**
   * Takes note of one attempt of a call that goes on (a retry will follow, or has): its time and
   * its complaint count, its place in flight is kept. The call itself ends with `settle`.
   */
  recordAttempt(state: State, i: number, outcome: Outcome, rttMs: Millis): void;

  /** Calls allowed in flight here: no more than its part, if others have theirs. */
  limitOf(state: State, i: number): number;

  /** The mean of this window so far, and whether the next settle at `now` will adjust. */
  currentWindow(state: State, i: number, now: Millis): { meanMs: Millis | undefined; due: boolean };
}

export function adaptive(
  options: AdaptiveOptions,
  random: Random,
  path = 'adaptive',
): AdaptivePolicy {
  const reader = OptionReader.collecting(path, options);
  const fixed = reader.has('fixed') ? reader.integer('fixed', 1) : undefined;
  for (const name of ['max', 'initial', 'slowStart'] as const) {
    if (fixed !== undefined && reader.has(name))
      reader.report(name, 'left out when fixed is given');
  }
  const max = fixed ?? reader.integer('max', 1, 200);
  const initial = fixed ?? reader.number('initial', { min: 1, max, integer: true }, 1);
  const decreaseRatio = reader.number('decreaseRatio', { above: 0, max: 0.999_999 }, 0.9);
  const alpha = reader.number('alpha', { above: 0, max: 1 }, 0.4);
  const deviationScale = reader.number('deviationScale', { min: 0 }, 2.5);
  const slowStart = reader.boolean('slowStart', false);
  const jitter = reader.number('jitter', { min: 0, max: 1 }, 0);
  reader.has('partitions'); // read by those who keep them apart: partitions.ts
  reader.finish();

  /** The most in flight here, if others have their part of it. */
  let cap = max;
  const limitOf = (state: State, i: number): number => Math.min(state[i + LIMIT], cap);

  const note = (state: State, i: number, outcome: Outcome, rttMs: Millis | undefined): void => {
    if (outcome === 'busy' || outcome === 'timeout') state[i + BACK_PRESSURE] = 1;
    if (outcome !== 'ok' || rttMs === undefined) return;
    state[i + WINDOW_SUM] += rttMs;
    state[i + WINDOW_COUNT] += 1;
  };

  const scheduleUpdate = (state: State, i: number, now: Millis): void => {
    const staggered = jitter > 0 ? 1 + jitter * random() : 1;
    state[i + NEXT_ADJUST_AT] = now + state[i + MEAN_RTT] * staggered;
  };

  const grown = (state: State, i: number): number => {
    const limit = state[i + LIMIT];
    return Math.min(cap, slowStart && state[i + IN_SLOW_START] === 1 ? limit * 2 : limit + 1);
  };

  const adjust = (state: State, i: number, mean: Millis | undefined): void => {
    const limit = state[i + LIMIT];
    const band = deviationScale * Math.sqrt(state[i + RTT_VARIANCE]);
    const complained = state[i + BACK_PRESSURE] === 1;
    const isQuick = mean !== undefined && mean <= state[i + MEAN_RTT];
    const isSlow = (mean ?? 0) >= state[i + MEAN_RTT] + band;

    if (limit < cap && state[i + LIMIT_REACHED] === 1 && !complained && isQuick) {
      state[i + LIMIT] = grown(state, i);
    } else if (limit > 1 && (complained || isSlow)) {
      state[i + LIMIT] = Math.max(1, Math.floor(limit * decreaseRatio));
      state[i + IN_SLOW_START] = 0;
    }
  };

  const learn = (state: State, i: number, mean: Millis): void => {
    const diff = mean - state[i + MEAN_RTT];
    state[i + MEAN_RTT] += alpha * diff;
    state[i + RTT_VARIANCE] = (1 - alpha) * (state[i + RTT_VARIANCE] + diff * alpha * diff);
  };

  const openWindow = (state: State, i: number): void => {
    state[i + LIMIT_REACHED] = 0;
    state[i + BACK_PRESSURE] = 0;
    state[i + WINDOW_SUM] = 0;
    state[i + WINDOW_COUNT] = 0;
  };

  const update = (state: State, i: number, now: Millis): void => {
    const mean = windowMean(state, i);
    if (Number.isNaN(state[i + MEAN_RTT])) {
      // The first answer only says what is normal; its window goes on.
      if (mean === undefined) return;
      state[i + MEAN_RTT] = mean;
      scheduleUpdate(state, i, now);
    } else if (now >= state[i + NEXT_ADJUST_AT]) {
      if (fixed === undefined) adjust(state, i, mean);
      if (mean !== undefined) learn(state, i, mean);
      scheduleUpdate(state, i, now);
      openWindow(state, i);
    }
  };

  const kind = 'adaptive';
  const policy: AdaptivePolicy = {
    kind,
    width: WIDTH,
    needsExactTime: true, // what it measures is time
    needsOutcome: true,
    canReserve: false,
    expireMs: Infinity,
    // One that never moves has nothing to learn, and can be counted by somebody else.
    ...(fixed !== undefined && { specs: [{ kind: 'flights', params: [fixed] }] }),

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      state[i + LIMIT] = freshAt > now ? (fixed ?? 1) : initial;
      state[i + MEAN_RTT] = Number.NaN;
      state[i + NEXT_ADJUST_AT] = now;
      state[i + IN_SLOW_START] = 1;
    },

    check(state, i, cost, _now) {
      requireCost(cost);
      const inFlight = state[i + IN_FLIGHT] + cost;
      if (cost > 0) {
        if (cost > cap) return deny(cap === max ? NEVER : WHEN_SETTLED);
        // Alone, anything goes: else what costs more than the limit would wait for ever.
        if (inFlight > limitOf(state, i) && inFlight > cost) return deny(WHEN_SETTLED);
        state[i + IN_FLIGHT] = inFlight;
        if (inFlight >= limitOf(state, i)) state[i + LIMIT_REACHED] = 1;
      }
      return allow(Math.max(0, limitOf(state, i) - inFlight));
    },

    available: (state, i) => Math.max(0, Math.floor(limitOf(state, i) - state[i + IN_FLIGHT])),

    divide({ size, rank }) {
      const even = Math.floor(max / size);
      cap = even + (rank >= 0 && rank < max - even * size ? 1 : 0);
    },

    settle(state, i, { outcome, cost, rttMs }, now) {
      note(state, i, outcome, rttMs);
      state[i + IN_FLIGHT] = Math.max(0, state[i + IN_FLIGHT] - cost);
      update(state, i, now);
    },

    recordAttempt: note,
    limitOf,

    currentWindow: (state, i, now) => ({
      meanMs: windowMean(state, i),
      due: !Number.isNaN(state[i + MEAN_RTT]) && now >= state[i + NEXT_ADJUST_AT],
    }),

    update: () => false, // what others send shows in the round-trip times

    // What was learnt is worth keeping, and a call in flight must find its place when it comes back.
    // With a start at 1, any next call reaches the limit anyway: that it was is nothing to remember.
    removableAt: (state, i) => (hasLearned(state, i, initial > 1) ? Infinity : -Infinity),
    evictableAt(state, i) {
      if (state[i + IN_FLIGHT] > 0) return Infinity;
      return state[i + LIMIT] >= initial ? -Infinity : state[i + NEXT_ADJUST_AT] + STALE_MS;
    },

    keyState: (state, i) => ({
      remaining: Math.max(0, limitOf(state, i) - state[i + IN_FLIGHT]),
      limit: limitOf(state, i),
      inFlight: state[i + IN_FLIGHT],
      ...(Number.isNaN(state[i + MEAN_RTT]) ? {} : { rttMs: state[i + MEAN_RTT] }),
    }),

    ruleStatuses(state, i, now) {
      const quota = limitOf(state, i);
      const remaining = Math.max(0, quota - state[i + IN_FLIGHT]);
      return [{ kind, quota, remaining, ...timeToOpen(policy, state, i, now) }];
    },
  };
  return policy;
}

/** True if anything at all was learnt, or is about to be. */
function hasLearned(state: State, i: number, reachedMatters: boolean): boolean {
  const isNew = Number.isNaN(state[i + MEAN_RTT]) && state[i + WINDOW_COUNT] === 0;
  const reached = reachedMatters ? state[i + LIMIT_REACHED] : 0;
  return !isNew || state[i + IN_FLIGHT] + reached + state[i + BACK_PRESSURE] > 0;
}

function windowMean(state: State, i: number): Millis | undefined {
  const count = state[i + WINDOW_COUNT];
  return count === 0 ? undefined : roundToMicros(state[i + WINDOW_SUM] / count);
}
