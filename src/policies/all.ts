/**
 * Conjunction of limits: every one must allow, and nothing is charged if one refuses.
 *
 * "Ten a second, and a thousand an hour"; "what the adaptive limit allows, but at most fifty a second".
 * Each component is checked. If one refuses, the state of those that allowed is restored exactly. The
 * components stand side by side in one state:
 *
 *     state:  │ bucket: spent, at │ adaptive: limit, in flight, … │
 *             ▲ i                 ▲ i + offset of the second
 *
 * The decision is the strictest: a refusal with the longest retry time, else the longest wait, else the
 * smallest remainder. A refusal names the rule that it comes from.
 */

import type { Millis } from '../core/clock.ts';
import { allow, type Decision, deny, NEVER, wait } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import {
  type CallClasses,
  converterBetween,
  type KeyConverter,
  type KeyState,
  type PlacedRule,
  type Policy,
  type QueueMath,
  type State,
  setBackKey,
  type Traits,
} from './policy.ts';
import { ruleNamesOf } from './rules.ts';

/** The most components of one limit. */
const MAX_POLICIES = 64;

export function all(policies: readonly Policy[], path = 'all'): Policy {
  if (policies.length === 0) throw new ConfigError(path, 'a list of at least one limit', policies);
  if (policies.length > MAX_POLICIES) {
    throw new ConfigError(path, `at most ${MAX_POLICIES} limits`, policies.length);
  }

  if (policies.every(({ kind, chain }) => kind === 'lockout' && chain?.recordRefusal)) {
    const expected = 'a list with a rule whose refusals `lockout` counts';
    throw new ConfigError(
      path,
      expected,
      policies.map(({ kind }) => kind),
    );
  }

  const width = policies.reduce((sum, policy) => sum + policy.width, 0);
  const components = withOffsets(policies);
  const rules = components.flatMap(({ policy, offset }) =>
    policy.rules.map((rule) => ({ ...rule, offset: offset + rule.offset })),
  );
  const saved = new Float64Array(width);
  const took = new Uint8Array(components.length);

  const save = (state: State, i: number): void => {
    for (let n = 0; n < width; n++) saved[n] = state[i + n];
  };
  /** A component that refused took nothing, and keeps what it noted about the refused call. */
  const restore = (state: State, i: number): void => {
    for (let p = 0; p < components.length; p++) {
      const { policy, offset } = components[p];
      const end = took[p] === 1 ? offset + policy.width : offset;
      for (let n = offset; n < end; n++) state[i + n] = saved[n];
    }
  };

  const refusal = (retryAfterMs: Millis, rule: string, reason: string | undefined): Decision => {
    if (rules.length === 1)
      return reason === undefined ? deny(retryAfterMs) : { verdict: 'deny', retryAfterMs, reason };
    return reason === undefined
      ? { verdict: 'deny', retryAfterMs, rule }
      : { verdict: 'deny', retryAfterMs, rule, reason };
  };

  const counting = components.some(({ policy }) => policy.chain?.recordRefusal);
  /** Rules that count refusals count this one, unless they refused it themselves; it may lock the key for longer. */
  const recordRefusal = (state: State, i: number, now: Millis, refused: Denied): Decision => {
    let longest: Decision & Denied = refused;
    if (refused.retryAfterMs === NEVER) return refused; // a mistake, which waiting does not mend
    for (let p = 0; p < components.length; p++) {
      const { policy, offset } = components[p];
      const lockedMs = took[p] === 1 ? refusalMs(policy, state, i + offset, now) : 0;
      if (lockedMs > longest.retryAfterMs) {
        const rule = nameOfRule(components[p], components[p].innerNames.find(isLockout));
        longest = refusal(lockedMs, rule, 'locked') as Denied;
      }
    }
    return longest;
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
    let rule: string | undefined;
    let reason: string | undefined;
    for (let p = 0; p < components.length; p++) {
      const { policy, offset } = components[p];
      const decision = policy.check(state, i + offset, cost, now, partitionIndex);
      took[p] = decision.verdict === 'deny' ? 0 : 1;
      if (decision.verdict === 'allow') remaining = Math.min(remaining, decision.remaining);
      else if (decision.verdict === 'wait') waitMs = Math.max(waitMs, decision.waitMs);
      else if (decision.retryAfterMs > retryAfterMs) {
        retryAfterMs = decision.retryAfterMs;
        rule = nameOfRule(components[p], decision.rule);
        reason = decision.reason;
      }
    }
    if (rule !== undefined) return refusal(retryAfterMs, rule, reason);
    if (waitMs === 0) return allow(remaining);
    deferTo(state, i, cost, now + waitMs);
    return wait(waitMs);
  };

  const advancing = components.filter(({ policy }) => policy.chain?.advance);
  const advance = (state: State, i: number, now: Millis): void => {
    for (const { policy, offset } of advancing) policy.chain?.advance?.(state, i + offset, now);
  };

  /** The call happens when the last component allows it, so every component counts it then. */
  const deferTo = (state: State, i: number, cost: number, dueAt: Millis): void => {
    for (const { policy, offset } of components)
      policy.chain?.deferTo?.(state, i + offset, cost, dueAt);
  };

  const min = (of: (component: Component) => number): number => Math.min(...components.map(of));
  const max = (of: (component: Component) => number): number => Math.max(...components.map(of));

  return {
    kind: 'all',
    width,
    rules,
    traits: traitsOf(components),
    ...commonClasses(policies, path),

    init(state, i, now, freshAt) {
      for (const { policy, offset } of components) policy.init(state, i + offset, now, freshAt);
    },

    check(state, i, cost, now, partitionIndex) {
      // A refused call is still a call: components advance to its second before the state is saved.
      if (cost > 0) advance(state, i, now);
      save(state, i);
      const decision = checkAll(state, i, cost, now, partitionIndex);
      if (decision.verdict !== 'deny') return decision;
      restore(state, i);
      return counting && cost > 0 ? recordRefusal(state, i, now, decision) : decision;
    },

    chain: {
      ...(advancing.length > 0 && { advance }),
      ...(counting && {
        recordRefusal: (state: State, i: number, now: Millis): Millis =>
          max(({ policy, offset }) => refusalMs(policy, state, i + offset, now)),
      }),
      deferTo,
      setBack(state, i, byMs, now) {
        for (const { policy, offset } of components)
          setBackKey(policy, state, i + offset, byMs, now);
      },
    },
    convertFrom: (from) => convertAll(rules, from.rules),
    ...divisionOf(components, path),
    queue: queueOf(components),

    available: (state, i, now) =>
      min(({ policy, offset }) => policy.available(state, i + offset, now)),

    settle(state, i, settlement, now) {
      for (const { policy, offset } of components)
        policy.settle(state, i + offset, settlement, now);
    },

    update(state, i, feedback, now) {
      let isUsed = false;
      for (const { policy, offset } of components) {
        isUsed = policy.update(state, i + offset, feedback, now) || isUsed;
      }
      return isUsed;
    },

    freshAt: (state, i, isLenient) =>
      max(({ policy, offset }) => policy.freshAt(state, i + offset, isLenient)),

    keyState(state, i, now) {
      return components
        .map(({ policy, offset }) => policy.keyState(state, i + offset, now))
        .reduce(mergeStrictest);
    },

    ruleStatuses: (state, i, now) =>
      components.flatMap(({ policy, offset }) => policy.ruleStatuses(state, i + offset, now)),
  };
}

/** Counts a refused call; 0 if the rule counts none. */
const refusalMs = ({ chain }: Policy, state: State, i: number, now: Millis): Millis =>
  chain?.recordRefusal?.(state, i, now) ?? 0;

const LARGEST_BINDS = new Set(['reserved', 'inFlight', 'failures', 'locks', 'lockedMs']);

/** The binding value of every field: the smallest, except for what is reserved or in flight, and of locks. */
function mergeStrictest(a: KeyState, b: KeyState): KeyState {
  const merged: Record<string, unknown> = { ...a };
  for (const [name, value] of Object.entries(b)) {
    const binding = LARGEST_BINDS.has(name) ? Math.max : Math.min;
    const other = merged[name] ?? value;
    merged[name] = typeof other === 'number' ? binding(other, value) : other;
  }
  return merged as unknown as KeyState;
}

/** Partitions or levels of a component are those of the whole; components with different names would be ambiguous. */
function commonClasses(policies: readonly Policy[], path: string): Pick<Policy, 'classes'> {
  const partitions = commonNames(policies, path, 'partition', 'partitions');
  const priorities = commonNames(policies, path, 'priority', 'priorities');
  if (partitions && priorities)
    throw new ConfigError(
      path,
      'limits with either `partitions` or `priorities`',
      priorities.names,
    );
  const classes = partitions ?? priorities;
  return classes ? { classes } : {};
}

function commonNames(
  policies: readonly Policy[],
  path: string,
  kind: CallClasses['kind'],
  option: string,
): CallClasses | undefined {
  const all = policies.flatMap(({ classes }) => (classes?.kind === kind ? [classes] : []));
  const [first, ...others] = all;
  const differing = others.find(({ names }) => names.join('\n') !== first.names.join('\n'));
  if (!differing) return first;
  throw new ConfigError(path, `limits with the same ${option} (${first.names})`, differing.names);
}

/** A trait of one component is one of the whole. The slowest to refill determines the refill time. */
function traitsOf(components: readonly Component[]): Traits {
  const all = components.map(({ policy }) => policy.traits);
  const concurrency = all.flatMap(({ concurrencyLimit }) => concurrencyLimit ?? []);
  const isDivisible = components.every(({ policy }) => policy.divide?.ofPool);
  return {
    needsExactTime: all.some(({ needsExactTime }) => needsExactTime),
    needsOutcome: all.some(({ needsOutcome }) => needsOutcome),
    mayOpenEarlier: all.some(({ mayOpenEarlier }) => mayOpenEarlier),
    canReserve: all.some(({ canReserve }) => canReserve),
    takesReports: all.some(({ takesReports }) => takesReports),
    protectsServer: all.every(({ protectsServer }) => protectsServer),
    expireMs: Math.min(...all.map(({ expireMs }) => expireMs)),
    concurrencyLimit: concurrency.length > 0 ? Math.min(...concurrency) : undefined,
    refillMs: isDivisible ? Math.max(...all.map(({ refillMs = 0 }) => refillMs)) : undefined,
    instants: components.flatMap(({ policy, offset }) =>
      policy.traits.instants.map((index) => offset + index),
    ),
  };
}

interface Component extends PlacedRule {
  /** The names of its rules in the whole limit, and in the component itself. */
  readonly names: readonly string[];
  readonly innerNames: readonly string[];
}

/** The name of the rule that refused: the component's only one, or the one it named itself. */
const nameOfRule = ({ names, innerNames }: Component, inner: string | undefined): string =>
  inner === undefined ? names[0] : names[innerNames.indexOf(inner)];

type Denied = Extract<Decision, { verdict: 'deny' }>;

const isLockout = (name: string): boolean => name.startsWith('lockout');

const kindsOf = (policy: Policy): readonly string[] =>
  policy.rules.map(({ policy: { kind } }) => kind);

function withOffsets(policies: readonly Policy[]): Component[] {
  let offset = 0;
  const allNames = ruleNamesOf(policies.flatMap(kindsOf));
  return policies.map((policy) => {
    const kinds = kindsOf(policy);
    const names = allNames.splice(0, kinds.length);
    const component = { policy, offset, names, innerNames: ruleNamesOf(kinds) };
    offset += policy.width;
    return component;
  });
}

/** Rule by rule, if both limits have the same rules in the same order. */
function convertAll(
  to: readonly PlacedRule[],
  from: readonly PlacedRule[],
): KeyConverter | undefined {
  if (from.length !== to.length) return undefined;
  const converters = to.map(({ policy }, n) => converterBetween(from[n].policy, policy));
  if (converters.includes(undefined)) return undefined;
  return (state, i, source, j, at) => {
    for (let n = 0; n < to.length; n++)
      converters[n]?.(state, i + to[n].offset, source, j + from[n].offset, at);
  };
}

/** The slowest component determines when a waiting call is granted. */
const queueOf = (components: readonly Component[]): QueueMath => ({
  minIntervalMs: Math.max(...components.map(({ policy }) => policy.queue?.minIntervalMs ?? 0)),
  drainMs: () => 0,
  timeToGrantMs: (state, i, units, now) =>
    Math.max(
      ...components.map(
        ({ policy: { queue }, offset }) => queue?.timeToGrantMs(state, i + offset, units, now) ?? 0,
      ),
    ),
});

/** Divisible if every component is. The slowest component determines the rate. */
function divisionOf(components: readonly Component[], path: string): Pick<Policy, 'divide'> {
  if (components.some(({ policy }) => !policy.divide?.ofPool)) return {};
  const paced = components.filter(({ policy }) => policy.divide?.ratePerSecond);
  // Only a single ramp can resume its level: with several, the stored level would be ambiguous.
  const ramps = components.filter(({ policy }) => policy.chain?.advance);
  const resumeForMs = ramps.length === 1 ? ramps[0].policy.divide?.resumeForMs : undefined;
  return {
    divide: {
      ofPool: (position, now) =>
        all(
          components.map(({ policy }) => policy.divide?.ofPool?.(position, now) ?? policy),
          path,
        ),
      ...(paced.length > 0 && {
        ratePerSecond: (state: State, i: number, now: Millis): number =>
          Math.min(
            ...paced.map(
              ({ policy: { divide }, offset }) =>
                divide?.ratePerSecond?.(state, i + offset, now) ?? Infinity,
            ),
          ),
      }),
      ...(resumeForMs !== undefined && { resumeForMs }),
    },
  };
}
