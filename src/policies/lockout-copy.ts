/**
 * A copy of a lock-out in a process that does not decide: it follows what the server of the limit has decided.
 *
 *     locked, ms left      the copy is locked until then
 *     allowed              the copy is not locked: another process may have ended the lock
 *     allowed, remaining   the copy counts the attempts and failures of all processes
 *
 * A refusal does not say which step of `lock` it is. The copy takes the lowest step that is long enough.
 */

import type { Millis } from '../core/clock.ts';
import {
  COUNT,
  LEVEL,
  LOCK_END,
  type LockoutRule,
  PENDING,
  pendingOf,
  SINCE,
} from './lockout-rule.ts';
import type { LockoutRuling, State } from './policy.ts';

export function createFollower(rule: LockoutRule, after: number, locksMs: readonly Millis[]) {
  const { lockedMs, forgottenAt, advance, add } = rule;

  const lowestLevelOf = (ms: Millis): number => {
    const n = locksMs.findIndex((lockMs) => Math.ceil(lockMs) >= ms);
    return n < 0 ? locksMs.length : n + 1;
  };

  const lock = (state: State, i: number, ms: Millis, now: Millis): void => {
    advance(state, i, now);
    const known = now < forgottenAt(state, i) ? state[i + LEVEL] : 0;
    state[i + LEVEL] = Math.max(known, lowestLevelOf(ms));
    state[i + LOCK_END] = now + ms - state[i + SINCE];
  };

  const open = (state: State, i: number, now: Millis): void => {
    if (lockedMs(state, i, now) === 0) return;
    state[i + COUNT] = 0;
    state[i + PENDING] = 0;
    state[i + SINCE] = now;
    state[i + LOCK_END] = 0;
  };

  const setRemaining = (state: State, i: number, remaining: number, now: Millis): void => {
    advance(state, i, now);
    const count = after - remaining;
    const further = count - state[i + COUNT];
    if (further > 0) add(state, i, further, now);
    else state[i + COUNT] = Math.max(count, pendingOf(state, i));
  };

  return (state: State, i: number, ruling: LockoutRuling, now: Millis): void => {
    if ('attemptsLeft' in ruling) setRemaining(state, i, ruling.attemptsLeft, now);
    else if (ruling.lockedMs > 0) lock(state, i, ruling.lockedMs, now);
    else open(state, i, now);
  };
}
