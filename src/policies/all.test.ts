import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { seededRandom } from '../core/random.ts';
import { adaptive } from './adaptive.ts';
import { all } from './all.ts';
import { bucket } from './bucket.ts';
import { createPolicy, type Limit } from './limit.ts';
import type { Policy } from './policy.ts';
import { ramp } from './ramp.ts';
import { specsOf } from './rules.ts';
import { spacing } from './spacing.ts';

const perSecondAndHour: Limit = {
  all: [{ bucket: { rate: '10/s' } }, { bucket: { rate: '15/h' } }],
};

const scenarios: Record<string, Scenario> = {
  'all: every component must allow, and the strictest decides': {
    limit: perSecondAndHour,
    rows: [
      [0, 'check 0', 'allow, 10 left'],
      [0, 'check 10', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 100'], // the limit per second
      [1_000, 'check 6', 'deny, retry in 239000'], // the hourly limit: one in four minutes
      [1_000, 'check 5', 'allow, 0 left'], // the refused check took nothing from either
      [1_000, 'check 1', 'deny, retry in 239000'],
      [1_000, 'check 11', 'deny, never'],
      [1_000, 'peek', 'remaining 0'],
    ],
  },

  'all: takeUpTo takes what the strictest component has': {
    limit: perSecondAndHour,
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [1_000, 'takeUpTo all', 'got 5'],
      [2_000, 'takeUpTo all', 'got 0'],
      [2_000, 'giveBack 3'],
      [2_000, 'takeUpTo all', 'got 3'], // given back to both
    ],
  },

  'all: a refusal restores every component exactly, the last reservation included': {
    limit: { all: [{ spacing: { every: '6s', reserve: 1 } }, { bucket: { rate: 1, burst: 2 } }] },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 6000'],
      [500, 'check 1', 'deny, retry in 5500'], // no slot, and no token
      [6_000, 'check 1', 'wait 6000'],
      [6_000, 'check 1', 'deny, retry in 6000'], // no slot; the token stays
      [6_000, 'peek', 'remaining 0, reserved 1'],
      [11_999, 'peek', 'reserved 1'],
    ],
  },

  'all: a reservation survives the refusal of another component': {
    limit: { all: [{ spacing: { every: '1s', reserve: 3 } }, { bucket: { rate: 0.1, burst: 2 } }] },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 1000'],
      [0, 'check 1', 'deny, retry in 10000'],
      [0, 'check 1', 'deny, retry in 10000'],
      [0, 'peek', 'reserved 1'],
      [10_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'all: the longest wait counts': {
    limit: {
      all: [{ spacing: { every: '2s', reserve: 5 } }, { spacing: { every: '3s', reserve: 2 } }],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 3000'],
      [0, 'check 1', 'wait 6000'],
      [0, 'check 1', 'deny, retry in 3000'],
      [9_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'all: the longest wait counts in any order of components': {
    limit: {
      all: [{ spacing: { every: '3s', reserve: 2 } }, { spacing: { every: '2s', reserve: 5 } }],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 3000'],
      [0, 'check 1', 'wait 6000'],
    ],
  },

  'all: shows the largest number of reservations': {
    limit: {
      all: [{ spacing: { every: '3s', reserve: 9 } }, { spacing: { every: '1s', reserve: 9 } }],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 3000'],
      [0, 'peek', 'remaining 0, reserved 3'], // one of 3 s, three of 1 s
    ],
  },

  'all: limits concurrency and rate at the same time': {
    limit: { all: [{ adaptive: { rule: 'aimd', initial: 3 } }, { bucket: { rate: 2, burst: 2 } }] },
    rows: [
      [0, 'check 1', 'allow, 1 left'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 500'], // two in flight still, not three
      [0, 'peek', 'in flight 2'],
      [500, 'check 1', 'allow, 0 left'],
      [1_000, 'check 1', 'deny, when settled'], // three in flight; the token stays
      [1_000, 'done failed'],
      [1_000, 'check 1', 'allow, 0 left'],
      [1_000, 'check 4', 'deny, never'], // more than the bucket ever holds
    ],
  },

  'all: of two refusals the later retry counts, and never is the latest': {
    limit: { all: [{ adaptive: { rule: 'aimd', max: 2 } }, { bucket: { rate: 1, burst: 5 } }] },
    rows: [
      [0, 'check 3', 'deny, never'],
      [0, 'check 6', 'deny, never'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 2', 'deny, when settled'],
      [0, 'done failed'],
      [0, 'update 4', 'applied'], // used by the bucket, ignored by adaptive
      [0, 'check 1', 'deny, retry in 1000'],
    ],
  },

  'all: a call refused by another component still advances a ramp': {
    limit: {
      all: [{ ramp: { min: 1, max: 5, over: '4s' } }, { spacing: { every: '10s' } }],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [1_000, 'check 1', 'deny, retry in 9000'],
      [2_000, 'check 1', 'deny, retry in 8000'],
      [10_000, 'peek', 'remaining 1, level 4'], // three steps from 1: a call came every time
      [10_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'all: a cost of 0 advances no component': {
    limit: {
      all: [{ ramp: { min: 1, max: 5, over: '4s' } }, { bucket: { rate: 10 } }],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [1_000, 'check 0', 'allow, 2 left'],
      [2_000, 'check 0', 'allow, 2 left'],
      [3_000, 'peek', 'level 2'], // one step from 1: no call came since
    ],
  },

  'all: an ignored call is returned to every component': {
    limit: { all: [{ spacing: { every: '6s' } }, { bucket: { rate: 1, burst: 2 } }, { busy: {} }] },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'done ignored'],
      [0, 'peek', 'remaining 1'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'done busy'],
      [0, 'peek', 'limit 0.5'],
    ],
  },

  'all: may be nested': {
    limit: {
      all: [
        { all: [{ bucket: { rate: 1, burst: 4 } }, { all: [{ spacing: { every: '1s' } }] }] },
        { all: [{ bucket: { rate: 1, burst: 3 } }] },
      ],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 1000'],
      [1_000, 'check 1', 'allow, 0 left'],
      [1_000, 'check 4', 'deny, never'],
    ],
  },

  'all: a single component behaves as itself': {
    limit: { all: [{ bucket: { rate: 10, burst: 3 } }] },
    rows: [
      [0, 'check 2', 'allow, 1 left'],
      [0, 'check 2', 'deny, retry in 100'],
      [100, 'check 2', 'allow, 0 left'],
    ],
  },
};

const dice = seededRandom(1);

describe('all', () => {
  runScenarios(scenarios);

  test('all: a refused check leaves every number unchanged', () => {
    const limit: Limit = {
      all: [
        { bucket: { rate: 3, burst: 9 } },
        { ramp: { min: 5, max: 9, over: '3s', mode: 'go-back-n' } },
        { busy: { max: 7 } },
        { adaptive: { rule: 'aimd', initial: 4 } },
        { spacing: { every: 0.3, reserve: 2 } },
      ],
    };
    const policy = createPolicy(limit, dice);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    let refused = 0;
    for (let n = 0; n < 500; n++) {
      const now = n * 77.7;
      policy.available(state, 0, now); // advances every component to this second, as any call does
      const before = state.slice();
      if (policy.check(state, 0, 1, now).verdict === 'deny') {
        refused++;
        expect(state).toEqual(before);
      }
      if (n % 3 === 0) {
        policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: now, rttMs: 50 }, now);
      }
    }
    expect(refused).toBeGreaterThan(50);
    expect(refused).toBeLessThan(450);
  });

  test('all: reports the properties of its components', () => {
    const parts = [bucket({ rate: 1 }), spacing({ every: '6s', expire: '2s' }), adaptive({}, dice)];
    const policy = all(parts);
    expect(policy.width).toBe(parts.reduce((sum, { width }) => sum + width, 0));
    expect(policy.traits.expireMs).toBe(2_000);
    expect(all([bucket({ rate: 1 })]).traits.expireMs).toBe(Infinity);
    expect(policy.kind).toBe('all');
  });

  test('all: needs what any component needs', () => {
    const plain = bucket({ rate: 1 });
    const adapting = adaptive({}, dice);
    const queue = spacing({ every: '6s', reserve: 1 });
    const ramping = ramp({ min: 1, max: 9, over: '4s' });
    const needs = (...parts: Policy[]) => {
      const { traits, chain } = all(parts);
      const { needsExactTime, needsOutcome, canReserve } = traits;
      return { needsExactTime, needsOutcome, canReserve, isPerSecond: !!chain?.advance };
    };
    const none = {
      needsExactTime: false,
      needsOutcome: false,
      canReserve: false,
      isPerSecond: false,
    };
    expect(needs(plain)).toEqual(none);
    expect(needs(plain, adapting)).toEqual({ ...none, needsExactTime: true, needsOutcome: true });
    expect(needs(plain, queue)).toEqual({ ...none, needsExactTime: true, canReserve: true });
    expect(needs(plain, ramping)).toEqual({ ...none, isPerSecond: true });
  });

  test('all: can be shared, in the order of its components, if each can', () => {
    const [plain, queue] = [bucket({ rate: 1 }), spacing({ every: '6s' })];
    expect(specsOf(all([plain, queue]))?.map(({ kind }) => kind)).toEqual(['bucket', 'spacing']);
    expect(specsOf(all([plain, adaptive({}, dice)]))).toBeUndefined();
  });

  test('all: has the rate of its slowest component', () => {
    const policy = all([bucket({ rate: 5 }), ramp({ min: 2, max: 20, over: '9s' })]);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    const paces = [0, 1_000, 2_000].map((now) => {
      policy.check(state, 0, 1, now);
      return policy.divide?.ratePerSecond?.(state, 0, now);
    });
    expect(paces).toEqual([2, 4, 5]);
  });

  test('all: is removable when its last component is', () => {
    const policy = all([bucket({ rate: 1, burst: 9 }), spacing({ every: '6s' })]);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.check(state, 0, 1, 0);
    expect(policy.freshAt(state, 0, false)).toBe(6_000);
    policy.check(state, 0, 1, 6_000);
    policy.update(state, 0, { hits: 8 }, 6_000);
    expect(policy.freshAt(state, 0, false)).toBe(60_000); // 6 s + 9 × 6 s of slots taken elsewhere
    expect(policy.freshAt(state, 0, true)).toBe(60_000);
  });

  test('all: a key evicted too early is so in every component', () => {
    const policy = all([bucket({ rate: 1, burst: 9 }), spacing({ every: '6s' })]);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0, 7_000);
    expect(policy.check(state, 0, 1, 0)).toMatchObject({ verdict: 'deny', retryAfterMs: 7_000 });
  });

  test('all: passes feedback to every component, and one that uses it is enough', () => {
    const policy = all([spacing({ every: '1s' }), ramp({ min: 9, max: 9, over: '1s' })]);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    expect(policy.update(state, 0, { poolSize: 3 }, 0)).toBe(true);
    expect(policy.keyState(state, 0, 0)).toMatchObject({ remaining: 1, level: 9 });
    const deaf = all([adaptive({}, dice)]);
    expect(deaf.update(new Float64Array(deaf.width), 0, { hits: 1 }, 0)).toBe(false);
  });

  test('all: a single component decides alone, also on refusals', () => {
    // A ramp grows also at a refused call.
    const options = { ramp: { min: 2, max: 10, over: '8s' } } as const;
    const [alone, within] = [createPolicy(options, dice), createPolicy({ all: [options] }, dice)];
    const [bare, inner] = [alone, within].map(({ width }) => new Float64Array(width));
    alone.init(bare, 0, 0);
    within.init(inner, 0, 0);
    for (let now = 0; now < 10_000; now += 500) {
      expect(within.check(inner, 0, 4, now)).toEqual(alone.check(bare, 0, 4, now));
    }
  });

  test('all: shows the binding value of a field that several components have', () => {
    const policy = createPolicy({ all: [{ concurrency: 3 }, { busy: {} }] }, dice);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    expect(policy.keyState(state, 0, 0)).toEqual({ remaining: 3, limit: 3, inFlight: 0 });
  });

  test('all: takes the partitions of a component, and refuses differing ones', () => {
    const parted = { concurrency: { limit: 10, partitions: { live: 0.9, batch: 0.1 } } };
    const policy = createPolicy({ all: [{ bucket: { rate: 5 } }, parted, parted] }, dice);
    expect(policy.classes?.names).toEqual(['live', 'batch']);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.check(state, 0, 2, 0, 1);
    expect(policy.keyState(state, 0, 0)).toMatchObject({
      ...{ remaining: 3, limit: 10, inFlight: 2 },
      partitions: { live: 0, batch: 2 },
    });
    const other = { concurrency: { limit: 10, partitions: { batch: 0.1, live: 0.9 } } };
    expect(() => createPolicy({ all: [parted, other] }, dice)).toThrow(
      'expected `limit.all` to be limits with the same partitions (live,batch), got ["batch","live"]',
    );
  });

  test('all: keeps slots for a refused partition across several components', () => {
    const parted = { concurrency: { limit: 4, partitions: { live: 0.5, batch: 0.5 } } };
    const policy = createPolicy({ all: [{ bucket: { rate: 100 } }, parted] }, dice);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    const [live, batch] = [0, 1];
    const check = (partitionIndex: number) => policy.check(state, 0, 1, 0, partitionIndex).verdict;
    expect([check(batch), check(batch), check(batch), check(batch)]).toEqual(
      Array(4).fill('allow'),
    );
    expect(check(live)).toBe('deny');
    policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 0, partition: batch }, 0);
    expect(check(batch)).toBe('deny');
    expect(check(live)).toBe('allow');
  });

  test('all: resumes the level of a single ramp, and of none if there are several', () => {
    const ramp = { ramp: { min: 2, max: 10, over: '8s', resumeFor: '1m' } } as const;
    const resumeForMs = (...all: Limit[]) => createPolicy({ all }, dice).divide?.resumeForMs;
    expect(resumeForMs({ bucket: { rate: 5 } }, ramp)).toBe(60_000);
    expect(resumeForMs(ramp, ramp)).toBeUndefined();
    expect(resumeForMs({ bucket: { rate: 5 } })).toBeUndefined();
  });

  test('all: two spacings count from when the call happens, cancelled or not', () => {
    const parts = [spacing({ every: '6s', reserve: 5 }), spacing({ every: '10s', reserve: 5 })];
    const policy = all(parts);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.check(state, 0, 1, 0);
    const cancelled = policy.check(state, 0, 1, 0);
    expect(cancelled).toEqual({ verdict: 'wait', waitMs: 10_000 });
    policy.settle(state, 0, { outcome: 'ignored', cost: 1, dueAt: 10_000 }, 0);
    expect(policy.check(state, 0, 1, 0)).toEqual({ verdict: 'wait', waitMs: 10_000 });
    expect(policy.check(state, 0, 1, 0)).toEqual({ verdict: 'wait', waitMs: 20_000 });
  });

  test('all: a component that would allow at once counts from when the call happens', () => {
    const policy = all([spacing({ every: '6s' }), spacing({ every: '10s', reserve: 1 })]);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.check(state, 0, 1, 0);
    expect(policy.check(state, 0, 1, 7_000)).toEqual({ verdict: 'wait', waitMs: 3_000 });
    expect(policy.check(state, 0, 1, 13_000)).toMatchObject({ verdict: 'deny' }); // 6 s after 10 s
    expect(policy.check(state, 0, 1, 16_000)).toEqual({ verdict: 'wait', waitMs: 4_000 });
  });

  test('all: refuses more than 64 components', () => {
    const many = Array.from({ length: 65 }, () => bucket({ rate: 1 }));
    expect(() => all(many.slice(1))).not.toThrow();
    expect(() => all(many)).toThrow('expected `all` to be at most 64 limits, got 65');
  });

  test('all: refuses an empty list', () => {
    expect(() => all([])).toThrow('expected `all` to be a list of at least one limit, got []');
    expect(() => all([], 'limit.all[2].all')).toThrow(
      expect.objectContaining({ code: 'CONFIG', field: 'limit.all[2].all' }),
    );
  });
});
