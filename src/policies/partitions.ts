/**
 * Partitions: guaranteed parts of a limit on calls in flight.
 *
 * "Nine tenths for live traffic, one tenth for batch jobs." A part is guaranteed, not reserved: what live
 * leaves unused, batch may use, and no call is refused while there is capacity without demand. But once
 * live was refused below its part, the next slots that come free are kept for it. One call's time later
 * it has its nine tenths back, and the limit was never exceeded on the way.
 *
 *     limit 10:   live ■■■■■■■■■ batch □            both at capacity: each has its part
 *                 live ■■ batch □□□□□□□□            live is quiet: batch uses the rest
 *                 live ■■ (demands 3) batch □□□□□□□   live is back: what batch finishes goes to live
 *
 * Only whole calls are guaranteed: a tenth of a limit of 5 is none. Slots left over by rounding go to the
 * first call that comes.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, deny } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import type { CallClasses, KeyConverter, Policy, PoolPosition, State } from './policy.ts';
import { asRule } from './rules.ts';

/** A policy that counts calls in flight. */
export interface InFlightPolicy extends Policy {
  /** Calls allowed in flight here: at most this member's part in a pool. */
  limitOf(state: State, i: number): number;
  inFlightOf(state: State, i: number): number;
  /** Mean round-trip time; 0 before the first measurement. */
  meanRttOf(state: State, i: number): Millis;
  /** As `check`, for a call of a high priority. Where calls are paced, it may start a little ahead of the pace. */
  checkUrgent?(state: State, i: number, cost: number, now: Millis): Decision;
  /** A call was refused because `kept` free slots are kept for others: demand for more than the limit. */
  noteKept(state: State, i: number, kept: number): void;
  readonly divide: { ofPool(position: PoolPosition): InFlightPolicy };
}

/** The most partitions of one limit. */
const MAX_PARTITIONS = 64;

/** A refusal counts as demand for two mean round-trip times, and at least for this long. */
const MIN_DEMAND_MS = 1000;

/** Floating-point error tolerated in a sum of fractions. */
const EPSILON = 1e-9;

// Of each partition, after the numbers of the limit itself:
const PARTITION_IN_FLIGHT = 0;
const DEMAND = 1; //     slots it was refused, up to its part
const DEMAND_AT = 2; //  when it was last refused
const WIDTH = 3;

/** Divides what `inner` allows in flight by the fractions in `options`. */
export function withPartitions<P extends InFlightPolicy>(
  inner: P,
  options: unknown,
  path: string,
): P {
  const { names, fractions } = readFractions(options, path);
  return partitioned(inner, names, [...fractions, 0]); // calls without a partition are guaranteed nothing
}

function partitioned<P extends InFlightPolicy>(
  inner: P,
  names: readonly string[],
  fractions: readonly number[],
): P {
  const width = inner.width + (names.length + 1) * WIDTH;
  const at = (i: number, partition: number): number => i + inner.width + partition * WIDTH;
  const isNamed = (index: number | undefined): index is number =>
    index !== undefined && index >= 0 && index < names.length;
  const partitionOf = (index: number | undefined): number =>
    isNamed(index) ? index : names.length;

  const guaranteed = (state: State, i: number, partition: number): number =>
    Math.floor(inner.limitOf(state, i) * fractions[partition] + EPSILON);

  const demandMs = (state: State, i: number): Millis =>
    Math.max(MIN_DEMAND_MS, 2 * inner.meanRttOf(state, i));

  /** Slots that other partitions were refused within their part. */
  const keptForOthers = (state: State, i: number, partition: number, now: Millis): number => {
    let kept = 0;
    for (let other = 0; other < names.length; other++) {
      const j = at(i, other);
      if (other === partition || now - state[j + DEMAND_AT] > demandMs(state, i)) continue;
      const entitled = guaranteed(state, i, other) - state[j + PARTITION_IN_FLIGHT];
      kept += Math.max(0, Math.min(state[j + DEMAND], entitled));
    }
    return kept;
  };

  /** Time until the demand of all other partitions has expired, if it is not repeated. */
  const untilDemandExpires = (state: State, i: number, partition: number, now: Millis): Millis => {
    let last = -Infinity;
    for (let other = 0; other < names.length; other++) {
      if (other !== partition) last = Math.max(last, state[at(i, other) + DEMAND_AT]);
    }
    return Math.max(1, Math.floor(last + demandMs(state, i) - now) + 1);
  };

  const recordDemand = (
    state: State,
    i: number,
    partition: number,
    cost: number,
    now: Millis,
  ): void => {
    const j = at(i, partition);
    const isExpired = now - state[j + DEMAND_AT] > demandMs(state, i);
    const demand = (isExpired ? 0 : state[j + DEMAND]) + cost;
    state[j + DEMAND] = Math.min(demand, guaranteed(state, i, partition));
    state[j + DEMAND_AT] = now;
  };

  const start = (state: State, i: number, partition: number, cost: number): void => {
    const j = at(i, partition);
    state[j + PARTITION_IN_FLIGHT] += cost;
    state[j + DEMAND] = Math.max(0, state[j + DEMAND] - cost);
  };

  return asRule(inner.rules[0].spec, {
    ...inner,
    width,
    classes: { kind: 'partition', names },

    init(state, i, now, freshAt) {
      inner.init(state, i, now, freshAt);
      state.fill(0, i + inner.width, i + width);
      for (let partition = 0; partition < names.length; partition++)
        state[at(i, partition) + DEMAND_AT] = -Infinity;
    },

    check(state, i, cost, now, partitionIndex) {
      const partition = partitionOf(partitionIndex);
      const inFlight = state[at(i, partition) + PARTITION_IN_FLIGHT];
      const isGuaranteed = inFlight + cost <= guaranteed(state, i, partition);
      const kept = isGuaranteed || cost === 0 ? 0 : keptForOthers(state, i, partition, now);
      const isKept = kept > 0 && inner.inFlightOf(state, i) + cost + kept > inner.limitOf(state, i);
      const decision = isKept
        ? deny(untilDemandExpires(state, i, partition, now))
        : inner.check(state, i, cost, now);
      if (decision.verdict === 'deny') recordDemand(state, i, partition, cost, now);
      else start(state, i, partition, cost);
      return decision;
    },

    settle(state, i, settlement, now) {
      const j = at(i, partitionOf(settlement.partition));
      const inFlight = state[j + PARTITION_IN_FLIGHT] - settlement.cost;
      state[j + PARTITION_IN_FLIGHT] = Math.max(0, inFlight);
      inner.settle(state, i, settlement, now);
    },

    convertFrom: (from) => convertWithClasses(inner, from, width),

    divide: { ofPool: (next) => partitioned(inner.divide.ofPool(next), names, fractions) },

    keyState: (state, i, now) => ({
      ...inner.keyState(state, i, now),
      partitions: Object.fromEntries(
        names.map((name, partition) => [name, state[at(i, partition) + PARTITION_IN_FLIGHT]]),
      ),
    }),
  } satisfies InFlightPolicy as P);
}

/** Converts the numbers of the limit itself, and keeps those of its partitions or levels, which have the same names. */
export function convertWithClasses(
  inner: Policy,
  from: Policy,
  width: number,
): KeyConverter | undefined {
  if (from.width !== width) return undefined;
  const convert = inner.convertFrom?.({ ...from, width: inner.width });
  if (!convert) return undefined;
  return (state, i, source, j, at) => {
    convert(state, i, source, j, at);
    for (let n = inner.width; n < width; n++) state[i + n] = source[j + n];
  };
}

function readFractions(
  options: unknown,
  path: string,
): { names: readonly string[]; fractions: readonly number[] } {
  const reader = OptionReader.collecting(path, options, 'an object of names and fractions');
  const names = reader.names();
  const fractions = names.map((name) => reader.number(name, { above: 0, max: 1 }));
  reader.finish();
  if (names.length === 0 || names.length > MAX_PARTITIONS) {
    throw new ConfigError(path, `1 to ${MAX_PARTITIONS} names with their fractions`, names);
  }
  const sum = fractions.reduce((total, fraction) => total + fraction, 0);
  if (sum > 1 + EPSILON) throw new ConfigError(path, 'fractions that add up to at most 1', sum);
  return { names, fractions };
}

/** What a call names of its limit: its partition, or its level where the limit has priorities. */
export interface CallClass {
  readonly partition?: string | undefined;
  readonly level?: string | undefined;
}

/** The index of a call's partition or level. @throws {ConfigError} if the policy has none of that name. */
export function partitionIndexOf(
  { classes }: Pick<Policy, 'classes'>,
  { partition, level }: CallClass,
): number | undefined {
  const index = partition === undefined ? undefined : indexIn(classes, 'partition', partition);
  return level === undefined ? index : indexIn(classes, 'priority', level);
}

/** The names of the partitions or of the levels of a limit. */
export const classNames = (classes: Policy['classes'], kind: CallClasses['kind']) =>
  classes?.kind === kind ? classes.names : [];

function indexIn(classes: Policy['classes'], kind: CallClasses['kind'], name: string): number {
  const known = classNames(classes, kind);
  const index = known.indexOf(name);
  if (index >= 0) return index;
  const expected = known.length ? `one of ${known.join(', ')}` : 'left out: the limit has none';
  throw new ConfigError(kind === 'priority' ? 'level' : kind, expected, name);
}
