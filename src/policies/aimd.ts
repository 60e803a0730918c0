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
 * Two causes of a decrease are not in Vector's code, but in its RFC:
 *
 * - Rise: the moving mean follows RTTs that rise slowly. A usual RTT follows 64 times as slowly and shows the rise.
 * - Silence: the limit is reached and no call is answered. A check that is refused notices it, before calls time out.
 *
 * Before the first success there is no mean RTT to set the pace. Back-pressure then decreases the limit once per round:
 * the calls in flight at a decrease settle before the next one. (Vector ignores back-pressure until a call succeeds.)
 *
 * A decrease cancels nothing: calls in flight finish, and no call starts until enough of them have.
 * The variant `rfc` has the RFC's arithmetic: each call is a window, a decrease halves, and an increase leads to one more
 * than the calls in flight.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER, type Outcome, WHEN_SETTLED } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { type AimdOptions, type AimdTerms, readAimd } from './aimd-options.ts';
import { requireCost } from './cost.ts';
import type { InFlightPolicy } from './partitions.ts';
import { COUNTS_ONLY, type PoolPosition, type State, timeToOpen, UNDIVIDED } from './policy.ts';
import { asRule } from './rules.ts';

/**
 * Means are rounded to a microsecond. No timer measures finer, and without it a mean of equal numbers
 * can exceed them by a rounding error, which would count as slower.
 */
const roundToMicros = (ms: Millis): Millis => Math.round(ms * 1000) / 1000;

/** A rise: the mean RTT is above the usual RTT by this part of it, and by so many deviations. */
const RISE = 0.5;
const RISE_DEVIATIONS = 2;
/** A mean of more than so many times the usual RTT has jumped. The new RTT is the usual one, as for the moving mean. */
const JUMP = 3;
/** The usual RTT follows a slower mean with this part of `alpha`. At first it is the mean, and slows down with each window. */
const SLOW_PACE = 1 / 64;
const WARM_UP = 0.8;

/** Silence: no reply for so long, and for so many mean RTTs. Then each further part of that time is one decrease. */
const MIN_SILENCE_MS = 1000;
const SILENT_RTTS = 4;
const SILENCE_STEPS = 10;

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
const FIXED_WIDTH = 11; //   the numbers of a limit that does not adjust
const USUAL_RTT = 11;
const LIMIT_BEFORE_RISE = 12;
const USUAL_PACE = 13; //    weight of the mean in the usual RTT, at least
const OVERDUE_AT = 14; //    when silence next decreases the limit; 0: not reached since the last reply
const WIDTH = 15;

export interface AimdPolicy extends InFlightPolicy {
  /**
   * Records one attempt of a call that goes on with retries: its RTT and back-pressure count, and it
   * stays in flight. The call itself ends with `settle`.
   */
  recordAttempt(state: State, i: number, outcome: Outcome, rttMs: Millis): void;

  /** The mean RTT of this window so far, and whether the next settle at `now` will adjust the limit. */
  currentWindow(state: State, i: number, now: Millis): { meanMs: Millis | undefined; due: boolean };
}

export function aimd(options: AimdOptions, random: Random, path = 'adaptive'): AimdPolicy {
  const reader = OptionReader.collecting(path, options);
  const terms = readAimd(reader);
  reader.finish();
  return controlLoop(terms, random, UNDIVIDED);
}

/** A fixed number of calls in flight, measured as an adaptive limit measures: see concurrency.ts. */
export function measuredConcurrency(limit: number, random: Random): AimdPolicy {
  const unused = {
    decreaseRatio: 1,
    deviationScale: 0,
    slowStart: false,
    variant: 'vector' as const,
  };
  const range = { initial: limit, max: limit, adjusts: false, decreaseOnSilence: false };
  const terms = { kind: 'concurrency', ...range, ...unused, alpha: 0.4, jitter: 0 };
  return controlLoop(terms, random, UNDIVIDED);
}

export function controlLoop(
  terms: AimdTerms,
  random: Random,
  { size, rank }: PoolPosition,
): AimdPolicy {
  const { kind, initial, max, decreaseRatio, alpha, deviationScale } = terms;
  const { slowStart, jitter, adjusts, decreaseOnSilence } = terms;
  const isRfc = terms.variant === 'rfc';
  const width = adjusts ? WIDTH : FIXED_WIDTH;
  // An alpha above 0.4 smooths the mean less, and underestimates the variance.
  const riseDeviations = RISE_DEVIATIONS * Math.max(1, Math.sqrt((1.5 * alpha) / (1 - alpha)));
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

  const increased = (state: State, i: number, cost: number): number => {
    const limit = state[i + LIMIT];
    if (isRfc) return Math.min(state[i + IN_FLIGHT] + cost, limit) + 1;
    return Math.min(cap, slowStart && state[i + IN_SLOW_START] === 1 ? limit * 2 : limit + 1);
  };

  const adjust = (state: State, i: number, mean: Millis | undefined, cost: number): void => {
    const limit = state[i + LIMIT];
    const band = deviationScale * Math.sqrt(state[i + RTT_VARIANCE]);
    const hasBackPressure = state[i + BACK_PRESSURE] === 1;
    const isFast = mean !== undefined && mean <= state[i + MEAN_RTT];
    const threshold = state[i + MEAN_RTT] + band;
    const isSlow = isRfc ? (mean ?? 0) > threshold : (mean ?? 0) >= threshold;
    const hasRisen = !isRfc && followUsual(state, i);
    const isReached = isRfc || state[i + LIMIT_REACHED] === 1;

    if (limit < cap && isReached && !hasBackPressure && isFast && !hasRisen) {
      state[i + LIMIT] = increased(state, i, cost);
      // More calls in a queue are slower in proportion: that is no rise.
      if (state[i + MEAN_RTT] <= state[i + USUAL_RTT])
        state[i + USUAL_RTT] *= state[i + LIMIT] / limit;
    } else if (limit > 1 && (hasBackPressure || isSlow || hasRisen)) decrease(state, i);
  };

  /** Moves the usual RTT; true if the mean has risen above it. */
  const followUsual = (state: State, i: number): boolean => {
    const mean = state[i + MEAN_RTT];
    const limit = state[i + LIMIT];
    const hasJumped = mean > JUMP * state[i + USUAL_RTT];
    // A third of the limit has not made calls quicker: they do not queue, each takes longer.
    const isInVain = limit <= state[i + LIMIT_BEFORE_RISE] / 3;
    if (hasJumped || isInVain || limit === 1) state[i + USUAL_PACE] = 1;
    const above = mean - state[i + USUAL_RTT];
    const pace = above < 0 ? alpha : alpha * SLOW_PACE;
    state[i + USUAL_RTT] += Math.max(pace, state[i + USUAL_PACE]) * above;
    state[i + USUAL_PACE] *= WARM_UP;

    const rise = mean - state[i + USUAL_RTT];
    const noise = riseDeviations * Math.sqrt(state[i + RTT_VARIANCE]);
    const hasRisen = rise > RISE * state[i + USUAL_RTT] && rise > noise;
    if (!hasRisen) state[i + LIMIT_BEFORE_RISE] = limit;
    return hasRisen;
  };

  const decrease = (state: State, i: number): void => {
    const limit = state[i + LIMIT];
    state[i + LIMIT] = Math.max(1, Math.floor(isRfc ? (limit + 1) / 2 : limit * decreaseRatio));
    state[i + IN_SLOW_START] = 0;
  };

  const silenceMs = (state: State, i: number): Millis =>
    Math.max(MIN_SILENCE_MS, SILENT_RTTS * (state[i + MEAN_RTT] || 0));

  /** The limit is reached: from now on a reply is expected. After an idle minute, anew. */
  const expectReply = (state: State, i: number, now: Millis): void => {
    const overdueAt = state[i + OVERDUE_AT];
    if (decreaseOnSilence && (overdueAt === 0 || now > overdueAt + STALE_MS))
      state[i + OVERDUE_AT] = now + silenceMs(state, i);
  };

  /** Decreases for all of the silence until now: while callers wait in a queue, no check notices it. */
  const decreaseForSilence = (state: State, i: number, now: Millis): void => {
    if (!decreaseOnSilence || state[i + OVERDUE_AT] === 0) return;
    while (now >= state[i + OVERDUE_AT] && state[i + LIMIT] > 1) {
      decrease(state, i);
      state[i + OVERDUE_AT] += silenceMs(state, i) / SILENCE_STEPS;
    }
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
      if (isRfc) openWindow(state, i);
      return;
    }
    const isDue = now >= state[i + NEXT_ADJUST_AT];
    if (!isDue && !isRfc) return;
    if (isDue && adjusts) adjust(state, i, mean, cost);
    if (isDue && isRfc) scheduleAdjust(state, i, now); // by the mean before this call
    if (mean !== undefined) learn(state, i, mean);
    if (!isRfc) scheduleAdjust(state, i, now);
    openWindow(state, i);
  };

  const record = (state: State, i: number, outcome: Outcome, rttMs: Millis | undefined): void => {
    if (outcome === 'busy' || outcome === 'timeout') state[i + BACK_PRESSURE] = 1;
    if (decreaseOnSilence && isReply(outcome)) state[i + OVERDUE_AT] = 0;
    if (outcome !== 'ok' || rttMs === undefined) return;
    state[i + WINDOW_SUM] += rttMs;
    state[i + WINDOW_COUNT] += 1;
  };

  const policy: AimdPolicy = asRule(adjusts ? undefined : { kind: 'concurrency', params: [max] }, {
    kind,
    width,
    traits: {
      ...COUNTS_ONLY,
      needsExactTime: true, // round-trip times are measured with the same clock
      needsOutcome: true,
      protectsServer: true,
      concurrencyLimit: adjusts ? undefined : max,
    },

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + width);
      state[i + LIMIT] = freshAt > now && adjusts ? 1 : initial;
      state[i + MEAN_RTT] = Number.NaN;
      state[i + NEXT_ADJUST_AT] = now;
      state[i + IN_SLOW_START] = 1;
    },

    check(state, i, cost, now) {
      requireCost(cost);
      const inFlight = state[i + IN_FLIGHT] + cost;
      if (cost > 0) {
        if (cost > cap) return deny(cap === max ? NEVER : WHEN_SETTLED);
        // Alone, any cost may start: otherwise a cost above the limit would wait for ever.
        if (inFlight > limitOf(state, i) && inFlight > cost) {
          expectReply(state, i, now);
          decreaseForSilence(state, i, now);
          return deny(WHEN_SETTLED);
        }
        state[i + IN_FLIGHT] = inFlight;
        if (inFlight >= limitOf(state, i)) {
          state[i + LIMIT_REACHED] = 1;
          expectReply(state, i, now);
        }
      }
      return allow(Math.max(0, limitOf(state, i) - inFlight));
    },

    available: (state, i) => Math.max(0, Math.floor(limitOf(state, i) - state[i + IN_FLIGHT])),

    settle(state, i, { outcome, cost, rttMs }, now) {
      record(state, i, outcome, rttMs);
      if (!isReply(outcome)) decreaseForSilence(state, i, now);
      state[i + IN_FLIGHT] = Math.max(0, state[i + IN_FLIGHT] - cost);
      closeWindow(state, i, cost, now);
    },

    noteKept: (state, i) => {
      state[i + LIMIT_REACHED] = 1;
    },

    /** Calls stay in flight, and what was learnt is kept, up to the new bound. */
    convertFrom: (from) =>
      from.width !== width
        ? undefined
        : (state, i, source, j) => {
            for (let n = 0; n < width; n++) state[i + n] = source[j + n];
            state[i + LIMIT] = adjusts ? Math.min(max, state[i + LIMIT]) : initial;
          },

    divide: { ofPool: (next) => controlLoop(terms, random, next) },
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
    freshAt(state, i, isLenient) {
      if (isLenient) {
        if (state[i + IN_FLIGHT] > 0) return Infinity;
        return state[i + LIMIT] >= initial ? -Infinity : state[i + NEXT_ADJUST_AT] + STALE_MS;
      }
      const isExpecting = decreaseOnSilence && initial > 1 && state[i + OVERDUE_AT] > 0;
      const isNew = state[i + LIMIT] === initial && !isExpecting;
      return isNew && !hasLearned(state, i, initial > 1) ? -Infinity : Infinity;
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
  });
  return policy;
}

/** A timeout is none, and an ignored call says nothing. */
const isReply = (outcome: Outcome): boolean => outcome !== 'timeout' && outcome !== 'ignored';

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
