/**
 * Peers exchange the events of a lock-out: how one changed count and pending, and that it began or ended a lock.
 *
 *     event here ──▶ changeSince ──▶ peers ──▶ add: the sums of all nodes, in any order
 *                                          └─▶ setLock
 *
 * Counts are sums of changes, so their order does not matter. A lock follows from the count, on each node by itself. The
 * messages about locks only correct a node whose count differs: a lock is the later and higher of two, and a lock is
 * ended only where the count is below `after`.
 *
 * A count is short if more was taken back than was counted. Either an attempt is late, or two nodes took back the same
 * failures: the caller decides how long it waits for the attempt.
 */

import type { Millis } from '../core/clock.ts';
import {
  COUNT,
  isCounting,
  LEVEL,
  LOCK_END,
  type LockoutRule,
  PENDING,
  pendingOf,
  SINCE,
} from './lockout-rule.ts';
import type { LockoutEvents, Sharing, State } from './policy.ts';

/** Numbers of a key in a state transfer. */
export const LOCKOUT_FIGURES = 6;

export function createLockoutSharing(
  rule: LockoutRule,
  after: number,
  locksMs: readonly Millis[],
): Sharing {
  const longestMs = Math.max(...locksMs);
  const { lockEnd, lockedMs, countAt, forgottenAt, advance, unlock } = rule;

  const levelAt = (state: State, i: number, now: Millis): number =>
    now < forgottenAt(state, i) ? state[i + LEVEL] : 0;

  const setLock = (state: State, i: number, level: number, end: Millis): void => {
    state[i + LEVEL] = level;
    state[i + LOCK_END] = end - state[i + SINCE];
  };

  /** Of two locks, the higher level and the later end. What a peer says stays within the rule. */
  const mergeLock = (state: State, i: number, level: number, ms: Millis, now: Millis): void => {
    const known = levelAt(state, i, now);
    const end = now + Math.min(ms, longestMs);
    const laterEnd = known > 0 ? Math.max(lockEnd(state, i), end) : end;
    setLock(state, i, Math.max(known, Math.min(level, locksMs.length)), laterEnd);
  };

  const events: LockoutEvents = {
    changeSince(before, state, i, now) {
      const isSameWindow = before[SINCE] === state[i + SINCE];
      const count = state[i + COUNT] - (isSameWindow ? before[COUNT] : 0);
      const pending = state[i + PENDING] - (isSameWindow ? before[PENDING] : 0);
      const wasLocked = lockedMs(before, 0, now) > 0;
      const ms = lockedMs(state, i, now);
      if (count === 0 && pending === 0 && wasLocked === ms > 0) return undefined;
      return {
        count,
        pending,
        ...(!wasLocked && ms > 0 && { lock: { level: state[i + LEVEL], ms } }),
        ...(wasLocked && ms === 0 && { levelLeft: state[i + LEVEL] }),
      };
    },

    add(state, i, count, pending, now) {
      advance(state, i, now);
      const wasFull = state[i + COUNT] >= after;
      state[i + PENDING] += pending;
      rule.add(state, i, count, now);
      if (!wasFull || lockedMs(state, i, now) === 0) return undefined;
      unlock(state, i, now);
      return lockedMs(state, i, now) === 0 ? state[i + LEVEL] : undefined;
    },

    settleShort(state, i, mayBeLate) {
      const isShort = state[i + PENDING] < 0 || state[i + COUNT] < state[i + PENDING];
      if (!isShort || mayBeLate) return isShort;
      state[i + PENDING] = pendingOf(state, i);
      state[i + COUNT] = Math.max(state[i + COUNT], state[i + PENDING]);
      return true;
    },

    setLock(state, i, level, ms, now) {
      if (ms > 0) return mergeLock(state, i, level, ms, now);
      if (countAt(state, i, now) >= after) return;
      if (lockedMs(state, i, now) > 0 || state[i + LEVEL] === 0) state[i + LOCK_END] = 0;
      state[i + LEVEL] = Math.min(level, locksMs.length);
    },
  };

  return {
    figureCount: LOCKOUT_FIGURES,
    isAdditive: false,
    capacity: Infinity,
    level: () => 0,
    events,

    /** Count, pending, age of the first failure, level, time until the lock ends, time since it ended; each plus 1. */
    figures(state, i, now) {
      const count = countAt(state, i, now);
      const level = levelAt(state, i, now);
      const endsInMs = level > 0 ? lockEnd(state, i) - now : 0;
      return [
        count,
        count > 0 ? pendingOf(state, i) : 0,
        count > 0 ? Math.max(0, now - state[i + SINCE]) : 0,
        level,
        Math.max(0, endsInMs),
        Math.max(0, -endsInMs),
      ].map((figure) => figure + 1);
    },

    raise(state, i, figures, _hits, now) {
      const [count, pending, ageMs, level, lockedForMs, endedMs] = figures.map(
        (figure) => figure - 1,
      );
      advance(state, i, now);
      if (!isCounting(state, i) && count > 0) {
        const end = lockEnd(state, i);
        state[i + SINCE] = now - ageMs;
        if (state[i + LEVEL] > 0) setLock(state, i, state[i + LEVEL], end);
      }
      state[i + COUNT] = Math.max(state[i + COUNT], count);
      state[i + PENDING] = Math.max(state[i + PENDING], pending);
      if (level > 0) mergeLock(state, i, level, lockedForMs - endedMs, now);
    },
  };
}
