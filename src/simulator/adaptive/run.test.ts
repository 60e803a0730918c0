import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { runCase } from './run.ts';
import { readSuites } from './suite.ts';

const file = JSON.parse(readFileSync('test/vectors/arc-cases.json', 'utf8'));
const suites = readSuites(file);
const allCases = suites.flatMap((suite) => suite.cases.map((test) => ({ suite, test })));

/** A suite of one case, in the file format. */
function oneCase(params: object, expect: object = {}, suite: object = {}) {
  const [made] = readSuites({
    suites: [
      {
        id: 'own',
        layering: 'retry(limiter(timeout(server)))',
        backoff: 'fib_1_1_2_3_5',
        ...suite,
        cases: [{ name: 'own', params: { requests: 100, delay_s: 0.1, ...params }, expect }],
      },
    ],
  });
  return { suite: made, test: made.cases[0] };
}

describe('published adaptive cases', () => {
  test('there are 24 cases with 312 ranges', () => {
    expect(allCases.length).toBe(24);
    expect(allCases.reduce((sum, { test }) => sum + test.expect.length, 0)).toBe(312);
  });

  test.each(allCases)('$suite.id / $test.name: every range holds', ({ suite, test: one }) => {
    // Cases with jitter must hold for any seed.
    for (const seed of one.server.jitter > 0 ? [1, 2, 3, 4, 5] : [1]) {
      const { failed, passed, isFinished } = runCase(suite, one, seed);
      expect({ missed: failed, finished: isFinished }, `seed ${seed}`).toEqual({
        missed: [],
        finished: true,
      });
      expect(passed.length).toBe(one.expect.length);
    }
  });

  test('the three published exact values match to the last digit', () => {
    const published = file.exact_values_published.values;
    const whole = suites.find(({ id }) => id === 'whole-call');
    const one = whole?.cases.find(({ name }) => name === 'defers-at-high-concurrency');
    if (!whole || !one) throw new Error('expected the case in the file');
    const { figures } = runCase(whole, one, 1);
    expect(figures['controller.observed_rtt'].max).toBe(published['controller.observed_rtt.max']);
    expect(figures['controller.observed_rtt'].mean).toBe(published['controller.observed_rtt.mean']);
    expect(figures['controller.averaged_rtt'].max).toBe(published['controller.averaged_rtt.max']);
  });

  test('a wrong policy misses ranges: without tolerance band, or with halving', () => {
    const holdingCases = (overrides: object) => {
      const changed = structuredClone(file);
      for (const suite of changed.suites) Object.assign(suite.defaults, overrides);
      const results = readSuites(changed).flatMap((suite) =>
        suite.cases.map((one) => runCase(suite, one, 1).failed.length),
      );
      return results.filter((missed) => missed === 0).length;
    };
    expect(holdingCases({ rtt_deviation_scale: 0 })).toBeLessThan(24);
    expect(holdingCases({ decrease_ratio: 0.5 })).toBeLessThan(24);
  });
});

describe('adaptive simulation', () => {
  test('the same seed gives the same run, another seed another', () => {
    const { suite, test: one } = oneCase({ jitter: 0.5 });
    expect(runCase(suite, one, 3)).toEqual(runCase(suite, one, 3));
    expect(runCase(suite, one, 3).figures).not.toEqual(runCase(suite, one, 4).figures);
  });

  test('ignores remarks in a file', () => {
    const remarked = structuredClone(file);
    remarked.suites[0].note = 'a remark';
    remarked.suites[0].cases[0].source = 'another';
    expect(readSuites(remarked)).toEqual(suites);
  });

  test('failures_after: failures start after that many completed requests, and are deferred', () => {
    const steady = oneCase({ concurrency: 10, requests: 200 });
    const failing = oneCase({ concurrency: 10, requests: 200, failures: 20, failures_after: 100 });
    const healthy = runCase(steady.suite, steady.test, 1);
    const struck = runCase(failing.suite, failing.test, 1);
    // Two rounds of ten are refused. Their back-off costs little: other calls use the permits.
    expect(healthy.seconds).toBeCloseTo(2.02, 1);
    expect(struck.seconds).toBeCloseTo(2.3, 1);
  });

  test('measured-attempts: one permit for all attempts of a call, each timed', () => {
    const params = { requests: 50, failures: 10, concurrency: 5 };
    const layering = 'limiter(retry(measure(timeout(server))))';
    const measured = oneCase(params, {}, { layering });
    const whole = oneCase(params, {}, { layering: 'limiter(retry(timeout(server)))' });
    const { figures: each } = runCase(measured.suite, measured.test, 1);
    const { figures: all } = runCase(whole.suite, whole.test, 1);
    expect(each['controller.in_flight'].max).toBe(5);
    expect(each['controller.observed_rtt'].max).toBe(0.101); // without the back-off
    expect(all['controller.observed_rtt'].max).toBeGreaterThan(1);
  });

  test('whole-call: the back-off counts as latency; measured-attempts: it does not', () => {
    // A case that was published later: five refusals after the second reply.
    const params = { requests: 20, delay_s: 0.1, concurrency: 1, failures: 5, failures_after: 2 };
    const ranges = {
      'controller.observed_rtt.min': [0.1, 0.102],
      'controller.observed_rtt.max': [0.1, 0.3],
    };
    const missedIn = (layering: string) => {
      const { suite, test: one } = oneCase(params, ranges, { layering });
      return runCase(suite, one, 1).failed.map(({ range }) => range);
    };
    expect(missedIn('limiter(retry(measure(timeout(server))))')).toEqual([]);
    expect(missedIn('limiter(retry(timeout(server)))')).toEqual(['controller.observed_rtt.max']);
  });

  test('back-pressure reaches the policy with measured-attempts, not with whole-call', () => {
    const params = { requests: 500, server_concurrency: { limit: 5 } };
    const limitOf = (layering: string) => {
      const { suite, test: one } = oneCase(params, {}, { layering });
      return runCase(suite, one, 1).figures['controller.concurrency_limit'].mean;
    };
    expect(limitOf('limiter(retry(measure(timeout(server))))')).toBeLessThan(15);
    expect(limitOf('limiter(retry(timeout(server)))')).toBeGreaterThan(15);
  });

  test('a reply after the timeout frees the worker and does not count as completed', () => {
    // A single attempt takes 1.5 s, so every attempt times out after one second.
    const { suite, test: one } = oneCase({ requests: 1, delay_s: 1.5 });
    const { isFinished, figures } = runCase(suite, one, 1);
    expect(isFinished).toBe(false);
    expect(figures['server.in_flight'].max).toBe(1);
  });

  test('a case that never ends is stopped after one day of virtual time', () => {
    const params = { requests: 1, server_concurrency: { limit: 0, action: 'drop' } };
    const { suite, test: one } = oneCase(params);
    const { isFinished, seconds } = runCase(suite, one, 1);
    expect(isFinished).toBe(false);
    expect(seconds).toBeGreaterThan(86_400);
  });
});

describe('file of adaptive cases', () => {
  const bad = (change: (file: { suites: { cases: unknown[] }[] }) => void) => () => {
    const copy = structuredClone(file);
    change(copy);
    return readSuites(copy);
  };
  const inCase = (change: (one: Record<string, Record<string, unknown>>) => void) =>
    bad((copy) => change(copy.suites[0].cases[2] as never));

  test.each([
    ['no suites', () => readSuites({}), /`suites` to be a list, got undefined/],
    [
      'an unknown layering',
      bad((f) => Object.assign(f.suites[1], { layering: 'x' })),
      /`suites\[1\].layering` to be one of retry\(/,
    ],
    [
      'an unknown back-off',
      bad((f) => Object.assign(f.suites[0], { backoff: 'x' })),
      /`suites\[0\].backoff`/,
    ],
    [
      'no requests',
      inCase((c) => {
        c.params.requests = 0;
      }),
      /`suites\[0\].cases\[2\].params.requests`.*got 0/,
    ],
    [
      'an unknown action',
      inCase((c) => {
        c.params.server_rate = { action: 'explode' };
      }),
      /params.server_rate.action` to be one of defer, drop/,
    ],
    [
      'an unknown setting',
      inCase((c) => {
        c.params.arc_overrides = { alpha: 1 };
      }),
      /params.arc_overrides.alpha` to be one of initial_concurrency/,
    ],
    [
      'an invalid concurrency',
      inCase((c) => {
        c.params.concurrency = 'lots';
      }),
      /params.concurrency` to be "adaptive" or/,
    ],
    [
      'a reversed range',
      inCase((c) => {
        c.expect['server.rate.max'] = [5, 1];
      }),
      /expect.server.rate.max` to be two numbers/,
    ],
    [
      'a range of an unknown statistic',
      inCase((c) => {
        c.expect['server.speed.max'] = [1, 5];
      }),
      /named <side>.<stat>.<figure>/,
    ],
    [
      'no expectations',
      inCase((c) => {
        delete (c as Partial<typeof c>).expect;
      }),
      /cases\[2\].expect` to be an object, got undefined/,
    ],
    [
      'a misspelt parameter',
      inCase((c) => {
        c.params.failuers = 5;
      }),
      /params.failuers` to be one of requests/,
    ],
    [
      'an unknown side',
      inCase((c) => {
        c.expect['constructor.name.max'] = [0, 1];
      }),
      /named <side>.<stat>.<figure>/,
    ],
    [
      'a decrease ratio of 1',
      inCase((c) => {
        c.params.arc_overrides = { decrease_ratio: 1 };
      }),
      /arc_overrides.decrease_ratio` to be a number above 0/,
    ],
    [
      'an initial limit above the maximum',
      inCase((c) => {
        c.params.arc_overrides = { initial_concurrency: 300 };
      }),
      /initial_concurrency` to be at most max_concurrency_limit \(200\), got 300/,
    ],
    [
      'a mode of a round-trip time',
      inCase((c) => {
        c.expect['controller.observed_rtt.mode'] = [1, 5];
      }),
      /no mode of an rtt/,
    ],
  ])('rejects %s', (_what, read, message) => {
    expect(read).toThrow(message);
  });
});
