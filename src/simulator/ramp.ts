/**
 * Simulates the ramp policy: requested calls per second in, tokens of the pool and tokens used out.
 *
 * Every pod calls `takeUpTo` once per second, as a batch reader does. With several pods, each has its own copy of the
 * policy's state and an even part of the calls. No pod holds the whole pool, so the result is the sum over pods.
 */

import { type Policy, type State, takeUpTo } from '../policies/policy.ts';
import { type RampOptions, ramp } from '../policies/ramp.ts';

export { RAMP_MODES, type RampMode, type RampOptions } from '../policies/ramp.ts';

export interface RampSecond {
  /** Number of the second, from 1. */
  readonly second: number;
  /** Calls; 0 in a second without calls. */
  readonly requested: number;
  /** Tokens in the pool; in a second without calls, those that a call would have found. */
  readonly pool: number;
  readonly used: number;
  /** Whole tokens that were not used. A fraction of a token is neither used nor remaining. */
  readonly remaining: number;
}

interface Pod {
  readonly rank: number;
  readonly state: State;
}

export function simulateRamp(
  options: RampOptions,
  requested: readonly number[],
  podCount = 1,
): RampSecond[] {
  const policy = ramp(options, '');
  const pods = Array.from({ length: podCount }, (_, rank) => createPod(policy, rank, podCount));
  return requested.map((calls, n) => simulateSecond(policy, pods, n + 1, calls));
}

function createPod(policy: Policy, rank: number, podCount: number): Pod {
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  if (podCount > 1) policy.update(state, 0, { poolSize: podCount, rank }, 0);
  return { rank, state };
}

function simulateSecond(
  policy: Policy,
  pods: readonly Pod[],
  second: number,
  requested: number,
): RampSecond {
  const now = second * 1000;
  let used = 0;
  let remaining = 0;
  let pools = 0;
  for (const { rank, state } of pods) {
    const calls = podCalls(requested, pods.length, rank, second);
    // No call differs from a call for 0 tokens, which the policy counts as activity.
    if (calls > 0) used += takeUpTo(policy, state, 0, calls, now);
    const { remaining: unused, level: pool = 0 } = policy.keyState(state, 0, now);
    remaining += unused;
    pools += pool;
  }
  return { second, requested, pool: pools / pods.length, used, remaining };
}

/** An even part of the calls. The remainder rotates over the pods each second, so that no pod is always last. */
function podCalls(calls: number, podCount: number, rank: number, second: number): number {
  const turn = (rank + second) % podCount;
  return Math.floor(calls / podCount) + (turn < calls % podCount ? 1 : 0);
}
