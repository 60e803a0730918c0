/**
 * Partitions: parts of an adaptive limit that some calls can count on.
 *
 * "Nine tenths for live traffic, one for batch jobs." A part is a promise, not a wall: what live
 * leaves unused, batch may have, and nobody is refused while there is room that nobody else has
 * asked for. But when live was refused although it had less than its part, the next places that come
 * free are kept for it: one call's time later it has its nine tenths back, and the limit was never
 * exceeded on the way.
 *
 *     limit 10:   live ■■■■■■■■■ batch □        both want more: each has its part
 *                 live ■■ batch □□□□□□□□        live is quiet: batch uses the rest
 *                 live ■■ (wants 3) batch □□□□□□□   live wakes: what batch finishes goes to live
 *
 * Only whole calls are promised: a tenth of a limit of 5 is no promise, and the places that are left
 * over by rounding go to whoever asks first.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, deny } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import { type AdaptivePolicy, IN_FLIGHT, MEAN_RTT } from './adaptive.ts';
import type { Policy, State } from './policy.ts';

/** The most partitions of one limit. */
const MAX_PARTITIONS = 64;

/** Who was refused is held to want its part for two calls' time, and no less than this. */
const MIN_DEMAND_MS = 1000;

/** What shares that add up to one may be above it. */
const EPSILON = 1e-9;

// Of each partition, after the numbers of the adaptive rule itself:
const PARTITION_IN_FLIGHT = 0; //        its calls in flight
const DEMAND = 1; //     places it was refused, up to its part
const DEMAND_AT = 2; // when it was last refused
const WIDTH = 3;

export function withPartitions(
  inner: AdaptivePolicy,
  options: unknown,
  path: string,
): AdaptivePolicy {
  const reader = OptionReader.collecting(path, options, 'an object of names and shares');
  const names = reader.names();
  const shares = names.map((name) => reader.number(name, { above: 0, max: 1 }));
  reader.finish();
  requireFractions(path, names, shares);
  shares.push(0); // and one for whoever names none: it may have what is left

  const at = (i: number, partitionIndex: number): number =>
    i + inner.width + partitionIndex * WIDTH;
  const isNamed = (partitionIndex: number | undefined): partitionIndex is number =>
    partitionIndex !== undefined && partitionIndex >= 0 && partitionIndex < names.length;
  const partOf = (partitionIndex: number | undefined): number =>
    isNamed(partitionIndex) ? partitionIndex : names.length;

  const promised = (state: State, i: number, partitionIndex: number): number =>
    Math.floor(inner.limitOf(state, i) * shares[partitionIndex] + EPSILON);

  const wantsMs = (state: State, i: number): Millis =>
    Math.max(MIN_DEMAND_MS, 2 * (state[i + MEAN_RTT] || 0));

  /** Places the others were refused and have a right to. */
  const keptFor = (state: State, i: number, partitionIndex: number, now: Millis): number => {
    let kept = 0;
    for (let other = 0; other < names.length; other++) {
      const j = at(i, other);
      if (other === partitionIndex || now - state[j + DEMAND_AT] > wantsMs(state, i)) continue;
      kept += Math.max(
        0,
        Math.min(state[j + DEMAND], promised(state, i, other) - state[j + PARTITION_IN_FLIGHT]),
      );
    }
    return kept;
  };

  /** When the wish of another that keeps places is forgotten, if nobody repeats it: then they are free. */
  const untilForgotten = (state: State, i: number, own: number, now: Millis): Millis => {
    let last = -Infinity;
    for (let other = 0; other < names.length; other++) {
      if (other !== own) last = Math.max(last, state[at(i, other) + DEMAND_AT]);
    }
    return Math.max(1, Math.floor(last + wantsMs(state, i) - now) + 1);
  };

  const want = (
    state: State,
    i: number,
    partitionIndex: number,
    cost: number,
    now: Millis,
  ): void => {
    const j = at(i, partitionIndex);
    const isOver = now - state[j + DEMAND_AT] > wantsMs(state, i);
    state[j + DEMAND] = Math.min(
      (isOver ? 0 : state[j + DEMAND]) + cost,
      promised(state, i, partitionIndex),
    );
    state[j + DEMAND_AT] = now;
  };

  const enter = (state: State, i: number, partitionIndex: number, cost: number): void => {
    const j = at(i, partitionIndex);
    state[j + PARTITION_IN_FLIGHT] += cost;
    state[j + DEMAND] = Math.max(0, state[j + DEMAND] - cost);
  };

  const ask = (
    state: State,
    i: number,
    cost: number,
    now: Millis,
    partitionIndex?: number,
  ): Decision => {
    const own = partOf(partitionIndex);
    const isPromised = state[at(i, own) + PARTITION_IN_FLIGHT] + cost <= promised(state, i, own);
    const kept = isPromised || cost === 0 ? 0 : keptFor(state, i, own, now);
    const isKept = kept > 0 && state[i + IN_FLIGHT] + cost + kept > inner.limitOf(state, i);
    const decision = isKept
      ? deny(untilForgotten(state, i, own, now))
      : inner.check(state, i, cost, now);
    if (decision.verdict === 'deny') want(state, i, own, cost, now);
    else enter(state, i, own, cost);
    return decision;
  };

  const policy: AdaptivePolicy = {
    ...inner,
    width: inner.width + (names.length + 1) * WIDTH,
    partitions: names,

    init(state, i, now, freshAt) {
      inner.init(state, i, now, freshAt);
      state.fill(0, i + inner.width, i + policy.width);
      for (let partitionIndex = 0; partitionIndex < names.length; partitionIndex++)
        state[at(i, partitionIndex) + DEMAND_AT] = -Infinity;
    },

    check: ask,

    settle(state, i, settlement, now) {
      const j = at(i, partOf(settlement.partition));
      state[j + PARTITION_IN_FLIGHT] = Math.max(
        0,
        state[j + PARTITION_IN_FLIGHT] - settlement.cost,
      );
      inner.settle(state, i, settlement, now);
    },

    keyState: (state, i, now) => ({
      ...inner.keyState(state, i, now),
      partitions: Object.fromEntries(
        names.map((name, partitionIndex) => [
          name,
          state[at(i, partitionIndex) + PARTITION_IN_FLIGHT],
        ]),
      ),
    }),
  };
  return policy;
}

function requireFractions(path: string, names: readonly string[], shares: readonly number[]): void {
  if (names.length === 0 || names.length > MAX_PARTITIONS) {
    throw new ConfigError(path, `1 to ${MAX_PARTITIONS} names with their shares`, names);
  }
  const sum = shares.reduce((total, share) => total + share, 0);
  if (sum > 1 + EPSILON) throw new ConfigError(path, 'shares that add up to at most 1', sum);
}

/** Where a name stands in a policy's list. @throws {ConfigError} if it is none of them. */
export function partitionIndexOf(policy: Pick<Policy, 'partitions'>, name: unknown): number {
  const known = policy.partitions ?? [];
  const partitionIndex = known.indexOf(name as string);
  if (partitionIndex >= 0) return partitionIndex;
  const expected = known.length ? `one of ${known.join(', ')}` : 'left out: the limit has none';
  throw new ConfigError('partition', expected, name);
}
