import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { ExactLog, type LoggedCall, mostInAnyWindow } from '../../test/support/window-oracle.ts';
import { ConfigError } from '../core/errors.ts';
import { seededRandom } from '../core/random.ts';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { lendUpTo, takeUpTo } from './policy.ts';
import { window } from './window.ts';

const TEN = { window: { limit: 10, per: '1m', steps: 6 } } as const;

const scenarios: Record<string, Scenario> = {
  'window: no minute sees more than ten, nor any minute across two': {
    limit: TEN,
    rows: [
      [50_000, 'check 10', 'allow, 0 left'],
      [60_000, 'check 1', 'deny, retry in 60000'], // a bucket would have allowed some by now
      [119_999, 'check 1', 'deny, retry in 1'],
      [120_000, 'check 10', 'allow, 0 left'],
    ],
  },

  'window: calls stop counting as their steps leave, up to a step late': {
    limit: TEN,
    rows: [
      [0, 'check 4', 'allow, 6 left'],
      [9_999, 'check 1', 'allow, 5 left'],
      [25_000, 'check 5', 'allow, 0 left'],
      [25_000, 'check 1', 'deny, retry in 45000'], // those of the first step, once all of it has left
      [25_000, 'check 6', 'deny, retry in 65000'],
      [69_999, 'peek', 'remaining 0'],
      [70_000, 'peek', 'remaining 5'],
      [70_000, 'check 5', 'allow, 0 left'],
      [90_000, 'peek', 'remaining 5'],
      [140_000, 'peek', 'remaining 10'],
    ],
  },

  'window: the retry time waits only for what is missing': {
    limit: TEN,
    rows: [
      [0, 'check 4', 'allow, 6 left'],
      [20_000, 'check 4', 'allow, 2 left'],
      [20_000, 'check 5', 'deny, retry in 50000'], // three more: those of the first step suffice
      [70_000, 'check 5', 'allow, 1 left'],
    ],
  },

  'window: a deferred call counts from when it is due': {
    limit: {
      all: [
        { window: { limit: 3, per: '1m', steps: 6 } },
        { spacing: { every: '1s', reserve: 5 } },
      ],
    },
    rows: [
      [9_500, 'check 1', 'allow, 0 left'],
      [9_500, 'check 1', 'wait 1000'],
      [12_500, 'check 1', 'allow, 0 left'],
      [12_500, 'giveBack 1 due 10500'],
      [70_000, 'check 1', 'allow, 0 left'],
      [70_000, 'check 1', 'wait 1000'],
      [70_000, 'check 1', 'deny, retry in 10000'], // the last minute has those of 12.5, 70 and 71 seconds
    ],
  },

  'window: calls before a deferred one count until they leave': {
    limit: {
      all: [
        { window: { limit: 3, per: '10s', steps: 2 } },
        { spacing: { every: '8s', reserve: 5 } },
      ],
    },
    rows: [
      [4_000, 'check 1', 'allow, 0 left'],
      [4_000, 'check 1', 'wait 8000'],
      [4_000, 'check 1', 'wait 16000'],
      [4_000, 'check 1', 'deny, retry in 21000'], // none leaves before all of its step, here that of the second call
      [28_000, 'check 1', 'allow, 0 left'], // by now both have left
      [28_000, 'check 1', 'wait 8000'],
      [28_000, 'check 1', 'deny, retry in 12000'], // the third counts in the next step
    ],
  },

  'window: calls before a deferred one count even if all leave by then': {
    limit: {
      all: [
        { window: { limit: 2, per: '10s', steps: 2 } },
        { spacing: { every: '16s', reserve: 5 } },
      ],
    },
    rows: [
      [4_000, 'check 1', 'allow, 0 left'],
      [4_000, 'check 1', 'wait 16000'],
      [4_000, 'check 1', 'deny, retry in 21000'],
      [25_000, 'check 1', 'wait 11000'],
    ],
  },

  'window: all or nothing, and a cost above the limit never fits': {
    limit: TEN,
    rows: [
      [0, 'check 7', 'allow, 3 left'],
      [0, 'check 4', 'deny, retry in 70000'],
      [0, 'check 11', 'deny, never'],
      [0, 'check 3', 'allow, 0 left'],
      [0, 'takeUpTo 5', 'got 0'],
      [70_000, 'takeUpTo all', 'got 10'],
    ],
  },

  'window: returns unused cost in its step while that counts': {
    limit: TEN,
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [30_000, 'done ok cost 4 used 1 due 0'],
      [30_000, 'peek', 'remaining 3'],
      [30_000, 'done ignored cost 2 due 0'],
      [30_000, 'peek', 'remaining 5'],
      [69_000, 'check 5', 'allow, 0 left'],
      [75_000, 'done ignored cost 5 due 0'], // has left the window already
      [75_000, 'peek', 'remaining 5'],
    ],
  },

  'window: an unused call comes off its own step, not the newest': {
    limit: TEN,
    rows: [
      [0, 'check 5', 'allow, 5 left'],
      [30_000, 'check 5', 'allow, 0 left'],
      [30_000, 'giveBack 1 due 0'],
      [30_000, 'peek', 'remaining 1'],
      [70_000, 'peek', 'remaining 5'], // all of the first step has left, nothing of the other
    ],
  },

  'window: unused cost comes back until its step has left, never from another': {
    limit: TEN,
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [0, 'giveBack 2'],
      [0, 'peek', 'remaining 2'],
      [69_999, 'giveBack 3 due 0'],
      [69_999, 'peek', 'remaining 5'],
      [69_999, 'giveBack 2 due 70000'], // nothing was counted there yet
      [69_999, 'peek', 'remaining 5'],
      [70_000, 'check 10', 'allow, 0 left'],
      [70_000, 'giveBack 5 due 0'],
      [70_000, 'peek', 'remaining 0'],
    ],
  },

  'window: use beyond the cost counts from when it is known': {
    limit: TEN,
    rows: [
      [0, 'check 1', 'allow, 9 left'],
      [30_000, 'done ok cost 1 used 5 due 0'],
      [30_000, 'peek', 'remaining 5'],
      [70_000, 'peek', 'remaining 6'],
      [100_000, 'peek', 'remaining 10'],
    ],
  },

  'window: a cost of 0 is never refused and shows at least 0': {
    limit: TEN,
    rows: [
      [0, 'check 0', 'allow, 10 left'],
      [0, 'update 20', 'applied'],
      [0, 'check 0', 'allow, 0 left'],
    ],
  },

  'window: counts hits elsewhere and what the server reports': {
    limit: TEN,
    rows: [
      [0, 'update 8', 'applied'],
      [0, 'check 3', 'deny, retry in 70000'],
      [0, 'check 2', 'allow, 0 left'],
      [0, 'update 20', 'applied'],
      [0, 'peek', 'remaining -20'],
      [70_000, 'peek', 'remaining 10'],
    ],
  },

  'window: time that goes backwards stands still': {
    limit: TEN,
    rows: [
      [100_000, 'check 10', 'allow, 0 left'],
      [40_000, 'check 1', 'deny, retry in 130000'],
      [170_000, 'check 1', 'allow, 9 left'],
    ],
  },

  'window: a call leaves at the given time with fractional steps': {
    limit: { window: { limit: 1, per: '1m', steps: 21 } },
    rows: [
      [18_000, 'check 1', 'allow, 0 left'],
      [18_000, 'check 1', 'deny, retry in 62000'],
      [79_999, 'check 1', 'deny, retry in 1'],
      [80_000, 'check 1', 'allow, 0 left'], // 28 steps, though 80,000 / (60,000 / 21) is a little less
    ],
  },

  'window: works before the origin of time': {
    limit: TEN,
    rows: [
      [-100_000, 'check 10', 'allow, 0 left'],
      [-50_000, 'check 1', 'deny, retry in 20000'],
      [-30_000, 'check 10', 'allow, 0 left'],
      [30_000, 'check 1', 'deny, retry in 10000'],
      [40_000, 'check 1', 'allow, 9 left'],
    ],
  },

  'window: no step is shorter than a millisecond': {
    limit: { window: { limit: 1, per: 5 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 6'],
      [5, 'check 1', 'deny, retry in 1'],
      [6, 'check 1', 'allow, 0 left'],
    ],
  },

  'window: the shortest window is a millisecond': {
    limit: { window: { limit: 1, per: 1 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, retry in 2'],
      [2, 'check 1', 'allow, 0 left'],
    ],
  },

  'window: a single step counts by fixed windows at half the rate': {
    limit: { window: { limit: 2, per: '1s', steps: 1 } },
    rows: [
      [900, 'check 2', 'allow, 0 left'],
      [1_000, 'check 1', 'deny, retry in 1000'],
      [2_000, 'check 2', 'allow, 0 left'],
    ],
  },
};

describe('window', () => {
  runScenarios(scenarios);

  test('window: feedback on remaining calls lowers the count, never raises it', () => {
    const policy = window({ limit: 10, per: '1m' });
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.update(state, 0, { remaining: 3 }, 0);
    expect(policy.keyState(state, 0, 0).remaining).toBe(3);
    policy.update(state, 0, { remaining: 8 }, 0);
    expect(policy.keyState(state, 0, 0).remaining).toBe(3);
    expect(policy.update(state, 0, { retryAfterMs: 5 }, 0)).toBe(false);
  });

  test('window: is removable when its last call has left, despite later refusals', () => {
    const policy = window(TEN.window);
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    expect([policy.freshAt(state, 0, false), policy.freshAt(state, 0, true)]).toEqual([
      -Infinity,
      -Infinity,
    ]);
    policy.check(state, 0, 10, 5_000);
    policy.check(state, 0, 1, 65_000);
    expect([policy.freshAt(state, 0, false), policy.freshAt(state, 0, true)]).toEqual([
      70_000, 70_000,
    ]);
  });

  test('window: a key evicted too early has nothing left until that has left', () => {
    const policy = window(TEN.window);
    const state = new Float64Array(policy.width).fill(7); // the numbers of another key
    policy.init(state, 0, 15_000, 70_000);
    const left = [15_000, 69_999, 70_000].map((now) => policy.available(state, 0, now));
    expect(left).toEqual([0, 0, 10]);
  });

  const random = seededRandom(1);
  test.each<[string, () => number]>([
    ['a caller that always has more', () => 5],
    ['twice the limit, at random', () => -500 * Math.log(1 - random())],
    ['just the limit, at random', () => -1000 * Math.log(1 - random())],
    ['bursts', () => (random() < 0.02 ? 60_000 * random() : 10)],
  ])('window: grants at least 94 %% of what an exact log grants: %s', (_name, gapMs) => {
    const clock = new VirtualClock(1_234_567);
    const exact = new ExactLog(60, 60_000);
    const api = limiter({ limit: { window: { limit: 60, per: '1m' } }, clock });
    let served = 0;
    while (clock.now() < 1_234_567 + 100 * 60_000) {
      if (api.check('').verdict === 'allow') served++;
      exact.check(clock.now());
      clock.advance(gapMs());
    }
    expect(served / exact.served).toBeGreaterThanOrEqual(0.94);
  });

  test('window: lender and borrower never exceed both parts in any period, in any order of calls', () => {
    const [part, perMs, deadlineMs] = [8, 400, 70];
    let borrowed = 0;
    for (let seed = 1; seed <= 400; seed++) {
      const draw = seededRandom(seed);
      const whole = window({ limit: 2 * part, per: perMs, steps: 1 + Math.floor(draw() * 8) });
      const policy = whole.divide?.ofGroup?.(0.5, deadlineMs).policy ?? whole;
      const states = [new Float64Array(policy.width), new Float64Array(policy.width)];
      for (const state of states) policy.init(state, 0, 0);
      const log: LoggedCall[] = [];
      const inTransit: { at: number; to: number; units: number }[] = [];
      for (let now = 0; now < 3000; now += 1 + Math.floor(60 * draw() ** 3)) {
        for (const loan of inTransit.filter(({ at }) => at <= now)) {
          inTransit.splice(inTransit.indexOf(loan), 1);
          if (now - loan.at <= deadlineMs / 2)
            policy.divide?.credit?.(states[loan.to], 0, loan.units, part, now);
        }
        const who = draw() < 0.5 ? 0 : 1;
        if (draw() < 0.4) {
          const units = lendUpTo(policy, states[who], 0, part, now, 0);
          if (units > 0)
            inTransit.push({ at: now + (draw() * deadlineMs) / 2, to: 1 - who, units });
          borrowed += units;
        } else {
          const units = takeUpTo(policy, states[who], 0, draw() < 0.5 ? Infinity : 1, now);
          if (units > 0) log.push({ at: now, units });
        }
      }
      expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(2 * part);
    }
    expect(borrowed).toBeGreaterThan(1000); // otherwise the property proves little
  });

  test('window: rule status: what remains and when it opens', () => {
    const policy = window({ limit: 10, per: 60_000, steps: 6 });
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    expect(policy.ruleStatuses(state.slice(), 0, 0)).toEqual([
      { kind: 'window', quota: 10, windowMs: 60_000, remaining: 10, freshInMs: 0, opensInMs: 0 },
    ]);
    policy.check(state, 0, 10, 5_000);
    expect(policy.ruleStatuses(state.slice(), 0, 15_000)).toEqual([
      {
        kind: 'window',
        quota: 10,
        windowMs: 60_000,
        remaining: 0,
        freshInMs: 55_000,
        opensInMs: 55_000,
      },
    ]);
  });

  test.each([
    [{ per: '1m' }, 'window.limit'],
    [{ limit: 0, per: '1m' }, 'window.limit'],
    [{ limit: 1.5, per: '1m' }, 'window.limit'],
    [{ limit: 1 }, 'window.per'],
    [{ limit: 1, per: 0 }, 'window.per'],
    [{ limit: 1, per: 0.5 }, 'window.per'],
    [{ limit: 1, per: '1m', steps: 0 }, 'window.steps'],
    [{ limit: 1, per: '1m', steps: 1001 }, 'window.steps'],
    [{ limit: 1, per: '1m', steps: 1.5 }, 'window.steps'],
    [{ limit: 1, per: '1m', burst: 3 }, 'window.burst'],
  ])('window: refuses %o, naming %s', (options, field) => {
    expect(() => window(options as never)).toThrow(ConfigError);
    expect(() => window(options as never)).toThrow(`\`${field}\``);
  });
});
