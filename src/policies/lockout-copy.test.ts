import { describe, expect, test } from 'vitest';
import { lockout } from './lockout.ts';

const [MINUTE, HOUR] = [60_000, 3_600_000];

function createCopy() {
  const policy = lockout({ after: 3, lock: ['1m', '5m', '1h'] });
  const { lockoutCopy: copy } = policy;
  if (!copy) throw new Error('expected a rule with a copy');
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  const check = (now: number) => policy.check(state, 0, 1, now);
  return { policy, copy, state, check };
}

describe('copy of a lockout', () => {
  test('a lock ends when the server said, and its step is the lowest that is long enough', () => {
    const { copy, state, check, policy } = createCopy();
    copy.lock(state, 0, 4 * MINUTE, 1000);
    expect(check(1000)).toEqual({ verdict: 'deny', retryAfterMs: 4 * MINUTE, reason: 'locked' });
    expect(policy.keyState(state, 0, 1000)).toMatchObject({ locks: 2, lockedMs: 4 * MINUTE });
    expect(check(1000 + 4 * MINUTE)).toEqual({ verdict: 'allow', remaining: 2 });
  });

  test('a lock longer than the last step counts as the last step', () => {
    const { copy, state, policy } = createCopy();
    copy.lock(state, 0, 2 * HOUR, 0);
    expect(policy.keyState(state, 0, 0)).toMatchObject({ locks: 3, lockedMs: 2 * HOUR });
  });

  test('the later word of the server replaces an earlier one', () => {
    const { copy, state, check } = createCopy();
    copy.lock(state, 0, HOUR, 0);
    copy.lock(state, 0, MINUTE, 0);
    expect(check(MINUTE - 1)).toMatchObject({ verdict: 'deny', retryAfterMs: 1 });
    copy.open(state, 0, MINUTE - 1);
    expect(check(MINUTE - 1)).toEqual({ verdict: 'allow', remaining: 2 });
  });

  test('the count follows the attempts that the server has left, up and down', () => {
    const { copy, state, check } = createCopy();
    check(0);
    copy.setRemaining(state, 0, 1, 0); // another process failed once
    expect(check(0)).toEqual({ verdict: 'allow', remaining: 0 });
    copy.open(state, 0, 1); // a success elsewhere
    check(1);
    copy.setRemaining(state, 0, 2, 1);
    expect(check(1)).toEqual({ verdict: 'allow', remaining: 1 });
  });

  test('a success of this process ends the lock of the copy', () => {
    const { copy, state, check, policy } = createCopy();
    copy.lock(state, 0, HOUR, 0);
    policy.update(state, 0, { report: 'success' }, 10);
    expect(check(10)).toEqual({ verdict: 'allow', remaining: 2 });
  });
});
