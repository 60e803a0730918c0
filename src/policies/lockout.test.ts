import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from './limit.ts';
import { lockout } from './lockout.ts';

const [SECOND, MINUTE, HOUR] = [1000, 60_000, 3_600_000];

const THREE = {
  lockout: { after: 3, within: '15m', lock: ['1m', '5m', '1h'], forget: '1d' },
} as const;
const ON_REFUSAL: Limit = {
  all: [
    { bucket: { rate: '1/s', burst: 2 } },
    { lockout: { on: 'refusal', after: 3, within: '10s', lock: ['1m', '5m'] } },
  ],
};

/** Fails until the key is locked. */
const threeFailures = (at: number): Scenario['rows'] => [
  [at, 'check 1', 'allow, 2 left'],
  [at, 'report failure'],
  [at, 'check 1', 'allow, 1 left'],
  [at, 'report failure'],
  [at, 'check 1', 'allow, 0 left'],
  [at, 'report failure'],
];

const scenarios: Record<string, Scenario> = {
  'lockout: the third failure locks the key, and it opens after the first step': {
    limit: THREE,
    rows: [
      ...threeFailures(0),
      [0, 'peek', 'remaining 0, failures 3, locks 1, locked for 60000'],
      [10, 'check 1', 'deny, retry in 59990'],
      [MINUTE - 1, 'check 1', 'deny, retry in 1'],
      [MINUTE, 'peek', 'remaining 3, failures 0, locks 1, locked for none'],
      [MINUTE, 'check 1', 'allow, 2 left'],
    ],
  },

  'lockout: each further lock is the next step, and the last one repeats': {
    limit: THREE,
    rows: [
      ...threeFailures(0),
      ...threeFailures(MINUTE),
      [MINUTE, 'check 1', 'deny, retry in 300000'],
      ...threeFailures(6 * MINUTE),
      [6 * MINUTE, 'check 1', 'deny, retry in 3600000'],
      ...threeFailures(66 * MINUTE),
      [66 * MINUTE, 'check 1', 'deny, retry in 3600000'],
    ],
  },

  'lockout: a key that was not locked for `forget` begins with the first step': {
    limit: THREE,
    rows: [
      ...threeFailures(0),
      ...threeFailures(MINUTE + 24 * HOUR - 1),
      [MINUTE + 24 * HOUR - 1, 'check 1', 'deny, retry in 300000'],
      ...threeFailures(6 * MINUTE + 48 * HOUR),
      [6 * MINUTE + 48 * HOUR, 'check 1', 'deny, retry in 60000'],
    ],
  },

  'lockout: a success forgets the failures, but not the steps of earlier locks': {
    limit: THREE,
    rows: [
      ...threeFailures(0),
      [MINUTE, 'check 2', 'allow, 1 left'],
      [MINUTE, 'report failure'],
      [MINUTE, 'report success'],
      [MINUTE, 'peek', 'remaining 3, failures 0, locks 1'],
      ...threeFailures(2 * MINUTE),
      [2 * MINUTE, 'check 1', 'deny, retry in 300000'],
    ],
  },

  'lockout: the attempt that completes the count ends the lock if it succeeds': {
    limit: THREE,
    rows: [
      [0, 'check 1'],
      [0, 'report failure'],
      [0, 'check 1'],
      [0, 'report failure'],
      [0, 'check 1', 'allow, 0 left'],
      [100, 'check 1', 'deny, retry in 59900'],
      [200, 'report success', 'applied'],
      [200, 'peek', 'remaining 3, failures 0, locks 0, locked for none'],
    ],
  },

  'lockout: failures of attempts in flight count beside a success': {
    limit: THREE,
    rows: [
      [0, 'check 1'],
      [0, 'check 1'],
      [0, 'check 1'],
      [100, 'report success'],
      [100, 'peek', 'remaining 1, failures 2'],
      [100, 'report failure'],
      [100, 'report failure'],
      [100, 'check 1', 'allow, 0 left'],
      [100, 'check 1', 'deny, retry in 60000'],
    ],
  },

  'lockout: an attempt without a report counts as a failure': {
    limit: THREE,
    rows: [
      [0, 'check 1'],
      [0, 'done ok'],
      [0, 'check 1'],
      [0, 'done failed'],
      [0, 'check 1'],
      [0, 'check 1', 'deny, retry in 60000'],
    ],
  },

  'lockout: an attempt that did not happen is returned, and ends the lock that it began': {
    limit: THREE,
    rows: [
      [0, 'check 3', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 60000'],
      [0, 'done ignored'],
      [0, 'peek', 'remaining 1, failures 2, locks 0, locked for none'],
    ],
  },

  'lockout: failures that were not checked count too, and lock': {
    limit: THREE,
    rows: [
      [0, 'report failure', 'applied'],
      [0, 'update 1', 'applied'],
      [0, 'peek', 'remaining 1, failures 2'],
      [0, 'report failure'],
      [0, 'check 1', 'deny, retry in 60000'],
    ],
  },

  'lockout: failures count until `within` after the first': {
    limit: THREE,
    rows: [
      [0, 'report failure'],
      [10 * MINUTE, 'report failure'],
      [15 * MINUTE - 1, 'peek', 'failures 2'],
      [15 * MINUTE, 'peek', 'failures 0'],
      [15 * MINUTE, 'check 1', 'allow, 2 left'],
    ],
  },

  'lockout: onSuccess return gives back its own attempt only': {
    limit: { lockout: { ...THREE.lockout, onSuccess: 'return' } },
    rows: [
      [0, 'report failure'],
      [0, 'check 1'],
      [0, 'report success'],
      [0, 'report success'], // without an attempt it returns nothing
      [0, 'peek', 'remaining 2, failures 1'],
      [0, 'check 2', 'allow, 0 left'],
      [0, 'report success'],
      [0, 'peek', 'remaining 1, failures 2, locks 0, locked for none'],
      [0, 'report failure'],
      [0, 'report failure'],
      [0, 'report success'],
      [0, 'check 1', 'deny, retry in 60000'],
    ],
  },

  'lockout: what no attempt took cannot be returned, however long the lock lasts': {
    limit: { lockout: { after: 1, within: '1m', lock: '1h', onSuccess: 'return' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'report failure'],
      [2 * MINUTE, 'done ignored'],
      [2 * MINUTE, 'report success'],
      [2 * MINUTE, 'check 1', 'deny, retry in 3480000'],
    ],
  },

  'lockout: a success without an attempt opens the key, and the next lock is the next step': {
    limit: THREE,
    rows: [
      ...threeFailures(0),
      [SECOND, 'report success'],
      [SECOND, 'peek', 'remaining 3, failures 0, locks 1, locked for none'],
      ...threeFailures(2 * SECOND),
      [2 * SECOND, 'check 1', 'deny, retry in 300000'],
    ],
  },

  'lockout: a cost is so many attempts, and one above `after` never fits': {
    limit: THREE,
    rows: [
      [0, 'check 4', 'deny, never'],
      [0, 'check 1', 'allow, 2 left'],
      [MINUTE, 'check 3', 'deny, retry in 840000'],
      [MINUTE, 'takeUpTo 9', 'got 2'],
      [MINUTE, 'check 0', 'allow, 0 left'],
    ],
  },

  'lockout on refusals: the third refusal locks, and calls that are allowed do not count': {
    limit: ON_REFUSAL,
    rows: [
      [0, 'check 2', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 1000'],
      [0, 'check 1', 'deny, retry in 1000'],
      [1000, 'check 1', 'allow, 0 left'],
      [1000, 'check 1', 'deny, retry in 60000'],
      [30_000, 'check 1', 'deny, retry in 31000'], // refusals of a locked key do not prolong its lock
      [30_000, 'peek', 'locked for 31000'],
      [61_000, 'check 1', 'allow, 1 left'],
    ],
  },

  'lockout on refusals: what the bucket took before is restored, the count of refusals is not': {
    limit: {
      all: [
        { bucket: { rate: '1/m', burst: 10 } },
        { lockout: { on: 'refusal', after: 2, within: '1h', lock: '10s' } },
        { spacing: { every: '10s' } },
      ],
    },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 10000'],
      [0, 'peek', 'failures 1'],
      [5000, 'check 1', 'deny, retry in 10000'],
      [15_000, 'check 1', 'allow, 0 left'],
      [30_000, 'takeUpTo 1', 'got 1'],
      [40_000, 'peek', 'remaining 1'],
    ],
  },

  'lockout on refusals: a cost that never fits is a mistake, and is not counted': {
    limit: ON_REFUSAL,
    rows: [
      [0, 'check 3', 'deny, never'],
      [0, 'peek', 'failures 0'],
    ],
  },
};

runScenarios(scenarios);

describe('lockout', () => {
  test('lockout: of 100 logins in flight at once, `after` are allowed, and all others refused as locked', () => {
    const policy = createPolicy(THREE, seededRandom(1));
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    const decisions = Array.from({ length: 100 }, () => policy.check(state, 0, 1, 0));
    expect(decisions.filter(({ verdict }) => verdict === 'allow').length).toBe(3);
    expect(decisions.at(-1)).toEqual({ verdict: 'deny', retryAfterMs: MINUTE, reason: 'locked' });
  });

  test('lockout in a pool: members together allow `after` attempts, and each at least one', () => {
    const policy = createPolicy({ lockout: { after: 7 } }, seededRandom(1));
    const availableTo = (size: number): number => {
      const part = policy.divide?.ofPool?.({ size, rank: 0, since: 0 }, 0);
      const state = new Float64Array(policy.width);
      part?.init(state, 0, 0);
      return part?.available(state, 0, 0) ?? 0;
    };
    expect([1, 2, 3, 7, 9].map(availableTo)).toEqual([7, 3, 2, 1, 1]);
    expect(createPolicy(ON_REFUSAL, seededRandom(1)).divide).toBeUndefined();
  });

  test('lockout in all: the refusal names the rule, also the one that locks', () => {
    const policy = createPolicy(ON_REFUSAL, seededRandom(1));
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    const decisions = Array.from({ length: 6 }, () => policy.check(state, 0, 1, 0));
    const locked = { verdict: 'deny', retryAfterMs: MINUTE, rule: 'lockout', reason: 'locked' };
    expect(decisions.slice(2)).toEqual([
      { verdict: 'deny', retryAfterMs: 1000, rule: 'bucket' },
      { verdict: 'deny', retryAfterMs: 1000, rule: 'bucket' },
      locked,
      locked,
    ]);
  });

  test('lockout in a nested all: a refusal counts once, whichever rule refused', () => {
    const inner = ON_REFUSAL;
    const policy = createPolicy({ all: [inner, { spacing: { every: '1h' } }] }, seededRandom(1));
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.check(state, 0, 1, 0);
    policy.check(state, 0, 1, 0); // the spacing refuses
    expect(policy.keyState(state, 0, 0).failures).toBe(1);
    expect(policy.check(state, 0, 1, 0)).toMatchObject({ rule: 'spacing' });
    policy.check(state, 0, 1, 0);
    expect(policy.keyState(state, 0, 0)).toMatchObject({ failures: 3, lockedMs: MINUTE });
  });

  test.each([
    [{}, /lockout\.after/],
    [{ after: 0 }, /lockout\.after/],
    [{ after: 3, lock: [] }, /lockout\.lock.* list of 1 to 32/],
    [{ after: 3, lock: ['1m', 'soon'] }, /lockout\.lock\[1\].* duration/],
    [{ after: 3, lock: 0 }, /lockout\.lock.* duration/],
    [{ after: 3, within: '2d' }, /lockout\.forget.* at least as long as `within`/],
    [{ after: 3, on: 'failed' }, /lockout\.on.* one of failure, refusal/],
    [{ after: 3, on: 'refusal', onSuccess: 'reset' }, /lockout\.onSuccess.* left out/],
    [{ after: 3, locks: '1m' }, /did you mean `?lock/],
  ])('lockout: refuses %j and names the option', (options, message) => {
    expect(() => lockout(options as never)).toThrow(message);
  });

  test('lockout on refusals: needs another rule whose refusals it counts', () => {
    const refusals = { lockout: { after: 3, on: 'refusal' } };
    expect(() => createPolicy(refusals, seededRandom(1))).toThrow(/limit\.lockout\.on.* beside/);
    const alone = { all: [refusals, refusals] };
    expect(() => createPolicy(alone, seededRandom(1))).toThrow(/limit\.all.* whose refusals/);
  });

  test('lockout: with random reports, no more failures than `after` between two locks', () => {
    const step = fc.record({
      act: fc.constantFrom('check', 'check', 'failure', 'failure', 'success', 'ignored'),
      afterMs: fc.constantFrom(0, 0, 1, 500, 20_000, 400_000),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200, size: 'max' }), (steps) => {
        const policy = createPolicy(THREE, seededRandom(1));
        const state = new Float64Array(policy.width);
        policy.init(state, 0, 0);
        let [now, pending, failures] = [0, 0, 0];
        for (const { act, afterMs } of steps) {
          now += afterMs;
          if (policy.keyState(state, 0, now).failures === 0) [pending, failures] = [0, 0];
          if (act === 'check') {
            const isAllowed = policy.check(state, 0, 1, now).verdict === 'allow';
            if (isAllowed) pending++;
            if (policy.keyState(state, 0, now).lockedMs === undefined) expect(isAllowed).toBe(true);
          } else if (pending > 0) {
            pending--;
            if (act === 'failure') failures++;
            if (act === 'success') failures = 0;
            if (act === 'ignored')
              policy.settle(state, 0, { outcome: 'ignored', cost: 1, dueAt: now }, now);
            else policy.update(state, 0, { report: act as 'failure' }, now);
          }
          expect(pending + failures).toBeLessThanOrEqual(3);
          expect(policy.keyState(state, 0, now).failures).toBe(pending + failures);
        }
      }),
    );
  });

  test('lockout: a retry after the time of the refusal passes, at any fraction of a millisecond', () => {
    const lockout = { after: 3, within: '1m', lock: 100, forget: '1m' } as const;
    const policy = createPolicy({ lockout }, seededRandom(1));
    const state = new Float64Array(policy.width);
    for (let n = 0; n < 3000; n++) {
      const [at, now] = [n * 0.713, n * 0.713 + (n % 7) * 200];
      policy.init(state, 0, at);
      policy.check(state, 0, 1, at);
      const refused = policy.check(state, 0, 3, now);
      if (refused.verdict !== 'deny') throw new Error(`expected a refusal at ${now}`);
      expect(policy.check(state, 0, 3, now + refused.retryAfterMs).verdict).toBe('allow');
    }
  });
});
