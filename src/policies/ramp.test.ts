import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { tables } from '../../test/support/ramp-tables.ts';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { ConfigError } from '../core/errors.ts';
import type { Policy } from './policy.ts';
import { type RampMode, type RampOptions, ramp } from './ramp.ts';

const EPOCH = 1_700_000_000_000; // a time of the real clock
const FAR = 1e15; // an instant so far out that a double holds only eighths of a millisecond
const WEEK = 7 * 86_400_000;

/** The limit of the reference tables. */
const seed = (mode: RampMode, more: Partial<RampOptions> = {}) =>
  ({
    ramp: { min: 10, max: 110, over: '10s', mode, ...more },
  }) as const;

const scenarios: Record<string, Scenario> = {
  'ramp: a caller gets what remains, and leftovers expire with the second': {
    limit: seed('relaxed'),
    rows: [
      [0, 'takeUpTo 4', 'got 4'],
      [300, 'takeUpTo all', 'got 6'],
      [999, 'takeUpTo all', 'got 0'],
      [999, 'check 1', 'deny, retry in 1'],
      [1_000, 'takeUpTo 1', 'got 1'],
      [2_000, 'takeUpTo all', 'got 30'], // the 19 left over have expired
    ],
  },

  'ramp: a refused check takes nothing': {
    limit: seed('relaxed'),
    rows: [
      [0, 'check 7', 'allow, 3 left'],
      [0, 'check 4', 'deny, retry in 1000'],
      [0, 'check 3', 'allow, 0 left'],
    ],
  },

  'ramp: peek is not a call: the relaxed level stays': {
    limit: seed('relaxed'),
    rows: [
      [0, 'check 0', 'allow, 10 left'],
      [5_000, 'check 0', 'allow, 10 left'], // no call yet
      [5_000, 'takeUpTo 1', 'got 1'],
      [6_000, 'check 0', 'allow, 20 left'],
      [7_000, 'check 0', 'allow, 20 left'],
      [9_000, 'peek', 'remaining 20, level 20'],
      [9_000, 'takeUpTo all', 'got 20'],
    ],
  },

  'ramp: unused tokens come back within their second and count as unused': {
    limit: seed('only-if-used'),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [500, 'giveBack 1'],
      [500, 'peek', 'remaining 1, level 10'],
      [1_000, 'peek', 'level 10'], // 90 % used: no growth
      [1_000, 'takeUpTo all', 'got 10'],
      [1_100, 'giveBack 1'],
      [1_200, 'takeUpTo all', 'got 1'], // now all of it is used
      [2_000, 'takeUpTo all', 'got 20'],
    ],
  },

  // The reference implementation creates tokens here.
  'ramp: no more comes back than was granted': {
    limit: seed('relaxed'),
    rows: [
      [0, 'takeUpTo 3', 'got 3'],
      [0, 'giveBack 50'],
      [0, 'peek', 'remaining 10'],
      [0, 'takeUpTo all', 'got 10'],
      [0, 'giveBack 2'],
      [0, 'giveBack 2'],
      [0, 'takeUpTo all', 'got 4'],
      [1_000, 'giveBack 5'], // nothing was granted in this second
      [1_000, 'takeUpTo all', 'got 20'],
    ],
  },

  'ramp: tokens given back late have expired': {
    limit: seed('only-if-used'),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [1_000, 'takeUpTo 5', 'got 5'],
      [1_000, 'giveBack 4 due 0'],
      [1_000, 'peek', 'remaining 15'],
      [1_000, 'takeUpTo all', 'got 15'],
      [2_000, 'peek', 'level 30'],
    ],
  },

  // A call by another client meanwhile must make no difference.
  'ramp: the clock decides what is late': {
    limit: seed('only-if-used'),
    rows: [
      [999, 'takeUpTo all', 'got 10'],
      [1_000, 'giveBack 10 due 999'],
      [1_000, 'takeUpTo all', 'got 20'],
    ],
  },

  'ramp: settle returns unused tokens and charges use beyond the cost': {
    limit: seed('relaxed'),
    rows: [
      [0, 'check 5', 'allow, 5 left'],
      [0, 'done ok cost 5 used 3'],
      [0, 'peek', 'remaining 7'],
      [0, 'done ignored cost 1'], // a dropped message is not charged
      [0, 'peek', 'remaining 8'],
      [0, 'done failed cost 2'],
      [0, 'done busy cost 2'],
      [0, 'done timeout cost 2'],
      [0, 'peek', 'remaining 8'],
      [0, 'check 1', 'allow, 7 left'],
      [0, 'done ok used 5'],
      [0, 'peek', 'remaining 3'],
      [0, 'done ok used 500'],
      [0, 'peek', 'remaining 0'],
    ],
  },

  // The reference implementation, on a real clock, is at `max` at its first call.
  'ramp: scheduled starts at min at any time': {
    limit: seed('scheduled'),
    rows: [
      [EPOCH + 123, 'takeUpTo all', 'got 10'],
      [EPOCH + 999, 'takeUpTo all', 'got 0'],
      [EPOCH + 1_000, 'takeUpTo all', 'got 20'],
      [EPOCH + 4_500, 'takeUpTo all', 'got 50'],
      [EPOCH + 60_000, 'takeUpTo all', 'got 110'],
    ],
  },

  'ramp: scheduled starts with the first call, not with the process': {
    limit: seed('scheduled'),
    startAt: 0,
    rows: [[500_000, 'takeUpTo all', 'got 10']],
  },

  'ramp: seconds stay exact far from time zero': {
    limit: seed('scheduled'),
    rows: [
      [FAR + 999.875, 'takeUpTo all', 'got 10'],
      [FAR + 999.875, 'check 1', 'deny, retry in 1'],
      [FAR + 1_000, 'takeUpTo all', 'got 20'],
      [FAR + 1_000, 'check 45', 'deny, retry in 3000'],
    ],
  },

  // The reference implementation loses a resumed level at its first call.
  'ramp: go-back-n resumes its level after a restart': {
    limit: seed('go-back-n'),
    rows: [
      [EPOCH, 'resume 60 from 1699999970000', 'applied'],
      [EPOCH, 'peek', 'remaining 60, level 60'],
      [EPOCH + 5_000, 'takeUpTo all', 'got 60'], // the time until the first call does not count as idle
      [EPOCH + 6_000, 'takeUpTo all', 'got 70'],
    ],
  },

  'ramp: scheduled resumes its level after a restart': {
    limit: seed('scheduled'),
    rows: [
      [EPOCH, 'resume 60 from 1699999970000'],
      [EPOCH, 'takeUpTo all', 'got 60'],
      [EPOCH + 1_000, 'takeUpTo all', 'got 70'],
    ],
  },

  'ramp: a level older than resumeFor is not resumed': {
    limit: seed('relaxed', { resumeFor: '60s' }),
    rows: [
      [EPOCH, 'resume 60 from 1699999939999'],
      [EPOCH, 'peek', 'level 10'],
      [EPOCH, 'resume 60 from 1699999940000'],
      [EPOCH, 'peek', 'level 60'],
    ],
  },

  ...Object.fromEntries(
    (['scheduled', 'relaxed', 'only-if-used', 'go-back-n'] as const).map((mode) => [
      `ramp: ${mode} begins again at min after resumeFor without a call`,
      {
        limit: seed(mode, { resumeFor: '60s', coolDown: '1h' }),
        rows: [
          [EPOCH, 'takeUpTo all', 'got 10'],
          [EPOCH + 1_000, 'takeUpTo all', 'got 20'],
          [EPOCH + 61_999, 'takeUpTo all', mode === 'scheduled' ? 'got 110' : 'got 30'],
          [EPOCH + 122_000, 'peek', 'remaining 10, level 10'],
          [EPOCH + 122_000, 'takeUpTo all', 'got 10'],
          [EPOCH + 123_000, 'takeUpTo all', 'got 20'],
        ],
      } satisfies Scenario,
    ]),
  ),

  'ramp: a refusal does not name a second that resumeFor does not reach': {
    limit: seed('scheduled', { resumeFor: '3s' }),
    rows: [
      [0, 'check 30', 'deny, retry in 2000'],
      [0, 'check 60', 'deny, retry in 1000'], // five seconds without a call would begin again at 10
      [2_000, 'check 30', 'allow, 0 left'],
    ],
  },

  'ramp: a resumed level is clamped, and only applied before the first call': {
    limit: seed('relaxed'),
    rows: [
      [0, 'resume 500 from 0'],
      [0, 'peek', 'level 110'],
      [0, 'resume 1 from 0'],
      [0, 'peek', 'level 10'],
      [0, 'takeUpTo all', 'got 10'],
      [0, 'resume 60 from 0'],
      [0, 'peek', 'remaining 0, level 10'],
      [1_000, 'takeUpTo all', 'got 20'],
    ],
  },

  'ramp: without a rank a member takes an even part, rounded down': {
    limit: seed('relaxed'),
    rows: [
      [0, 'pool 3', 'applied'],
      [0, 'takeUpTo all', 'got 3'],
      [0, 'takeUpTo all', 'got 0'],
      [1_000, 'takeUpTo 4', 'got 4'],
      [1_000, 'takeUpTo all', 'got 2'],
      [1_000, 'giveBack 1'],
      [1_000, 'takeUpTo all', 'got 1'], // what it takes and gives counts three times
      [2_000, 'takeUpTo all', 'got 10'],
    ],
  },

  'ramp: a refusal names a near turn, and the next second for a far one': {
    limit: { ramp: { min: 1, max: 1, over: '1s' } },
    rows: [
      [1_000_000, 'pool 5000 rank 0', 'applied'],
      [1_000_000, 'check 1', 'deny, retry in 1000'], // its turn is at 5,000 s, beyond the lookahead
      [4_000_000, 'check 1', 'deny, retry in 1000000'],
      [5_000_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'ramp: with a rank a member gets turns at the remainder': {
    limit: { ramp: { min: 5, max: 5, over: '1s' } },
    nodes: ['A', 'B', 'C'],
    rows: [
      [0, 'A: pool 3 rank 0'],
      [0, 'B: pool 3 rank 1'],
      [0, 'C: pool 3 rank 2'],
      [0, 'A: takeUpTo all', 'got 2'],
      [0, 'B: takeUpTo all', 'got 2'],
      [0, 'C: takeUpTo all', 'got 1'],
      [1_000, 'A: takeUpTo all', 'got 2'],
      [1_000, 'B: takeUpTo all', 'got 1'],
      [1_000, 'C: takeUpTo all', 'got 2'],
      [2_000, 'A: takeUpTo all', 'got 1'],
      [2_000, 'B: takeUpTo all', 'got 2'],
      [2_000, 'C: takeUpTo all', 'got 2'],
      [2_000, 'C: check 3', 'deny, never'], // a third of five is never three
    ],
  },

  // In the reference implementation a level below the number of members grants nothing, for ever.
  'ramp: a level below the pool size rotates': {
    limit: { ramp: { min: 1, max: 1, over: '1s' } },
    nodes: ['A', 'B', 'C'],
    rows: [
      [0, 'A: pool 3 rank 0'],
      [0, 'B: pool 3 rank 1'],
      [0, 'C: pool 3 rank 2'],
      [0, 'A: check 1', 'allow, 0 left'],
      [0, 'B: check 1', 'deny, retry in 2000'],
      [0, 'C: check 1', 'deny, retry in 1000'],
      [1_000, 'C: check 1', 'allow, 0 left'],
      [1_000, 'A: check 1', 'deny, retry in 2000'],
      [2_000, 'B: check 1', 'allow, 0 left'],
      [3_000, 'A: check 1', 'allow, 0 left'],
      [3_000, 'A: check 2', 'deny, never'], // no member's part is ever two
    ],
  },

  'ramp: a fully used part counts as a fully used level': {
    limit: seed('only-if-used'),
    rows: [
      [0, 'pool 3 rank 1'],
      [0, 'takeUpTo all', 'got 3'], // turns at the one left over: second 2, 5, …
      [1_000, 'peek', 'level 20'],
      [1_000, 'takeUpTo 5', 'got 5'], // of seven or six
      [2_000, 'peek', 'level 20'],
    ],
  },

  'ramp: a mostly used part counts as a mostly used level': {
    limit: seed('only-if-used', { threshold: 80 }),
    rows: [
      [0, 'pool 3 rank 1'],
      [0, 'takeUpTo all', 'got 3'],
      [1_000, 'takeUpTo 4', 'got 4'], // two thirds of its six, independent of other members
      [2_000, 'peek', 'level 20'],
      [2_000, 'takeUpTo 6', 'got 6'], // of seven
      [3_000, 'peek', 'level 30'],
    ],
  },

  'ramp: the last member has the whole level from the next second on': {
    limit: seed('relaxed'),
    rows: [
      [0, 'pool 2'],
      [0, 'takeUpTo all', 'got 5'],
      [100, 'pool 1'], // the member that left may have taken its five
      [100, 'takeUpTo all', 'got 0'],
      [1_000, 'takeUpTo all', 'got 20'],
    ],
  },

  'ramp: tokens taken by ranked members stay taken after they leave': {
    limit: { ramp: { min: 5, max: 5, over: '1s' } },
    nodes: ['A', 'B', 'C'],
    rows: [
      [0, 'A: pool 3 rank 0'],
      [0, 'B: pool 3 rank 1'],
      [0, 'C: pool 3 rank 2'],
      [0, 'A: takeUpTo all', 'got 2'],
      [0, 'B: takeUpTo all', 'got 2'],
      [0, 'C: takeUpTo all', 'got 1'],
      [500, 'C: pool 1 rank 0'], // alone now, but all five are used
      [500, 'C: takeUpTo all', 'got 0'],
      [1_000, 'C: takeUpTo all', 'got 5'],
    ],
  },

  // A took four of ten when it was alone; with B its part is five, so one is left.
  'ramp: a member that joins within a second adds no tokens': {
    limit: seed('relaxed'),
    nodes: ['A', 'B'],
    rows: [
      [0, 'A: takeUpTo 4', 'got 4'],
      [500, 'A: pool 2'],
      [500, 'B: pool 2'],
      [500, 'B: takeUpTo all', 'got 5'],
      [500, 'A: takeUpTo all', 'got 1'],
      [1_000, 'A: takeUpTo all', 'got 10'],
    ],
  },

  'ramp: gaining or losing a rank keeps what remains': {
    limit: seed('relaxed'),
    nodes: ['A', 'B'],
    rows: [
      [0, 'A: pool 2'],
      [0, 'A: update 4'], // two of its five
      [0, 'A: takeUpTo 1', 'got 1'],
      [0, 'A: peek', 'remaining 2'],
      [0, 'B: pool 2 rank 1'],
      [0, 'B: takeUpTo 3', 'got 3'],
      [500, 'A: pool 2 rank 0'],
      [500, 'A: takeUpTo all', 'got 2'],
      [500, 'B: pool 2'],
      [500, 'B: takeUpTo all', 'got 2'],
    ],
  },

  'ramp: a member that leaves within a second may have taken its part': {
    limit: seed('relaxed'),
    rows: [
      [0, 'pool 2'],
      [0, 'takeUpTo 3', 'got 3'],
      [500, 'pool 1'],
      [500, 'takeUpTo all', 'got 4'],
    ],
  },

  'ramp: a member that gains a rank is limited to its part': {
    limit: seed('only-if-used', { threshold: 80 }),
    rows: [
      [0, 'takeUpTo 4', 'got 4'],
      [500, 'pool 2 rank 0'],
      [500, 'peek', 'remaining 1'],
      [1_000, 'peek', 'level 20'], // four of its five
    ],
  },

  'ramp: in a pool of two, taking and giving back counts twice against the level': {
    limit: seed('only-if-used', { threshold: 85 }),
    rows: [
      [0, 'pool 2'],
      [0, 'takeUpTo all', 'got 5'], // all ten are used
      [1_000, 'takeUpTo all', 'got 10'],
      [1_000, 'giveBack 2'], // 80 % of twenty
      [2_000, 'takeUpTo all', 'got 10'],
    ],
  },

  'ramp: tokens given back here do not return hits elsewhere': {
    limit: seed('relaxed'),
    rows: [
      [0, 'update 4'],
      [0, 'takeUpTo 2', 'got 2'],
      [0, 'giveBack 50'],
      [0, 'takeUpTo all', 'got 6'],
    ],
  },

  'ramp: hits elsewhere are subtracted': {
    limit: seed('only-if-used'),
    rows: [
      [0, 'update 4', 'applied'],
      [0, 'takeUpTo all', 'got 6'],
      [1_000, 'update 50', 'applied'], // all ten were used
      [1_000, 'peek', 'remaining 0, level 20'],
      [1_000, 'check 1', 'deny, retry in 1000'],
    ],
  },

  'ramp: utilisation is compared with the threshold': {
    limit: seed('only-if-used', { threshold: 50 }),
    rows: [
      [0, 'takeUpTo 4', 'got 4'],
      [1_000, 'peek', 'level 10'],
      [1_000, 'takeUpTo 5', 'got 5'],
      [2_000, 'peek', 'level 20'],
      [2_000, 'takeUpTo 9', 'got 9'],
      [3_000, 'peek', 'level 20'],
    ],
  },

  'ramp: go-back-n lowers the level only after the cool-down': {
    limit: seed('go-back-n', { coolDown: '3s' }),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [1_000, 'takeUpTo all', 'got 20'],
      [2_000, 'takeUpTo all', 'got 30'],
      [6_000, 'peek', 'level 40'], // three idle seconds
      [7_000, 'peek', 'level 30'],
      [8_000, 'peek', 'level 20'],
      [9_000, 'peek', 'level 10'],
      [10_000, 'peek', 'level 10'],
    ],
  },

  'ramp: go-back-n goes down by rampDown': {
    limit: seed('go-back-n', { rampDown: 50 }),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [1_000, 'takeUpTo all', 'got 20'],
      [2_000, 'takeUpTo 1', 'got 1'],
      [3_000, 'takeUpTo all', 'got 25'], // - 5, not - 10
      [6_000, 'peek', 'level 25'], // + 10, and - 5 for each of two idle seconds
    ],
  },

  'ramp: go-back-n with rampDown 0 keeps its level': {
    limit: seed('go-back-n', { rampDown: 0 }),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [1_000, 'takeUpTo 1', 'got 1'],
      [2_000, 'peek', 'level 20'],
      [WEEK, 'peek', 'level 20'],
    ],
  },

  'ramp: time that goes backwards stands still': {
    limit: seed('relaxed'),
    rows: [
      [5_000, 'takeUpTo all', 'got 10'],
      [4_000, 'takeUpTo all', 'got 0'],
      [4_000, 'check 1', 'deny, retry in 2000'],
      [0, 'peek', 'remaining 0, level 10'],
      [5_999, 'takeUpTo all', 'got 0'],
      [6_000, 'takeUpTo all', 'got 20'],
      [5_500, 'giveBack 3'], // of a second that is over by this clock
      [6_000, 'takeUpTo all', 'got 0'],
    ],
  },

  'ramp: after a week idle, scheduled is at max': {
    limit: seed('scheduled'),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [WEEK, 'takeUpTo all', 'got 110'],
    ],
  },
  'ramp: after a week idle, relaxed has moved one step': {
    limit: seed('relaxed'),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [WEEK, 'takeUpTo all', 'got 20'],
    ],
  },
  'ramp: after a week idle, only-if-used has moved one step': {
    limit: seed('only-if-used'),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [WEEK, 'takeUpTo all', 'got 20'],
    ],
  },
  'ramp: after a week idle, go-back-n is at min': {
    limit: seed('go-back-n'),
    rows: [
      [0, 'takeUpTo all', 'got 10'],
      [1_000, 'takeUpTo all', 'got 20'],
      [2_000, 'takeUpTo all', 'got 30'],
      [WEEK, 'takeUpTo all', 'got 10'],
    ],
  },

  'ramp: scheduled knows when the level is large enough': {
    limit: seed('scheduled'),
    rows: [
      [500, 'check 25', 'deny, retry in 1500'],
      [500, 'check 110', 'deny, retry in 9500'],
      [500, 'check 111', 'deny, never'],
      [1_999, 'check 25', 'deny, retry in 1'],
      [2_000, 'check 25', 'allow, 5 left'],
      [2_000, 'check 6', 'deny, retry in 1000'],
      [2_000.25, 'check 6', 'deny, retry in 1000'], // never too early
    ],
  },

  'ramp: other modes retry in the next second': {
    limit: seed('relaxed'),
    rows: [
      [0, 'check 25', 'deny, retry in 1000'],
      [1_000, 'check 25', 'deny, retry in 1000'],
      [2_000, 'check 25', 'allow, 5 left'],
    ],
  },

  'ramp: a turn at a level that grows by calls assumes one step': {
    limit: seed('relaxed'),
    rows: [
      [0, 'pool 3 rank 1'],
      [0, 'check 7', 'deny, retry in 2000'], // of 20 it has six in the next second, then seven
      [0, 'check 8', 'deny, retry in 1000'], // no part of 20 is eight: a retry makes the level grow
    ],
  },

  'ramp: a part is large enough later than the level': {
    limit: seed('scheduled'),
    rows: [
      [0, 'pool 3'],
      [0, 'check 5', 'deny, retry in 1000'], // a third of 20
      [0, 'check 8', 'deny, retry in 2000'], // a third of 30
      [0, 'check 36', 'deny, retry in 10000'],
      [0, 'check 37', 'deny, never'],
      [1_000, 'check 8', 'deny, retry in 1000'],
      [2_000, 'check 8', 'allow, 2 left'],
    ],
  },

  // A sixth of a token a second: six sixths must be one, sixty must be ten.
  'ramp: a slope of a sixth is not lost to rounding': {
    limit: { ramp: { min: 10, max: 20, over: '60s', mode: 'scheduled' } },
    rows: [
      [0, 'check 11', 'deny, retry in 6000'],
      [5_000, 'takeUpTo all', 'got 10'],
      [6_000, 'check 11', 'allow, 0 left'],
      [6_000, 'check 14', 'deny, retry in 18000'],
      [24_000, 'check 14', 'allow, 0 left'],
      [60_000, 'takeUpTo all', 'got 20'],
    ],
  },
};

const begin = (options: RampOptions, startAt = 0) => {
  const policy = ramp(options);
  const state = new Float64Array(policy.width);
  policy.init(state, 0, startAt);
  return { policy, state };
};

/** What each rank may take of a pool in a given second. */
function partsOf(policy: Policy, size: number, now: number): number[] {
  return Array.from({ length: size }, (_, rank) => {
    const state = new Float64Array(policy.width);
    policy.init(state, 0, now);
    policy.update(state, 0, { poolSize: size, rank }, now);
    return policy.available(state, 0, now);
  });
}

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

describe('ramp', () => {
  runScenarios(scenarios);

  test('ramp: there are seven tables', () => expect(tables).toHaveLength(7));

  for (const { id, mode, min, max, overSeconds, thresholdPercent, rows } of tables) {
    for (const [clock, origin] of Object.entries({ virtual: 0, real: EPOCH, 'far-off': FAR })) {
      test.each([1, 10])(
        `ramp: matches reference table ${id} on a ${clock} clock, in %d calls a second`,
        (bites) => {
          const over = overSeconds * 1_000;
          const { policy, state } = begin({ min, max, over, mode, threshold: thresholdPercent });

          for (const { second, pool, used } of rows) {
            const now = origin + second * 1_000 + 250;
            if (pool !== null)
              expect(policy.keyState(state, 0, now).level, `second ${second}`).toBe(pool);
            if (used === null) continue; // a second without a call

            for (let bite = 0; bite < bites; bite++) {
              const decision = policy.check(state, 0, used / bites, now + bite * 50);
              expect(decision.verdict, `second ${second}`).toBe('allow');
            }
            expect(policy.available(state, 0, now + 700)).toBe((pool ?? 0) - used);
          }
        },
      );
    }
  }

  test.each(['relaxed', 'only-if-used', 'go-back-n'] as const)(
    'ramp: sixty steps of a sixth add up to ten (%s)',
    (mode) => {
      const { policy, state } = begin({ min: 10, max: 20, over: '60s', mode, threshold: 90 });
      for (let second = 0; second <= 60; second++) {
        const pool = policy.available(state, 0, second * 1_000);
        expect(pool, `second ${second}`).toBe(10 + Math.floor(second / 6));
        policy.check(state, 0, pool, second * 1_000);
      }
    },
  );

  test('ramp: a fractional level is used up when its whole part is', () => {
    const { policy, state } = begin({ min: 10, max: 20, over: '60s', mode: 'only-if-used' });
    for (let second = 0; second <= 60; second++) {
      policy.check(state, 0, policy.available(state, 0, second * 1_000), second * 1_000);
    }
    expect(policy.keyState(state, 0, 61_000).level).toBe(20);
  });

  // A level of 1.9999999999999998 grants two. None used is a use of 0, not below 0.
  test('ramp: with threshold 0, no use is enough', () => {
    for (let over = 1; over <= 60; over++) {
      const options = {
        min: 1,
        max: 5,
        over: over * 1_000,
        mode: 'only-if-used',
        threshold: 0,
      } as const;
      const { policy, state } = begin(options);
      for (let second = 0; second <= over; second++) {
        const { level } = policy.keyState(state, 0, second * 1_000);
        expect(level, `second ${second} of ${over}`).toBeCloseTo(1 + (4 / over) * second, 6);
        expect(policy.check(state, 0, 6, second * 1_000).verdict).toBe('deny'); // a call, and no use
      }
    }
  });

  test('ramp: parts of all ranks add up to the level every second, and rotate', () => {
    const division = fc.record({
      pool: fc.integer({ min: 1, max: 200 }),
      size: fc.integer({ min: 1, max: 60 }),
      second: fc.oneof(fc.nat(1_000), fc.integer({ min: 1_700_000_000, max: 1_700_000_999 })),
    });
    fc.assert(
      fc.property(division, ({ pool, size, second }) => {
        const policy = ramp({ min: pool, max: pool, over: '1s' });
        const got = new Float64Array(size);
        for (let n = 0; n < size; n++) {
          const parts = partsOf(policy, size, (second + n) * 1_000);
          expect(sum(parts)).toBe(pool);
          expect(Math.max(...parts) - Math.min(...parts)).toBeLessThanOrEqual(1);
          parts.forEach((part, rank) => {
            got[rank] += part;
          });
        }
        // After a full rotation all members have had the same.
        expect(new Set(got)).toEqual(new Set([pool]));
      }),
    );
  });

  test('ramp: members without rank get the floor, never more than the level', () => {
    for (let pool = 1; pool <= 30; pool++) {
      for (let size = 1; size <= 12; size++) {
        const { policy, state } = begin({ min: pool, max: pool, over: '1s' });
        policy.update(state, 0, { poolSize: size }, 0);
        expect(policy.available(state, 0, 0)).toBe(Math.floor(pool / size));
      }
    }
  });

  test('ramp: a refusal names the second of the next turn', () => {
    for (let size = 2; size <= 9; size++) {
      for (let pool = 1; pool < 2 * size; pool++) {
        for (let rank = 0; rank < size; rank++) {
          const { policy, state } = begin({ min: pool, max: pool, over: '1s', mode: 'scheduled' });
          policy.update(state, 0, { poolSize: size, rank }, 0);
          const cost = Math.ceil(pool / size);
          const decision = policy.check(state, 0, cost, 400);
          if (decision.verdict !== 'deny') continue;
          const opensAt = 400 + decision.retryAfterMs;
          for (let now = 1_000; now < opensAt; now += 1_000) {
            expect(policy.check(state.slice(), 0, cost, now).verdict, `early, ${now}`).toBe('deny');
          }
          expect(policy.check(state, 0, cost, opensAt).verdict).toBe('allow');
        }
      }
    }
  });

  test('ramp: feedback before the first call is kept', () => {
    const sized = begin(seed('relaxed').ramp);
    expect(sized.policy.freshAt(sized.state, 0, false)).toBe(-Infinity); // no state yet
    expect(sized.policy.freshAt(sized.state, 0, true)).toBe(-Infinity);
    sized.policy.update(sized.state, 0, { poolSize: 3 }, 0);
    expect(sized.policy.freshAt(sized.state, 0, false)).toBe(Infinity);

    const ranked = begin(seed('relaxed').ramp);
    ranked.policy.update(ranked.state, 0, { poolSize: 1, rank: 0 }, 0);
    expect(ranked.policy.freshAt(ranked.state, 0, false)).toBe(Infinity);

    const resumed = begin(seed('relaxed').ramp);
    resumed.policy.update(resumed.state, 0, { resume: 60, reachedAt: 0 }, 0);
    expect(resumed.policy.freshAt(resumed.state, 0, false)).toBe(Infinity);
  });

  test('ramp: a key with a pool size is not evicted', () => {
    const { policy, state } = begin(seed('relaxed').ramp);
    policy.update(state, 0, { poolSize: 30 }, 0);
    expect(policy.freshAt(state, 0, true)).toBe(Infinity);
    policy.check(state, 0, 1, 0);
    expect(policy.freshAt(state, 0, true)).toBe(Infinity);
  });

  test('ramp: a raised level is kept; one back at min is removable', () => {
    const forgetAt = (options: RampOptions, seconds: number): number => {
      const { policy, state } = begin(options);
      for (let second = 0; second < seconds; second++) {
        policy.check(state, 0, policy.available(state, 0, second * 1_000), second * 1_000);
      }
      return policy.freshAt(state, 0, false);
    };
    expect(forgetAt(seed('scheduled').ramp, 1)).toBe(Infinity);
    expect(forgetAt(seed('relaxed').ramp, 1)).toBe(Infinity);
    expect(forgetAt(seed('only-if-used').ramp, 1)).toBe(Infinity);
    // At second 2 with 30, used: 40 at second 3 with a call, and three idle seconds to 10.
    expect(forgetAt(seed('go-back-n').ramp, 3)).toBe(6_000);
    expect(forgetAt(seed('go-back-n', { coolDown: '5s' }).ramp, 3)).toBe(11_000);
    expect(forgetAt(seed('go-back-n', { rampDown: 50 }).ramp, 3)).toBe(9_000);
    expect(forgetAt(seed('go-back-n', { rampDown: 0 }).ramp, 3)).toBe(Infinity);
    expect(forgetAt({ min: 7, max: 7, over: '1s' }, 3)).toBe(3_000);
  });

  test.each(['scheduled', 'relaxed', 'only-if-used', 'go-back-n'] as const)(
    'ramp: a key evicted too early has nothing left of its second (%s)',
    (mode) => {
      const { policy, state } = begin(seed(mode).ramp);
      policy.check(state, 0, 1, 5_200); // one of ten: far from used
      const evictAt = policy.freshAt(state, 0, true);
      expect(evictAt).toBe(6_000);
      const again = new Float64Array(policy.width);
      policy.init(again, 0, 5_300, evictAt);
      expect(policy.available(again, 0, 5_300)).toBe(0);
      expect(policy.available(again, 0, 5_999)).toBe(0);
      expect(policy.available(again, 0, 6_000)).toBeGreaterThanOrEqual(10);
      expect(policy.available(again, 0, 6_000)).toBeLessThanOrEqual(
        policy.available(state, 0, 6_000),
      );
    },
  );

  test('ramp: a key evicted too early has nothing left, also at a gentle slope', () => {
    const policy = ramp({ min: 10, max: 20, over: '10s' });
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 5_300, 6_000);
    const left = [5_300, 5_999, 6_000].map((now) => policy.available(state, 0, now));
    expect(left).toEqual([0, 0, 10]);
  });

  test('ramp: ignores what the server reports', () => {
    const { policy, state } = begin(seed('relaxed').ramp);
    expect(policy.update(state, 0, { remaining: 3 }, 0)).toBe(false);
    expect(policy.update(state, 0, { retryAfterMs: 5 }, 0)).toBe(false);
    expect(policy.available(state, 0, 0)).toBe(10);
  });

  test('ramp: refuses an invalid cost and counts nothing', () => {
    const { policy, state } = begin(seed('relaxed').ramp);
    for (const cost of [-1, Number.NaN]) {
      expect(() => policy.check(state, 0, cost, 0)).toThrow(ConfigError);
    }
    expect(policy.check(state, 0, Infinity, 0)).toEqual({
      verdict: 'deny',
      retryAfterMs: Infinity,
    });
    expect(policy.available(state, 0, 0)).toBe(10);
  });
});
