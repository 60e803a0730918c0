/**
 * A sliding window on a clock of its own, which every process reads from the register.
 *
 *     state:  │ numbers of the window │ window's time │ instant of the last write, on the writer's clock │
 *
 *     window's time now = its time at the last write + the time since then, at least
 *
 * Steps of a window are numbered by a clock, and processes have different ones. The register says when it was written, and
 * another process knows a latest local time for that. So the window's clock may lose time with every write of another
 * process, about one trip, but never runs fast: a period of `per` never holds more than the limit. The window is longer by
 * how much faster a clock may run.
 */

import type { Millis } from '../../core/clock.ts';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import type { Policy, State } from '../../policies/policy.ts';
import { window } from '../../policies/window.ts';

/** The clocks of the writer and of a reader, and the bound between both. */
const DRIFT_FACTOR = 1 + 3 * CLOCK_DRIFT_RATE;

/** The window that these numbers describe, on its own clock. */
export function onElapsedTime({ specs = [] }: Policy): Policy {
  const [limit, steps, stepMs, lendMs] = specs[0].params;
  const perMs = steps * stepMs;
  const inner = window({ limit, per: perMs * DRIFT_FACTOR, steps });
  const TIME = inner.width;
  const WRITTEN_AT = TIME + 1;

  const timeAt = (state: State, i: number, now: Millis): Millis =>
    state[i + TIME] + Math.max(0, now - state[i + WRITTEN_AT]);

  /** Moves the window's clock to `now`, before a change. */
  const advance = (state: State, i: number, now: Millis): Millis => {
    state[i + TIME] = timeAt(state, i, now);
    state[i + WRITTEN_AT] = now;
    return state[i + TIME];
  };

  const localTimeOf = (state: State, i: number, time: Millis): Millis =>
    state[i + WRITTEN_AT] + time - state[i + TIME];

  return {
    kind: inner.kind,
    width: inner.width + 2,
    needsExactTime: false,
    needsOutcome: false,
    canReserve: false,
    expireMs: Infinity,
    specs,
    instantIndex: WRITTEN_AT,
    refillMs: perMs + stepMs,
    ...(lendMs !== undefined && { lendMs }),

    init(state, i, now) {
      inner.init(state, i, 0);
      inner.update(state, i, { hits: 0 }, 0); // a register holds no NaN
      state[i + TIME] = 0;
      state[i + WRITTEN_AT] = now;
    },

    check: (state, i, cost, now) =>
      inner.check(state, i, cost, cost > 0 ? advance(state, i, now) : timeAt(state, i, now)),

    deferTo(state, i, cost, dueAt) {
      inner.deferTo?.(state, i, cost, timeAt(state, i, dueAt));
    },

    available: (state, i, now) => inner.available(state, i, timeAt(state, i, now)),

    settle(state, i, settlement, now) {
      const time = advance(state, i, now);
      inner.settle(state, i, { ...settlement, dueAt: time + settlement.dueAt - now }, time);
    },

    update: (state, i, feedback, now) => inner.update(state, i, feedback, advance(state, i, now)),

    terms: inner,
    converterFrom(from) {
      const convert = inner.converterFrom?.(from.terms as Policy);
      if (!convert) return undefined;
      return (state, i, source, j, at) => {
        const time = timeAt(source, j, at);
        convert(state, i, source, j, time);
        state[i + TIME] = time;
        state[i + WRITTEN_AT] = at;
      };
    },

    credit(state, i, units, upTo, now) {
      inner.credit?.(state, i, units, upTo, advance(state, i, now));
    },

    removableAt: (state, i) => localTimeOf(state, i, inner.removableAt(state, i)),
    evictableAt: (state, i) => localTimeOf(state, i, inner.evictableAt(state, i)),
    keyState: (state, i, now) => inner.keyState(state, i, timeAt(state, i, now)),
    ruleStatuses: (state, i, now) =>
      inner
        .ruleStatuses(state, i, timeAt(state, i, now))
        .map((status) => ({ ...status, windowMs: perMs })),
  };
}
