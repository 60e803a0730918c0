/**
 * Window: so many calls in any stretch of time.
 *
 * Where a bucket lets its burst through on top of its rate, up to twice as much in one minute, here no stretch of `per`
 * ever sees more than `limit`. Many an API counts just so: 100 in any minute.
 *
 * To know that exactly one would have to remember every call. So time is cut into steps, and each remembers how many calls
 * began in it. A step counts until all of it has left the window:
 *
 *              │◀──────────── per ────────────▶│
 *     ──┬──────┼──┬───────┬───────┬───────┬────┼──▶ time
 *       │  2   ┊  │   0   │   3   │   1   │  2 ┊     8 of them count, though two may have left
 *     ──┴──────┼──┴───────┴───────┴───────┴────┼──
 *                                             now
 *
 * It is never too many, and a call comes back up to one step late: a sixteenth of the window, if nobody says otherwise.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { type Policy, type State, timeToOpen } from './policy.ts';

/** So many calls in any stretch of time. */
export interface WindowOptions {
  /** Calls in any stretch of `per`. */
  readonly limit: number;
  /** How long a call counts. */
  readonly per: Duration;
  /**
   * In how many steps a window is cut, each at least a millisecond: the more, the sooner calls come back, for 8 bytes
   * each a key. Default 16.
   */
  readonly steps?: number;
}

const MAX_STEPS = 1000;

/** Steps are numbered from the origin of time on: shorter ones would have no whole numbers left. */
const MIN_STEP_MS: Millis = 1;

const LAST_STEP = 0; //  the one of the last call; NaN before the first
const COUNTS = 1; // of that step and as many before it as can count, in a ring

export function window(options: WindowOptions, path = 'window'): Policy {
  const reader = OptionReader.collecting(path, options);
  const limit = reader.integer('limit', 1);
  const perMs = reader.duration('per');
  if (perMs < MIN_STEP_MS) reader.report('per', `at least ${MIN_STEP_MS} ms`);
  const stepsMost = reader.number('steps', { min: 1, max: MAX_STEPS, integer: true }, 16);
  reader.finish();

  const steps = Math.min(stepsMost, Math.floor(perMs / MIN_STEP_MS));
  const stepMs = perMs / steps;
  const ring = steps + 1; // what is left of the oldest one counts in full
  /** The step of an instant. Rounded down, a quotient can miss the step that begins just there: it is one further on. */
  const stepAt = (now: Millis): number => {
    const step = Math.floor(now / stepMs);
    return (step + 1) * stepMs <= now ? step + 1 : step;
  };
  const placeOf = (step: number): number => COUNTS + (((step % ring) + ring) % ring);

  /** When what was counted in a step has surely left the window. */
  const leavesAt = (step: number): Millis => (step + ring) * stepMs;

  /** Brings a key to the step of `now`; time that goes back stands still. */
  const roll = (state: State, i: number, now: Millis): number => {
    const step = stepAt(now);
    const last = state[i + LAST_STEP];
    if (step <= last) return last;
    const from = Number.isNaN(last) ? step : Math.max(last + 1, step - steps);
    for (let gone = from; gone <= step; gone++) state[i + placeOf(gone)] = 0;
    state[i + LAST_STEP] = step;
    return step;
  };

  const countOf = (state: State, i: number): number => {
    let sum = 0;
    for (let n = 0; n < ring; n++) sum += state[i + COUNTS + n];
    return sum;
  };

  /** Looking must not change anything, so it happens on a copy. */
  const scratch = new Float64Array(COUNTS + ring);
  const leftAt = (state: State, i: number, now: Millis): number => {
    for (let n = 0; n < scratch.length; n++) scratch[n] = state[i + n];
    roll(scratch, 0, now);
    return limit - countOf(scratch, 0);
  };

  /** Whole milliseconds until `cost` fits: when enough of the oldest steps have left. */
  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const newest = state[i + LAST_STEP];
    let missing = cost - (limit - countOf(state, i));
    for (let step = newest - steps; step <= newest; step++) {
      missing -= state[i + placeOf(step)];
      if (missing <= 0) return Math.max(1, Math.ceil(leavesAt(step) - now));
    }
    return NEVER;
  };

  const kind = 'window';
  const policy: Policy = {
    kind,
    width: COUNTS + ring,
    needsExactTime: false,
    needsOutcome: false,
    canReserve: false,
    expireMs: Infinity,

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + COUNTS + ring);
      state[i + LAST_STEP] = Number.NaN;
      if (freshAt <= now) return;
      const step = Math.min(stepAt(now), Math.ceil(freshAt / stepMs) - ring); // the one that has left by then
      state[i + LAST_STEP] = step;
      state[i + placeOf(step)] = limit;
    },

    check(state, i, cost, now) {
      requireCost(cost);
      if (cost === 0) return allow(Math.max(0, leftAt(state, i, now)));
      if (cost > limit) return deny(NEVER);
      const step = roll(state, i, now);
      const left = limit - countOf(state, i) - cost;
      if (left < 0) return deny(retryAfter(state, i, cost, now));
      state[i + placeOf(step)] += cost;
      return allow(left);
    },

    /** It counts as of then. What would have left by then still counts, with the oldest: until then it has not. */
    deferTo(state, i, cost, dueAt) {
      const [asked, due] = [state[i + LAST_STEP], stepAt(dueAt)];
      if (due <= asked) return;
      state[i + placeOf(asked)] -= cost;
      let kept = 0;
      for (let step = asked - steps; step <= Math.min(asked, due - ring); step++) {
        kept += state[i + placeOf(step)];
      }
      roll(state, i, dueAt);
      state[i + placeOf(due - steps)] += kept;
      state[i + placeOf(due)] += cost;
    },

    available: (state, i, now) => Math.max(0, Math.floor(leftAt(state, i, now))),

    /** What was not used is taken off the step it was counted in, if that still counts. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      const newest = roll(state, i, now);
      const step = unused > 0 ? stepAt(dueAt) : newest;
      if (step < newest - steps || step > newest) return;
      state[i + placeOf(step)] = Math.max(0, state[i + placeOf(step)] - unused);
    },

    update(state, i, news, now) {
      if (!('hits' in news || 'remaining' in news)) return false;
      const step = roll(state, i, now);
      const left = limit - countOf(state, i);
      // Who counts on the other side knows better, but never that there is more than we know of.
      const hits = 'hits' in news ? news.hits : Math.max(0, left - news.remaining);
      state[i + placeOf(step)] += hits;
      return true;
    },

    removableAt: (state, i) => lastLeavesAt(state, i),
    evictableAt: (state, i) => lastLeavesAt(state, i),

    keyState: (state, i, now) => ({ remaining: leftAt(state, i, now) }),

    ruleStatuses(state, i, now) {
      const remaining = Math.max(0, leftAt(state, i, now));
      const freshInMs = Math.max(0, Math.ceil(lastLeavesAt(state, i) - now));
      const terms = { quota: limit, windowMs: perMs };
      return [{ kind, ...terms, remaining, freshInMs, ...timeToOpen(policy, state, i, now) }];
    },
  };

  /** When the last call has left. */
  const lastLeavesAt = (state: State, i: number): Millis => {
    const newest = state[i + LAST_STEP];
    for (let step = newest; step >= newest - steps; step--) {
      if (state[i + placeOf(step)] > 0) return leavesAt(step);
    }
    return -Infinity;
  };
  return policy;
}
