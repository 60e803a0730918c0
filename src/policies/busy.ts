/**
 * Busy: a limit on calls a second that halves on every busy reply and grows back by a factor.
 *
 * For a client of a service that says when it has had enough. As long as nobody says busy there is
 * no limit. A busy reply sets the limit to half the rate we are really sending at; another one, to a
 * call sent after that, halves it again; every second it recovers, by default to four times itself
 * ("recover rate 3": itself and three times itself more). So a long busy spell ends deep down and
 * takes a few seconds longer to climb, a short one is forgotten at once, and a constant step would do
 * neither. Replies to calls that were under way at a cut cut no further: else how deep it goes would
 * depend on how many those were, and not on how long the spell lasts.
 *
 *     calls/s                    limit
 *      5000 ┤────────┐                                  ┌────────
 *           │        │ busy, busy, busy                 │
 *         9 ┤        └──┐                            ┌──┘
 *       0.1 ┤           └────────────────────────────┘
 *
 * The limit is a real number and never zero. Below one it means: not yet, but in a second or two a
 * probe goes through.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { type Policy, type State, timeToOpen } from './policy.ts';

/** Backs off when the other side says that it is busy, and comes back. */
export interface BusyOptions {
  /** Every second the limit grows by this many times itself. Default 3. */
  readonly recoverRate?: number;
  /** Or: every second it grows by this many calls a second. */
  readonly recoverValue?: number;
  /** The limit when nobody has complained for long. Default 9,999,999: none to speak of. */
  readonly max?: number;
}

export const UNLIMITED = 9_999_999;

/** However many complain within a second, it counts as this many. */
export const MAX_HALVINGS = 20;

/** Never less than this many calls a second: at the usual recovery, ten seconds from a probe. */
const MIN_LIMIT = 2 ** -20;

/** A busy reply to a call sent so long ago says nothing of now. */
const STALE_MS: Millis = 60_000;

/** What a power of the recovery factor may be short of the whole call it stands for. */
const EPSILON = 1e-9;

/** How the limit moves, apart from when: the simulation of the original uses the same two steps. */
export interface BusyRule {
  readonly max: number;
  /** The limit so many seconds of recovery later. */
  grow(limit: number, seconds?: number): number;
  halve(limit: number, busy: number): number;
  /** How many seconds of recovery lead from `limit` to `goal`, at most `max`. */
  secondsToReach(limit: number, goal: number): number;
  /** The limit from which it takes so many seconds to recover to `max`. */
  limitRecoveringIn(seconds: number): number;
}

export function busyRule(options: BusyOptions, path = 'busy'): BusyRule {
  const reader = OptionReader.collecting(path, options);
  const value = reader.has('recoverValue') ? reader.positive('recoverValue') : undefined;
  if (value !== undefined && reader.has('recoverRate')) {
    reader.report('recoverRate', 'left out when recoverValue is given');
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
    // One second is written as the original writes it, so that its figures come out to the digit.
    grow: (limit, seconds = 1) =>
      seconds === 1 ? limit + limit * rate : limit * (1 + rate) ** seconds,
    secondsToReach: (limit, goal) =>
      Math.max(0, Math.ceil(Math.log(goal / limit) / Math.log1p(rate) - EPSILON)),
    limitRecoveringIn: (seconds) => max / (1 + rate) ** seconds,
  };
}

const SECOND = 0; //   of the last event
const LIMIT = 1; //    calls a second
const SENT = 2; //     in this second
const PREVIOUS_SENT = 3; //   sent in the second before
const HALVINGS = 4; // in this second
const LATEST_AT = 5; //       the latest instant that was heard of
const CUT_AT = 6; //   when the limit was last cut
const WIDTH = 7;

export function busy(options: BusyOptions, path = 'busy'): Policy {
  const rule = busyRule(options, path);
  const { max } = rule;

  const roll = (state: State, i: number, now: Millis): void => {
    state[i + LATEST_AT] = Math.max(state[i + LATEST_AT], now);
    const gap = Math.floor(now / 1000) - state[i + SECOND];
    if (gap <= 0) return;
    state[i + SECOND] += gap;
    state[i + LIMIT] = Math.min(max, rule.grow(state[i + LIMIT], gap));
    state[i + PREVIOUS_SENT] = gap === 1 ? state[i + SENT] : 0;
    state[i + SENT] = 0;
    state[i + HALVINGS] = 0;
  };

  /** Calls in the last 1000 ms: this second's, and the part of the one before still in view. */
  const rate = (state: State, i: number): number => {
    const intoSecond = Math.min(1, Math.max(0, state[i + LATEST_AT] / 1000 - state[i + SECOND]));
    return state[i + SENT] + state[i + PREVIOUS_SENT] * (1 - intoSecond);
  };

  const cut = (state: State, i: number): void => {
    if (state[i + HALVINGS] >= MAX_HALVINGS) return;
    state[i + HALVINGS] += 1;
    state[i + CUT_AT] = state[i + LATEST_AT];
    const sending = Math.max(1, rate(state, i)); // somebody got the busy reply, so one was sent
    state[i + LIMIT] = Math.max(MIN_LIMIT, rule.halve(Math.min(state[i + LIMIT], sending), 1));
  };

  /** A call that was sent before the last cut was sent at the rate that was cut. */
  const isNews = (state: State, i: number, dueAt: Millis, now: Millis): boolean =>
    dueAt >= state[i + CUT_AT] && now - dueAt <= STALE_MS;

  const spare = (state: State, i: number): number =>
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
      // Forgotten too early: as deep down as takes that long to climb, and nothing more this second.
      const climb = Math.max(0, Math.ceil((freshAt - now) / 1000));
      state[i + LIMIT] = Math.max(MIN_LIMIT, rule.limitRecoveringIn(climb));
      if (climb > 0) state[i + SENT] = Math.floor(max);
    },

    check(state, i, cost, now) {
      requireCost(cost);
      roll(state, i, now);
      if (cost > Math.floor(max)) return deny(NEVER);
      if (cost > 0 && cost > spare(state, i)) return deny(retryAfter(state, i, cost, now));
      state[i + SENT] += cost;
      return allow(spare(state, i));
    },

    available(state, i, now) {
      roll(state, i, now);
      return spare(state, i);
    },

    settle(state, i, { outcome, cost, dueAt }, now) {
      roll(state, i, now);
      if (outcome === 'busy' && isNews(state, i, dueAt, now)) cut(state, i);
      const isThisSecond = Math.floor(dueAt / 1000) === state[i + SECOND];
      if (outcome === 'ignored' && isThisSecond) {
        state[i + SENT] = Math.max(0, state[i + SENT] - cost);
      }
    },

    update: () => false,

    removableAt: (state, i) => Math.max(climbedAt(state, i), state[i + CUT_AT] + STALE_MS + 1),
    evictableAt: (state, i) => climbedAt(state, i),

    keyState(state, i, now) {
      const gap = Math.max(0, Math.floor(now / 1000) - state[i + SECOND]);
      const limit = Math.min(max, rule.grow(state[i + LIMIT], gap));
      const sent = gap === 0 ? state[i + SENT] : 0;
      return { remaining: Math.max(0, Math.floor(limit + EPSILON) - sent), limit };
    },

    ruleStatuses(state, i, now) {
      roll(state, i, now);
      const remaining = spare(state, i);
      const terms = { quota: Math.floor(state[i + LIMIT] + EPSILON), windowMs: 1000 };
      const freshInMs = Math.ceil((state[i + SECOND] + 1) * 1000 - now);
      return [{ kind, ...terms, remaining, freshInMs, ...timeToOpen(policy, state, i, now) }];
    },
  };
  return policy;

  function climbedAt(state: State, i: number): Millis {
    // One second more than the climb: what was sent before counts as the rate until then.
    const seconds = Math.max(2, rule.secondsToReach(state[i + LIMIT], max) + 1);
    return (state[i + SECOND] + seconds) * 1000;
  }
}
