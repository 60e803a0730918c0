/**
 * The knee rule of adaptive concurrency: finds the calls in flight beyond which a server only queues.
 *
 * Up to its knee, a server completes more with more calls in flight. Beyond it, the rate stays, and round-trip times
 * (RTT) grow. By Little's law the knee is rate × base RTT, the RTT without a queue.
 *
 *     rate ▲        ┌────────────          limit = rate × base RTT + head-room
 *          │      ╱ ·
 *          │    ╱   ·
 *          └──╱─────┴───────────▶ in flight
 *                  knee
 *
 *     start ──▶ hold ◀──▶ drain, down, up
 *       ▲         │
 *       └─ silence┘
 *
 * - start (start.ts): doubles the limit while calls are no slower. The first slower level ends it.
 * - hold (hold.ts): follows the rate, measured in windows while the limit is reached. Without demand it learns nothing.
 * - test (periodic-test.ts): every 10 s, fewer calls for about a second, at the same instants on every host, so that clients
 *   that share a server measure it without the queues of the others. This measures the base RTT anew, and tells a slower
 *   server from one that has lost capacity. Then more calls for a moment: does the server take them?
 * - refusals and timeouts (pace.ts): a few refusals are tolerated. More set a pace just below the rate of successes. If no
 *   call succeeds, the pace falls to a probe every two seconds. Refusals that a lower pace does not change are tolerated.
 *   Silence halves the limit and starts again.
 *
 * A small limit has a fraction: windows alternate between the whole limits around it (window.ts).
 * Only a call sent after the last cut can cut again, and only a settled call adjusts the limit. One exception: if nothing
 * settles for long, the calls in flight are stuck, and others get the limit beside them (state.ts).
 */

import type { Millis } from '../../core/clock.ts';
import { allow, type Decision, deny, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { requireCost } from '../cost.ts';
import type { InFlightPolicy } from '../partitions.ts';
import { type PoolPosition, type State, timeToOpen } from '../policy.ts';
import { stepHold } from './hold.ts';
import {
  easePace,
  probeFirst,
  recordRefusal,
  recordSuccess,
  recordTimeout,
  TOLERATED,
} from './pace.ts';
import { stepDown, stepDrain, stepUp } from './periodic-test.ts';
import { beginStart, stepStart } from './start.ts';
import {
  ANCHOR,
  BASE_RTT,
  beginCall,
  CAUSE,
  CAUSES,
  COST,
  CUT_AT,
  countSuccess,
  DENIED,
  DOWN,
  DRAIN,
  endCall,
  HOLD,
  hasPace,
  IN_FLIGHT,
  KEPT,
  type KneeTerms,
  LEVEL,
  LIMIT,
  LIMIT_BEFORE_LOSS,
  LIMIT_RTT,
  MODE,
  NEXT_AT,
  NEXT_TEST_AT,
  noteBlocked,
  OK_AT,
  PACE,
  RATE,
  RTT_CALLS,
  SEEN_AT,
  SETTLED_AT,
  START,
  STUCK,
  TARGET,
  TOLERANCE,
  TOP,
  untilStuck,
  WIDTH,
} from './state.ts';
import { countFailure, headroom, isKnown } from './window.ts';

/** Numbers that the upper bound of the limit bounds. */
const BOUNDED = [TARGET, LIMIT, ANCHOR, TOP, LEVEL, LIMIT_BEFORE_LOSS];

/** What was learnt about a service that has not been called for this long is dropped. */
const STALE_MS = 60_000;

/** The most by which an urgent call may start ahead of the pace: what lower priorities then wait longer for. */
const MAX_AHEAD_CALLS = 5;
const MAX_AHEAD_MS = 100;

export function knee(terms: KneeTerms, { size, rank }: PoolPosition): InFlightPolicy {
  const even = Math.floor(terms.max / size);
  /** Upper bound of this member's part. */
  const cap = even + (rank >= 0 && rank < terms.max - even * size ? 1 : 0);
  const part: KneeTerms = {
    initial: Math.max(1, Math.min(terms.initial, cap)),
    max: Math.max(1, cap),
  };
  /** Slots that priorities keep free come on top: the rule learns from the calls that are really in flight. */
  const limitOf = (state: State, i: number): number =>
    Math.min(state[i + LIMIT] + state[i + KEPT] + state[i + STUCK], cap);

  const step = (state: State, i: number, sentAt: Millis, now: Millis): void => {
    const mode = state[i + MODE];
    if (mode === HOLD) stepHold(state, i, part, now);
    else if (mode === START) stepStart(state, i, part, sentAt, now);
    else if (mode === DRAIN) stepDrain(state, i, part, now);
    else if (mode === DOWN) stepDown(state, i, part, now);
    else stepUp(state, i, part, sentAt, now);
  };

  /** The pace lets a call start up to `aheadMs` early. */
  const decide = (
    state: State,
    i: number,
    cost: number,
    now: Millis,
    aheadMs: Millis,
  ): Decision => {
    requireCost(cost);
    const inFlight = state[i + IN_FLIGHT] + cost;
    if (cost > 0) {
      if (cost > cap) return deny(cap === terms.max ? NEVER : WHEN_SETTLED);
      // Alone, any cost may start: otherwise a cost above the limit would wait for ever.
      if (inFlight > limitOf(state, i) && inFlight > cost) {
        noteBlocked(state, i, now);
        return deny(untilStuck(state, i, now));
      }
      if (hasPace(state, i)) {
        easePace(state, i, now);
        if (hasPace(state, i) && now + aheadMs < state[i + NEXT_AT])
          return deny(Math.ceil(state[i + NEXT_AT] - aheadMs - now));
      }
      beginCall(state, i, cost, now);
    }
    const isPaced = hasPace(state, i) && now < state[i + NEXT_AT];
    return allow(isPaced ? 0 : Math.max(0, limitOf(state, i) - inFlight));
  };

  const policy: InFlightPolicy = {
    kind: 'adaptive',
    width: WIDTH,
    needsExactTime: true, // round-trip times are measured with the same clock
    needsOutcome: true,
    mayOpenEarlier: true, // a full limit reports when its calls count as stuck
    canReserve: false,
    expireMs: Infinity,

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      state[i + TARGET] = freshAt > now ? 1 : part.initial;
      state[i + SEEN_AT] = now;
      state[i + BASE_RTT] = Number.NaN;
      state[i + LIMIT_RTT] = Number.NaN;
      state[i + NEXT_TEST_AT] = Infinity;
      state[i + PACE] = Infinity;
      state[i + CUT_AT] = -Infinity;
      state[i + OK_AT] = -Infinity;
      state[i + SETTLED_AT] = now;
      state[i + TOLERANCE] = TOLERATED;
      if (freshAt > now) probeFirst(state, i, now);
      beginStart(state, i, now);
    },

    check: (state, i, cost, now) => decide(state, i, cost, now, 0),
    checkUrgent: (state, i, cost, now) =>
      decide(state, i, cost, now, Math.min(MAX_AHEAD_MS, MAX_AHEAD_CALLS / state[i + PACE])),

    available(state, i, now) {
      if (hasPace(state, i) && now < state[i + NEXT_AT]) return 0;
      return Math.max(0, Math.floor(limitOf(state, i) - state[i + IN_FLIGHT]));
    },

    settle(state, i, { outcome, cost, rttMs, dueAt }, now) {
      const sentAt = rttMs === undefined ? dueAt : now - rttMs;
      endCall(state, i, cost, now - sentAt, now);
      if (outcome === 'ok') {
        countSuccess(state, i, cost, rttMs ?? Math.max(0, now - dueAt));
        recordSuccess(state, i, cost, sentAt, now);
      } else if (outcome === 'busy') {
        countFailure(state, i, cost);
        recordRefusal(state, i, part, cost, sentAt, now);
      } else if (outcome === 'timeout') {
        countFailure(state, i, cost);
        recordTimeout(state, i, part, sentAt, now);
      }
      step(state, i, sentAt, now);
    },

    noteKept(state, i, kept) {
      state[i + KEPT] = Math.min(2 * state[i + LIMIT], Math.max(state[i + KEPT], Math.ceil(kept)));
    },

    terms: 'knee',
    /** Calls stay in flight, and what was learnt is kept, up to the new bound. */
    converterFrom: (from) =>
      from.terms !== 'knee'
        ? undefined
        : (state, i, source, j) => {
            for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
            for (const n of BOUNDED) state[i + n] = Math.min(part.max, state[i + n]);
          },

    divided: (next) => knee(terms, next),
    limitOf,
    inFlightOf: (state, i) => state[i + IN_FLIGHT],
    meanRttOf: (state, i) => state[i + LIMIT_RTT] || state[i + BASE_RTT] || 0,

    update: () => false, // load from other clients shows in the round-trip times

    // What was learnt is kept, and a call in flight must find its count when it settles.
    removableAt: (state, i) =>
      state[i + RTT_CALLS] + state[i + IN_FLIGHT] + state[i + DENIED] > 0 ||
      state[i + COST] > 1 ||
      state[i + CUT_AT] > -Infinity
        ? Infinity
        : -Infinity,
    evictableAt(state, i) {
      if (state[i + IN_FLIGHT] > 0) return Infinity;
      const isFresh = state[i + LIMIT] >= part.initial && !hasPace(state, i);
      return isFresh ? -Infinity : state[i + SEEN_AT] + STALE_MS;
    },

    keyState: (state, i, now) => {
      const limit = limitOf(state, i);
      const base = state[i + BASE_RTT];
      const point = state[i + RATE] * base;
      return {
        remaining: policy.available(state, i, now),
        limit,
        inFlight: state[i + IN_FLIGHT],
        ...(isKnown(state, i) && {
          rttMs: state[i + LIMIT_RTT] || base,
          baseRttMs: base,
          ratePerSecond: 1000 * state[i + RATE],
          knee: point,
          headroom: headroom(point),
        }),
        ...(hasPace(state, i) && { pacePerSecond: 1000 * state[i + PACE] }),
        ...(state[i + CAUSE] > 0 && { cause: CAUSES[state[i + CAUSE]] }),
      };
    },

    ruleStatuses(state, i, now) {
      const quota = limitOf(state, i);
      const remaining = policy.available(state, i, now);
      const opens = timeToOpen(policy, state, i, now);
      return [{ kind: policy.kind, quota, remaining, ...opens, isCapacity: true }];
    },
  };
  return policy;
}
