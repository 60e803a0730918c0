import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import type { Outcome } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { seededRandom } from '../core/random.ts';
import { aimd } from './aimd.ts';
import type { AimdOptions } from './aimd-options.ts';
import { concurrency } from './concurrency.ts';

const noChance = (): number => {
  throw new Error('random must not be called');
};

/** One key of an adaptive limit, and the operations on it. */
function begin(options: AimdOptions, random = noChance) {
  const policy = aimd(options, random);
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  return {
    policy,
    state,
    check: (cost = 1, now = 0) => policy.check(state, 0, cost, now),
    settle: (now: number, outcome: Outcome, rttMs?: number, cost = 1) =>
      policy.settle(
        state,
        0,
        { outcome, cost, dueAt: 0, ...(rttMs === undefined ? {} : { rttMs }) },
        now,
      ),
    view: () => policy.keyState(state, 0, 0),
    limit: () => policy.keyState(state, 0, 0).limit as number,
  };
}

const scenarios: Record<string, Scenario> = {
  'aimd: starts at one, and further calls are refused until a call settles': {
    limit: { adaptive: { rule: 'aimd' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 1', 'deny, when settled'],
      [9_000, 'check 1', 'deny, when settled'], // time alone frees nothing
      [9_000, 'done ok 9000'],
      [9_000, 'check 1', 'allow, 0 left'],
    ],
  },

  'aimd: increases by one per round trip if the limit was reached and RTT did not rise': {
    limit: { adaptive: { rule: 'aimd' } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [100, 'done ok 100'],
      [100, 'peek', 'limit 1, rtt 100'], // the first reply only sets the mean
      [100, 'check 1', 'allow, 0 left'],
      [199, 'done ok 99'], // less than a round trip later
      [199, 'peek', 'limit 1, rtt 100'],
      [199, 'check 1', 'allow, 0 left'],
      [200, 'done ok 1'],
      [200, 'peek', 'remaining 2, limit 2, in flight 0'],
    ],
  },

  'aimd: does not increase a limit that was not reached': {
    limit: { adaptive: { rule: 'aimd', initial: 3, deviationScale: 1 } },
    rows: [
      [0, 'check 1', 'allow, 2 left'],
      [100, 'done ok 100'],
      [100, 'check 1', 'allow, 2 left'],
      [200, 'done ok 90'], // quicker, but two places stood empty
      [200, 'peek', 'limit 3'],
    ],
  },

  'aimd: counts reaching the limit in the window in which it happened': {
    limit: { adaptive: { rule: 'aimd', initial: 2 } },
    rows: [
      [0, 'check 2', 'allow, 0 left'],
      [100, 'done ok 100'],
      [200, 'done ok 100'],
      [200, 'peek', 'limit 3'],
      [200, 'check 1', 'allow, 2 left'],
      [300, 'done ok 90'], // quicker, but two places stood empty this time
      [300, 'peek', 'limit 3'],
    ],
  },

  'aimd: takeUpTo takes the remaining slots': {
    limit: { concurrency: 5 },
    rows: [
      [0, 'check 2', 'allow, 3 left'],
      [0, 'takeUpTo all', 'got 3'],
      [0, 'peek', 'in flight 5'],
    ],
  },

  'aimd: a decrease cancels nothing, and no call starts until enough have settled': {
    limit: { adaptive: { rule: 'aimd', initial: 8, decreaseRatio: 0.5 } },
    rows: [
      [0, 'check 8', 'allow, 0 left'],
      [100, 'done ok 100'],
      [200, 'done busy 100'],
      [200, 'peek', 'remaining 0, limit 4, in flight 6'],
      [200, 'check 0', 'allow, 0 left'],
      [200, 'check 1', 'deny, when settled'],
      [210, 'done ok 110'],
      [210, 'done ok 110'],
      [210, 'peek', 'remaining 0, in flight 4'],
      [210, 'check 1', 'deny, when settled'],
      [220, 'done ok 120'],
      [220, 'check 1', 'allow, 0 left'],
    ],
  },

  'aimd: reacts to back-pressure once per round trip, not once per reply': {
    limit: { adaptive: { rule: 'aimd', initial: 100, decreaseRatio: 0.5 } },
    rows: [
      [0, 'check 100', 'allow, 0 left'],
      [100, 'done ok 100'],
      [150, 'done busy'],
      [150, 'peek', 'limit 100'],
      [200, 'done failed'], // any reply closes the window
      [200, 'peek', 'limit 50'],
      [201, 'done busy'],
      [299, 'done busy'],
      [299, 'peek', 'limit 50'],
      [300, 'done timeout'],
      [300, 'peek', 'limit 25'],
    ],
  },

  'aimd: back-pressure before the first success decreases the limit once per round of calls': {
    limit: { adaptive: { rule: 'aimd', initial: 10, decreaseRatio: 0.5 } },
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [100, 'done timeout'],
      [100, 'peek', 'limit 5, in flight 9'],
      [100, 'done timeout cost 8'], // calls that were sent before the decrease
      [100, 'peek', 'limit 5, in flight 1'],
      [100, 'check 4', 'allow, 0 left'],
      [200, 'done timeout'], // the last call of the first round
      [200, 'peek', 'limit 5, in flight 4'],
      [200, 'done busy'],
      [200, 'peek', 'limit 2, in flight 3'],
      [250, 'done failed cost 3'],
      [250, 'peek', 'limit 2, in flight 0'],
    ],
  },

  'aimd: the first success after such decreases is measured, and the limit grows again': {
    limit: { adaptive: { rule: 'aimd', initial: 10, decreaseRatio: 0.5 } },
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [100, 'done timeout cost 10'],
      [100, 'check 5', 'allow, 0 left'],
      [150, 'done ok 50'],
      [150, 'check 1', 'allow, 0 left'],
      [200, 'done ok 50'],
      [200, 'peek', 'limit 6'],
    ],
  },

  'aimd: back-pressure never moves a fixed concurrency limit, before the first success too': {
    limit: { concurrency: 10 },
    rows: [
      [0, 'check 10', 'allow, 0 left'],
      [100, 'done timeout'],
      [100, 'peek', 'limit 10, in flight 9'],
    ],
  },

  'aimd: never falls below one, and recovers from there': {
    limit: { adaptive: { rule: 'aimd', initial: 2, decreaseRatio: 0.1 } },
    rows: [
      [0, 'check 2', 'allow, 0 left'],
      [100, 'done ok 100'],
      [200, 'done busy'],
      [200, 'peek', 'limit 1'],
      [200, 'check 1', 'allow, 0 left'],
      [300, 'done busy'],
      [300, 'peek', 'limit 1'],
      [300, 'check 1', 'allow, 0 left'],
      [400, 'done ok 100'],
      [400, 'peek', 'limit 2'],
    ],
  },

  'aimd: a fixed concurrency limit measures and never moves': {
    limit: { concurrency: 3 },
    rows: [
      [0, 'check 2', 'allow, 1 left'],
      [0, 'check 2', 'deny, when settled'],
      [0, 'check 1', 'allow, 0 left'],
      [0, 'check 4', 'deny, never'],
      [100, 'done ok 100'],
      [300, 'done busy'],
      [300, 'peek', 'limit 3, rtt 100'],
      [600, 'done ok 200'],
      [600, 'peek', 'limit 3, in flight 0, rtt 140'], // 100 + 0.4 × 100
    ],
  },

  'aimd: slow start doubles until the first decrease, then adds one': {
    limit: { adaptive: { rule: 'aimd', slowStart: true, max: 20, decreaseRatio: 0.5 } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [100, 'done ok 100'],
      [100, 'check 1', 'allow, 0 left'],
      [200, 'done ok 100'],
      [200, 'peek', 'limit 2'],
      [200, 'check 2', 'allow, 0 left'],
      [300, 'done ok 100 cost 2'],
      [300, 'peek', 'limit 4'],
      [300, 'check 4', 'allow, 0 left'],
      [400, 'done busy cost 4'],
      [400, 'peek', 'limit 2'],
      [400, 'check 2', 'allow, 0 left'],
      [500, 'done ok 100 cost 2'],
      [500, 'peek', 'limit 3'],
    ],
  },

  'aimd: back-pressure at a limit of one decreases nothing and does not end slow start': {
    limit: { adaptive: { rule: 'aimd', slowStart: true } },
    rows: [
      [0, 'check 1', 'allow, 0 left'],
      [100, 'done ok 100'],
      [100, 'check 1', 'allow, 0 left'],
      [200, 'done busy'],
      [200, 'peek', 'limit 1'],
      [200, 'check 1', 'allow, 0 left'],
      [300, 'done ok 100'],
      [300, 'peek', 'limit 2'],
      [300, 'check 2', 'allow, 0 left'],
      [400, 'done ok 100 cost 2'],
      [400, 'peek', 'limit 4'],
    ],
  },

  'aimd: slow start stops at the maximum': {
    limit: { adaptive: { rule: 'aimd', slowStart: true, initial: 5, max: 7 } },
    rows: [
      [0, 'check 5', 'allow, 0 left'],
      [100, 'done ok 100'],
      [200, 'done ok 100'],
      [200, 'peek', 'limit 7'],
    ],
  },

  'aimd: silence decreases the limit to one, before any call has timed out': {
    limit: { adaptive: { rule: 'aimd', initial: 40 } },
    rows: [
      [0, 'check 40', 'allow, 0 left'],
      [100, 'done ok 100'],
      [100, 'check 1', 'allow, 0 left'], // from here on no call is answered
      [1_099, 'check 1', 'deny, when settled'],
      [1_099, 'peek', 'limit 40'],
      [1_100, 'check 1', 'deny, when settled'],
      [1_100, 'peek', 'limit 36, in flight 40'],
      [1_200, 'check 1', 'deny, when settled'],
      [1_200, 'peek', 'limit 32'],
      [4_100, 'check 1', 'deny, when settled'], // the next check counts all of the silence
      [4_100, 'peek', 'limit 1, in flight 40'],
    ],
  },

  'aimd: silence decreases the limit of a service that has never answered': {
    limit: { adaptive: { rule: 'aimd', initial: 50 } },
    rows: [
      [0, 'check 50', 'allow, 0 left'],
      [999, 'check 1', 'deny, when settled'],
      [999, 'peek', 'limit 50'],
      [4_500, 'check 1', 'deny, when settled'],
      [4_500, 'peek', 'limit 1, in flight 50'],
    ],
  },

  'aimd: a timeout counts the silence before it, although no check was refused': {
    limit: { adaptive: { rule: 'aimd', initial: 40 } },
    rows: [
      [0, 'check 40', 'allow, 0 left'],
      [30_000, 'done timeout 30000'],
      [30_000, 'peek', 'limit 1, in flight 39'],
    ],
  },

  'aimd: calls that time out do not end a silence, a reply does': {
    limit: { adaptive: { rule: 'aimd', initial: 40 } },
    rows: [
      [0, 'check 40', 'allow, 0 left'],
      [900, 'done ignored'],
      [900, 'check 1', 'allow, 0 left'],
      [1_000, 'check 1', 'deny, when settled'],
      [1_000, 'peek', 'limit 36'],
      [1_050, 'done failed'],
      [2_000, 'check 1', 'deny, when settled'],
      [2_999, 'check 1', 'deny, when settled'],
      [2_999, 'peek', 'limit 36'],
      [3_000, 'check 1', 'deny, when settled'],
      [3_000, 'peek', 'limit 32'],
    ],
  },

  'aimd: silence is four mean round trips, if that is longer than a second': {
    limit: { adaptive: { rule: 'aimd', initial: 40 } },
    rows: [
      [0, 'check 40', 'allow, 0 left'],
      [2_000, 'done ok 2000'],
      [2_000, 'check 1', 'allow, 0 left'],
      [9_999, 'check 1', 'deny, when settled'],
      [9_999, 'peek', 'limit 40, rtt 2000'],
      [10_000, 'check 1', 'deny, when settled'],
      [10_000, 'peek', 'limit 36'],
    ],
  },

  'aimd: a limit that is not reached shows no silence, however long a call lasts': {
    limit: { adaptive: { rule: 'aimd', initial: 40 } },
    rows: [
      [0, 'check 1', 'allow, 39 left'], // a stream
      [30_000, 'check 39', 'allow, 0 left'],
      [30_000, 'check 1', 'deny, when settled'],
      [30_999, 'check 1', 'deny, when settled'],
      [30_999, 'peek', 'limit 40'],
    ],
  },

  'aimd: a silence before an idle minute decreases nothing after it': {
    limit: { adaptive: { rule: 'aimd', initial: 40 } },
    rows: [
      [0, 'check 40', 'allow, 0 left'],
      [500, 'done ignored cost 40'],
      [100_000, 'check 40', 'allow, 0 left'],
      [100_000, 'check 1', 'deny, when settled'],
      [100_000, 'peek', 'limit 40'],
    ],
  },

  'aimd: decreaseOnSilence false: only a settled call adjusts the limit': {
    limit: { adaptive: { rule: 'aimd', initial: 40, decreaseOnSilence: false } },
    rows: [
      [0, 'check 40', 'allow, 0 left'],
      [60_000, 'check 1', 'deny, when settled'],
      [60_000, 'peek', 'limit 40'],
      [60_000, 'done timeout 60000'],
      [60_000, 'peek', 'limit 36'],
    ],
  },

  'aimd: variant rfc halves the limit, rounded up': {
    limit: { adaptive: { rule: 'aimd', variant: 'rfc', initial: 6 } },
    rows: [
      [0, 'check 6', 'allow, 0 left'],
      [100, 'done ok 100'],
      [200, 'done busy 100'],
      [200, 'peek', 'limit 3'],
      [250, 'done busy 100'], // once per round trip
      [250, 'peek', 'limit 3'],
      [300, 'done ok 101'], // slower than the mean
      [300, 'peek', 'limit 2'],
      [401, 'done busy 100'],
      [401, 'peek', 'limit 1'],
    ],
  },

  'aimd: variant rfc increases to one more than there are calls in flight': {
    limit: { adaptive: { rule: 'aimd', variant: 'rfc', initial: 5, max: 40 } },
    rows: [
      [0, 'check 5', 'allow, 0 left'],
      [100, 'done ok 100'],
      [100, 'check 1', 'allow, 0 left'],
      [200, 'done ok 100'],
      [200, 'peek', 'limit 6, in flight 4'],
      [300, 'done ok 100 cost 3'],
      [300, 'peek', 'limit 5, in flight 1'],
      [400, 'done ok 100'], // idle: the limit falls
      [400, 'peek', 'limit 2, in flight 0'],
    ],
  },

  'aimd: variant rfc leaves a limit at the maximum, used or not': {
    limit: { adaptive: { rule: 'aimd', variant: 'rfc', initial: 5, max: 5 } },
    rows: [
      [0, 'check 2', 'allow, 3 left'],
      [100, 'done ok 100'],
      [200, 'done ok 100'],
      [200, 'peek', 'limit 5, in flight 0'],
    ],
  },

  'aimd: a cost above the maximum never fits; one below it fits alone': {
    limit: { adaptive: { rule: 'aimd', max: 10 } },
    rows: [
      [0, 'check 11', 'deny, never'],
      [0, 'check Infinity', 'deny, never'],
      [0, 'takeUpTo all', 'got 1'],
      [0, 'check 10', 'deny, when settled'],
      [0, 'takeUpTo all', 'got 0'],
      [0, 'done ignored'],
      [0, 'check 10', 'allow, 0 left'], // else it would wait for ever: only replies raise the limit
    ],
  },

  'aimd: ignores hits from elsewhere': {
    limit: { adaptive: { rule: 'aimd' } },
    rows: [
      [0, 'update 5', 'ignored'],
      [0, 'pool 3', 'ignored'],
      [0, 'check 1', 'allow, 0 left'],
    ],
  },

  'aimd: settling more calls than started frees no extra slots': {
    limit: { adaptive: { rule: 'aimd', initial: 2 } },
    rows: [
      [0, 'done ignored cost 9'],
      [0, 'check 2', 'allow, 0 left'],
      [0, 'check 1', 'deny, when settled'],
    ],
  },
};

interface Step {
  readonly start: number;
  readonly advance_s?: number;
  readonly respond?: 'ok' | 'defer';
  readonly limit?: number;
  readonly limit_after?: number;
  readonly can_start_another?: boolean;
}

const { unit_vectors: vectors } = JSON.parse(
  readFileSync(new URL('../../test/vectors/arc-cases.json', import.meta.url), 'utf8'),
);
const settings = vectors.controller.settings;
const scripts: readonly { name: string; steps: readonly Step[] }[] = vectors.controller.scripts;

/** A key that has measured these round trips, one per window (in seconds, as in the vectors). */
function learnt(alpha: number, points: readonly number[]) {
  const key = begin({ initial: 50, max: 50, alpha, deviationScale: 1 });
  points.forEach((seconds, n) => {
    key.check();
    key.settle(n * 60_000, 'ok', seconds * 1_000);
  });
  return key;
}

/** The shortest round trip that counts as slow, found by trying: the threshold itself is not exposed. */
function shortestSlow(key: ReturnType<typeof begin>): number {
  const before = key.limit();
  let [low, high] = [0, 100_000];
  while (high - low > 0.0005) {
    const rttMs = (low + high) / 2;
    const state = key.state.slice();
    key.policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 0, rttMs }, 1e9);
    if ((key.policy.keyState(state, 0, 0).limit as number) < before) high = rttMs;
    else low = rttMs;
  }
  return high;
}

describe('aimd', () => {
  runScenarios(scenarios);

  test('aimd: the vectors are complete', () => {
    expect(scripts.map(({ name }) => name)).toEqual([
      'startup',
      'increases_limit',
      'handles_deferral',
      'rapid_decrease',
    ]);
    expect(settings.rtt_deviation_scale).toBe(2.5);
  });

  test.for(scripts)('aimd: matches the reference implementation: $name', ({ steps }) => {
    const key = begin({
      initial: settings.initial_concurrency,
      max: settings.max_concurrency_limit,
      decreaseRatio: settings.decrease_ratio,
      alpha: settings.ewma_alpha,
      deviationScale: settings.rtt_deviation_scale,
    });
    let now = 0;
    steps.forEach((step, n) => {
      for (let k = 0; k < step.start; k++) expect(key.check(1, now).verdict).toBe('allow');
      if (step.limit !== undefined) expect(key.limit()).toBe(step.limit);
      if (step.can_start_another === false) expect(key.check(1, now).verdict).toBe('deny');
      if (step.respond === undefined) return;

      const rttMs = (step.advance_s ?? 0) * 1_000;
      now += rttMs;
      const outcome = step.respond === 'ok' ? 'ok' : 'busy';
      for (let k = 0; k < step.start; k++) key.settle(now, outcome, rttMs);
      expect(key.limit(), `after step ${n}`).toBe(step.limit_after);
      expect(key.view().inFlight).toBe(0);
    });
  });

  test('aimd: the mean of a window is the mean of its round trips', () => {
    const { points, averages, empty } = vectors.mean;
    const key = begin({});
    const mean = () => key.policy.currentWindow(key.state, 0, 0).meanMs;
    expect(mean() ?? null).toBe(empty);
    points.forEach((point: number, n: number) => {
      key.policy.recordAttempt(key.state, 0, 'ok', point);
      expect(mean()).toBe(averages[n]);
    });
  });

  test.each(['ewma', 'ewma_var'])('aimd: matches the reference moving mean (%s)', (which) => {
    const { alpha, points, averages, means } = vectors[which];
    points.forEach((_: number, n: number) => {
      const { rttMs } = learnt(alpha, points.slice(0, n + 1)).view();
      expect(rttMs, `point ${n}`).toBe((averages ?? means)[n] * 1_000);
    });
  });

  test('aimd: matches the reference moving variance', () => {
    const { alpha, points, means, variances } = vectors.ewma_var;
    // From the second point on: the first window is still open and would dilute the measurement.
    for (let n = 1; n < points.length; n++) {
      const slowest = shortestSlow(learnt(alpha, points.slice(0, n + 1)));
      expect(slowest, `point ${n}`).toBeCloseTo((means[n] + Math.sqrt(variances[n])) * 1_000, 2);
    }
  });

  // Ten in flight, a mean of 100 ms, the limit was reached: the effect of one more reply.
  const answers: readonly (readonly [Outcome, number | undefined, number])[] = [
    ['ok', 100, 11],
    ['ok', 99.9995, 11], // differences below a microsecond do not count
    ['ok', 101, 9],
    ['ok', undefined, 10], // without a measurement the limit stays
    ['busy', 100, 9],
    ['busy', undefined, 9],
    ['timeout', 1_000, 9],
    ['failed', 1, 10],
    ['failed', 5_000, 10],
    ['ignored', 1, 10],
    ['ignored', undefined, 10],
  ];
  test.for(answers)(
    'aimd: %s after %s ms turns a limit of ten into %d',
    ([outcome, rttMs, after]) => {
      const key = begin({ initial: 9 });
      key.check(9);
      key.settle(100, 'ok', 100);
      key.settle(200, 'ok', 100); // a window later: ten
      expect(key.limit()).toBe(10);
      key.check(3);
      key.settle(300, outcome, rttMs);
      expect(key.limit()).toBe(after);
      const isLearnt = outcome === 'ok' && rttMs !== undefined;
      expect(key.view().rttMs).toBeCloseTo(isLearnt ? 100 + 0.4 * (rttMs - 100) : 100, 3);
    },
  );

  // Three times 0.1 is 0.30000000000000004 in doubles, and a third of that is above 0.1.
  test('aimd: a mean of equal round trips counts as equal, not slower', () => {
    for (const rttMs of [0.1, 0.7, 1.1, 33.3]) {
      const key = begin({ initial: 3 });
      key.check(3);
      key.settle(1_000, 'ok', rttMs);
      key.settle(1_000, 'ok', rttMs);
      key.settle(2_000, 'ok', rttMs);
      expect(key.limit(), `${rttMs} ms`).toBe(4);
    }
  });

  test('aimd: without variance, an average RTT below the limit counts as slow, as in the reference', () => {
    const key = begin({ initial: 10 });
    for (let now = 100; now <= 300; now += 100) {
      key.check();
      key.settle(now, 'ok', 100);
    }
    expect(key.limit()).toBe(8); // 10, 9, 8
  });

  test('aimd: the same at the maximum, which cannot be increased', () => {
    const key = begin({ initial: 10, max: 10 });
    key.check(10);
    key.settle(100, 'ok', 100);
    key.settle(200, 'ok', 100);
    expect(key.limit()).toBe(9);
  });

  /** The limit after windows with these round trips, in which it is reached. */
  const limitsAfter = (rtts: readonly number[], limit = 40): number[] => {
    const key = begin({ initial: limit, max: limit });
    let now = 0;
    return rtts.map((rttMs) => {
      const cost = key.limit();
      key.check(cost, now);
      now += rttMs;
      key.settle(now, 'ok', rttMs, cost);
      return key.limit();
    });
  };
  const noisy = (n: number): number => 100 + 10 * Math.sin(n * n);

  test('aimd: round trips that keep rising decrease the limit to one', () => {
    const rising = (n: number): number => noisy(n) * 1.02 ** Math.max(0, n - 20);
    const limits = limitsAfter(Array.from({ length: 300 }, (_, n) => rising(n)));
    expect(limits[19]).toBeGreaterThan(30);
    expect(Math.min(...limits)).toBe(1);
    expect(Math.max(...limits.slice(200))).toBeLessThanOrEqual(5);
  });

  test('aimd: calls that take twice as long from one call to the next do not bring the limit to one', () => {
    const limits = limitsAfter(
      Array.from({ length: 100 }, (_, n) => noisy(n) * (n < 20 ? 1 : 2)),
      60,
    );
    expect(Math.min(...limits)).toBeGreaterThan(10);
    expect(limits.at(-1)).toBeGreaterThan(30); // the new round-trip time is the usual one
  });

  test('aimd: variant rfc follows the pseudo-code of the RFC', () => {
    for (const [seed, deviationScale] of [
      [1, 0],
      [2, 2.5],
    ] as const) {
      const random = seededRandom(seed);
      const max = 12;
      const key = begin({ variant: 'rfc', initial: 4, max, deviationScale });
      let [limit, average, variance, nextUpdate, now] = [4, Number.NaN, 0, 0, 0];
      for (let n = 0; n < 5_000; n++) {
        now += 60 * random();
        const { inFlight = 0 } = key.view();
        if (random() < 0.6)
          expect(key.check(1, now).verdict).toBe(inFlight < limit ? 'allow' : 'deny');
        else if (inFlight > 0) {
          const isBusy = random() < 0.05;
          const rtt = Math.round(100 + 20 * random() + inFlight);
          key.settle(now, isBusy ? 'busy' : 'ok', rtt);
          if (Number.isNaN(average)) {
            if (!isBusy) [average, nextUpdate] = [rtt, now + rtt];
            else limit = key.limit(); // the RFC does not say what happens before the first measurement
            continue;
          }
          if (now >= nextUpdate) {
            const threshold = deviationScale * Math.sqrt(variance);
            if (isBusy || rtt > average + threshold) limit = Math.floor((limit + 1) / 2);
            else if (limit < max && rtt <= average) limit = Math.min(inFlight, limit) + 1;
            nextUpdate = now + average;
          }
          if (!isBusy) {
            const diff = rtt - average;
            average += 0.4 * diff;
            variance = 0.6 * (variance + 0.4 * diff * diff);
          }
          expect(key.limit(), `call ${n}`).toBe(limit);
        }
      }
    }
  });

  test('aimd: variant rfc refuses the options that its arithmetic leaves without effect', () => {
    const create = (options: object) => () => begin({ variant: 'rfc', ...options });
    expect(create({ decreaseRatio: 0.5 })).toThrow(
      "expected `adaptive.decreaseRatio` to be left out beside `variant: 'rfc'`, got 0.5",
    );
    expect(create({ slowStart: true })).toThrow("left out beside `variant: 'rfc'`");
    expect(create({ variant: 'RFC' })).toThrow('`adaptive.variant` to be one of vector, rfc');
    expect(create({ decreaseOnSilence: 1 })).toThrow('`adaptive.decreaseOnSilence`');
  });

  test('aimd: a fixed limit writes no number beyond its own', () => {
    const { width, check, settle, init, recordAttempt } = concurrency(2, noChance);
    const state = new Float64Array(2 * width).fill(7, width);
    init(state, 0, 0);
    for (let now = 0; now < 100_000; now += 500) {
      for (let n = 0; n < 3; n++) check(state, 0, 1, now);
      recordAttempt(state, 0, 'ok', now);
      const outcome = (['ok', 'timeout', 'busy'] as const)[now % 3];
      settle(state, 0, { outcome, cost: 1, dueAt: 0, rttMs: now / 10 }, now);
    }
    expect(state.subarray(width).every((number) => number === 7)).toBe(true);
  });

  // A sink that is down from the start: no round trip is ever measured.
  test('aimd: rounds of timeouts alone bring the limit down to one', () => {
    const key = begin({ initial: 50, decreaseOnSilence: false });
    const limits: number[] = [];
    for (let round = 1; round <= 25; round++) {
      const sent = key.limit();
      key.check(sent);
      for (let n = 0; n < sent; n++) key.settle(round * 1_000, 'timeout', 1_000);
      limits.push(key.limit());
    }
    expect(limits.slice(0, 5)).toEqual([45, 40, 36, 32, 28]); // a tenth per round, not per timeout
    expect(limits.at(-1)).toBe(1);
    expect(key.policy.freshAt(key.state, 0, false)).toBe(Infinity); // a new key would allow 50
    expect(key.policy.freshAt(key.state, 0, true)).toBeGreaterThan(60_000); // a minute after the last decrease
  });

  test('aimd: calls one by one, all refused, bring the limit down by one step each', () => {
    const key = begin({ initial: 50 });
    for (let n = 0; n < 3; n++) {
      key.check();
      key.settle(n * 100, 'busy');
    }
    expect(key.limit()).toBe(36);
  });

  test('aimd: tolerates RTT within the deviation band', () => {
    const slow = (deviationScale: number, rttMs: number): number => {
      const key = begin({ initial: 20, alpha: 0.5, deviationScale });
      [100, 100, 120].forEach((rtt, n) => {
        key.check(1);
        key.settle(n * 1_000, 'ok', rtt); // mean 110, variance 100
      });
      const before = key.limit();
      key.settle(9_000, 'ok', rttMs);
      return key.limit() - before;
    };
    expect(slow(2, 129.999)).toBe(0);
    expect(slow(2, 130)).toBe(-2);
    expect(slow(1, 119.999)).toBe(0);
    expect(slow(1, 120)).toBe(-2);
  });

  test('aimd: never exceeds the maximum, and stays whole', () => {
    const key = begin({ max: 5 });
    for (let n = 1; n < 50; n++) {
      key.check(key.limit());
      key.settle(n * 100, 'ok', 100, key.limit());
      expect(key.limit()).toBeLessThanOrEqual(5);
    }
    expect(key.limit()).toBe(5);
  });

  test('aimd: never falls below one and stays whole during a long overload', () => {
    const key = begin({ initial: 200 });
    for (let n = 1; n < 200; n++) {
      key.check(1);
      key.settle(n * 1_000, n === 1 ? 'ok' : 'timeout', 100);
      expect(Number.isInteger(key.limit())).toBe(true);
      expect(key.limit()).toBeGreaterThanOrEqual(1);
    }
    expect(key.limit()).toBe(1);
    expect(key.check().verdict).toBe('allow');
  });

  test('aimd: an attempt that is retried counts its RTT and back-pressure and stays in flight', () => {
    const key = begin({ initial: 10 });
    key.check(10);
    key.settle(100, 'ok', 100);
    key.policy.recordAttempt(key.state, 0, 'ok', 40);
    expect(key.policy.currentWindow(key.state, 0, 199)).toEqual({ meanMs: 70, due: false });
    key.policy.recordAttempt(key.state, 0, 'busy', 500);
    expect(key.view()).toMatchObject({ limit: 10, inFlight: 9 });
    expect(key.policy.currentWindow(key.state, 0, 200)).toEqual({ meanMs: 70, due: true });
    key.settle(200, 'failed');
    expect(key.view()).toMatchObject({ limit: 9, inFlight: 8, rttMs: 88 });
    expect(key.policy.currentWindow(key.state, 0, 287)).toEqual({ meanMs: undefined, due: false });
    expect(key.policy.currentWindow(key.state, 0, 288)).toEqual({ meanMs: undefined, due: true });
  });

  test('aimd: no adjustment is due before the first measurement', () => {
    const key = begin({});
    expect(key.policy.currentWindow(key.state, 0, 1e9)).toEqual({ meanMs: undefined, due: false });
    key.check();
    key.settle(500, 'busy', 500); // back-pressure alone sets no mean
    expect(key.view()).toEqual({ remaining: 1, limit: 1, inFlight: 0, backPressure: true });
  });

  test('aimd: jitter delays an adjustment by a random part of the mean RTT', () => {
    for (const [jitter, draw, dueAt] of [
      [0.5, 0.5, 225],
      [1, 0, 200],
      [1, 0.999, 299.9],
    ] as const) {
      const key = begin({ jitter }, () => draw);
      key.check();
      key.settle(100, 'ok', 100);
      expect(key.policy.currentWindow(key.state, 0, dueAt - 0.001).due).toBe(false);
      expect(key.policy.currentWindow(key.state, 0, dueAt).due).toBe(true);
    }
  });

  test('aimd: with jitter, clients that started together do not adjust in step', () => {
    const changesOf = (jitter: number, seed: number): number[] => {
      const key = begin({ jitter }, seededRandom(seed));
      const changes: number[] = [];
      for (let now = 100; now <= 20_000; now += 10) {
        const before = key.limit();
        key.check(before);
        key.settle(now, 'ok', 100, before);
        if (key.limit() !== before) changes.push(now);
      }
      return changes;
    };
    expect(changesOf(0.5, 1)).toEqual(changesOf(0.5, 1)); // the same seed, the same changes
    expect(changesOf(0, 1)).toEqual(changesOf(0, 2));
    const [one, two] = [changesOf(0.5, 1), changesOf(0.5, 2)];
    const together = one.filter((at) => two.includes(at)).length;
    expect(one.length).toBeGreaterThan(100);
    expect(together).toBeLessThan(one.length / 4);
  });

  test('aimd: time that goes backwards adjusts nothing twice', () => {
    const key = begin({ initial: 100 });
    key.check(100);
    key.settle(1_000, 'ok', 100);
    key.settle(1_100, 'busy');
    expect(key.limit()).toBe(90);
    for (const now of [0, 500, 1_100, 1_199]) key.settle(now, 'busy');
    expect(key.limit()).toBe(90);
    key.settle(1_200, 'ok', 100);
    expect(key.limit()).toBe(81);
  });

  test('aimd: keeps keys with measurements or calls in flight', () => {
    const key = begin({ initial: 2 });
    const forgetAt = () => key.policy.freshAt(key.state, 0, false);
    const evictAt = () => key.policy.freshAt(key.state, 0, true);
    expect([forgetAt(), evictAt()]).toEqual([-Infinity, -Infinity]);
    key.check();
    expect([forgetAt(), evictAt()]).toEqual([Infinity, Infinity]);
    key.settle(100, 'failed');
    expect([forgetAt(), evictAt()]).toEqual([-Infinity, -Infinity]);
    key.check();
    key.settle(200, 'ok', 100);
    expect([forgetAt(), evictAt()]).toEqual([Infinity, -Infinity]);
    key.settle(300, 'busy', 100, 0);
    expect(key.limit()).toBe(1); // a new key would allow two
    expect([forgetAt(), evictAt()]).toEqual([Infinity, 60_400]); // after an idle minute

    const refused = begin({ initial: 10 });
    refused.check(1);
    refused.check(10); // denied: from here on a reply is expected
    refused.settle(100, 'ignored');
    expect(refused.policy.freshAt(refused.state, 0, false)).toBe(Infinity);
  });

  test('aimd: a key that may have been evicted after a decrease starts at one', () => {
    const { policy, state } = begin({ initial: 2 });
    policy.init(state, 0, 1_000, 60_400);
    expect(policy.keyState(state, 0, 1_000).limit).toBe(1);
    policy.check(state, 0, 1, 1_000);
    policy.settle(state, 0, { outcome: 'failed', cost: 1, dueAt: 1_000 }, 2_000);
    expect(policy.freshAt(state, 0, true)).toBe(61_000); // no measurement: a minute after it began
    policy.init(state, 0, 60_400, 60_400);
    expect(policy.keyState(state, 0, 60_400).limit).toBe(2);
  });

  // Both calls failed, but the limit was reached: that counts in this window, and the next
  // good reply may raise it. A new key would not be raised.
  test('aimd: keeps a key that reached its limit', () => {
    const key = begin({ initial: 2 });
    key.check(2);
    key.settle(50, 'failed', undefined, 2);
    expect(key.policy.freshAt(key.state, 0, false)).toBe(Infinity);
  });

  test('aimd: with an initial limit of one, an unmeasured key is removable after a failure', () => {
    const forgetAtAfter = (happen: (key: ReturnType<typeof begin>) => void): number => {
      const key = begin({});
      happen(key);
      return key.policy.freshAt(key.state, 0, false);
    };
    const over = (outcome: Outcome) => (key: ReturnType<typeof begin>) => {
      key.check(); // takes the only slot, as any next call does
      key.settle(50, outcome);
    };
    expect(forgetAtAfter(over('failed'))).toBe(-Infinity);
    expect(forgetAtAfter(over('busy'))).toBe(Infinity);
    // An attempt of a call with cost 0 was timed, and another one follows.
    expect(forgetAtAfter(({ policy, state }) => policy.recordAttempt(state, 0, 'ok', 40))).toBe(
      Infinity,
    );
  });

  test('aimd: needs exact time', () => {
    expect(begin({}).policy.traits.needsExactTime).toBe(true);
  });

  test('aimd: refuses an invalid cost and counts nothing', () => {
    const key = begin({});
    for (const cost of [-1, Number.NaN]) expect(() => key.check(cost)).toThrow(ConfigError);
    expect(key.view().inFlight).toBe(0);
  });

  test('aimd: refuses an initial limit above the maximum', () => {
    expect(() => begin({ initial: 10, max: 1 })).toThrow('initial 10 exceeds max 1');
  });
});
