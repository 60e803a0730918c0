/**
 * Back-pressure: a client-side rate limit that halves on busy replies and recovers by a factor.
 *
 * For a client of a service that replies *busy* on overload. Without busy replies there is no limit. A
 * busy reply sets the limit to half the rate that is really sent. Another one, to a call sent after that,
 * halves it again. Every second the limit recovers, by default to four times itself ("recover rate 3":
 * itself and three times itself more).
 *
 * So a long overload ends at a low limit and takes a few seconds longer to recover, and a short one is
 * over at once; a constant step would do neither. Replies to calls that were in flight at a cut cut no
 * further. Otherwise the depth would depend on the number of those calls, not on the length of the overload.
 *
 *     calls/s                    limit
 *      5000 ┤────────┐                                  ┌────────
 *           │        │ busy, busy, busy                 │
 *         9 ┤        └──┐                            ┌──┘
 *       0.1 ┤           └────────────────────────────┘
 *
 * The limit is a real number and never zero. Below one, calls are refused until it has recovered to one,
 * when a single probe goes through.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { type Policy, type State, timeToOpen } from './policy.ts';

/** Backs off on busy replies, and recovers. */
export interface BusyOptions {
  /** Recovery per second, as a multiple of the limit that is added to it. Default 3. */
  readonly recoverRate?: number;
  /** Or: recovery per second, in calls a second. */
  readonly recoverValue?: number;
  /** The limit without busy replies, in calls a second. Default 9,999,999: unlimited in practice. */
  readonly max?: number;
}

export const UNLIMITED = 9_999_999;

/** The most halvings within a second. */
export const MAX_HALVINGS = 20;

/** Lower bound of the limit, in calls a second: at the default recovery, ten seconds from a probe. */
const MIN_LIMIT = 2 ** -20;

/** A busy reply to a call sent this long ago says nothing about the present. */
const STALE_MS: Millis = 60_000;

/** Floating-point error tolerated in powers of the recovery factor. */
const EPSILON = 1e-9;

/** How the limit moves, without time: the simulator's reference model uses the same steps. */
export interface BusyRule {
  readonly max: number;
  /** The limit after so many seconds of recovery. */
  grow(limit: number, seconds?: number): number;
  halve(limit: number, busy: number): number;
  /** Seconds of recovery from `limit` to `goal`, which is at most `max`. */
  secondsToReach(limit: number, goal: number): number;
  /** The limit that recovers to `max` in so many seconds. */
  limitRecoveringIn(seconds: number): number;
}

export function busyRule(options: BusyOptions, path = 'busy'): BusyRule {
  const reader = OptionReader.collecting(path, options);
  const value = reader.has('recoverValue') ? reader.positive('recoverValue') : undefined;
  if (value !== undefined && reader.has('recoverRate')) {
    reader.report('recoverRate', 'left out when `recoverValue` is given');
  }
  const rate = reader.positive('recoverRate', 3);
  const max = reader.number('max', { min: 1 }, UNLIMITED);
  reader.finish();
  const halve = (limit: number, busy: number) =>
    Math.min(max, limit / 2 ** Math.min(busy, MAX_HALVINGS));

  if (value !== undefined) {
    return {
      max,
      halve,
      grow: (limit, seconds = 1) => limit + value * seconds,
      secondsToReach: (limit, goal) => Math.max(0, Math.ceil((goal - limit) / value - EPSILON)),
      limitRecoveringIn: (seconds) => max - value * seconds,
    };
  }
  return {
    max,
    halve,
    // One second is computed as TChannel does, so that its published figures come out to the digit.
    grow: (limit, seconds = 1) =>
      seconds === 1 ? limit + limit * rate : limit * (1 + rate) ** seconds,
    secondsToReach: (limit, goal) =>
      Math.max(0, Math.ceil(Math.log(goal / limit) / Math.log1p(rate) - EPSILON)),
    limitRecoveringIn: (seconds) => max / (1 + rate) ** seconds,
  };
}

const SECOND = 0; //        of the last event
const LIMIT = 1; //         calls a second
const SENT = 2; //          in this second
const PREVIOUS_SENT = 3; // in the second before
const HALVINGS = 4; //      in this second
const LATEST_AT = 5; //     the latest instant seen
const CUT_AT = 6; //        when the limit was last halved
const WIDTH = 7;

export function busy(options: BusyOptions, path = 'busy'): Policy {
  const rule = busyRule(options, path);
  const { max } = rule;

  const advance = (state: State, i: number, now: Millis): void => {
    state[i + LATEST_AT] = Math.max(state[i + LATEST_AT], now);
    const gap = Math.floor(now / 1000) - state[i + SECOND];
    if (gap <= 0) return;
    state[i + SECOND] += gap;
    state[i + LIMIT] = Math.min(max, rule.grow(state[i + LIMIT], gap));
    state[i + PREVIOUS_SENT] = gap === 1 ? state[i + SENT] : 0;
    state[i + SENT] = 0;
    state[i + HALVINGS] = 0;
  };

  /** Calls in the last 1000 ms: those of this second, and the part of the second before within the window. */
  const sendRate = (state: State, i: number): number => {
    const intoSecond = Math.min(1, Math.max(0, state[i + LATEST_AT] / 1000 - state[i + SECOND]));
    return state[i + SENT] + state[i + PREVIOUS_SENT] * (1 - intoSecond);
  };

  const cut = (state: State, i: number): void => {
    if (state[i + HALVINGS] >= MAX_HALVINGS) return;
    state[i + HALVINGS] += 1;
    state[i + CUT_AT] = state[i + LATEST_AT];
    const sending = Math.max(1, sendRate(state, i)); // the busy reply answered at least one call
    state[i + LIMIT] = Math.max(MIN_LIMIT, rule.halve(Math.min(state[i + LIMIT], sending), 1));
  };

  /** A call sent before the last cut was sent at the rate that was cut: its reply adds nothing. */
  const isCurrent = (state: State, i: number, dueAt: Millis, now: Millis): boolean =>
    dueAt >= state[i + CUT_AT] && now - dueAt <= STALE_MS;

  const remainingOf = (state: State, i: number): number =>
    Math.max(0, Math.floor(state[i + LIMIT] + EPSILON) - state[i + SENT]);

  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const seconds = Math.max(1, rule.secondsToReach(state[i + LIMIT], Math.ceil(cost)));
    return Math.ceil((state[i + SECOND] + seconds) * 1000 - now);
  };

  const kind = 'busy';
  const policy: Policy = {
    kind,
    width: WIDTH,
    needsExactTime: false,
    needsOutcome: true,
    canReserve: false,
    expireMs: Infinity,

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      state[i + SECOND] = Math.floor(now / 1000);
      state[i + LATEST_AT] = now;
      state[i + CUT_AT] = -Infinity;
      // Evicted too early: the limit that takes that long to recover, and nothing left in this second.
      const recoverySeconds = Math.max(0, Math.ceil((freshAt - now) / 1000));
      state[i + LIMIT] = Math.max(MIN_LIMIT, rule.limitRecoveringIn(recoverySeconds));
      if (recoverySeconds > 0) state[i + SENT] = Math.floor(max);
    },

    check(state, i, cost, now) {
      requireCost(cost);
      advance(state, i, now);
      if (cost > Math.floor(max)) return deny(NEVER);
      if (cost > 0 && cost > remainingOf(state, i)) return deny(retryAfter(state, i, cost, now));
      state[i + SENT] += cost;
      return allow(remainingOf(state, i));
    },

    advance,

    available(state, i, now) {
      advance(state, i, now);
      return remainingOf(state, i);
    },

    settle(state, i, { outcome, cost, dueAt }, now) {
      advance(state, i, now);
      if (outcome === 'busy' && isCurrent(state, i, dueAt, now)) cut(state, i);
      const isThisSecond = Math.floor(dueAt / 1000) === state[i + SECOND];
      if (outcome === 'ignored' && isThisSecond) {
        state[i + SENT] = Math.max(0, state[i + SENT] - cost);
      }
    },

    update: () => false,

    removableAt: (state, i) => Math.max(recoveredAt(state, i), state[i + CUT_AT] + STALE_MS + 1),
    evictableAt: (state, i) => recoveredAt(state, i),

    keyState(state, i, now) {
      const gap = Math.max(0, Math.floor(now / 1000) - state[i + SECOND]);
      const limit = Math.min(max, rule.grow(state[i + LIMIT], gap));
      const sent = gap === 0 ? state[i + SENT] : 0;
      return { remaining: Math.max(0, Math.floor(limit + EPSILON) - sent), limit };
    },

    ruleStatuses(state, i, now) {
      advance(state, i, now);
      const remaining = remainingOf(state, i);
      const terms = { quota: Math.floor(state[i + LIMIT] + EPSILON), windowMs: 1000 };
      const freshInMs = Math.ceil((state[i + SECOND] + 1) * 1000 - now);
      const opens = timeToOpen(policy, state, i, now);
      return [{ kind, ...terms, remaining, freshInMs, ...opens, isCapacity: true }];
    },
  };
  return policy;

  function recoveredAt(state: State, i: number): Millis {
    // One second more than the recovery: what was sent before counts into the send rate until then.
    const seconds = Math.max(2, rule.secondsToReach(state[i + LIMIT], max) + 1);
    return (state[i + SECOND] + seconds) * 1000;
  }
}
