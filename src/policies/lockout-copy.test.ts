import { describe, expect, test } from 'vitest';
import { lockout } from './lockout.ts';
import type { LockoutRuling } from './policy.ts';

const [MINUTE, HOUR] = [60_000, 3_600_000];

function createCopy() {
  const policy = lockout({ after: 3, lock: ['1m', '5m', '1h'] });
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  const check = (now: number) => policy.check(state, 0, 1, now);
  const follow = (ruling: LockoutRuling, now: number) => policy.update(state, 0, ruling, now);
  return { policy, follow, state, check };
}

describe('copy of a lockout', () => {
  test('a lock ends when the server said, and its step is the lowest that is long enough', () => {
    const { follow, state, check, policy } = createCopy();
    follow({ lockedMs: 4 * MINUTE }, 1000);
    expect(check(1000)).toEqual({ verdict: 'deny', retryAfterMs: 4 * MINUTE, reason: 'locked' });
    expect(policy.keyState(state, 0, 1000)).toMatchObject({ locks: 2, lockedMs: 4 * MINUTE });
    expect(check(1000 + 4 * MINUTE)).toEqual({ verdict: 'allow', remaining: 2 });
  });

  test('a lock longer than the last step counts as the last step', () => {
    const { follow, state, policy } = createCopy();
    follow({ lockedMs: 2 * HOUR }, 0);
    expect(policy.keyState(state, 0, 0)).toMatchObject({ locks: 3, lockedMs: 2 * HOUR });
  });

  test('the later word of the server replaces an earlier one', () => {
    const { follow, check } = createCopy();
    follow({ lockedMs: HOUR }, 0);
    follow({ lockedMs: MINUTE }, 0);
    expect(check(MINUTE - 1)).toMatchObject({ verdict: 'deny', retryAfterMs: 1 });
    follow({ lockedMs: 0 }, MINUTE - 1);
    expect(check(MINUTE - 1)).toEqual({ verdict: 'allow', remaining: 2 });
  });

  test('the count follows the attempts that the server has left, up and down', () => {
    const { follow, check } = createCopy();
    check(0);
    follow({ attemptsLeft: 1 }, 0); // another process failed once
    expect(check(0)).toEqual({ verdict: 'allow', remaining: 0 });
    follow({ lockedMs: 0 }, 1); // a success elsewhere
    check(1);
    follow({ attemptsLeft: 2 }, 1);
    expect(check(1)).toEqual({ verdict: 'allow', remaining: 1 });
  });

  test('a success of this process ends the lock of the copy', () => {
    const { follow, state, check, policy } = createCopy();
    follow({ lockedMs: HOUR }, 0);
    policy.update(state, 0, { report: 'success' }, 10);
    expect(check(10)).toEqual({ verdict: 'allow', remaining: 2 });
  });
});
