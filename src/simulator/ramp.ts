/**
 * The ramp on virtual time: so many calls wanted in each second in, what the pool did out.
 *
 * The policy is the real one, asked once a second by every pod, as a reader of batches would: give
 * me up to n. With several pods each has its own copy of the rule and an even part of the calls;
 * there is nobody who holds the whole pool, so what is shown is what the copies add up to.
 */

import { type Policy, type State, takeUpTo } from '../policies/policy.ts';
import { type RampOptions, ramp } from '../policies/ramp.ts';

export { RAMP_MODES, type RampMode, type RampOptions } from '../policies/ramp.ts';

export interface RampSecond {
  /** 1 is the first. */
  readonly second: number;
  /** Calls that were wanted; 0 is a second in which nobody asked. */
  readonly asked: number;
  /** Tokens there were; in a second in which nobody asked, those that would have been there. */
  readonly pool: number;
  /** Tokens that were taken. */
  readonly used: number;
  /** Tokens that were not. Only whole ones are handed out, so a fraction of the pool is neither. */
  readonly remaining: number;
}

interface Pod {
  readonly rank: number;
  readonly state: State;
}

export function simulateRamp(
  options: RampOptions,
  asked: readonly number[],
  podCount = 1,
): RampSecond[] {
  const policy = ramp(options, '');
  const pods = Array.from({ length: podCount }, (_, rank) => createPod(policy, rank, podCount));
  return asked.map((calls, n) => simulateSecond(policy, pods, n + 1, calls));
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
  asked: number,
): RampSecond {
  const now = second * 1000;
  let used = 0;
  let remaining = 0;
  let pools = 0;
  for (const { rank, state } of pods) {
    const wanted = podCalls(asked, pods.length, rank, second);
    // Not to ask is not the same as to ask for nothing: only an ask counts as a call.
    if (wanted > 0) used += takeUpTo(policy, state, 0, wanted, now);
    const view = policy.keyState(state, 0, now);
    remaining += view.remaining;
    pools += view.pool ?? 0;
  }
  return { second, asked, pool: pools / pods.length, used, remaining };
}

/** An even part. Who gets one call more changes with the second, so that no pod is always last. */
function podCalls(calls: number, podCount: number, rank: number, second: number): number {
  const turn = (rank + second) % podCount;
  return Math.floor(calls / podCount) + (turn < calls % podCount ? 1 : 0);
}
