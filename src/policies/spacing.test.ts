import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import type { Decision } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { spacing } from './spacing.ts';

const FAR = 1e15; // an instant so far out that a double holds only eighths of a millisecond

const scenarios: Record<string, Scenario> = {
  'spacing: an early call is refused with the time to retry, and idle time earns nothing': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [1_000, 'check 1', 'deny, retry in 5000'],
      [5_999, 'check 1', 'deny, retry in 1'],
      [5_999.5, 'check 1', 'deny, retry in 1'],
      [6_000, 'check 1', 'allow, 0 left'],
      [66_000, 'check 1', 'allow, 0 left'],
      [66_000, 'check 1', 'deny, retry in 6000'],
    ],
  },

  // [--O------O-----X-O---] of the reference: 7 s apart, then 6 s, then 8 s.
  'spacing: five seconds are too few for an interval of six': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [3_000, 'check 1', 'allow, 0 left'],
      [10_000, 'check 1', 'allow, 0 left'],
      [15_000, 'check 1', 'deny, retry in 1000'],
      [18_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'spacing: reserves exactly as many slots ahead as allowed': {
    limit: { spacing: { every: '6s', reserve: 2 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'peek', 'remaining 0, reserved 0'], // the permit in use is not a reservation
      [1_000, 'check 1', 'wait 5000'], // due at 6 s
      [1_000, 'peek', 'reserved 1'],
      [1_000, 'check 1', 'wait 11000'], // due at 12 s
      [1_000, 'peek', 'reserved 2'],
      [1_000, 'check 1', 'deny, retry in 5000'], // a slot is free when the first is due
      [5_999, 'check 1', 'deny, retry in 1'], // nearly due still counts as reserved
      [6_000, 'peek', 'reserved 1'],
      [6_000, 'check 1', 'wait 12000'], // due at 18 s
      [6_000, 'check 1', 'deny, retry in 6000'],
      [17_999, 'peek', 'reserved 1'],
      [18_000, 'peek', 'remaining 0, reserved 0'],
      [23_999, 'check 1', 'wait 1'],
      [31_000, 'peek', 'remaining 1, reserved 0'],
      [31_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'spacing: a released slot is free again if it is the last': {
    limit: { spacing: { every: '6s', reserve: 2 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 6000'],
      [0, 'check 1', 'wait 12000'],
      [500, 'done ignored due 12000'],
      [500, 'peek', 'reserved 1'],
      [500, 'done ignored due 12000'], // a second settlement releases no second slot
      [500, 'peek', 'reserved 1'],
      [500, 'check 1', 'wait 11500'], // due at 12 s once more
    ],
  },

  'spacing: a slot released in the middle stays empty: later reservations keep theirs': {
    limit: { spacing: { every: '6s', reserve: 2 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 6000'],
      [0, 'check 1', 'wait 12000'],
      [500, 'done ignored due 6000'],
      [500, 'peek', 'reserved 2'],
      [500, 'check 1', 'deny, retry in 5500'],
      [500, 'done ignored due 12000'], // now the last one, and only that
      [500, 'check 1', 'wait 11500'],
    ],
  },

  'spacing: a permit that was valid at once can be given back': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'done ignored'],
      [0, 'check 1', 'allow, 0 left'],
      [6_000, 'check 1', 'allow, 0 left'],
      [7_000, 'done ignored due 6000'],
      [7_000, 'check 1', 'allow, 0 left'], // one second after a reservation that was not used
      [7_000, 'check 1', 'deny, retry in 6000'],
    ],
  },

  'spacing: an expired slot is not given back': {
    limit: { spacing: { every: '6s', reserve: 1, expire: '500ms' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 6000'],
      [6_501, 'done ignored due 6000'],
      [6_501, 'check 1', 'wait 5499'], // until 12 s: an expired permit needs a new check
      [12_500, 'done ignored due 12000'], // just in time
      [12_500, 'check 1', 'allow, 0 left'],
    ],
  },

  'spacing: only an ignored call gives its slot back': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'done ok'],
      [0, 'done failed'],
      [0, 'done busy'],
      [0, 'done timeout'],
      [0, 'done ignored cost 0'], // a cost of 0 releases nothing
      [0, 'check 1', 'deny, retry in 6000'],
    ],
  },

  'spacing: refuses a cost of two for good': {
    limit: { spacing: { every: '6s', reserve: 9 } },
    rows: [
      [0, 'check 2', 'deny, never'],
      [0, 'check 1.5', 'deny, never'],
      [0, 'check Infinity', 'deny, never'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'takeUpTo all', 'got 0'], // a batch never waits
      [6_000, 'takeUpTo all', 'got 1'],
    ],
  },

  'spacing: a cost of 0 changes nothing': {
    limit: { spacing: { every: '6s', reserve: 1 } },
    rows: [
      [0, 'check 0', 'allow, 1 left'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 0', 'allow, 0 left'],
      [0, 'peek', 'reserved 0'],
      [6_000, 'check 0', 'allow, 1 left'],
      [6_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'spacing: time that goes backwards opens nothing': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [10_000, 'check 1', 'allow, 0 left'],
      [4_000, 'check 1', 'deny, retry in 12000'],
      [10_000, 'check 1', 'deny, retry in 6000'],
      [15_999, 'check 1', 'deny, retry in 1'],
      [16_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'spacing: a hit elsewhere uses a slot': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [0, 'update 2', 'applied'],
      [11_999, 'check 1', 'deny, retry in 1'],
      [12_000, 'check 1', 'allow, 0 left'],
      [12_000, 'update 0', 'applied'],
      [12_000, 'check 1', 'deny, retry in 6000'],
      [12_000, 'pool 3', 'ignored'],
      [60_000, 'update 1', 'applied'], // counts from now, not from the free slot before
      [60_000, 'check 1', 'deny, retry in 6000'],
    ],
  },

  'spacing: a week idle earns one permit': {
    limit: { spacing: { every: '6s' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [604_800_000, 'check 1', 'allow, 0 left'],
      [604_800_000, 'check 1', 'deny, retry in 6000'],
    ],
  },

  'spacing: rounds a fraction of a millisecond up in retry times': {
    limit: { spacing: { every: '250us', reserve: 1 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'wait 0.25'],
      [0, 'check 1', 'deny, retry in 1'],
      [0.25, 'check 1', 'wait 0.25'],
      [0.25, 'peek', 'reserved 1'],
    ],
  },

  'spacing: keeps six seconds exact far from time zero': {
    limit: { spacing: { every: '6s', reserve: 1 } },
    rows: [
      [FAR, 'check 1', 'allow, 0 left'],
      [FAR + 0.125, 'check 1', 'wait 5999.875'],
      [FAR + 0.125, 'check 1', 'deny, retry in 6000'],
      [FAR + 5_999.875, 'check 1', 'deny, retry in 1'],
      [FAR + 6_000, 'check 1', 'wait 6000'],
      [FAR + 6_000, 'done ignored due 1000000000012000'],
      [FAR + 6_000, 'peek', 'reserved 0'],
    ],
  },

  'spacing: keeps later reservations far from time zero': {
    limit: { spacing: { every: 0.1, reserve: 2 } },
    rows: [
      [FAR, 'check 1', 'allow, 0 left'],
      [FAR, 'check 1', 'wait 0.125'], // the next instant that a double can hold
      [FAR, 'check 1', 'wait 0.25'],
      [FAR, `done ignored due ${FAR + 0.125}`],
      [FAR, 'peek', 'reserved 2'],
    ],
  },
};

/** The permit function of the reference, line by line. */
function seedThrottle(every: number, maxReserved: number) {
  let last = -Infinity;
  return (now: number): number => {
    const next = last + every;
    if (now >= next) {
      last = now;
      return 0;
    }
    const reserved = Math.floor(Math.max(0, last - now) / every);
    if (reserved >= maxReserved) return -1;
    last = next;
    return next - now;
  };
}

/** Checks until refused; returns how many got a reservation. */
function waitsAt(check: (now: number) => Decision, now: number): number {
  let waits = 0;
  while (check(now).verdict === 'wait') waits++;
  return waits;
}

const begin = (options: Parameters<typeof spacing>[0], startAt = 0) => {
  const policy = spacing(options);
  const state = new Float64Array(policy.width);
  policy.init(state, 0, startAt);
  return {
    policy,
    state,
    check: (now: number) => policy.check(state, 0, 1, now),
    reserved: (now: number) => policy.keyState(state, 0, now).reserved,
  };
};

describe('spacing', () => {
  runScenarios(scenarios);

  test('spacing: two reservations are two: a count by floor would grant three', () => {
    const seed = seedThrottle(6_000, 2);
    const seedWaits = [0, 1_000, 1_000, 1_000, 1_000].map(seed).filter((wait) => wait > 0);
    expect(seedWaits).toEqual([5_000, 11_000, 17_000]);

    const ours = begin({ every: '6s', reserve: 2 });
    ours.check(0);
    expect(waitsAt(ours.check, 1_000)).toBe(2);
    expect(ours.reserved(1_000)).toBe(2);
  });

  // Far from zero an interval is rounded up at every slot, which must not add up to a missing slot.
  // Near zero the floating-point tolerance must not add up to one slot too many.
  test.each([
    [6_000, 5, 0],
    [6_000, 5, 1_700_000_000_123],
    [6_000, 5, FAR],
    [100, 50, FAR],
    [33.3, 20, 1_700_000_000_123],
    [0.7, 5, 0],
    [0.7, 5, 1_700_000_000_123],
    [0.1, 5, 0],
    [0.01, 5, 0],
    [0.001, 5, 0],
    [0.0001, 5, 0],
  ])(
    'spacing: a permit every %d ms, reserve %d, from %d on: exactly as many wait',
    (every, reserve, at) => {
      for (const phase of [0, 0.125, 0.5, 0.875]) {
        const { check, reserved } = begin({ every, reserve }, at);
        check(at);
        const now = at + phase * every;
        expect(waitsAt(check, now), `checked ${phase} of the interval later`).toBe(reserve);
        expect(reserved(now)).toBe(reserve);
      }
    },
  );

  test.each([
    [6_000, FAR],
    [0.9, FAR],
    [0.1, FAR],
    [0.000_1, FAR],
    [0.1, 1_700_000_000_123.456],
    [1 / 3, 1_700_000_000_123.456],
    [0.001, 0],
    [1e-9, 0],
  ])('spacing: a permit every %d ms from %d on: no two are closer together', (every, startAt) => {
    const { check } = begin({ every, reserve: 3 }, startAt);
    let now = startAt;
    let last = -Infinity;
    for (let n = 0; n < 2_000; n++) {
      const decision = check(now);
      if (decision.verdict === 'deny') {
        now += decision.retryAfterMs;
        continue;
      }
      const due = decision.verdict === 'wait' ? now + decision.waitMs : now;
      expect(due - last, `permit ${n}`).toBeGreaterThanOrEqual(every * (1 - 1e-9));
      last = due;
      if (n % 7 === 0) now += every / 3;
    }
  });

  test('spacing: a retry at the given time succeeds for any interval', () => {
    for (const every of [6_000, 1 / 3, 0.7, 33.333, 1_000 / 7, 100.000_000_000_5]) {
      for (const reserve of [0, 1, 4]) {
        for (const startAt of [0, 1_700_000_000_123.456, FAR]) {
          const { check, policy, state } = begin({ every, reserve }, startAt);
          let now = startAt;
          for (let n = 0; n < 200; n++) {
            const decision = check(now);
            if (decision.verdict !== 'deny') continue;
            now += decision.retryAfterMs;
            const context = `every ${every}, reserve ${reserve}, from ${startAt}, step ${n}`;
            const early = policy.check(state.slice(), 0, 1, now - 1.125);
            expect(early.verdict, `${context}: early`).toBe('deny');
            const opened = policy.check(state.slice(), 0, 1, now);
            expect(opened.verdict, context).not.toBe('deny');
          }
        }
      }
    }
  });

  // A wrong settlement must not shorten an interval.
  test('spacing: a slot given back with the wrong time makes no interval too short', () => {
    for (let dueAt = 0; dueAt <= 14_000; dueAt += 250) {
      const { policy, state, check } = begin({ every: '6s', reserve: 1 });
      check(0); // valid at 0
      check(0); // valid at 6000, and released
      policy.settle(state, 0, { outcome: 'ignored', cost: 1, dueAt }, 4_000);
      const next = check(4_000);
      const opensAt =
        4_000 +
        (next.verdict === 'wait' ? next.waitMs : next.verdict === 'deny' ? next.retryAfterMs : 0);
      expect(opensAt, `given back as good at ${dueAt}`).toBeGreaterThanOrEqual(6_000);
    }
  });

  test.each([
    [0, 1e-6, 0],
    [0, 0.001, 1],
    [FAR, 0.125, 0], // the instant before
    [FAR, 1, 1],
  ])(
    'spacing: from %d on, a slot released with a time %d ms too early leaves %i reserved',
    (at, earlierMs, left) => {
      const { policy, state, check, reserved } = begin({ every: '6s', reserve: 1 }, at);
      check(at);
      check(at); // valid six seconds later, and released
      const dueAt = at + 6_000 - earlierMs;
      policy.settle(state, 0, { outcome: 'ignored', cost: 1, dueAt }, at);
      expect(reserved(at)).toBe(left);
    },
  );

  test('spacing: reports how long a permit stays valid', () => {
    expect(spacing({ every: '6s' }).traits.expireMs).toBe(Infinity);
    expect(spacing({ every: '6s', expire: '500ms' }).traits.expireMs).toBe(500);
  });

  test('spacing: can reserve only with reserve above 0, and needs no outcomes', () => {
    const traitsOf = (reserve: number) => spacing({ every: '6s', reserve }).traits;
    expect(traitsOf(0)).toMatchObject({ canReserve: false, needsOutcome: false });
    expect(traitsOf(1)).toMatchObject({ canReserve: true, needsOutcome: false });
  });

  test('spacing: needs exact time, and is removable at its next slot', () => {
    const { policy, state, check } = begin({ every: '6s', reserve: 2 });
    expect(policy.traits.needsExactTime).toBe(true);
    check(1_000);
    check(1_000);
    expect(policy.freshAt(state, 0, false)).toBe(13_000);
    expect(policy.freshAt(state, 0, true)).toBe(13_000);
  });

  test('spacing: a key evicted too early waits for its slot', () => {
    const { policy, state, check } = begin({ every: '6s' });
    policy.init(state, 0, 1_000, 7_500);
    expect(check(1_000)).toEqual({ verdict: 'deny', retryAfterMs: 6_500 });
    policy.init(state, 0, 1_000, 500);
    expect(check(1_000).verdict).toBe('allow');
  });

  test('spacing: refuses an invalid cost and counts nothing', () => {
    const { policy, state, check } = begin({ every: '6s' });
    for (const cost of [-1, Number.NaN]) {
      expect(() => policy.check(state, 0, cost, 0)).toThrow(ConfigError);
    }
    expect(check(0).verdict).toBe('allow');
  });
});
