import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario, type ScenarioRow } from '../../test/support/scenario.ts';
import { ConfigError } from '../core/errors.ts';
import { bucket } from './bucket.ts';
import { takeUpTo } from './policy.ts';

const WEEK = 7 * 86_400_000;
const FAR = 1e15; // an instant so far out that a double holds only eighths of a millisecond

/** `count` hits one by one on a bucket that holds `from`. */
const hits = (at: number, node: string, count: number, from: number): ScenarioRow[] =>
  Array.from({ length: count }, (_, n) => [at, `${node}: check 1`, `allow, ${from - n - 1} left`]);

const scenarios: Record<string, Scenario> = {
  'bucket: a burst empties the bucket, which then refills at the rate': {
    limit: { bucket: { rate: 10, burst: 3 } },
    rows: [
      [0, 'check 2', 'allow, 1 left'],
      [0, 'check 2', 'deny, retry in 100'], // a denied request takes nothing,
      [0, 'check 1', 'allow, 0 left'], // so the token is still there
      [99, 'check 1', 'deny, retry in 1'],
      [100, 'check 1', 'allow, 0 left'],
      [250, 'check 1', 'allow, 0 left'], // one and a half were refilled: half a token stays
      [250, 'check 1', 'deny, retry in 50'],
      [9_000, 'check 3', 'allow, 0 left'], // refills up to the burst
      [9_000, 'check 1', 'deny, retry in 100'],
    ],
  },

  'bucket: refuses a cost above the burst for good': {
    limit: { bucket: { rate: 1, burst: 5 } },
    rows: [
      [0, 'check 6', 'deny, never'],
      [0, 'check Infinity', 'deny, never'],
      [0, 'check 5', 'allow, 0 left'],
      [0, 'check 5', 'deny, retry in 5000'], // refused until then, not for good
      [0, 'check 5.001', 'deny, never'],
    ],
  },

  'bucket: a cost of 0 changes nothing, even in debt': {
    limit: { bucket: { rate: 1, burst: 2 } },
    rows: [
      [0, 'check 0', 'allow, 2 left'],
      [0, 'check 2', 'allow, 0 left'],
      [0, 'check 0', 'allow, 0 left'],
      [0, 'update 5', 'applied'],
      [0, 'check 0', 'allow, 0 left'],
      [0, 'peek', 'remaining -5'],
      [5_999, 'check 1', 'deny, retry in 1'],
      [6_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'bucket: takeUpTo takes what is available': {
    limit: { bucket: { rate: 1, burst: 5 } },
    rows: [
      [0, 'takeUpTo 2', 'got 2'],
      [0, 'takeUpTo all', 'got 3'],
      [0, 'takeUpTo all', 'got 0'],
      [2_900, 'takeUpTo 7', 'got 2'], // 2.9 were refilled; only whole tokens are granted
      [3_000, 'takeUpTo all', 'got 1'],
    ],
  },

  'bucket: returns unused tokens, up to the burst': {
    limit: { bucket: { rate: 1, burst: 10 } },
    rows: [
      [0, 'check 4', 'allow, 6 left'],
      [0, 'done ok cost 4 used 1'],
      [0, 'peek', 'remaining 9'],
      [0, 'giveBack 1'],
      [0, 'peek', 'remaining 10'],
      [0, 'check 3', 'allow, 7 left'],
      [2_000, 'giveBack 3'], // two of the three were refilled already: never above the burst
      [2_000, 'peek', 'remaining 10'],
      [2_000, 'check 11', 'deny, never'],
    ],
  },

  'bucket: an ignored call costs nothing, a failed one does': {
    limit: { bucket: { rate: 1, burst: 10 } },
    rows: [
      [0, 'check 3', 'allow, 7 left'],
      [0, 'done ignored cost 3'],
      [0, 'peek', 'remaining 10'],
      [0, 'check 3', 'allow, 7 left'],
      [0, 'done failed cost 3'],
      [0, 'done busy cost 3'],
      [0, 'done timeout cost 3'],
      [0, 'done ok cost 3'],
      [0, 'peek', 'remaining 7'],
    ],
  },

  'bucket: use beyond the cost becomes debt': {
    limit: { bucket: { rate: 1, burst: 10 } },
    rows: [
      [0, 'check 2', 'allow, 8 left'],
      [0, 'done ok cost 2 used 12'],
      [0, 'peek', 'remaining -2'],
      [0, 'check 1', 'deny, retry in 3000'],
      [2_999, 'check 1', 'deny, retry in 1'],
      [3_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'bucket: hits elsewhere cause debt, which is refilled': {
    limit: { bucket: { rate: 1, burst: 10 } },
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [1_000, 'update 8', 'applied'],
      [1_000, 'peek', 'remaining -7'],
      [1_000, 'check 1', 'deny, retry in 8000'],
      [1_000, 'takeUpTo all', 'got 0'],
      [8_999, 'check 1', 'deny, retry in 1'],
      [9_000, 'check 1', 'allow, 0 left'],
      [9_000, 'pool 3', 'ignored'],
    ],
  },

  'bucket: maxDebt bounds the debt': {
    limit: { bucket: { rate: 1, burst: 10, maxDebt: 5 } },
    rows: [
      [0, 'update 100'],
      [0, 'peek', 'remaining -5'],
      [0, 'check 1', 'deny, retry in 6000'],
      [1_000, 'peek', 'remaining -4'],
      [1_000, 'update 100'],
      [1_000, 'peek', 'remaining -5'],
      [7_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'bucket: maxDebt 0 means no debt': {
    limit: { bucket: { rate: 1, burst: 10, maxDebt: 0 } },
    rows: [
      [0, 'update 100'],
      [0, 'peek', 'remaining 0'],
      [0, 'check 1', 'deny, retry in 1000'],
    ],
  },

  'bucket: maxDebt bounds the debt from use beyond the cost': {
    limit: { bucket: { rate: 1, burst: 10, maxDebt: 5 } },
    rows: [
      [0, 'check 1', 'allow, 9 left'],
      [0, 'done ok cost 1 used 13'],
      [0, 'peek', 'remaining -3'],
      [0, 'done ok cost 0 used 1000000000000000'],
      [0, 'peek', 'remaining -5'],
      [0, 'update 3'],
      [0, 'peek', 'remaining -5'],
      [6_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'bucket: without maxDebt, use beyond the cost causes at most the debt that an hour refills': {
    limit: { bucket: { rate: 1, burst: 10 } },
    rows: [
      [0, 'check 1', 'allow, 9 left'],
      [0, 'done ok cost 1 used 1000000000000000'],
      [0, 'peek', 'remaining -3600'],
      [1_000, 'done ok cost 0 used 1000000000000000'],
      [1_000, 'peek', 'remaining -3600'],
      [3_602_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'bucket: a slow bucket without maxDebt owes at most a second burst by use beyond the cost': {
    limit: { bucket: { rate: '1/7d', burst: 10 } },
    rows: [
      [0, 'check 1', 'allow, 9 left'],
      [0, 'done ok cost 1 used 1000000000000000'],
      [0, 'peek', 'remaining -10'],
    ],
  },

  // The timeline of the DThrottle seed, to the tenth of a second: its table rounds t=6.1 to 6.
  'bucket: a client that spreads 18 hits over two nodes gains nothing': {
    limit: { bucket: { rate: 1, burst: 10 } },
    nodes: ['A', 'B'],
    rows: [
      [0, 'A: peek', 'remaining 10'],
      [0, 'B: peek', 'remaining 10'],
      ...hits(100, 'A', 9, 10),
      ...hits(100, 'B', 8, 10),
      [200, 'A: check 1', 'allow, 0 left'],
      [200, 'A: check 1', 'deny, retry in 900'], // refused, so never reported
      [200, 'B: peek', 'remaining 2'],
      [5_000, 'A: update 8'],
      [5_000, 'B: update 10'],
      [5_100, 'A: peek', 'remaining -3'],
      [5_100, 'B: peek', 'remaining -3'],
      [5_200, 'A: check 1', 'deny, retry in 3900'],
      [5_200, 'B: check 1', 'deny, retry in 3900'],
      [6_100, 'A: peek', 'remaining -2'],
      [7_100, 'B: peek', 'remaining -1'],
      [8_100, 'A: peek', 'remaining 0'],
      [9_099, 'A: check 1', 'deny, retry in 1'],
      [9_099, 'B: check 1', 'deny, retry in 1'],
      [9_100, 'A: check 1', 'allow, 0 left'], // nine seconds after the burst
      [9_100, 'B: peek', 'remaining 1'],
    ],
  },

  'bucket: time that goes backwards stands still': {
    limit: { bucket: { rate: 10, burst: 2 } },
    rows: [
      [1_000, 'check 2', 'allow, 0 left'],
      [400, 'check 1', 'deny, retry in 700'], // until 1100, as before
      [400, 'peek', 'remaining 0'],
      [400, 'update 1'],
      [1_000, 'peek', 'remaining -1'], // the time from 400 to 1000 refills once
      [1_199, 'check 1', 'deny, retry in 1'],
      [1_200, 'check 1', 'allow, 0 left'],
      [600, 'giveBack 1'],
      [600, 'peek', 'remaining 1'],
      [1_299, 'takeUpTo all', 'got 1'], // 1.99 of them
      [1_301, 'takeUpTo all', 'got 1'],
    ],
  },

  'bucket: a week idle earns one burst': {
    limit: { bucket: { rate: '500/m' } }, // the burst is the count of the rate
    rows: [
      [0, 'check 500', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 120'],
      [WEEK, 'check 500', 'allow, 0 left'],
      [WEEK, 'check 1', 'deny, retry in 120'],
      [2 * WEEK, 'peek', 'remaining 500'],
    ],
  },

  'bucket: keeps tokens exact far from time zero': {
    limit: { bucket: { rate: 10, burst: 3 } },
    rows: [
      [FAR, 'check 3', 'allow, 0 left'],
      [FAR, 'check 1', 'deny, retry in 100'],
      [FAR + 99.875, 'check 1', 'deny, retry in 1'],
      [FAR + 100, 'check 1', 'allow, 0 left'],
      [FAR + 150, 'check 1', 'deny, retry in 50'],
    ],
  },

  'bucket: keeps a million a second exact far from time zero': {
    limit: { bucket: { rate: 1_000_000, burst: 1_000 } },
    rows: [
      [FAR, 'peek', 'remaining 1000'],
      [FAR, 'check 1001', 'deny, never'],
      [FAR, 'check 1000', 'allow, 0 left'],
      [FAR, 'check 1', 'deny, retry in 1'],
      [FAR + 0.125, 'takeUpTo all', 'got 125'],
      [FAR + 0.125, 'check 1', 'deny, retry in 1'],
      [FAR + 0.5, 'check 376', 'deny, retry in 1'],
      [FAR + 0.5, 'check 375', 'allow, 0 left'],
      [FAR + 1_000, 'takeUpTo all', 'got 1000'],
    ],
  },

  // A microsecond is worth a whole token here: the tolerance must not grant it.
  'bucket: a million a second with a burst of one allows one at a time': {
    limit: { bucket: { rate: 1_000_000, burst: 1 } },
    rows: [
      [0, 'peek', 'remaining 1'],
      [0, 'check 2', 'deny, never'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 1'],
      [1, 'takeUpTo all', 'got 1'],
      [1, 'takeUpTo all', 'got 0'],
    ],
  },

  'bucket: one in six seconds allows no more than one': {
    limit: { bucket: { rate: '1/6s' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 6000'],
      [5_999, 'check 1', 'deny, retry in 1'],
      [6_000, 'check 1', 'allow, 0 left'],
      [60_000, 'takeUpTo all', 'got 1'],
    ],
  },

  // A millionth of a token is four milliseconds here: the tolerance must not admit early calls.
  'bucket: one an hour is exact to the millisecond': {
    limit: { bucket: { rate: '1/h' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 3600000'],
      [3_599_999, 'check 1', 'deny, retry in 1'],
      [3_600_000, 'check 1', 'allow, 0 left'],
    ],
  },
  'bucket: one a day is exact at any time of day': {
    limit: { bucket: { rate: '1/d' } },
    rows: [
      [1_700_000_000_123, 'check 1', 'allow, 0 left'],
      [1_700_000_000_123, 'check 1', 'deny, retry in 86400000'],
      [1_700_086_400_122, 'check 1', 'deny, retry in 1'],
      [1_700_086_400_123, 'check 1', 'allow, 0 left'],
    ],
  },

  // Three times 333.3 is a little more than 999.9 in doubles, and nothing is refilled meanwhile.
  'bucket: parts of a large burst add up to it at a slow rate': {
    limit: { bucket: { rate: '1/365d', burst: 999.9 } },
    rows: [
      [0, 'check 333.3', 'allow, 666 left'],
      [0, 'check 333.3', 'allow, 333 left'],
      [0, 'check 333.3', 'allow, 0 left'],
    ],
  },

  'bucket: a rate below one has a default burst of one': {
    limit: { bucket: { rate: 0.5 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 2000'],
    ],
  },
};

describe('bucket', () => {
  runScenarios(scenarios);

  // Rates whose interval is not exact in doubles: the retry time must be exact to the millisecond.
  const crooked = [3, 7, 0.3, 1 / 3, 13.7, 333, 999.9, 77_777, 123_456.789, 1_000_000];

  for (const rate of crooked) {
    for (const startAt of [0, 1_700_000_000_123.4, FAR]) {
      test(`bucket: ${rate}/s from ${startAt} on: a retry in 412 ms fits then, and not before`, () => {
        const policy = bucket({ rate, burst: 5 });
        const state = new Float64Array(2);
        let now = startAt;
        policy.init(state, 0, now);

        for (let n = 0; n < 500; n++) {
          const cost = 1 + (n % 5);
          const decision = policy.check(state, 0, cost, now);
          if (decision.verdict !== 'deny') continue;
          const opensAt = now + decision.retryAfterMs;
          const early = policy.check(state.slice(), 0, cost, opensAt - 1.125);
          expect(early.verdict, `step ${n}: open before its time`).toBe('deny');
          now = opensAt;
          expect(policy.check(state, 0, cost, now).verdict, `step ${n}: still closed`).toBe(
            'allow',
          );
        }
      });
    }
  }

  test('bucket: sums of fractions lose no token: ten tenths are one', () => {
    const policy = bucket({ rate: 10, burst: 1 });
    const state = new Float64Array(2);
    policy.init(state, 0, 0);
    for (let n = 0; n < 10; n++) expect(policy.check(state, 0, 0.1, 0).verdict).toBe('allow');
    expect(policy.check(state, 0, 0.1, 0).verdict).toBe('deny');
    for (let n = 0; n < 10; n++) {
      policy.settle(state, 0, { outcome: 'ignored', cost: 0.1, dueAt: 0 }, 0);
    }
    expect(policy.available(state, 0, 0)).toBe(1);
  });

  test('bucket: a key whose tokens were all returned is as good as new despite rounding', () => {
    const policy = bucket({ rate: 10, burst: 1 });
    const state = new Float64Array(2);
    policy.init(state, 0, 0);
    for (let n = 0; n < 3; n++) policy.check(state, 0, 0.1, 0); // a little more than 0.3 in doubles
    policy.settle(state, 0, { outcome: 'ignored', cost: 0.3, dueAt: 0 }, 0);
    expect(policy.ruleStatuses(state, 0, 0)).toMatchObject([{ remaining: 1, freshInMs: 0 }]);
  });

  // A double of this size cannot hold the refill of a millisecond: the first estimate may be too early.
  test('bucket: a retry at the given time succeeds, even centuries away in a pool of two', () => {
    const whole = bucket({ rate: '1/30d', burst: 1_000_000 });
    const policy = whole.divide?.ofPool?.({ size: 2, rank: 0, since: 0 }, 0) ?? whole;
    for (let n = 1; n <= 100; n++) {
      const state = new Float64Array(2);
      policy.init(state, 0, n);
      policy.update(state, 0, { hits: 700_000 + n / 3.3 }, n);
      const cost = 400_000 + n;
      const decision = policy.check(state, 0, cost, n);
      const waitMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
      expect(waitMs).toBeGreaterThan(1e12);
      expect(policy.check(state, 0, cost, n + waitMs).verdict, `step ${n}`).toBe('allow');
    }
  });

  test('bucket: feedback on remaining calls lowers the level, never raises it', () => {
    const policy = bucket({ rate: 1, burst: 10 });
    const state = new Float64Array(2);
    policy.init(state, 0, 0);
    expect(policy.update(state, 0, { remaining: 4 }, 0)).toBe(true);
    expect(policy.available(state, 0, 0)).toBe(4);
    expect(policy.update(state, 0, { remaining: 9 }, 0)).toBe(true);
    expect(policy.available(state, 0, 0)).toBe(4);
  });

  test('bucket: a key evicted too early starts with what it may have spent', () => {
    const policy = bucket({ rate: 1, burst: 10 });
    const state = new Float64Array(2);
    policy.init(state, 0, 1_000, 5_000); // as good as new at 5 s: four tokens below the burst
    expect(policy.available(state, 0, 1_000)).toBe(6);
    expect(policy.freshAt(state, 0, false)).toBe(5_000);
    policy.init(state, 0, 1_000, 14_000); // in debt
    expect(policy.keyState(state, 0, 1_000).remaining).toBe(-3);
    policy.init(state, 0, 1_000, 500); // long over
    expect(policy.available(state, 0, 1_000)).toBe(10);
  });

  test('bucket: is removable when the last token is back, never earlier', () => {
    const policy = bucket({ rate: 1_000_000, burst: 1_000 });
    const state = new Float64Array(2);
    policy.init(state, 0, FAR);
    policy.check(state, 0, 30, FAR); // three hundredths of a millisecond: too little to move FAR
    const forgetAt = policy.freshAt(state, 0, false);
    expect(forgetAt).toBeGreaterThan(FAR);
    expect(policy.available(state, 0, forgetAt)).toBe(1_000);
    expect(policy.freshAt(state, 0, true)).toBe(forgetAt);
  });

  test('bucket: grants the same in total however a batch is split', () => {
    const policy = bucket({ rate: 8, burst: 100 });
    const [one, many] = [new Float64Array(2), new Float64Array(2)];
    for (const state of [one, many]) policy.init(state, 0, 0);
    for (let now = 0; now < 60_000; now += 125) {
      let piecemeal = 0;
      while (takeUpTo(policy, many, 0, 1, now) > 0) piecemeal++;
      expect(piecemeal).toBe(takeUpTo(policy, one, 0, Infinity, now));
    }
  });

  test('bucket: refuses a burst below 1, in which no call ever fits', () => {
    expect(() => bucket({ rate: 1, burst: 0.75 })).toThrow('`bucket.burst` to be at least 1');
    expect(() => bucket({ rate: 0.5 })).not.toThrow(); // its burst is 1
  });

  test.each([
    // a window is as long as the burst takes to come back, in whole seconds
    [{ rate: 10 }, { quota: 10, windowMs: 1000 }],
    [
      { rate: 10, burst: 3 },
      { quota: 10, windowMs: 1000 },
    ],
    [
      { rate: 10, burst: 25 },
      { quota: 30, windowMs: 3000 },
    ],
    [{ rate: '500/m' }, { quota: 500, windowMs: 60_000 }],
    [
      { rate: '1/6s', burst: 2.5 },
      { quota: 2, windowMs: 15_000 },
    ],
  ] as const)('bucket: %j reports its quota and window', (options, terms) => {
    const policy = bucket(options);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    expect(policy.ruleStatuses(state, 0, 0)).toMatchObject([terms]);
  });

  test('bucket: rule status: what remains, when one call fits, when it is as good as new', () => {
    const policy = bucket({ rate: 10, burst: 5 });
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    const standing = (now: number) => policy.ruleStatuses(state.slice(), 0, now)[0];
    expect(standing(0)).toMatchObject({ remaining: 5, opensInMs: 0, freshInMs: 0 });
    policy.check(state, 0, 5, 0);
    expect(standing(30)).toMatchObject({ remaining: 0, opensInMs: 70, freshInMs: 470 });
    policy.update(state, 0, { hits: 2 }, 30);
    expect(standing(30)).toMatchObject({ remaining: 0, opensInMs: 270, freshInMs: 670 });
    expect(standing(310)).toMatchObject({ remaining: 1, opensInMs: 0, freshInMs: 390 });
    expect(standing(700)).toMatchObject({ remaining: 5, opensInMs: 0, freshInMs: 0 });
  });

  test('bucket: refuses an invalid cost and counts nothing', () => {
    const policy = bucket({ rate: 1, burst: 5 });
    const state = new Float64Array(2);
    policy.init(state, 0, 0);
    for (const cost of [-1, Number.NaN, -Infinity]) {
      expect(() => policy.check(state, 0, cost, 0)).toThrow(ConfigError);
    }
    expect(policy.available(state, 0, 0)).toBe(5);
  });

  test.each([
    ['an empty one', 10, 3, 3],
    ['one that is nearly there', 6, 3, 5],
    ['one that is above already', 2, 3, 8],
    ['one in debt', 14, 3, -1],
  ])(
    'bucket: credit from another bucket fills %s at most to its bound',
    (_, spent, units, expected) => {
      const policy = bucket({ rate: 1e-9, burst: 10 });
      const state = new Float64Array(2);
      policy.update(state, 0, { hits: spent }, 0);
      policy.divide?.credit?.(state, 0, units, 5, 0);
      expect(policy.keyState(state, 0, 0).remaining).toBe(expected);
    },
  );

  test.each([
    [3, 0, 3],
    [20, 4, 6],
    [20, 4.5, 5],
    [20, 10, 0],
    [20, 12, 0],
  ])('bucket: of ten, takeUpTo %i that leaves %d takes %i', (most, leave, expected) => {
    const policy = bucket({ rate: 1e-9, burst: 10 });
    expect(takeUpTo(policy, new Float64Array(2), 0, most, 0, leave)).toBe(expected);
  });

  const nonsense: readonly (readonly [options: unknown, field: string])[] = [
    [{}, 'bucket.rate'],
    [{ rate: 0 }, 'bucket.rate'],
    [{ rate: -1 }, 'bucket.rate'],
    [{ rate: Number.NaN }, 'bucket.rate'],
    [{ rate: Infinity }, 'bucket.rate'],
    [{ rate: 'often' }, 'bucket.rate'],
    [{ rate: '1/0s' }, 'bucket.rate'],
    [{ rate: '0/s' }, 'bucket.rate'],
    [{ rate: 1, burst: 0 }, 'bucket.burst'],
    [{ rate: 1, burst: -3 }, 'bucket.burst'],
    [{ rate: 1, burst: Number.NaN }, 'bucket.burst'],
    [{ rate: 1, burst: Infinity }, 'bucket.burst'],
    [{ rate: 1, burst: '3' }, 'bucket.burst'],
    [{ rate: 1, maxDebt: -1 }, 'bucket.maxDebt'],
    [{ rate: 1, maxDebt: Number.NaN }, 'bucket.maxDebt'],
    [{ rate: 1, brust: 3 }, 'bucket.brust'],
    [null, 'bucket'],
    [[], 'bucket'],
    ['100/s', 'bucket'],
  ];
  test.for(nonsense)('bucket: refuses %j, naming %s', ([options, field]) => {
    expect(() => bucket(options as never)).toThrow(
      expect.objectContaining({ code: 'CONFIG', field }),
    );
  });
});
