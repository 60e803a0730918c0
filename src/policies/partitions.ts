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
import { Fields } from '../core/options.ts';
import { type AdaptivePolicy, IN_FLIGHT, PAST_MEAN } from './adaptive.ts';
import type { Policy, State } from './policy.ts';

/** The most partitions of one limit. */
const PARTITIONS_MAX = 64;

/** Who was refused is held to want its part for two calls' time, and no less than this. */
const WANTS_MS_MIN = 1000;

/** What shares that add up to one may be above it. */
const DUST = 1e-9;

// Of each partition, after the numbers of the adaptive rule itself:
const IN = 0; //        its calls in flight
const WANTS = 1; //     places it was refused, up to its part
const WANTED_AT = 2; // when it was last refused
const WIDTH = 3;

export function partitioned(inner: AdaptivePolicy, options: unknown, path: string): AdaptivePolicy {
  const fields = Fields.patient(path, options, 'an object of names and shares');
  const names = fields.names();
  const shares = names.map((name) => fields.number(name, { above: 0, max: 1 }));
  fields.done();
  requireShares(path, names, shares);
  shares.push(0); // and one for whoever names none: it may have what is left

  const at = (i: number, part: number): number => i + inner.width + part * WIDTH;
  const isNamed = (part: number | undefined): part is number =>
    part !== undefined && part >= 0 && part < names.length;
  const partOf = (part: number | undefined): number => (isNamed(part) ? part : names.length);

  const promised = (state: State, i: number, part: number): number =>
    Math.floor(inner.limitOf(state, i) * shares[part] + DUST);

  const wantsMs = (state: State, i: number): Millis =>
    Math.max(WANTS_MS_MIN, 2 * (state[i + PAST_MEAN] || 0));

  /** Places the others were refused and have a right to. */
  const keptFor = (state: State, i: number, part: number, now: Millis): number => {
    let kept = 0;
    for (let other = 0; other < names.length; other++) {
      const j = at(i, other);
      if (other === part || now - state[j + WANTED_AT] > wantsMs(state, i)) continue;
      kept += Math.max(0, Math.min(state[j + WANTS], promised(state, i, other) - state[j + IN]));
    }
    return kept;
  };

  /** When the wish of another that keeps places is forgotten, if nobody repeats it: then they are free. */
  const untilForgotten = (state: State, i: number, own: number, now: Millis): Millis => {
    let last = -Infinity;
    for (let other = 0; other < names.length; other++) {
      if (other !== own) last = Math.max(last, state[at(i, other) + WANTED_AT]);
    }
    return Math.max(1, Math.floor(last + wantsMs(state, i) - now) + 1);
  };

  const want = (state: State, i: number, part: number, cost: number, now: Millis): void => {
    const j = at(i, part);
    const isOver = now - state[j + WANTED_AT] > wantsMs(state, i);
    state[j + WANTS] = Math.min((isOver ? 0 : state[j + WANTS]) + cost, promised(state, i, part));
    state[j + WANTED_AT] = now;
  };

  const enter = (state: State, i: number, part: number, cost: number): void => {
    const j = at(i, part);
    state[j + IN] += cost;
    state[j + WANTS] = Math.max(0, state[j + WANTS] - cost);
  };

  const ask = (state: State, i: number, cost: number, now: Millis, part?: number): Decision => {
    const own = partOf(part);
    const isPromised = state[at(i, own) + IN] + cost <= promised(state, i, own);
    const kept = isPromised || cost === 0 ? 0 : keptFor(state, i, own, now);
    const isKept = kept > 0 && state[i + IN_FLIGHT] + cost + kept > inner.limitOf(state, i);
    const decision = isKept
      ? deny(untilForgotten(state, i, own, now))
      : inner.ask(state, i, cost, now);
    if (decision.verdict === 'deny') want(state, i, own, cost, now);
    else enter(state, i, own, cost);
    return decision;
  };

  const policy: AdaptivePolicy = {
    ...inner,
    width: inner.width + (names.length + 1) * WIDTH,
    partitions: names,

    start(state, i, now, freshAt) {
      inner.start(state, i, now, freshAt);
      state.fill(0, i + inner.width, i + policy.width);
      for (let part = 0; part < names.length; part++) state[at(i, part) + WANTED_AT] = -Infinity;
    },

    ask,

    settle(state, i, settlement, now) {
      const j = at(i, partOf(settlement.part));
      state[j + IN] = Math.max(0, state[j + IN] - settlement.cost);
      inner.settle(state, i, settlement, now);
    },

    view: (state, i, now) => ({
      ...inner.view(state, i, now),
      partitions: Object.fromEntries(names.map((name, part) => [name, state[at(i, part) + IN]])),
    }),
  };
  return policy;
}

function requireShares(path: string, names: readonly string[], shares: readonly number[]): void {
  if (names.length === 0 || names.length > PARTITIONS_MAX) {
    throw new ConfigError(path, `1 to ${PARTITIONS_MAX} names with their shares`, names);
  }
  const sum = shares.reduce((total, share) => total + share, 0);
  if (sum > 1 + DUST) throw new ConfigError(path, 'shares that add up to at most 1', sum);
}

/** Where a name stands in a policy's list. @throws {ConfigError} if it is none of them. */
export function partitionOf(policy: Pick<Policy, 'partitions'>, name: unknown): number {
  const known = policy.partitions ?? [];
  const part = known.indexOf(name as string);
  if (part >= 0) return part;
  const expected = known.length ? `one of ${known.join(', ')}` : 'left out: the limit has none';
  throw new ConfigError('partition', expected, name);
}
