import { expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from './limit.ts';
import type { RuleStatus } from './policy.ts';

type Spent = readonly [cost: number, atMs: number];

/** The rule statuses of a limit at an instant, after some checks. */
function statusesAt(now: number, limit: Limit, ...spent: readonly Spent[]): RuleStatus[] {
  const policy = createPolicy(limit, seededRandom(1));
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  for (const [cost, at] of spent) policy.check(state, 0, cost, at);
  return policy.ruleStatuses(state, 0, now);
}

test('rule status of spacing: one call, or none until the next slot, reservations included', () => {
  const status = { kind: 'spacing', quota: 1, windowMs: 100 };
  const strict = { spacing: { every: 100 } };
  expect(statusesAt(500, strict)).toEqual([
    { ...status, remaining: 1, freshInMs: 0, opensInMs: 0 },
  ]);
  expect(statusesAt(540, strict, [1, 500])).toEqual([
    { ...status, remaining: 0, freshInMs: 60, opensInMs: 60 },
  ]);
  expect(statusesAt(640, strict, [1, 500])).toEqual([
    { ...status, remaining: 1, freshInMs: 0, opensInMs: 0 },
  ]);
  const reserving = { spacing: { every: 100, reserve: 1 } };
  expect(statusesAt(540, reserving, [1, 500])).toMatchObject([
    { remaining: 0, freshInMs: 60, opensInMs: 60 },
  ]);
  expect(statusesAt(540, reserving, [1, 500], [1, 510])).toMatchObject([
    { remaining: 0, freshInMs: 160, opensInMs: 60 },
  ]);
});

test('rule status of ramp: the level of this second, until the next', () => {
  const ramp = { ramp: { min: 2, max: 10, over: '4s' } } as const;
  const status = { kind: 'ramp', windowMs: 1000 };
  expect(statusesAt(300, ramp)).toEqual([
    { ...status, quota: 2, remaining: 2, freshInMs: 700, opensInMs: 0 },
  ]);
  expect(statusesAt(1300, ramp, [1, 0], [4, 1200])).toEqual([
    { ...status, quota: 4, remaining: 0, freshInMs: 700, opensInMs: 700 },
  ]);
});

test('rule status of busy: what its limit has left of this second', () => {
  expect(statusesAt(1300, { busy: { max: 5 } }, [2, 1100])).toEqual([
    {
      kind: 'busy',
      quota: 5,
      windowMs: 1000,
      remaining: 3,
      freshInMs: 700,
      opensInMs: 0,
      isCapacity: true,
    },
  ]);
  expect(statusesAt(1300, { busy: { max: 5 } }, [5, 1100])).toMatchObject([
    { remaining: 0, opensInMs: 700 },
  ]);
});

test('rule status of concurrency: slots, and no time until one comes free', () => {
  const three = { concurrency: 3 };
  const status = { kind: 'concurrency', quota: 3, isCapacity: true };
  expect(statusesAt(0, three, [1, 0])).toEqual([{ ...status, remaining: 2, opensInMs: 0 }]);
  expect(statusesAt(0, three, [3, 0])).toEqual([{ ...status, remaining: 0 }]);
});

test('rule status of all: one status per component', () => {
  const all = [{ bucket: { rate: 1, burst: 2 } }, { concurrency: 3 }];
  expect(statusesAt(0, { all }, [2, 0])).toMatchObject([
    { kind: 'bucket', remaining: 0, opensInMs: 1000 },
    { kind: 'concurrency', remaining: 1, opensInMs: 0 },
  ]);
});
