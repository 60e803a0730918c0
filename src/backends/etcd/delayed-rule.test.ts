import { describe, expect, test } from 'vitest';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { DelayedRule, type Grant, type TimedDecision } from './delayed-rule.ts';

const START_TOLERANCE_MS = 5;
const EVERY_MS = 100;
/** The widened interval: a clock may run faster, and a permit start late. */
const WIDENED_MS = EVERY_MS * (1 + CLOCK_DRIFT_RATE) + START_TOLERANCE_MS;

function spaced(reserve = 0): { rule: DelayedRule; state: Float64Array } {
  const policy = createPolicy({ spacing: { every: EVERY_MS, reserve } }, seededRandom(1));
  const state = new Float64Array([1000]); // the instant of the last permit
  return { rule: new DelayedRule(policy, START_TOLERANCE_MS), state };
}

const granted = (decision: TimedDecision): Grant => {
  if (decision.verdict === 'grant') return decision;
  throw new Error('the check was refused');
};

describe('delayed rule, spacing', () => {
  test('a permit may start until the swap is done, and the next one counts from there', () => {
    const { rule, state } = spaced();
    const decision = granted(rule.check(state, 1, { now: 2000, maxDelayMs: 10 }, false));
    expect(decision).toMatchObject({ dueAt: 2000, usableUntil: 2015 });
    const opensAt = rule.policy.freshAt(state, 0, false);
    expect(opensAt).toBeCloseTo(2010 + WIDENED_MS, 6);
    expect(opensAt - decision.usableUntil).toBeGreaterThanOrEqual(EVERY_MS);
    expect(rule.check(state, 1, { now: 2110, maxDelayMs: 10 }, false)).toEqual({
      verdict: 'deny',
      retryAfterMs: 6,
    });
  });

  test('a batch is granted the next permit ahead, and the swap costs no time', () => {
    const { rule, state } = spaced();
    rule.check(state, 1, { now: 2000, maxDelayMs: 10 }, false);
    const opensAt = rule.policy.freshAt(state, 0, false);
    const moment = { now: opensAt - 20, maxDelayMs: 10 };
    expect(rule.checkBatch(state, [1, 1], moment, 19)).toMatchObject([{ verdict: 'deny' }]);
    const decision = rule.checkBatch(state, [1, 1], moment, 21);
    expect(decision).toMatchObject([
      { verdict: 'grant', dueAt: opensAt, usableUntil: opensAt + START_TOLERANCE_MS },
    ]);
    expect(state[0]).toBe(opensAt);
  });

  test('reserves up to `reserve` permits ahead', () => {
    const { rule, state } = spaced(2);
    const moment = { now: 2000, maxDelayMs: 10 };
    const due = [1, 2, 3].map(() => granted(rule.check(state, 1, moment, true)).dueAt);
    expect(due[1] - due[0]).toBeCloseTo(10 + WIDENED_MS, 6);
    expect(due[2] - due[1]).toBeCloseTo(WIDENED_MS, 6);
    expect(rule.check(state, 1, moment, true).verdict).toBe('deny');
  });

  test('the last permit can be returned with any dueAt of its span', () => {
    for (const lateMs of [0, 10, 15]) {
      const { rule, state } = spaced();
      rule.check(state, 1, { now: 2000, maxDelayMs: 10 }, false);
      rule.settle(state, { outcome: 'ignored', cost: 1, dueAt: 2000 + lateMs }, 2020);
      expect(rule.policy.freshAt(state, 0, false)).toBeCloseTo(2010, 6);
    }
    const { rule, state } = spaced();
    rule.check(state, 1, { now: 2000, maxDelayMs: 10 }, false);
    rule.check(state, 1, { now: 2200, maxDelayMs: 10 }, false);
    rule.settle(state, { outcome: 'ignored', cost: 1, dueAt: 2015 }, 2220);
    expect(state[0]).toBe(2210);
  });
});

describe('delayed rule, bucket', () => {
  const rule = new DelayedRule(
    createPolicy({ bucket: { rate: 10, burst: 3 } }, seededRandom(1)),
    START_TOLERANCE_MS,
  );
  const moment = { now: 2000, maxDelayMs: 10 };

  test('a permit counts when it is decided and never expires', () => {
    const state = new Float64Array([0, 1000]);
    const decision = granted(rule.check(state, 2, moment, false));
    expect(decision).toMatchObject({ remaining: 1, usableUntil: Infinity });
    expect([...state]).toEqual([2, 2000]);
    expect(rule.takeUpTo(state, 5, moment)).toMatchObject({ remaining: 1 });
    expect(rule.takeUpTo(state, 5, moment)).toMatchObject({ verdict: 'deny' });
    expect(rule.check(state, 1, moment, false)).toEqual({ verdict: 'deny', retryAfterMs: 100 });
  });

  test('a check of cost 0 takes nothing', () => {
    const state = new Float64Array([1, 2000]);
    expect(rule.check(state, 0, moment, true)).toMatchObject({ verdict: 'grant', remaining: 2 });
    expect([...state]).toEqual([1, 2000]);
  });
});

describe('delayed rule, window', () => {
  test('a permit counts until a period after the latest instant at which it may start', () => {
    const policy = createPolicy({ window: { limit: 2, per: 1000, steps: 4 } }, seededRandom(1));
    const rule = new DelayedRule(policy, START_TOLERANCE_MS);
    const state = new Float64Array(rule.policy.width);
    rule.policy.init(state, 0, 1000);
    const isOpen = (now: number) =>
      rule.check(state.slice(), 2, { now, maxDelayMs: 10 }, false).verdict === 'grant';
    const permit = granted(rule.check(state, 1, { now: 1240, maxDelayMs: 10 }, false));
    expect(permit).toMatchObject({ dueAt: 1240, usableUntil: 1255, remaining: 1 });
    const opensAt = [...Array(3000).keys()].find((now) => now > 1255 && isOpen(now)) ?? 0;
    expect(opensAt).toBeGreaterThanOrEqual(permit.usableUntil + 1000);
    expect(opensAt).toBeLessThan(permit.usableUntil + 1260);
  });
});
