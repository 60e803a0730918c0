/**
 * The state of a lock-out and its transitions: failures are counted in a window, and the count locks the key.
 *
 *     count      failures and attempts in flight, from the first one on for `within`
 *     pending    those of them whose end was not reported
 *     level      locks that are not forgotten
 *
 * Where peers share the rule, a return may arrive before its attempt: count and pending are then below 0 for a moment
 * (`lockout-sharing.ts`).
 */

import type { Millis } from '../core/clock.ts';
import { addRoundingUp, wholeMsUntil } from './float-time.ts';
import type { State } from './policy.ts';

export interface LockoutTerms {
  readonly after: number;
  readonly withinMs: Millis;
  readonly locksMs: readonly Millis[];
  readonly forgetMs: Millis;
  readonly on: 'failure' | 'refusal';
  readonly isReset: boolean;
}

export const COUNT = 0; //        failures or refusals, attempts in flight included
export const PENDING = 1; //      attempts of them that were not reported
export const SINCE = 2; //        when the first of them was counted: the only instant, as etcd needs it
export const LOCK_END = 3; //     end of the last lock, after `SINCE` or (below 0) before it; meaningless without one
export const LEVEL = 4; //        locks that are not forgotten; 0: none
export const LOCKOUT_WIDTH = 5;

export const pendingOf = (state: State, i: number): number => Math.max(0, state[i + PENDING]);

export const isCounting = (state: State, i: number): boolean =>
  state[i + COUNT] !== 0 || state[i + PENDING] !== 0;

export type LockoutRule = ReturnType<typeof createLockoutRule>;

/** `after` is the part of the attempts that this process, pool member or group has. */
export function createLockoutRule({ withinMs, locksMs, forgetMs }: LockoutTerms, after: number) {
  const lockEnd = (state: State, i: number): Millis => state[i + SINCE] + state[i + LOCK_END];

  const lockedMs = (state: State, i: number, now: Millis): Millis =>
    state[i + LEVEL] > 0 ? Math.max(0, wholeMsUntil(lockEnd(state, i), now)) : 0;

  const countedUntil = (state: State, i: number): Millis =>
    addRoundingUp(state[i + SINCE], withinMs);

  /** What was counted before the end of a lock no longer counts after it. */
  const isOver = (state: State, i: number, now: Millis): boolean =>
    now >= countedUntil(state, i) ||
    (state[i + LEVEL] > 0 && state[i + LOCK_END] > 0 && now >= lockEnd(state, i));

  const countAt = (state: State, i: number, now: Millis): number =>
    isOver(state, i, now) ? 0 : Math.max(0, state[i + COUNT]);

  const forgottenAt = (state: State, i: number): Millis =>
    addRoundingUp(lockEnd(state, i), forgetMs);

  /** Forgets what no longer counts. */
  const advance = (state: State, i: number, now: Millis): void => {
    if (isCounting(state, i) && !isOver(state, i, now)) return;
    state[i + COUNT] = 0;
    state[i + PENDING] = 0;
    state[i + LOCK_END] = state[i + LEVEL] > 0 ? lockEnd(state, i) - now : 0;
    state[i + SINCE] = now;
  };

  const add = (state: State, i: number, count: number, now: Millis): void => {
    state[i + COUNT] += count;
    if (state[i + COUNT] < after || lockedMs(state, i, now) > 0) return;
    const level = now < forgottenAt(state, i) ? state[i + LEVEL] : 0;
    const lockMs = locksMs[Math.min(level, locksMs.length - 1)];
    state[i + LOCK_END] = addRoundingUp(now, lockMs) - state[i + SINCE];
    state[i + LEVEL] = Math.min(level + 1, locksMs.length);
  };

  /** Ends a lock that an attempt began which did not fail. The last lock counts as ended before the first failure. */
  const unlock = (state: State, i: number, now: Millis): void => {
    if (state[i + COUNT] >= after || lockedMs(state, i, now) === 0) return;
    state[i + LOCK_END] = 0;
    state[i + LEVEL]--;
  };

  return { lockEnd, lockedMs, countedUntil, countAt, forgottenAt, advance, add, unlock };
}
