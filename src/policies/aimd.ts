/**
 * The aimd rule of adaptive concurrency, as published by Vector: AIMD on round-trip time (RTT).
 *
 * Additive increase, multiplicative decrease, driven by two signals: RTT compared with its moving mean,
 * and back-pressure (busy, timeout).
 *
 *              ┌── window: since the last adjustment ──┐
 *     settle ─▶│ mean RTT · back-pressure? · reached?  │── once per mean RTT ──▶ limit ±
 *              └───────────────────────────────────────┘         │
 *                   moving mean and variance of RTT ◀────────────┘
 *
 * - Increase by one if the limit was reached, without back-pressure, and the window was no slower than the mean.
 * - Decrease to `decreaseRatio` on back-pressure, or if the window's mean is `deviationScale` deviations above.
 *
 * Before the first success there is no mean RTT to set the pace. Back-pressure then decreases the limit once per round:
 * the calls in flight at a decrease settle before the next one. (Vector ignores back-pressure until a call succeeds.)
 *
 * A decrease cancels nothing: calls in flight finish, and no call starts until enough of them have.
 * Only a settled call adjusts the limit: without an outcome there is nothing to learn.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER, type Outcome, WHEN_SETTLED } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from './cost.ts';
import type { InFlightPolicy } from './partitions.ts';
import {
  type PolicyCapabilities,
  type PoolPosition,
  type State,
  timeToOpen,
  UNDIVIDED,
} from './policy.ts';

/** The options of the rule. */
export interface AimdOptions {
  /** Calls allowed in flight at the start. Default 1. */
  readonly initial?: number | undefined;
  /** Upper bound of the limit. Default 200. */
  readonly max?: number | undefined;
  /** What a decrease leaves of the limit. Nearer to 1 is gentler. Default 0.9. */
  readonly decreaseRatio?: number | undefined;
  /** Weight of the newest window in the moving mean (EWMA). Larger follows faster. Default 0.4. */
  readonly alpha?: number | undefined;
  /** How many deviations above the mean count as slower. Larger tolerates more. Default 2.5. */
  readonly deviationScale?: number | undefined;
  /** Double instead of adding one, until the first decrease. Default false. */
  readonly slowStart?: boolean | undefined;
  /** Delay each adjustment by up to this part of the mean RTT, so that clients do not adjust in step. Default 0. */
  readonly jitter?: number | undefined;
}

/** Options after their defaults are filled in. */
type WithDefaults<Options> = { readonly [name in keyof Options]-?: NonNullable<Options[name]> };

/** The numbers of the control loop. */
export interface AimdTerms extends WithDefaults<AimdOptions> {
  readonly kind: string;
  readonly capabilities: PolicyCapabilities;
  /** False: measures, but never moves the limit. */
  readonly adjusts: boolean;
}

/**
 * Means are rounded to a microsecond. No timer measures finer, and without it a mean of equal numbers
 * can exceed them by a rounding error, which would count as slower.
 */
const roundToMicros = (ms: Millis): Millis => Math.round(ms * 1000) / 1000;

/** What was learnt about a service that has not been called for this long is dropped. */
const STALE_MS = 60_000;

const LIMIT = 0;
const IN_FLIGHT = 1;
const LIMIT_REACHED = 2; //  1 if the limit was reached in this window
const BACK_PRESSURE = 3; //  1 if a call was answered busy or timed out in this window
const WINDOW_SUM = 4; //     of the round-trip times of successes in this window
const WINDOW_COUNT = 5;
const MEAN_RTT = 6; //       NaN before the first measurement
const RTT_VARIANCE = 7;
const NEXT_ADJUST_AT = 8;
const IN_SLOW_START = 9; //  1 until the first decrease
const ROUND_LEFT = 10; //    before the first measurement: calls that were in flight at the last decrease
const WIDTH = 11;

export interface AimdPolicy extends InFlightPolicy {
  /**
   * Records one attempt of a call that goes on with retries: its RTT and back-pressure count, and it
   * stays in flight. The call itself ends with `settle`.
   */
  recordAttempt(state: State, i: number, outcome: Outcome, rttMs: Millis): void;

  /** The mean RTT of this window so far, and whether the next settle at `now` will adjust the limit. */
  currentWindow(state: State, i: number, now: Millis): { meanMs: Millis | undefined; due: boolean };
}

const DEFAULT_MAX = 200;

/** Reads the options of the rule, and no others. */
export function readAimd(reader: OptionReader): AimdTerms {
  const max = reader.integer('max', 1, DEFAULT_MAX);
  const initial = reader.integer('initial', 1, 1);
  if (initial > max)
    reader.report('initial', `at most \`max\` (initial ${initial} exceeds max ${max})`);
  return {
    max,
    initial,
    decreaseRatio: reader.number('decreaseRatio', { above: 0, max: 0.999_999 }, 0.9),
    alpha: reader.number('alpha', { above: 0, max: 1 }, 0.4),
    deviationScale: reader.number('deviationScale', { min: 0 }, 2.5),
    slowStart: reader.boolean('slowStart', false),
    jitter: reader.number('jitter', { min: 0, max: 1 }, 0),
    kind: 'adaptive',
    capabilities: {},
    adjusts: true,
  };
}

export function aimd(options: AimdOptions, random: Random, path = 'adaptive'): AimdPolicy {
  const reader = OptionReader.collecting(path, options);
  const terms = readAimd(reader);
  reader.finish();
  return controlLoop(terms, random, UNDIVIDED);
}

/** A fixed number of calls in flight, measured as an adaptive limit measures: see concurrency.ts. */
export function measuredConcurrency(
  limit: number,
  random: Random,
  capabilities: PolicyCapabilities,
): AimdPolicy {
  const unused = { decreaseRatio: 1, deviationScale: 0, slowStart: false };
  const range = { initial: limit, max: limit, adjusts: false };
  const terms = { kind: 'concurrency', capabilities, ...range, ...unused, alpha: 0.4, jitter: 0 };
  return controlLoop(terms, random, UNDIVIDED);
}

export function controlLoop(
  terms: AimdTerms,
  random: Random,
  { size, rank }: PoolPosition,
): AimdPolicy {
  const { kind, capabilities, initial, max, decreaseRatio, alpha, deviationScale } = terms;
  const { slowStart, jitter, adjusts } = terms;
  const even = Math.floor(max / size);
  /** Upper bound of this member's part. */
  const cap = even + (rank >= 0 && rank < max - even * size ? 1 : 0);
  const limitOf = (state: State, i: number): number => Math.min(state[i + LIMIT], cap);

  const scheduleAdjust = (state: State, i: number, now: Millis): void => {
    const factor = jitter > 0 ? 1 + jitter * random() : 1;
    state[i + NEXT_ADJUST_AT] = now + state[i + MEAN_RTT] * factor;
  };

  const learn = (state: State, i: number, mean: Millis): void => {
    const diff = mean - state[i + MEAN_RTT];
    state[i + MEAN_RTT] += alpha * diff;
    state[i + RTT_VARIANCE] = (1 - alpha) * (state[i + RTT_VARIANCE] + diff * alpha * diff);
  };

  const increased = (state: State, i: number): number => {
    const limit = state[i + LIMIT];
    return Math.min(cap, slowStart && state[i + IN_SLOW_START] === 1 ? limit * 2 : limit + 1);
  };

  const adjust = (state: State, i: number, mean: Millis | undefined): void => {
    const limit = state[i + LIMIT];
    const band = deviationScale * Math.sqrt(state[i + RTT_VARIANCE]);
    const hasBackPressure = state[i + BACK_PRESSURE] === 1;
    const isFast = mean !== undefined && mean <= state[i + MEAN_RTT];
    const isSlow = (mean ?? 0) >= state[i + MEAN_RTT] + band;

    if (limit < cap && state[i + LIMIT_REACHED] === 1 && !hasBackPressure && isFast) {
      state[i + LIMIT] = increased(state, i);
    } else if (limit > 1 && (hasBackPressure || isSlow)) decrease(state, i);
  };

  const decrease = (state: State, i: number): void => {
    state[i + LIMIT] = Math.max(1, Math.floor(state[i + LIMIT] * decreaseRatio));
    state[i + IN_SLOW_START] = 0;
  };

  /** Before the first measurement: one decrease for the back-pressure of a round of calls. */
  const closeRound = (state: State, i: number, cost: number, now: Millis): void => {
    const isOldRound = state[i + ROUND_LEFT] > 0;
    state[i + ROUND_LEFT] = Math.max(0, state[i + ROUND_LEFT] - cost);
    if (state[i + LIMIT] <= 1 || state[i + BACK_PRESSURE] === 0) return;
    state[i + BACK_PRESSURE] = 0;
    if (isOldRound) return; // the last decrease was for these calls
    decrease(state, i);
    state[i + LIMIT_REACHED] = 0;
    state[i + ROUND_LEFT] = state[i + IN_FLIGHT];
    state[i + NEXT_ADJUST_AT] = now;
  };

  const closeWindow = (state: State, i: number, cost: number, now: Millis): void => {
    const mean = windowMean(state, i);
    if (Number.isNaN(state[i + MEAN_RTT])) {
      // The first measurement only sets the mean; its window goes on.
      if (mean === undefined) {
        if (adjusts) closeRound(state, i, cost, now);
        return;
      }
      state[i + MEAN_RTT] = mean;
      scheduleAdjust(state, i, now);
    } else if (now >= state[i + NEXT_ADJUST_AT]) {
      if (adjusts) adjust(state, i, mean);
      if (mean !== undefined) learn(state, i, mean);
      scheduleAdjust(state, i, now);
      openWindow(state, i);
    }
  };

  const policy: AimdPolicy = {
    ...capabilities,
    kind,
    width: WIDTH,
    needsExactTime: true, // round-trip times are measured with the same clock
    needsOutcome: true,
    canReserve: false,
    expireMs: Infinity,

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      state[i + LIMIT] = freshAt > now && adjusts ? 1 : initial;
      state[i + MEAN_RTT] = Number.NaN;
      state[i + NEXT_ADJUST_AT] = now;
      state[i + IN_SLOW_START] = 1;
    },

    check(state, i, cost, _now) {
      requireCost(cost);
      const inFlight = state[i + IN_FLIGHT] + cost;
      if (cost > 0) {
        if (cost > cap) return deny(cap === max ? NEVER : WHEN_SETTLED);
        // Alone, any cost may start: otherwise a cost above the limit would wait for ever.
        if (inFlight > limitOf(state, i) && inFlight > cost) return deny(WHEN_SETTLED);
        state[i + IN_FLIGHT] = inFlight;
        if (inFlight >= limitOf(state, i)) state[i + LIMIT_REACHED] = 1;
      }
      return allow(Math.max(0, limitOf(state, i) - inFlight));
    },

    available: (state, i) => Math.max(0, Math.floor(limitOf(state, i) - state[i + IN_FLIGHT])),

    settle(state, i, { outcome, cost, rttMs }, now) {
      record(state, i, outcome, rttMs);
      state[i + IN_FLIGHT] = Math.max(0, state[i + IN_FLIGHT] - cost);
      closeWindow(state, i, cost, now);
    },

    noteKept: (state, i) => {
      state[i + LIMIT_REACHED] = 1;
    },

    /** Calls stay in flight, and what was learnt is kept, up to the new bound. */
    terms: 'aimd',
    converterFrom: (from) =>
      from.terms !== 'aimd'
        ? undefined
        : (state, i, source, j) => {
            for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
            state[i + LIMIT] = adjusts ? Math.min(max, state[i + LIMIT]) : initial;
          },

    divided: (next) => controlLoop(terms, random, next),
    recordAttempt: record,
    limitOf,
    inFlightOf: (state, i) => state[i + IN_FLIGHT],
    meanRttOf: (state, i) => state[i + MEAN_RTT] || 0,

    currentWindow: (state, i, now) => ({
      meanMs: windowMean(state, i),
      due: !Number.isNaN(state[i + MEAN_RTT]) && now >= state[i + NEXT_ADJUST_AT],
    }),

    update: () => false, // load from other clients shows in the round-trip times

    // What was learnt is kept, and a call in flight must find its count when it settles. With a start
    // at 1, any next call reaches the limit anyway, so that it was reached need not be kept.
    removableAt: (state, i) =>
      state[i + LIMIT] !== initial || hasLearned(state, i, initial > 1) ? Infinity : -Infinity,
    evictableAt(state, i) {
      if (state[i + IN_FLIGHT] > 0) return Infinity;
      return state[i + LIMIT] >= initial ? -Infinity : state[i + NEXT_ADJUST_AT] + STALE_MS;
    },

    keyState: (state, i) => ({
      remaining: Math.max(0, limitOf(state, i) - state[i + IN_FLIGHT]),
      limit: limitOf(state, i),
      inFlight: state[i + IN_FLIGHT],
      ...(Number.isNaN(state[i + MEAN_RTT]) ? {} : { rttMs: state[i + MEAN_RTT] }),
      ...(adjusts && state[i + BACK_PRESSURE] === 1 ? { backPressure: true } : {}),
    }),

    ruleStatuses(state, i, now) {
      const quota = limitOf(state, i);
      const remaining = Math.max(0, quota - state[i + IN_FLIGHT]);
      const opens = timeToOpen(policy, state, i, now);
      return [{ kind, quota, remaining, ...opens, isCapacity: true }];
    },
  };
  return policy;
}

function record(state: State, i: number, outcome: Outcome, rttMs: Millis | undefined): void {
  if (outcome === 'busy' || outcome === 'timeout') state[i + BACK_PRESSURE] = 1;
  if (outcome !== 'ok' || rttMs === undefined) return;
  state[i + WINDOW_SUM] += rttMs;
  state[i + WINDOW_COUNT] += 1;
}

function openWindow(state: State, i: number): void {
  state[i + LIMIT_REACHED] = 0;
  state[i + BACK_PRESSURE] = 0;
  state[i + WINDOW_SUM] = 0;
  state[i + WINDOW_COUNT] = 0;
}

function windowMean(state: State, i: number): Millis | undefined {
  const count = state[i + WINDOW_COUNT];
  return count === 0 ? undefined : roundToMicros(state[i + WINDOW_SUM] / count);
}

/** True if the key holds a measurement, or a signal of its first window. */
function hasLearned(state: State, i: number, reachedMatters: boolean): boolean {
  const isNew = Number.isNaN(state[i + MEAN_RTT]) && state[i + WINDOW_COUNT] === 0;
  const reached = reachedMatters ? state[i + LIMIT_REACHED] : 0;
  return !isNew || state[i + IN_FLIGHT] + reached + state[i + BACK_PRESSURE] > 0;
}
