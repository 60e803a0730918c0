import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { UNLIMITED } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { type BusyOptions, busy, busyRule } from './busy.ts';

const WEEK = 7 * 86_400_000;
const FAR = 1e15; // an instant so far out that a double holds only eighths of a millisecond

/** 'check 1000' is a thousand calls at one instant. */
const scenarios: Record<string, Scenario> = {
  'busy: without busy replies there is no limit in practice': {
    limit: { busy: {} },
    rows: [
      [0, 'check 5000', 'allow, 9994999 left'],
      [500, 'done ok'],
      [500, 'done failed'],
      [500, 'done timeout'], // a timeout is not a busy reply
      [500, 'peek', 'remaining 9994999, limit 9999999'],
      [500, 'update 5', 'ignored'],
      [500, 'pool 3', 'ignored'],
    ],
  },

  'busy: a busy reply halves the rate that is sent, not the limit': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [500, 'done busy'],
      [500, 'peek', 'limit 500'],
      [500, 'done busy'],
      [500, 'done busy'],
      [500, 'peek', 'limit 125'],
    ],
  },

  'busy: good replies that outnumber the busy ones restore the limit': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [500, 'done busy'],
      [500.2, 'done ok'], // one good and one busy reply within 0.2 ms: 10,000 good replies a second
      [500.2, 'peek', 'limit 9999999'],
      [600, 'done busy'], // twice the one good reply of 100 ms is less than the send rate
      [600, 'peek', 'limit 500'],
    ],
  },

  'busy: a service that takes a part of the traffic gets twice that part': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [500, 'done busy'],
      [1_490, 'done busy'],
      [1_490, 'done ok cost 99'],
      [1_490, 'done busy'], // 99 in 990 ms: the limit is 200 a second, however many replies are busy
      [1_490, 'done busy'],
      [1_490, 'done busy'],
      [1_490, 'peek', 'limit 200'],
    ],
  },

  'busy: below its maximum the limit is spread over the second, in bursts of 100 ms': {
    limit: { busy: {} },
    rows: [
      [0, 'check 40', 'allow, 9999959 left'],
      [500, 'done busy'],
      [500, 'peek', 'remaining 20, limit 20'],
      [500, 'check 1', 'allow, 20 left'], // 100 ms are two calls
      [500, 'check 1', 'allow, 20 left'],
      [500, 'check 1', 'allow, 0 left'],
      [500, 'check 1', 'deny, retry in 50'],
      [550, 'check 1', 'allow, 0 left'],
      [550, 'check 20', 'deny, retry in 50'],
      [600, 'check 20', 'allow, 0 left'],
      [600, 'check 1', 'deny, retry in 600'], // a second of pace, but a probe after 600 ms
    ],
  },

  'busy: the send rate is that of the last 1000 ms': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [1_200, 'check 300', 'allow, 9999699 left'],
      [1_500, 'done busy'], // 300 of this second, half of the 1000 of the one before
      [1_500, 'peek', 'limit 400'],
    ],
  },

  'busy: a second without calls resets the send rate': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [2_000, 'check 10', 'allow, 9999989 left'],
      [2_000, 'done busy'],
      [2_000, 'peek', 'limit 5'],
    ],
  },

  'busy: below one call a second a probe passes every 600 ms': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1', 'allow, 9999998 left'],
      [10, 'done busy'],
      [10, 'peek', 'remaining 0, limit 0.5'],
      [10, 'check 1', 'deny, retry in 590'],
      [10, 'check 0.5', 'deny, retry in 590'],
      [600, 'peek', 'remaining 1, limit 0.5'],
      [600, 'check 2', 'deny, retry in 1400'], // no probe: after a second without calls in flight
      [600, 'takeUpTo all', 'got 1'],
      [610, 'done busy due 600'],
      [1_199, 'check 1', 'deny, retry in 1'],
      [1_200, 'check 1', 'allow, 0 left'],
    ],
  },

  'busy: the first good reply restores a part of the rate, less after a longer overload': {
    limit: { busy: {} },
    rows: [
      [0, 'check 4096', 'allow, 9995903 left'],
      ...Array.from({ length: 20 }, () => [0, 'done busy'] as const),
      [600, 'check 1', 'allow, 0 left'],
      [1_000, 'done busy due 600'],
      [1_200, 'check 1', 'allow, 0 left'],
      [1_300, 'done ok due 1200'],
      [1_300, 'peek', 'limit 256'], // one second of overload: 4096 / 4^2
      [1_800, 'done ok due 1300'],
      [1_800, 'peek', 'limit 512'], // × 4 a second
      [2_300, 'done failed due 1300'], // a failure of another kind is a good reply
      [2_300, 'peek', 'limit 1024'],
      [3_300, 'done timeout due 1300'], // a timeout is not
      [3_300, 'peek', 'limit 1024'],
      [3_300, 'check 1', 'allow, 1024 left'],
      [9_300, 'done ok due 1300'], // one reply pays for one second at most
      [9_300, 'peek', 'limit 4096'],
    ],
  },

  'busy: a good reply to a call sent before the overload restores nothing': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [100, 'check 1', 'allow, 9998998 left'],
      [200, 'done busy due 100'],
      [200, 'peek', 'limit 500.5'],
      [300, 'done ok due 0'],
      [300, 'peek', 'limit 500.5'],
    ],
  },

  'busy: without calls in flight the limit recovers by time': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [500, 'done busy'],
      [500, 'done busy'],
      [1_999, 'peek', 'limit 250'],
      [2_000, 'peek', 'limit 4000'], // no longer an overload than an instant: from 1000
      [3_000, 'peek', 'limit 16000'],
      [8_000, 'peek', 'limit 9999999'],
    ],
  },

  'busy: calls that are never settled delay the recovery by ten seconds': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [500, 'done busy'],
      [500, 'done busy'],
      [600, 'check 1', 'allow, 250 left'],
      [10_999, 'peek', 'limit 250'],
      [11_000, 'peek', 'limit 4000'],
      [11_000, 'check 1', 'allow, 4000 left'],
      [12_000, 'peek', 'limit 16000'],
    ],
  },

  'busy: a late busy reply still counts as one call sent': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1', 'allow, 9999998 left'],
      [5_000, 'done busy'], // nothing was sent for seconds: the limit is half of one, not of none
      [5_000, 'peek', 'remaining 1, limit 0.5'],
    ],
  },

  'busy: ignores a busy reply to a call sent over a minute ago': {
    limit: { busy: { max: 10 } },
    rows: [
      [0, 'check 4', 'allow, 6 left'],
      [60_001, 'done busy due 0'],
      [60_001, 'peek', 'limit 10'],
      [60_001, 'done busy due 1'],
      [60_001, 'peek', 'limit 0.5'],
    ],
  },

  'busy: an ignored call was not sent': {
    limit: { busy: { max: 10 } },
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [0, 'done ignored cost 4'],
      [0, 'peek', 'remaining 4'],
      [0, 'takeUpTo all', 'got 4'],
      [0, 'done ignored cost 400'], // never more than was sent
      [0, 'peek', 'remaining 10'],
      [1_000, 'check 10', 'allow, 0 left'],
      [1_000, 'done ignored cost 4 due 999'], // its second is over
      [1_000, 'peek', 'remaining 0'],
      [1_900, 'done ignored cost 4 due 1000'],
      [1_900, 'peek', 'remaining 4'],
    ],
  },

  'busy: an ignored call uses up neither the pace nor the probe': {
    limit: { busy: {} },
    rows: [
      [0, 'check 2', 'allow, 9999997 left'],
      [100, 'done busy'],
      [100, 'check 1', 'allow, 0 left'], // one call a second
      [100, 'check 1', 'deny, retry in 600'],
      [100, 'done ignored'],
      [100, 'check 1', 'allow, 0 left'],
      [200, 'done busy due 100'],
      [700, 'check 1', 'allow, 0 left'], // a probe
      [700, 'check 1', 'deny, retry in 600'],
      [700, 'done ignored'],
      [700, 'check 1', 'allow, 0 left'],
    ],
  },

  'busy: max limits the calls of each second': {
    limit: { busy: { max: 10 } },
    rows: [
      [200, 'check 8', 'allow, 2 left'],
      [200, 'check 3', 'deny, retry in 800'],
      [200, 'takeUpTo 3', 'got 2'],
      [200, 'check 11', 'deny, never'],
      [200, 'check Infinity', 'deny, never'],
      [999, 'check 0', 'allow, 0 left'],
      [1_000, 'check 10', 'allow, 0 left'],
    ],
  },

  'busy: recoverValue recovers by a constant': {
    limit: { busy: { recoverValue: 200 } },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [100, 'done busy'],
      [100, 'done busy'],
      [100, 'peek', 'limit 250'],
      [100, 'check 701', 'deny, retry in 3900'], // 250, then 200 more in each second after the next
      [3_000, 'peek', 'limit 650'],
      [4_000, 'check 701', 'allow, 0 left'],
      [4_500, 'done ok'],
      [4_500, 'peek', 'limit 950'],
    ],
  },

  'busy: recoverValue grows from zero after a long run of busy replies': {
    limit: { busy: { recoverValue: 200 } },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      ...Array.from({ length: 20 }, () => [0, 'done busy'] as const),
      [600, 'check 1', 'allow, 0 left'],
      [700, 'done ok due 600'],
      [700, 'peek', 'limit 140.000954'], // 700 ms since the last cut
      [1_700, 'done ok due 700'],
      [1_700, 'peek', 'limit 340.000954'],
    ],
  },

  'busy: a fractional cost needs a whole call, with the time to retry': {
    limit: { busy: { max: 10, recoverValue: 1 } },
    rows: [
      [0, 'check 1', 'allow, 9 left'],
      [100, 'done busy'],
      [100, 'peek', 'limit 0.5'],
      [100, 'check 1.5', 'deny, retry in 1900'],
      [1_999, 'check 1.5', 'deny, retry in 1'],
      [2_000, 'check 1.5', 'allow, 0 left'],
    ],
  },

  'busy: recoverRate recovers by another factor': {
    limit: { busy: { recoverRate: 0.5 } },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [0, 'done busy'],
      [10, 'check 1', 'allow, 500 left'],
      [500, 'done busy due 10'],
      [1_000, 'done busy due 10'], // a second of overload: 1000 / 4^2, less than the limit of 125
      [1_000, 'peek', 'limit 125'],
      [2_000, 'done ok due 1000'],
      [2_000, 'peek', 'limit 187.5'],
      [3_000, 'done ok due 2000'],
      [3_000, 'peek', 'limit 281.25'],
    ],
  },

  'busy: time that goes backwards stands still': {
    limit: { busy: { max: 10 } },
    rows: [
      [5_000, 'check 10', 'allow, 0 left'],
      [4_000, 'check 1', 'deny, retry in 2000'],
      [0, 'peek', 'remaining 0, limit 10'],
      [5_999, 'check 1', 'deny, retry in 1'],
      [6_000, 'done busy'],
      [6_000, 'peek', 'limit 5'],
      [3_000, 'peek', 'limit 5'],
      [3_000, 'check 5', 'allow, 0 left'],
      [3_000, 'check 1', 'deny, retry in 3600'], // the probe, on the caller's clock
    ],
  },

  'busy: time that goes back before the first call stands still': {
    limit: { busy: { max: 10 } },
    startAt: 5_000,
    rows: [
      [4_000, 'check 10', 'allow, 0 left'],
      [4_000, 'done busy'],
      [4_000, 'peek', 'limit 5'],
    ],
  },

  'busy: time that goes back within a second does not raise the send rate': {
    limit: { busy: {} },
    rows: [
      [4_000, 'check 1000', 'allow, 9998999 left'],
      [5_900, 'check 1', 'allow, 9999998 left'],
      [5_000, 'done busy'], // 1 of this second and, at 5.9 s, a tenth of the 1000 before it
      [5_900, 'peek', 'limit 50.5'],
    ],
  },

  'busy: a week idle is a full recovery, and no more': {
    limit: { busy: { max: 50 } },
    rows: [
      [0, 'check 50', 'allow, 0 left'],
      ...Array.from({ length: 25 }, () => [0, 'done busy'] as const),
      [WEEK, 'takeUpTo all', 'got 50'],
      [WEEK, 'takeUpTo all', 'got 0'],
    ],
  },

  'busy: seconds stay exact far from time zero': {
    limit: { busy: { max: 10 } },
    rows: [
      [FAR + 999.875, 'check 10', 'allow, 0 left'],
      [FAR + 999.875, 'check 1', 'deny, retry in 1'],
      [FAR + 1_000, 'takeUpTo all', 'got 10'],
    ],
  },
};

const begin = (options: BusyOptions = {}) => {
  const policy = busy(options);
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  return {
    policy,
    state,
    limitAt: (now: number) => policy.keyState(state, 0, now).limit as number,
    busyAt: (now: number) => policy.settle(state, 0, { outcome: 'busy', cost: 1, dueAt: now }, now),
  };
};

describe('busy', () => {
  runScenarios(scenarios);

  test('busy: matches the two steps of the reference', () => {
    const rule = busyRule({});
    expect(rule.max).toBe(UNLIMITED);
    expect(rule.grow(2)).toBe(8);
    expect(rule.grow(2, 3)).toBe(128);
    expect(rule.halve(5_000, 3)).toBe(625);
    expect(rule.halve(2 ** 30, 3_000)).toBe(2 ** 10); // at most 20 count
    expect(rule.halve(4e9, 1)).toBe(UNLIMITED);
    expect(rule.secondsToReach(2, 128)).toBe(3);
    expect(rule.secondsToReach(2, 129)).toBe(4);
    expect(rule.secondsToReach(128, 2)).toBe(0);
    expect(rule.restart(6_400, 10)).toBe(100);
    expect(rule.restart(6_400, 0)).toBe(6_400);
    expect(rule.restart(6_400, 1e9)).toBe(1);

    const constant = busyRule({ recoverValue: 200, max: 5_000 });
    expect(constant.grow(100, 3)).toBe(700);
    expect(constant.secondsToReach(100, 500)).toBe(2);
    expect(constant.secondsToReach(100, 501)).toBe(3);
    expect(constant.secondsToReach(501, 100)).toBe(0);
    expect(constant.restart(6_400, 10)).toBe(1);
  });

  const slowest: readonly BusyOptions[] = [
    { recoverRate: 1e-300 },
    { recoverRate: 1e-9 },
    { recoverValue: 1e-300 },
    { recoverValue: 1e-9 },
    { recoverRate: 1e15 },
    { recoverValue: 1e15 },
  ];
  test.for(slowest)('busy: %j: computes a huge gap in constant time', (options) => {
    const { policy, state, busyAt, limitAt } = begin(options);
    policy.check(state, 0, 1_000, 0);
    for (let n = 0; n < 30; n++) busyAt(0);
    const before = limitAt(0);
    for (const now of [1_000, WEEK, 52 * WEEK, FAR]) {
      expect(limitAt(now)).toBeGreaterThanOrEqual(before);
      expect(limitAt(now)).toBeLessThanOrEqual(UNLIMITED);
      const decision = policy.check(state.slice(), 0, 1, now);
      if (decision.verdict === 'deny') expect(decision.retryAfterMs).toBeGreaterThan(0);
    }
    expect(policy.freshAt(state, 0, false)).toBeGreaterThan(0);
    policy.check(state, 0, 1, FAR);
    expect(limitAt(FAR)).toBeGreaterThanOrEqual(before);
  });

  test('busy: a key evicted too early sends probes only until it would have recovered', () => {
    const { policy, state, limitAt } = begin();
    policy.init(state, 0, 0, 4_000);
    const granted = Array.from({ length: 400 }, (_, n) => n * 10).filter(
      (now) => policy.check(state, 0, 1, now).verdict === 'allow',
    );
    expect(granted).toEqual([1_000, 1_600, 2_200, 2_800, 3_400]); // nothing more in the second of the eviction
    expect(limitAt(3_999)).toBeLessThan(1);
    expect(limitAt(4_000)).toBe(UNLIMITED);
    policy.init(state, 0, 0, 1e9);
    expect(policy.check(state, 0, 2, 0)).toEqual({ verdict: 'deny', retryAfterMs: 1e9 });
    policy.init(state, 0, 5_000, 4_000);
    expect(limitAt(5_000)).toBe(UNLIMITED);
  });

  test('busy: a busy reply to a key evicted too early grants no more than before', () => {
    const { policy, state, busyAt } = begin();
    policy.init(state, 0, 0, 4_000);
    busyAt(100);
    busyAt(3_900);
    for (let now = 4_000; now < 5_000; now += 100) {
      expect(policy.available(state, 0, now), `at ${now}`).toBeLessThanOrEqual(1);
    }
    policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 4_990 }, 5_000);
    expect(policy.available(state, 0, 5_000)).toBeLessThanOrEqual(4);
  });

  // Ten of ten were sent in this second. After an eviction no more may be sent in it.
  test.each([0.1, 3])(
    'busy: what was sent this second still counts after eviction (recover rate %d)',
    (rate) => {
      const { policy, state } = begin({ max: 10, recoverRate: rate });
      policy.check(state, 0, 10, 0);
      const freshAt = policy.freshAt(state, 0, true);
      policy.init(state, 0, 100, freshAt);
      expect(policy.available(state, 0, 100)).toBe(0);
      expect(policy.available(state, 0, freshAt)).toBe(10);
    },
  );

  test('busy: is removable when the limit has recovered and the last call is out of the window', () => {
    const { policy, state, busyAt } = begin({ max: 64 });
    expect(policy.freshAt(state, 0, false)).toBe(2_000);
    policy.check(state, 0, 64, 0);
    busyAt(100);
    // Ten seconds without a reply, a second to grow from 64, a second until the next call is due.
    expect(policy.freshAt(state, 0, false)).toBe(12_000);
    expect(policy.freshAt(state, 0, true)).toBe(12_000);
    for (let now = 600; now <= 10_000; now += 600) {
      policy.check(state, 0, 1, now);
      busyAt(now);
    }
    // Ten seconds without a reply, three seconds to grow from 64 / 4^3, and one more.
    expect(policy.freshAt(state, 0, false)).toBe(23_000);
  });

  test('busy: refuses recoverRate and recoverValue together', () => {
    expect(() => busy({ recoverRate: 3, recoverValue: 200 })).toThrow(
      expect.objectContaining({ code: 'CONFIG', field: 'busy.recoverRate' }),
    );
    expect(() => busy({ recoverRate: 3, recoverValue: 200 })).toThrow(
      'expected `busy.recoverRate` to be left out when `recoverValue` is given, got 3',
    );
  });

  test('busy: refuses an invalid cost and counts nothing', () => {
    const { policy, state } = begin({ max: 10 });
    for (const cost of [-1, Number.NaN]) {
      expect(() => policy.check(state, 0, cost, 0)).toThrow(ConfigError);
    }
    expect(policy.available(state, 0, 0)).toBe(10);
  });
});

test('busy: a second of recovery matches the reference to the last digit', () => {
  expect(busyRule({ max: 12, recoverRate: 0.1 }).grow(6)).toBe(6.6); // 6 × 1.1 would be 6.6000000000000005
});
