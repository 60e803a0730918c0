/**
 * Priorities: levels within a limit on calls in flight. Lower levels are refused first.
 *
 * Trunk reservation: some slots are kept free for the levels above, and a call may not use those.
 *
 *     limit 10:   user      ■■■■■■■■■■     may use all of it
 *                 prefetch  ■■■■■■■ □□□    not the slots kept for user, here three
 *
 * How many slots a level needs is learnt from its refusals:
 *
 * - A refusal while lower levels have calls in flight adds the call's cost, and at least two standard deviations of
 *   Poisson traffic. Of one shortage, until a lower level is admitted again, only the calls of its first burst count.
 * - `CALLS_PER_SLOT` admitted calls take off one slot. In balance one or two calls in a thousand are refused, and lower
 *   levels get all the rest.
 * - Without calls of the level its slots are released, linearly over `KEEP_MS`.
 *
 * The slots of all levels above add up, so no level gets what a higher one is refused. The limit is never exceeded.
 */

import type { Millis } from '../core/clock.ts';
import { deny } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import type { OptionReader } from '../core/options.ts';
import { convertWithClasses, type InFlightPolicy, withPartitions } from './partitions.ts';
import type { State } from './policy.ts';
import { asRule } from './rules.ts';

/** The most levels of one limit. */
const MAX_LEVELS = 16;

/** A level that makes no call for so long, or for two mean round-trip times, keeps no slot. */
const KEEP_MS = 10_000;

/** So many admitted calls of a level take one slot off what is kept for it. */
const CALLS_PER_SLOT = 1000;

/** Calls refused within this part of the mean round-trip time are one burst; before the first measurement, within 1 ms. */
const BURST_RTTS = 0.1;
const UNKNOWN_RTT_MS = 10;

/** Standard deviations of a level's calls in flight that its first refusal adds. */
const DEVIATIONS = 2;

// Of each level, after the numbers of the limit itself:
const LEVEL_IN_FLIGHT = 0;
const KEPT = 1; //            slots kept free of lower levels, at its last call
const CALLED_AT = 2; //       when it last made a call
const SHORT_SINCE = 3; //     its first refusal since a lower level was admitted; -Infinity: none
const WIDTH = 4;

/** Reads `partitions` and `priorities`, and returns the limit with the one that is given. */
export function readCallClasses(reader: OptionReader): <P extends InFlightPolicy>(inner: P) => P {
  const partitions = reader.get('partitions');
  const priorities = reader.get('priorities');
  if (partitions !== undefined && priorities !== undefined)
    reader.report('priorities', 'left out beside `partitions`');
  return (inner) => {
    if (partitions !== undefined)
      return withPartitions(inner, partitions, reader.pathOf('partitions'));
    if (priorities === undefined) return inner;
    return prioritised(inner, readLevels(priorities, reader.pathOf('priorities')));
  };
}

function readLevels(value: unknown, path: string): readonly string[] {
  const isName = (name: unknown): boolean => typeof name === 'string' && name !== '';
  const isList = Array.isArray(value) && value.length >= 2 && value.length <= MAX_LEVELS;
  if (isList && value.every(isName) && new Set(value).size === value.length) return [...value];
  const expected = `a list of 2 to ${MAX_LEVELS} different names, the most important first`;
  throw new ConfigError(path, expected, value);
}

function prioritised<P extends InFlightPolicy>(inner: P, names: readonly string[]): P {
  const width = inner.width + names.length * WIDTH;
  const lowest = names.length - 1;
  const at = (i: number, level: number): number => i + inner.width + level * WIDTH;
  const levelOf = (index: number | undefined): number =>
    index !== undefined && index >= 0 && index < lowest ? index : lowest;

  const keepMs = (state: State, i: number): Millis =>
    Math.max(KEEP_MS, 2 * inner.meanRttOf(state, i));

  /** Slots kept for the levels above. */
  const keptAbove = (state: State, i: number, level: number, now: Millis): number => {
    let kept = 0;
    for (let j = at(i, 0); j < at(i, level); j += WIDTH) {
      if (state[j + KEPT] > 0) kept += state[j + KEPT] * unreleased(state, i, j, now);
    }
    return kept;
  };

  /** The part of a level's slots that is not released: 1 at a call, 0 after `keepMs` without one. */
  const unreleased = (state: State, i: number, j: number, now: Millis): number =>
    Math.min(1, Math.max(0, 1 - (now - state[j + CALLED_AT]) / keepMs(state, i)));

  /** Time until at most `free` slots are kept for the levels above, if these make no call. */
  const untilReleased = (
    state: State,
    i: number,
    level: number,
    free: number,
    now: Millis,
  ): Millis => {
    let then = now;
    // The sum of lines is convex: Newton's method reaches the instant from below, one line per step.
    for (let step = 0; step < level; step++) {
      let perMs = 0;
      for (let j = at(i, 0); j < at(i, level); j += WIDTH) {
        if (unreleased(state, i, j, then) > 0) perMs += state[j + KEPT] / keepMs(state, i);
      }
      const excess = keptAbove(state, i, level, then) - free;
      if (excess > 0) then += excess / perMs;
    }
    return Math.floor(then - now) + 1;
  };

  const admit = (state: State, i: number, level: number, cost: number): void => {
    const j = at(i, level);
    state[j + LEVEL_IN_FLIGHT] += cost;
    state[j + KEPT] = Math.max(0, state[j + KEPT] - cost / CALLS_PER_SLOT);
    for (let above = at(i, 0); above < j; above += WIDTH) state[above + SHORT_SINCE] = -Infinity;
  };

  const refuse = (state: State, i: number, level: number, cost: number, now: Millis): void => {
    const j = at(i, level);
    const isFirst = state[j + SHORT_SINCE] === -Infinity;
    const rttMs = inner.meanRttOf(state, i) || UNKNOWN_RTT_MS;
    if (!isFirst && now - state[j + SHORT_SINCE] > BURST_RTTS * rttMs) return;
    let inFlightBelow = 0;
    for (let below = level + 1; below <= lowest; below++)
      inFlightBelow += state[at(i, below) + LEVEL_IN_FLIGHT];
    if (inFlightBelow === 0) return;
    const least = isFirst ? DEVIATIONS * Math.sqrt(state[j + LEVEL_IN_FLIGHT] * cost) : 0;
    const kept = Math.max(state[j + KEPT] + cost, least);
    state[j + KEPT] = Math.min(kept, inner.limitOf(state, i));
    if (isFirst) state[j + SHORT_SINCE] = now;
  };

  const freeSlots = (state: State, i: number): number =>
    inner.limitOf(state, i) - inner.inFlightOf(state, i);

  return asRule(inner.rules[0].spec, {
    ...inner,
    width,
    classes: { kind: 'priority', names },

    init(state, i, now, freshAt) {
      inner.init(state, i, now, freshAt);
      state.fill(0, i + inner.width, i + width);
      for (let j = at(i, 0); j < i + width; j += WIDTH) {
        state[j + CALLED_AT] = -Infinity;
        state[j + SHORT_SINCE] = -Infinity;
      }
    },

    check(state, i, cost, now, levelIndex) {
      if (cost === 0) return inner.check(state, i, cost, now);
      const level = levelOf(levelIndex);
      const j = at(i, level);
      if (unreleased(state, i, j, now) === 0) state[j + KEPT] = 0;
      state[j + CALLED_AT] = Math.max(now, state[j + CALLED_AT]);
      const kept = keptAbove(state, i, level, now);
      const free = freeSlots(state, i) - cost;
      // Below zero, the limit itself decides: it refuses, or admits a cost above it that is alone.
      const isKept = free >= 0 && kept > free;
      const decision = isKept
        ? deny(untilReleased(state, i, level, free, now))
        : level < lowest && inner.checkUrgent
          ? inner.checkUrgent(state, i, cost, now)
          : inner.check(state, i, cost, now);
      if (isKept) inner.noteKept(state, i, kept);
      if (decision.verdict === 'deny') {
        // A refusal that only time ends, such as a pace, is no lack of slots.
        if (isKept || free < 0) refuse(state, i, level, cost, now);
      } else admit(state, i, level, cost);
      return decision;
    },

    available: (state, i, now) => {
      const available = inner.available(state, i, now);
      const kept = keptAbove(state, i, lowest, now);
      return Math.max(0, Math.min(available, Math.floor(freeSlots(state, i) - kept)));
    },

    settle(state, i, settlement, now) {
      const j = at(i, levelOf(settlement.partition));
      const inFlight = state[j + LEVEL_IN_FLIGHT] - settlement.cost;
      state[j + LEVEL_IN_FLIGHT] = Math.max(0, inFlight);
      inner.settle(state, i, settlement, now);
    },

    convertFrom: (from) => convertWithClasses(inner, from, width),

    divide: { ofPool: (next) => prioritised(inner.divide.ofPool(next), names) },

    freshAt(state, i, isLenient) {
      let last = inner.freshAt(state, i, isLenient);
      if (isLenient) return last;
      for (let j = at(i, 0); j < at(i, lowest); j += WIDTH) {
        if (state[j + KEPT] > 0) last = Math.max(last, state[j + CALLED_AT] + keepMs(state, i));
      }
      return last;
    },

    keyState: (state, i, now) => ({
      ...inner.keyState(state, i, now),
      priorities: Object.fromEntries(
        names.map((name, level) => [name, state[at(i, level) + LEVEL_IN_FLIGHT]]),
      ),
    }),
  } satisfies InFlightPolicy as P);
}
