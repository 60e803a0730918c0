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
import type { KeyState, Policy, State } from './policy.ts';

/** The most limits in one. */
const MAX_POLICIES = 64;

export function all(policies: readonly Policy[], path = 'all'): Policy {
  if (policies.length === 0) throw new ConfigError(path, 'a list of at least one limit', policies);
  if (policies.length > MAX_POLICIES) {
    throw new ConfigError(path, `at most ${MAX_POLICIES} limits`, `${policies.length} of them`);
  }

  const width = policies.reduce((sum, policy) => sum + policy.width, 0);
  const components = withOffsets(policies);
  const saved = new Float64Array(width);
  const took = new Uint8Array(components.length);

  const save = (state: State, i: number): void => {
    for (let n = 0; n < width; n++) saved[n] = state[i + n];
  };
  /** Whoever refused took nothing, and may keep that it was asked. */
  const restore = (state: State, i: number): void => {
    for (let p = 0; p < components.length; p++) {
      const { policy, offset } = components[p];
      const end = took[p] === 1 ? offset + policy.width : offset;
      for (let n = offset; n < end; n++) state[i + n] = saved[n];
    }
  };

  const checkAll = (
    state: State,
    i: number,
    cost: number,
    now: Millis,
    partitionIndex?: number,
  ): Decision => {
    let remaining = Infinity;
    let waitMs = 0;
    let retryAfterMs = -1;
    for (let p = 0; p < components.length; p++) {
      const { policy, offset } = components[p];
      const decision = policy.check(state, i + offset, cost, now, partitionIndex);
      took[p] = decision.verdict === 'deny' ? 0 : 1;
      if (decision.verdict === 'allow') remaining = Math.min(remaining, decision.remaining);
      else if (decision.verdict === 'wait') waitMs = Math.max(waitMs, decision.waitMs);
      else retryAfterMs = Math.max(retryAfterMs, decision.retryAfterMs);
    }
    if (retryAfterMs >= 0) return deny(retryAfterMs);
    if (waitMs === 0) return allow(remaining);
    deferTo(state, i, cost, now + waitMs);
    return wait(waitMs);
  };

  /** The call happens when the last of them lets it: to all of them that is when it happened. */
  const deferTo = (state: State, i: number, cost: number, dueAt: Millis): void => {
    for (const { policy, offset } of components) policy.deferTo?.(state, i + offset, cost, dueAt);
  };

  const least = (of: (component: Component) => number): number => Math.min(...components.map(of));
  const most = (of: (component: Component) => number): number => Math.max(...components.map(of));

  return {
    kind: 'all',
    width,
    needsExactTime: policies.some((policy) => policy.needsExactTime),
    needsOutcome: policies.some((policy) => policy.needsOutcome),
    canReserve: policies.some((policy) => policy.canReserve),
    isPerSecond: policies.some((policy) => policy.isPerSecond),
    expireMs: Math.min(...policies.map((policy) => policy.expireMs)),
    ...commonPartitions(policies, path),
    ...specsOf(policies),

    init(state, i, now, freshAt) {
      for (const { policy, offset } of components) policy.init(state, i + offset, now, freshAt);
    },

    check(state, i, cost, now, partitionIndex) {
      // A refused call is still a call: every part moves to its second before anything is saved.
      if (cost > 0)
        for (const { policy, offset } of components) policy.available(state, i + offset, now);
      save(state, i);
      const decision = checkAll(state, i, cost, now, partitionIndex);
      if (decision.verdict === 'deny') restore(state, i);
      return decision;
    },

    deferTo,
    ...divisionOf(policies),
    ...rateOf(components),
    ...resumeOf(policies),

    available: (state, i, now) =>
      least(({ policy, offset }) => policy.available(state, i + offset, now)),

    settle(state, i, settlement, now) {
      for (const { policy, offset } of components)
        policy.settle(state, i + offset, settlement, now);
    },

    update(state, i, news, now) {
      let heard = false;
      for (const { policy, offset } of components) {
        heard = policy.update(state, i + offset, news, now) || heard;
      }
      return heard;
    },

    removableAt: (state, i) => most(({ policy, offset }) => policy.removableAt(state, i + offset)),
    evictableAt: (state, i) => most(({ policy, offset }) => policy.evictableAt(state, i + offset)),

    keyState(state, i, now) {
      return components
        .map(({ policy, offset }) => policy.keyState(state, i + offset, now))
        .reduce(mergeStrictest);
    },

    ruleStatuses: (state, i, now) =>
      components.flatMap(({ policy, offset }) => policy.ruleStatuses(state, i + offset, now)),
  };
}

/** Of every figure the one that binds: the least room, the most that is out. */
function mergeStrictest(a: KeyState, b: KeyState): KeyState {
  const view: Record<string, unknown> = { ...a };
  for (const [name, value] of Object.entries(b)) {
    const binding = name === 'reserved' || name === 'inFlight' ? Math.max : Math.min;
    const other = view[name] ?? value;
    view[name] = typeof other === 'number' ? binding(other, value) : other;
  }
  return view as unknown as KeyState;
}

/** Partitions of one part are those of the whole; two with different names could not be told apart. */
function commonPartitions(policies: readonly Policy[], path: string): Pick<Policy, 'partitions'> {
  const [first, ...others] = policies.flatMap(({ partitions }) => (partitions ? [partitions] : []));
  if (first === undefined) return {};
  const stray = others.find((names) => names.join('\n') !== first.join('\n'));
  if (stray) throw new ConfigError(path, `limits with the same partitions (${first})`, stray);
  return { partitions: first };
}

function specsOf(policies: readonly Policy[]): Pick<Policy, 'specs'> {
  const specs = policies.flatMap((policy) => policy.specs ?? []);
  return policies.every((policy) => policy.specs) ? { specs } : {};
}

interface Component {
  readonly policy: Policy;
  readonly offset: number;
}

function withOffsets(policies: readonly Policy[]): Component[] {
  let offset = 0;
  return policies.map((policy) => {
    const component = { policy, offset };
    offset += policy.width;
    return component;
  });
}

function rateOf(components: readonly Component[]): Pick<Policy, 'ratePerSecond'> {
  if (!components.some(({ policy }) => policy.ratePerSecond)) return {};
  const componentRate = (
    { policy, offset }: Component,
    state: State,
    i: number,
    now: Millis,
  ): number => policy.ratePerSecond?.(state, i + offset, now) ?? Infinity;
  return {
    ratePerSecond: (state, i, now) =>
      Math.min(...components.map((component) => componentRate(component, state, i, now))),
  };
}

/** Only one ramp can be told what it had reached: of several, nobody could tell whose that was. */
function resumeOf(policies: readonly Policy[]): Pick<Policy, 'resumeForMs'> {
  const ramps = policies.filter(({ isPerSecond }) => isPerSecond);
  const [{ resumeForMs } = {}] = ramps;
  return ramps.length === 1 && resumeForMs !== undefined ? { resumeForMs } : {};
}

/** Divided if each of them can be; what takes longest to fill again decides how long that takes. */
function divisionOf(policies: readonly Policy[]): Pick<Policy, 'divide' | 'refillMs'> {
  if (policies.some(({ divide }) => !divide)) return {};
  return {
    divide(part, now) {
      for (const policy of policies) policy.divide?.(part, now);
    },
    refillMs: Math.max(...policies.map(({ refillMs = 0 }) => refillMs)),
  };
}
