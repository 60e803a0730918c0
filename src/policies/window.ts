/**
 * Sliding window, counted in steps: at most `limit` calls in any period of `per`.
 *
 * A token bucket lets its burst through on top of its rate, up to twice as much in one minute. Here no
 * period of `per` ever sees more than `limit`, as many APIs count: 100 in any minute.
 *
 * An exact count would need the time of every call. So time is divided into steps, each with the number of
 * calls that began in it. A step counts until all of it has left the window:
 *
 *              │◀──────────── per ────────────▶│
 *     ──┬──────┼──┬───────┬───────┬───────┬────┼──▶ time
 *       │  2   ┊  │   0   │   3   │   1   │  2 ┊     8 calls count, though 2 may have left
 *     ──┴──────┼──┴───────┴───────┴───────┴────┼──
 *                                             now
 *
 * There is no overshoot. A call stops counting up to one step late: by default a sixteenth of the window.
 *
 * In a pool each member has a part of the limit, a whole number; the first ranks get one more each. A part that grows was
 * spent by other members, perhaps: the member uses the smaller part until one window has passed.
 *
 * Between groups, units that are lent count for the lender as long as if the borrower used them at the last instant. The
 * borrower's count goes below zero by them in the newest step. What it has not used by the end of the step is lost.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { MAX_AMOUNT, OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import {
  COUNTS_ONLY,
  type GroupPart,
  type Policy,
  type PoolPosition,
  type RuleSpec,
  type State,
  simulatedQueue,
  timeToOpen,
} from './policy.ts';
import { asRule } from './rules.ts';

/** Sliding window: at most so many calls in any period. */
export interface WindowOptions {
  /** Calls in any period of `per`. */
  readonly limit: number;
  /** How long a call counts. */
  readonly per: Duration;
  /**
   * Steps per window, each at least a millisecond. More steps free calls sooner, for 8 bytes per step and
   * key. Default 16.
   */
  readonly steps?: number | undefined;
}

const MAX_STEPS = 1000;

/** A pool divides windows of at most this length: a member that joins has no part until one has passed. */
const MAX_DIVIDED_MS: Millis = 3_600_000;

/** Steps are numbered from the origin of time: shorter ones would exceed the whole numbers. */
const MIN_STEP_MS: Millis = 1;

/** Predicted hits were counted no longer ago than this, but for a small part. */
const LOWERED_WITHIN_MS: Millis = 400;

/** The numbers of a sliding window. */
interface WindowTerms {
  readonly limit: number;
  readonly perMs: Millis;
  readonly steps: number;
  readonly stepMs: Millis;
}

/** What one member of a pool may spend in any period: `least` until `until`, then `part`. */
interface WindowPart {
  readonly part: number;
  readonly least: number;
  readonly until: Millis;
}

const LAST_STEP = 0; // the step of the last call; NaN before the first
const COUNTS = 1; //    ring buffer: that step, and the steps before it that still count

export function window(options: WindowOptions, path = 'window'): Policy {
  const reader = OptionReader.collecting(path, options);
  const limit = reader.integer('limit', 1);
  const perMs = reader.duration('per');
  if (perMs < MIN_STEP_MS) reader.report('per', `at least ${MIN_STEP_MS} ms`);
  const maxSteps = reader.number('steps', { min: 1, max: MAX_STEPS, integer: true }, 16);
  reader.finish();

  const steps = Math.min(maxSteps, Math.floor(perMs / MIN_STEP_MS));
  return windowAt({ limit, perMs, steps, stepMs: perMs / steps }, wholeOf(limit));
}

/** `lendMs`: of a group's part, which lends. */
function windowAt(terms: WindowTerms, { part, least, until }: WindowPart, lendMs?: Millis): Policy {
  const { limit, perMs, steps, stepMs } = terms;
  const ring = steps + 1; // the oldest step is only partly in the window and counts in full
  /** The step of an instant. The rounded quotient can miss a step that begins exactly there: then it is the next. */
  const stepAt = (now: Millis): number => {
    const step = Math.floor(now / stepMs);
    return (step + 1) * stepMs <= now ? step + 1 : step;
  };
  const indexOf = (step: number): number => COUNTS + (((step % ring) + ring) % ring);

  const mostAt = (now: Millis): number => (now < until ? least : part);

  /** When all of a step has left the window. */
  const leavesAt = (step: number): Millis => (step + ring) * stepMs;

  /** Advances a key to the step of `now`; time that goes backwards stands still. */
  const advance = (state: State, i: number, now: Millis): number => {
    const step = stepAt(now);
    const last = state[i + LAST_STEP];
    if (step <= last) return last;
    const from = Number.isNaN(last) ? step : Math.max(last + 1, step - steps);
    if (state[i + indexOf(last)] < 0) state[i + indexOf(last)] = 0; // borrowed and not used
    for (let cleared = from; cleared <= step; cleared++) state[i + indexOf(cleared)] = 0;
    state[i + LAST_STEP] = step;
    return step;
  };

  const countOf = (state: State, i: number): number => {
    let sum = 0;
    for (let n = 0; n < ring; n++) sum += state[i + COUNTS + n];
    return sum;
  };

  /** Reading must not change the state, so it advances a scratch copy. */
  const scratch = new Float64Array(COUNTS + ring);
  const remainingAt = (state: State, i: number, now: Millis): number => {
    for (let n = 0; n < scratch.length; n++) scratch[n] = state[i + n];
    advance(scratch, 0, now);
    return mostAt(now) - countOf(scratch, 0);
  };

  const countAt = (state: State, i: number, now: Millis): number =>
    limit - remainingAt(state, i, now);

  /** Whole milliseconds until `cost` fits: until enough of the oldest steps have left the window. */
  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const newest = state[i + LAST_STEP];
    const most = mostAt(now);
    if (cost > most) return Math.max(1, Math.ceil(cost > part ? perMs : until - now)); // the part may grow
    let missing = cost - (most - countOf(state, i));
    for (let step = newest - steps; step <= newest; step++) {
      missing -= state[i + indexOf(step)];
      if (missing <= 0) return Math.max(1, Math.ceil(leavesAt(step) - now));
    }
    return NEVER;
  };

  /** Subtracts up to `units` from the oldest steps: safe where the step they were counted in is unknown. */
  const subtractOldest = (state: State, i: number, units: number, newest: number): void => {
    let left = units;
    for (let step = newest - steps; step <= newest && left > 0; step++) {
      const taken = Math.min(left, Math.max(0, state[i + indexOf(step)]));
      state[i + indexOf(step)] -= taken;
      left -= taken;
    }
  };

  const ofPool = (next: PoolPosition, now: Millis): Policy => {
    const most = mostAt(now);
    const nextPart = partOf(limit, next);
    const held =
      nextPart > most ? { least: most, until: now + perMs + stepMs } : { least: nextPart, until };
    return windowAt(terms, { part: nextPart, ...held }, lendMs);
  };

  const kind = 'window';
  const params = [limit, steps, stepMs];
  const spec: RuleSpec = { kind, params: lendMs === undefined ? params : [...params, lendMs] };
  const policy: Policy = asRule(spec, {
    kind,
    width: COUNTS + ring,
    traits: { ...COUNTS_ONLY, refillMs: perMs + stepMs },
    queue: simulatedQueue(() => policy),

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + COUNTS + ring);
      state[i + LAST_STEP] = Number.NaN;
      if (freshAt <= now) return;
      const step = Math.min(stepAt(now), Math.ceil(freshAt / stepMs) - ring); // has left the window by then
      state[i + LAST_STEP] = step;
      state[i + indexOf(step)] = limit;
    },

    check(state, i, cost, now) {
      requireCost(cost);
      if (cost === 0) return allow(Math.max(0, remainingAt(state, i, now)));
      if (cost > limit) return deny(NEVER);
      const step = advance(state, i, now);
      const remaining = mostAt(now) - countOf(state, i) - cost;
      if (remaining < 0) return deny(retryAfter(state, i, cost, now));
      state[i + indexOf(step)] += cost;
      return allow(remaining);
    },

    chain: {
      /** Counts the cost at `dueAt`. Steps that leave before then still count until then: they move to the oldest step. */
      deferTo(state, i, cost, dueAt) {
        const [checked, due] = [state[i + LAST_STEP], stepAt(dueAt)];
        if (due <= checked) return;
        state[i + indexOf(checked)] -= cost;
        let carried = 0;
        for (let step = checked - steps; step <= Math.min(checked, due - ring); step++) {
          carried += state[i + indexOf(step)];
        }
        advance(state, i, dueAt);
        state[i + indexOf(due - steps)] += carried;
        state[i + indexOf(due)] += cost;
      },

      /** By whole steps, rounded down: a call counts up to one step longer. */
      setBack(state, i, byMs) {
        const back = Math.floor(byMs / stepMs);
        const newest = state[i + LAST_STEP];
        if (Number.isNaN(newest)) return;
        for (let n = 0; n < scratch.length; n++) scratch[n] = state[i + n];
        state[i + LAST_STEP] = newest - back;
        for (let step = newest - steps; step <= newest; step++)
          state[i + indexOf(step - back)] = scratch[indexOf(step)];
      },
    },

    available: (state, i, now) => Math.max(0, Math.floor(remainingAt(state, i, now))),

    /** Subtracts what was not used from the step it was counted in, if that still counts. A `dueAt` of NaN is unknown. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      const newest = advance(state, i, now);
      if (unused > 0 && Number.isNaN(dueAt)) return subtractOldest(state, i, unused, newest);
      const step = unused > 0 ? stepAt(dueAt) : newest;
      if (step < newest - steps || step > newest) return;
      const counted = state[i + indexOf(step)];
      state[i + indexOf(step)] = counted - Math.min(unused, Math.max(0, counted));
    },

    update(state, i, feedback, now) {
      if (!('hits' in feedback || 'remaining' in feedback)) return false;
      const step = advance(state, i, now);
      const remaining = mostAt(now) - countOf(state, i);
      // The server's count may lower ours, never raise it.
      const hits = 'hits' in feedback ? feedback.hits : Math.max(0, remaining - feedback.remaining);
      state[i + indexOf(step)] += hits;
      return true;
    },

    share: {
      figureCount: 1,
      isAdditive: true,
      capacity: limit,
      level: (state, i, now) => Math.max(0, countAt(state, i, now)),
      /** The part of the limit that counts, as a part of the window; the receiver counts it from now on. */
      figures: (state, i, now) => [(countAt(state, i, now) * perMs) / limit],
      raise(state, i, [peerMs], hits, now) {
        const count = Math.min((peerMs * limit) / perMs + hits, MAX_AMOUNT);
        const missing = count - countAt(state, i, now);
        if (missing > 0) policy.update(state, i, { hits: missing }, now);
      },
      /** Steps may have begun since they were counted. Taken from the oldest, units never count for too short a time. */
      lower(state, i, units, now) {
        const least = countAt(state, i, now) - units;
        for (let agoMs = LOWERED_WITHIN_MS; agoMs > -stepMs; agoMs -= stepMs) {
          const used = least - countAt(state, i, now);
          if (used >= 0) return;
          const dueAt = now - Math.max(0, agoMs);
          policy.settle(state, i, { outcome: 'ok', cost: 0, used, dueAt }, now);
        }
      },
    },

    divide: {
      ...(perMs <= MAX_DIVIDED_MS && { ofPool }),
      ofGroup: (fraction, deadlineMs) => ofGroup(terms, fraction, deadlineMs),
      lendMs,
      credit(state, i, units, upTo, now) {
        const step = advance(state, i, now);
        const added = Math.min(units, upTo - (mostAt(now) - countOf(state, i)));
        if (added > 0 && step === stepAt(now)) state[i + indexOf(step)] -= added;
      },
      ratePerSecond: () => (part / perMs) * 1000,
    },

    /** A step counts in the last new step that it overlaps, so that no call is forgotten too early. */
    convertFrom(from) {
      const [, oldSteps, oldStepMs] = from.rules[0].spec?.params ?? [];
      const oldRing = oldSteps + 1;
      const newStepOf = (step: number, at: Millis): number => {
        if (oldStepMs === stepMs) return step;
        const last = Math.ceil(((step + 1) * oldStepMs) / stepMs) - 1;
        return step * oldStepMs <= at ? Math.min(last, stepAt(at)) : last;
      };
      return (state, i, source, j, at) => {
        const oldNewest = source[j + LAST_STEP];
        const newest = newStepOf(oldNewest, at);
        state.fill(0, i, i + COUNTS + ring);
        state[i + LAST_STEP] = newest;
        if (Number.isNaN(oldNewest)) return;
        for (let step = oldNewest - oldSteps; step <= oldNewest; step++) {
          const to = newStepOf(step, at);
          const count = source[j + COUNTS + (((step % oldRing) + oldRing) % oldRing)];
          if (to >= newest - steps) state[i + indexOf(to)] += Math.max(0, count);
        }
      };
    },

    freshAt: (state, i) => lastLeavesAt(state, i),

    keyState: (state, i, now) => ({ remaining: remainingAt(state, i, now) }),

    ruleStatuses(state, i, now) {
      const remaining = Math.max(0, remainingAt(state, i, now));
      const freshInMs = Math.max(0, Math.ceil(lastLeavesAt(state, i) - now));
      const quota = mostAt(now);
      return [
        {
          kind,
          quota,
          windowMs: perMs,
          remaining,
          freshInMs,
          ...timeToOpen(policy, state, i, now),
        },
      ];
    },
  });

  /** When the last call leaves the window. */
  const lastLeavesAt = (state: State, i: number): Millis => {
    const newest = state[i + LAST_STEP];
    for (let step = newest; step >= newest - steps; step--) {
      if (state[i + indexOf(step)] > 0) return leavesAt(step);
    }
    return -Infinity;
  };
  return policy;
}

/** The part of one member: without a rank, none of the remainder. */
const partOf = (limit: number, { size, rank }: PoolPosition): number =>
  Math.floor(limit / size) + (rank >= 0 && rank < limit % size ? 1 : 0);

const wholeOf = (limit: number): WindowPart => ({ part: limit, least: limit, until: -Infinity });

/** Floating-point error tolerated in a whole part. */
const EPSILON = 1e-9;

/** A loan arrives within `deadlineMs`, and is used within a step. */
function ofGroup(terms: WindowTerms, fraction: number, deadlineMs: Millis): GroupPart {
  const limit = Math.floor(terms.limit * fraction + EPSILON);
  const policy = windowAt({ ...terms, limit }, wholeOf(limit), deadlineMs + terms.stepMs);
  const units = { units: limit, wholeUnits: terms.limit, option: 'window.limit' };
  return { policy, ...units, perMs: limit / terms.perMs };
}
