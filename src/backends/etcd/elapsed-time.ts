/**
 * A rule whose state uses a clock of its own, which every process derives from the register.
 *
 *     state:  │ numbers of the rule │ rule's time │ instant of the last write, on the writer's clock │
 *
 *     rule's time now = its time at the last write + the time since then, at least
 *
 * Steps of a window and seconds of a ramp are numbered by a clock, and processes have different clocks. The register
 * stores its write time, and another process knows a latest local time for it. So the rule's clock may lose time with
 * every write of another process, about one trip, but never runs fast.
 */

import type { Millis } from '../../core/clock.ts';
import { COUNTS_ONLY, type KeyConverter, type Policy, type State } from '../../policies/policy.ts';
import { asRule } from '../../policies/rules.ts';

type OnOwnClock = Policy & { readonly inner: Policy };
/** How long a state that never becomes removable is kept after its last write, such as a level of a ramp. */
const IDLE_TTL_MS: Millis = 86_400_000;

/** Runs `inner` on its own clock; `spec` and the `windowMs` of its status are those of the rule as it was written. */
export function onElapsedTime(inner: Policy, spec = inner.rules[0].spec, windowMs?: Millis) {
  const { kind, width, traits } = inner;
  const { advance, deferTo, lendMs, credit } = { ...inner.chain, ...inner.divide };
  const TIME = width; // 0: not written yet
  const WRITTEN_AT = width + 1;

  const timeAt = (state: State, i: number, now: Millis): Millis =>
    state[i + TIME] + Math.max(0, now - state[i + WRITTEN_AT]);

  /** Advances the rule's clock to `now`, before a change. */
  const moveTo = (state: State, i: number, now: Millis): Millis => {
    state[i + TIME] = Math.max(1, timeAt(state, i, now));
    state[i + WRITTEN_AT] = now;
    return state[i + TIME];
  };

  const localTimeOf = (state: State, i: number, time: Millis): Millis =>
    state[i + WRITTEN_AT] + time - state[i + TIME];

  /** A copy for reading: a rule may advance its state to another second. */
  const copyOf = (state: State, i: number): State => state.slice(i, i + width);

  return asRule<OnOwnClock>(spec, {
    inner,
    kind,
    width: width + 2,
    traits: { ...COUNTS_ONLY, refillMs: traits.refillMs, instants: [WRITTEN_AT] },

    init(state, i, now) {
      inner.init(state, i, 0);
      inner.update(state, i, { hits: 0 }, 0); // a register cannot hold NaN
      state[i + TIME] = 0;
      state[i + WRITTEN_AT] = now;
    },

    check: (state, i, cost, now) =>
      inner.check(state, i, cost, cost > 0 ? moveTo(state, i, now) : timeAt(state, i, now)),

    chain: {
      ...(advance && {
        /** Leaves a state without a later second unchanged, so that it need not be written. */
        advance(state: State, i: number, now: Millis): void {
          const before = copyOf(state, i);
          advance(state, i, timeAt(state, i, now));
          const isNew = state[i + TIME] === 0;
          if (isNew || before.some((number, n) => number !== state[i + n])) moveTo(state, i, now);
        },
      }),
      deferTo: (state, i, cost, dueAt) => deferTo?.(state, i, cost, timeAt(state, i, dueAt)),
    },

    available: (state, i, now) => inner.available(copyOf(state, i), 0, timeAt(state, i, now)),

    settle(state, i, settlement, now) {
      const time = moveTo(state, i, now);
      inner.settle(state, i, { ...settlement, dueAt: time + settlement.dueAt - now }, time);
    },

    update: (state, i, feedback, now) => inner.update(state, i, feedback, moveTo(state, i, now)),

    convertFrom: (from) => convertOnElapsedTime((from as OnOwnClock).inner, inner),

    divide: {
      lendMs,
      credit: (state, i, units, upTo, now) =>
        credit?.(state, i, units, upTo, moveTo(state, i, now)),
    },

    freshAt(state, i, isLenient) {
      const at = localTimeOf(state, i, inner.freshAt(state, i, isLenient));
      return at < Infinity || isLenient ? at : state[i + WRITTEN_AT] + IDLE_TTL_MS;
    },
    keyState: (state, i, now) => inner.keyState(state, i, timeAt(state, i, now)),
    ruleStatuses: (state, i, now) =>
      inner
        .ruleStatuses(copyOf(state, i), 0, timeAt(state, i, now))
        .map((one) => (windowMs === undefined ? one : { ...one, windowMs })),
  });
}

/** Converts on the rule's clock, which continues at any width of both states. */
function convertOnElapsedTime(from: Policy, to: Policy): KeyConverter | undefined {
  const convert = to.convertFrom?.(from);
  if (!convert) return undefined;
  return (state, i, source, j, at) => {
    const time = source[j + from.width] + Math.max(0, at - source[j + from.width + 1]);
    convert(state, i, source, j, time);
    state[i + to.width] = time;
    state[i + to.width + 1] = at;
  };
}
