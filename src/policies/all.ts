/**
 * All: several limits, and every one must allow.
 *
 * "Ten a second, and a thousand an hour"; "whatever the adaptive limit says, but never more than
 * fifty a second". All or nothing: each rule is asked, and if one refuses, the others get their
 * numbers back exactly as they were. The parts stand side by side in one state:
 *
 *     state:  │ bucket: spent, at │ adaptive: limit, in flight, … │
 *             ▲ i                 ▲ i + offset of the second
 *
 * The answer is the strictest: a refusal until all could allow, else the longest wait, else
 * whatever is least left.
 */

import type { Millis } from '../core/clock.ts';
import { allow, type Decision, deny, wait } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import type { Policy, State, View } from './policy.ts';

/** The most limits in one. */
const PARTS_MAX = 64;

export function all(policies: readonly Policy[], path = 'all'): Policy {
  if (policies.length === 0) throw new ConfigError(path, 'a list of at least one limit', policies);
  if (policies.length > PARTS_MAX) {
    throw new ConfigError(path, `at most ${PARTS_MAX} limits`, `${policies.length} of them`);
  }

  const width = policies.reduce((sum, policy) => sum + policy.width, 0);
  const parts = withOffsets(policies);
  const saved = new Float64Array(width);
  const took = new Uint8Array(parts.length);

  const save = (state: State, i: number): void => {
    for (let n = 0; n < width; n++) saved[n] = state[i + n];
  };
  /** Whoever refused took nothing, and may keep that it was asked. */
  const restore = (state: State, i: number): void => {
    for (let p = 0; p < parts.length; p++) {
      const { policy, offset } = parts[p];
      const end = took[p] === 1 ? offset + policy.width : offset;
      for (let n = offset; n < end; n++) state[i + n] = saved[n];
    }
  };

  const askAll = (state: State, i: number, cost: number, now: Millis, part?: number): Decision => {
    let remaining = Infinity;
    let waitMs = 0;
    let retryAfterMs = -1;
    for (let p = 0; p < parts.length; p++) {
      const { policy, offset } = parts[p];
      const decision = policy.ask(state, i + offset, cost, now, part);
      took[p] = decision.verdict === 'deny' ? 0 : 1;
      if (decision.verdict === 'allow') remaining = Math.min(remaining, decision.remaining);
      else if (decision.verdict === 'wait') waitMs = Math.max(waitMs, decision.waitMs);
      else retryAfterMs = Math.max(retryAfterMs, decision.retryAfterMs);
    }
    if (retryAfterMs >= 0) return deny(retryAfterMs);
    if (waitMs === 0) return allow(remaining);
    postpone(state, i, cost, now + waitMs);
    return wait(waitMs);
  };

  /** The call happens when the last of them lets it: to all of them that is when it happened. */
  const postpone = (state: State, i: number, cost: number, dueAt: Millis): void => {
    for (const { policy, offset } of parts) policy.postpone?.(state, i + offset, cost, dueAt);
  };

  const least = (of: (part: Part) => number): number => Math.min(...parts.map(of));
  const most = (of: (part: Part) => number): number => Math.max(...parts.map(of));

  return {
    kind: 'all',
    width,
    exactTime: policies.some((policy) => policy.exactTime),
    learns: policies.some((policy) => policy.learns),
    reserves: policies.some((policy) => policy.reserves),
    isBySecond: policies.some((policy) => policy.isBySecond),
    expireMs: Math.min(...policies.map((policy) => policy.expireMs)),
    ...partitionsOf(policies, path),
    ...formulasOf(policies),

    start(state, i, now, freshAt) {
      for (const { policy, offset } of parts) policy.start(state, i + offset, now, freshAt);
    },

    ask(state, i, cost, now, part) {
      // A refused call is still a call: every part moves to its second before anything is saved.
      if (cost > 0)
        for (const { policy, offset } of parts) policy.available(state, i + offset, now);
      save(state, i);
      const decision = askAll(state, i, cost, now, part);
      if (decision.verdict === 'deny') restore(state, i);
      return decision;
    },

    postpone,
    ...dividingOf(policies),
    ...pacingOf(parts),
    ...resumingOf(policies),

    available: (state, i, now) =>
      least(({ policy, offset }) => policy.available(state, i + offset, now)),

    settle(state, i, settlement, now) {
      for (const { policy, offset } of parts) policy.settle(state, i + offset, settlement, now);
    },

    hear(state, i, news, now) {
      let heard = false;
      for (const { policy, offset } of parts) {
        heard = policy.hear(state, i + offset, news, now) || heard;
      }
      return heard;
    },

    forgetAt: (state, i) => most(({ policy, offset }) => policy.forgetAt(state, i + offset)),
    evictAt: (state, i) => most(({ policy, offset }) => policy.evictAt(state, i + offset)),

    view(state, i, now) {
      return parts
        .map(({ policy, offset }) => policy.view(state, i + offset, now))
        .reduce(strictest);
    },

    standings: (state, i, now) =>
      parts.flatMap(({ policy, offset }) => policy.standings(state, i + offset, now)),
  };
}

/** Of every figure the one that binds: the least room, the most that is out. */
function strictest(a: View, b: View): View {
  const view: Record<string, unknown> = { ...a };
  for (const [name, value] of Object.entries(b)) {
    const binding = name === 'reserved' || name === 'inFlight' ? Math.max : Math.min;
    const other = view[name] ?? value;
    view[name] = typeof other === 'number' ? binding(other, value) : other;
  }
  return view as unknown as View;
}

/** Partitions of one part are those of the whole; two with different names could not be told apart. */
function partitionsOf(policies: readonly Policy[], path: string): Pick<Policy, 'partitions'> {
  const [first, ...others] = policies.flatMap(({ partitions }) => (partitions ? [partitions] : []));
  if (first === undefined) return {};
  const stray = others.find((names) => names.join('\n') !== first.join('\n'));
  if (stray) throw new ConfigError(path, `limits with the same partitions (${first})`, stray);
  return { partitions: first };
}

function formulasOf(policies: readonly Policy[]): Pick<Policy, 'formulas'> {
  const formulas = policies.flatMap((policy) => policy.formulas ?? []);
  return policies.every((policy) => policy.formulas) ? { formulas } : {};
}

interface Part {
  readonly policy: Policy;
  readonly offset: number;
}

function withOffsets(policies: readonly Policy[]): Part[] {
  let offset = 0;
  return policies.map((policy) => {
    const part = { policy, offset };
    offset += policy.width;
    return part;
  });
}

function pacingOf(parts: readonly Part[]): Pick<Policy, 'pace'> {
  if (!parts.some(({ policy }) => policy.pace)) return {};
  const paceOf = ({ policy, offset }: Part, state: State, i: number, now: Millis): number =>
    policy.pace?.(state, i + offset, now) ?? Infinity;
  return { pace: (state, i, now) => Math.min(...parts.map((part) => paceOf(part, state, i, now))) };
}

/** Only one ramp can be told what it had reached: of several, nobody could tell whose that was. */
function resumingOf(policies: readonly Policy[]): Pick<Policy, 'resumeForMs'> {
  const ramps = policies.filter(({ isBySecond }) => isBySecond);
  const [{ resumeForMs } = {}] = ramps;
  return ramps.length === 1 && resumeForMs !== undefined ? { resumeForMs } : {};
}

/** Divided if each of them can be; what takes longest to fill again decides how long that takes. */
function dividingOf(policies: readonly Policy[]): Pick<Policy, 'divide' | 'refillMs'> {
  if (policies.some(({ divide }) => !divide)) return {};
  return {
    divide(part, now) {
      for (const policy of policies) policy.divide?.(part, now);
    },
    refillMs: Math.max(...policies.map(({ refillMs = 0 }) => refillMs)),
  };
}
