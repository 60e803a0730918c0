import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { ConfigError } from '../core/errors.ts';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { type BusyOptions, busy, busyRule, MAX_HALVINGS, UNLIMITED } from './busy.ts';
import { takeUpTo } from './policy.ts';

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
      [500, 'peek', 'remaining 0, limit 500'],
      [500, 'check 1', 'deny, retry in 500'],
      [1_000, 'peek', 'remaining 2000, limit 2000'], // itself and three times itself more
      [2_000, 'peek', 'limit 8000'],
      [3_000, 'peek', 'limit 32000'],
      [9_000, 'peek', 'limit 9999999'],
    ],
  },

  'busy: the send rate is that of the last 1000 ms': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [1_200, 'check 300', 'allow, 9999699 left'],
      [1_500, 'done busy'], // 300 of this second, half of the 1000 of the one before
      [1_500, 'peek', 'limit 400'],
      [2_999, 'check 1600', 'allow, 0 left'],
      [3_000, 'done busy'], // a new second; all of the last one is still in the window
      [3_000, 'peek', 'limit 800'],
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

  'busy: every further busy reply halves again, up to a bound per second': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1024', 'allow, 9998975 left'],
      [100, 'done busy'],
      [100, 'peek', 'limit 512'],
      [100, 'done busy'],
      [100, 'done busy'],
      [100, 'peek', 'limit 128'],
      [100, 'done busy'],
      [100, 'peek', 'remaining 0, limit 64'],
      [1_000, 'check 256', 'allow, 0 left'],
      [1_000, 'check 1', 'deny, retry in 1000'],
    ],
  },

  'busy: below one, calls are refused until a probe is due': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1', 'allow, 9999998 left'],
      [10, 'done busy'],
      [10, 'peek', 'remaining 0, limit 0.5'],
      [10, 'check 1', 'deny, retry in 990'],
      [1_000, 'peek', 'remaining 2, limit 2'],
      [3_000, 'check 1', 'allow, 31 left'],
      [3_010, 'done busy'], // one call was sent in the last second, so the limit is 0.5
      [3_010, 'done busy'],
      [3_010, 'done busy'],
      [3_010, 'peek', 'limit 0.125'],
      [3_010, 'check 1', 'deny, retry in 1990'], // 0.5, then 2
      [4_000, 'check 1', 'deny, retry in 1000'],
      [4_999, 'check 1', 'deny, retry in 1'],
      [5_000, 'check 1', 'allow, 1 left'],
    ],
  },

  'busy: a late busy reply still counts as one call sent': {
    limit: { busy: {} },
    rows: [
      [0, 'check 1', 'allow, 9999998 left'],
      [5_000, 'done busy'], // nothing was sent for seconds: the limit is half of one, not of none
      [5_000, 'peek', 'limit 0.5'],
      [6_000, 'check 1', 'allow, 1 left'],
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
      [0, 'done busy'],
      [0, 'peek', 'limit 500'],
      [0, 'check 701', 'deny, retry in 2000'],
      [1_000, 'peek', 'limit 700'],
      [2_000, 'check 701', 'allow, 199 left'],
      [5_000, 'peek', 'limit 1500'],
      [10_000_000, 'peek', 'limit 2000500'],
    ],
  },

  'busy: a fractional cost needs a whole call, with the time to retry': {
    limit: { busy: { max: 10, recoverValue: 1 } },
    rows: [
      [0, 'check 1', 'allow, 9 left'],
      [0, 'done busy'],
      [0, 'peek', 'limit 0.5'],
      [0, 'check 1.5', 'deny, retry in 2000'],
      [1_000, 'check 1.5', 'deny, retry in 1000'], // 1.5 a second by now: one whole call
      [2_000, 'check 1.5', 'allow, 0.5 left'],
    ],
  },

  'busy: recoverRate recovers by another factor': {
    limit: { busy: { recoverRate: 0.5 } },
    rows: [
      [0, 'check 1000', 'allow, 9998999 left'],
      [0, 'done busy'],
      [1_000, 'peek', 'limit 750'],
      [2_000, 'peek', 'limit 1125'],
      [2_000, 'check 1126', 'deny, retry in 1000'],
      [2_000, 'check 1125', 'allow, 0 left'],
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
      [6_999, 'check 1', 'deny, retry in 1'],
    ],
  },

  'busy: time that goes back before the first call stands still': {
    limit: { busy: { max: 10 } },
    startAt: 5_000,
    rows: [
      [4_000, 'check 10', 'allow, 0 left'],
      [4_000, 'done busy'],
      [4_000, 'done busy'], // the reply to a call sent before the cut at 5000
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
      [FAR + 999.875, 'done busy'],
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

/**
 * A client with a demand of `rps`, even over each second, of a service that replies busy after three
 * good seconds (at most `busyPerSecond` replies, 25 ms later) for `overloadSeconds`. Returns what was
 * sent in each second, counted from the start of the overload.
 */
function live(
  options: BusyOptions,
  rps: number,
  busyPerSecond: number,
  overloadSeconds: number,
  isBusy = (_second: number) => true,
) {
  const { policy, state, busyAt } = begin(options);
  const TICKS = 20;
  const sent: number[] = [];
  for (let second = -3; second < overloadSeconds + 40; second++) {
    const isOverloaded = second >= 0 && second < overloadSeconds && isBusy(second);
    let busyReplies = isOverloaded ? busyPerSecond : 0;
    let sentNow = 0;
    for (let tick = 0; tick < TICKS; tick++) {
      const now = (100 + second + tick / TICKS) * 1_000;
      const got = takeUpTo(policy, state, 0, rps / TICKS, now);
      sentNow += got;
      for (let n = 0; n < got && busyReplies > 0; n++, busyReplies--) busyAt(now + 25);
    }
    sent.push(sentNow);
  }
  expect(sent.splice(0, 3)).toEqual([rps, rps, rps]);
  return sent;
}

/** The second from which on every call is allowed. */
const backAt = (sent: readonly number[], rps: number): number =>
  sent.findLastIndex((count) => count < rps) + 1;

describe('busy', () => {
  runScenarios(scenarios);

  test('busy: matches the two steps of the reference', () => {
    const rule = busyRule({});
    expect(rule.max).toBe(UNLIMITED);
    expect(rule.grow(2)).toBe(8);
    expect(rule.grow(2, 3)).toBe(128);
    expect(rule.halve(5_000, 3)).toBe(625);
    expect(rule.halve(2 ** 30, 3_000)).toBe(2 ** 10); // at most MAX_HALVINGS count
    expect(rule.halve(4e9, 1)).toBe(UNLIMITED);
    expect(rule.secondsToReach(2, 128)).toBe(3);
    expect(rule.secondsToReach(2, 129)).toBe(4);
    expect(rule.secondsToReach(128, 2)).toBe(0);
    expect(rule.limitRecoveringIn(2)).toBe(UNLIMITED / 16);

    const constant = busyRule({ recoverValue: 200, max: 5_000 });
    expect(constant.grow(100, 3)).toBe(700);
    expect(constant.secondsToReach(100, 500)).toBe(2);
    expect(constant.secondsToReach(100, 501)).toBe(3);
    expect(constant.secondsToReach(501, 100)).toBe(0);
    expect(constant.limitRecoveringIn(3)).toBe(4_400);
  });

  test('busy: bounds the halvings per second', () => {
    const { busyAt, limitAt, policy, state } = begin();
    policy.check(state, 0, 2 ** 20, 0);
    for (let n = 0; n < MAX_HALVINGS; n++) busyAt(100);
    expect(limitAt(100)).toBe(1);
    for (let n = 0; n < 1_000; n++) busyAt(100);
    expect(limitAt(100)).toBe(1);
    busyAt(1_000); // a new second, a new count: four a second by now, but only one was ever sent
    expect(limitAt(1_000)).toBeLessThan(4);
  });

  test('busy: a short overload costs half a second of traffic', () => {
    const sent = live({}, 5_000, 1, 1);
    expect(sent[0]).toBeGreaterThan(2_400); // half the rate it was sending at
    expect(sent[0]).toBeLessThan(2_600);
    expect(backAt(sent, 5_000)).toBe(1);
  });

  test('busy: backs off at once, and sends few probes during the overload', () => {
    const sent = live({}, 5_000, 3_000, 9);
    expect(sent[0]).toBe(250); // sent before the first reply came
    for (const count of sent.slice(1, 9)) expect(count).toBeLessThanOrEqual(4);
  });

  test('busy: sends a probe every few seconds during the longest overload', () => {
    const sent = live({}, 5_000, 3_000, 120);
    for (let second = 12; second < 120; second++) {
      const probes = sent.slice(second - 5, second).reduce((a, b) => a + b, 0);
      expect(probes, `the seconds before ${second}`).toBeGreaterThan(0);
    }
  });

  test('busy: a longer overload recovers later, but within seconds', () => {
    const recovered = [1, 2, 3, 5, 9, 20, 60].map((seconds) => ({
      seconds,
      at: backAt(live({}, 5_000, 3_000, seconds), 5_000),
    }));
    for (const [n, { seconds, at }] of recovered.entries()) {
      if (n > 0) expect(at, `after ${seconds} s`).toBeGreaterThanOrEqual(recovered[n - 1]?.at ?? 0);
      expect(at - seconds, `after ${seconds} s`).toBeLessThanOrEqual(12);
    }
    expect(recovered.at(-1)?.at).toBeGreaterThan(recovered[0]?.at ?? 0);
  });

  test('busy: a deeper overload recovers later', () => {
    const depths = [1, 4, 8, 16].map((count) => backAt(live({}, 5_000, count, 1), 5_000));
    expect(depths).toEqual(depths.toSorted((a, b) => a - b));
    expect(depths.at(-1)).toBeGreaterThan(depths[0] ?? 0);
  });

  test('busy: a flapping service does not make the traffic flap', () => {
    const sent = live({}, 5_000, 3_000, 30, (second) => second % 3 === 0);
    for (const count of sent.slice(1, 30)) expect(count).toBeLessThan(500);
    expect(backAt(sent, 5_000) - 30).toBeLessThanOrEqual(12);
  });

  test('busy: the lowest limit is above zero, ten seconds from a probe', () => {
    const { policy, state, busyAt, limitAt } = begin();
    policy.check(state, 0, 1, 0);
    for (let second = 0; second < 50; second++) {
      for (let n = 0; n < 50; n++) busyAt(second * 1_000);
    }
    expect(limitAt(49_000)).toBeGreaterThan(0);
    const decision = policy.check(state, 0, 1, 49_000);
    expect(decision).toEqual({ verdict: 'deny', retryAfterMs: 10_000 });
    expect(policy.check(state, 0, 1, 59_000).verdict).toBe('allow');
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
    expect(policy.removableAt(state, 0)).toBeGreaterThan(0);
    policy.check(state, 0, 1, FAR);
    expect(limitAt(FAR)).toBeGreaterThanOrEqual(before);
  });

  test('busy: a key evicted too early has the limit that takes that long to recover', () => {
    const { policy, state, limitAt } = begin();
    policy.init(state, 0, 0, 4_000);
    expect(limitAt(0)).toBeLessThanOrEqual(UNLIMITED / 4 ** 4);
    expect(limitAt(4_000)).toBe(UNLIMITED);
    policy.init(state, 0, 0, 1e9);
    expect(limitAt(0)).toBeGreaterThan(0);
    policy.init(state, 0, 5_000, 4_000);
    expect(limitAt(5_000)).toBe(UNLIMITED);
    const constant = begin({ recoverValue: 100, max: 1_000 });
    constant.policy.init(constant.state, 0, 0, 4_000);
    expect(constant.limitAt(0)).toBeLessThanOrEqual(600);
    expect(constant.limitAt(0)).toBeGreaterThan(0);
    expect(constant.limitAt(4_000)).toBe(1_000);
  });

  // Ten of ten were sent in this second. After an eviction no more may be sent in it.
  test.each([0.1, 3])(
    'busy: what was sent this second still counts after eviction (recover rate %d)',
    (rate) => {
      const { policy, state } = begin({ max: 10, recoverRate: rate });
      policy.check(state, 0, 10, 0);
      const evictableAt = policy.evictableAt(state, 0);
      policy.init(state, 0, 100, evictableAt);
      expect(policy.available(state, 0, 100)).toBe(0);
      expect(policy.available(state, 0, evictableAt)).toBe(10);
    },
  );

  test('busy: is removable when the limit has recovered and the last call is out of the window', () => {
    const { policy, state, busyAt } = begin({ max: 64 });
    expect(policy.removableAt(state, 0)).toBe(2_000);
    policy.check(state, 0, 64, 0);
    busyAt(0);
    expect(policy.removableAt(state, 0)).toBe(60_001); // until no reply to an earlier call counts
    expect(policy.evictableAt(state, 0)).toBe(2_000);
    busyAt(0);
    expect(policy.evictableAt(state, 0)).toBe(2_000); // 16, then 64
    busyAt(0);
    expect(policy.evictableAt(state, 0)).toBe(3_000);
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

test('busy: depth depends on the length of the overload, not on calls in flight', () => {
  const seconds = [2, 20, 200].map((underWay) => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { busy: {} }, clock });
    for (let n = 0; n < 400; n++) {
      api.check('k');
      clock.advance(2.5);
    }
    const dueAt = clock.now() - 1;
    for (let n = 0; n < underWay; n++) api.settle('k', { outcome: 'busy', dueAt });
    let waited = 0;
    for (; (api.inspect('k').limit ?? 0) < 400 && waited < 20; waited++) clock.advance(1000);
    return waited;
  });
  expect(seconds).toEqual([1, 1, 1]);
});

test('busy: a second of recovery matches the reference to the last digit', () => {
  expect(busyRule({ max: 12, recoverRate: 0.1 }).grow(6)).toBe(6.6); // 6 × 1.1 would be 6.6000000000000005
});
