import { expect, test } from 'vitest';
import { NEVER } from '../core/decision.ts';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from './limit.ts';
import type { RuleStatus } from './policy.ts';

type Spent = readonly [cost: number, atMs: number];

/** How the rules of a limit stand at an instant, after so much was asked for. */
function standingsAt(now: number, limit: Limit, ...spent: readonly Spent[]): RuleStatus[] {
  const policy = createPolicy(limit, seededRandom(1));
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  for (const [cost, at] of spent) policy.check(state, 0, cost, at);
  return policy.ruleStatuses(state, 0, now);
}

test('spacing: one call, or none until the next place; with one to reserve, that can be had now', () => {
  const own = { kind: 'spacing', quota: 1, windowMs: 100 };
  const strict = { spacing: { every: 100 } };
  expect(standingsAt(500, strict)).toEqual([{ ...own, remaining: 1, freshInMs: 0, opensInMs: 0 }]);
  expect(standingsAt(540, strict, [1, 500])).toEqual([
    { ...own, remaining: 0, freshInMs: 60, opensInMs: 60 },
  ]);
  expect(standingsAt(640, strict, [1, 500])).toEqual([
    { ...own, remaining: 1, freshInMs: 0, opensInMs: 0 },
  ]);
  const patient = { spacing: { every: 100, reserve: 1 } };
  expect(standingsAt(540, patient, [1, 500])).toMatchObject([
    { remaining: 0, freshInMs: 60, opensInMs: 60 },
  ]);
  expect(standingsAt(540, patient, [1, 500], [1, 510])).toMatchObject([
    { remaining: 0, freshInMs: 160, opensInMs: 60 },
  ]);
});

test('ramp: the pool of this second, until the next', () => {
  const ramp = { ramp: { min: 2, max: 10, over: '4s' } } as const;
  const own = { kind: 'ramp', windowMs: 1000 };
  expect(standingsAt(300, ramp)).toEqual([
    { ...own, quota: 2, remaining: 2, freshInMs: 700, opensInMs: 0 },
  ]);
  expect(standingsAt(1300, ramp, [1, 0], [4, 1200])).toEqual([
    { ...own, quota: 4, remaining: 0, freshInMs: 700, opensInMs: 700 },
  ]);
});

test('busy: what its limit has left of this second', () => {
  expect(standingsAt(1300, { busy: { max: 5 } }, [2, 1100])).toEqual([
    { kind: 'busy', quota: 5, windowMs: 1000, remaining: 3, freshInMs: 700, opensInMs: 0 },
  ]);
  expect(standingsAt(1300, { busy: { max: 5 } }, [5, 1100])).toMatchObject([
    { remaining: 0, opensInMs: 700 },
  ]);
});

test('calls in flight: places, and no time when one comes free', () => {
  const three = { adaptive: { fixed: 3 } };
  const own = { kind: 'adaptive', quota: 3 };
  expect(standingsAt(0, three, [1, 0])).toEqual([{ ...own, remaining: 2, opensInMs: 0 }]);
  expect(standingsAt(0, three, [3, 0])).toEqual([{ ...own, remaining: 0 }]);
});

test('a bucket too small for a call never opens', () => {
  expect(standingsAt(0, { bucket: { rate: 1, burst: 0.5 } })).toMatchObject([
    { remaining: 0, opensInMs: NEVER },
  ]);
});

test('several limits stand one beside the other', () => {
  const all = [{ bucket: { rate: 1, burst: 2 } }, { adaptive: { fixed: 3 } }];
  expect(standingsAt(0, { all }, [2, 0])).toMatchObject([
    { kind: 'bucket', remaining: 0, opensInMs: 1000 },
    { kind: 'adaptive', remaining: 1, opensInMs: 0 },
  ]);
});
