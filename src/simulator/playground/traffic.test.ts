import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { readLink } from './settings.ts';
import { type Arrival, arrivals, rateAt } from './traffic.ts';

/** The calls of 60 s. */
function callsOf(link: string, seed = 1): Arrival[] {
  const calls: Arrival[] = [];
  for (const call of arrivals(readLink(link).settings, seededRandom(seed))) {
    if (call.at >= 60_000) break;
    calls.push(call);
  }
  return calls;
}

const between = (calls: readonly Arrival[], from: number, to: number): number =>
  calls.filter(({ at }) => at >= from * 1000 && at < to * 1000).length / (to - from);

describe('playground traffic', () => {
  test('steady: calls at equal intervals, clients in turn', () => {
    const calls = callsOf('traffic=steady&rate=4&clients=2');
    expect(calls.slice(0, 3)).toEqual([
      { at: 0, client: 0 },
      { at: 250, client: 1 },
      { at: 500, client: 0 },
    ]);
    expect(calls).toHaveLength(240);
  });

  test.each([
    ['poisson', 'traffic=poisson&rate=200', [0, 60, 200]],
    ['spike: base', 'traffic=spike&rate=100&factor=5&period=20', [0, 8, 100]],
    ['spike: peak', 'traffic=spike&rate=100&factor=5&period=20', [8, 12, 500]],
    ['sine: high half', 'traffic=sine&rate=200&depth=100&period=60', [0, 30, 327]],
    ['sine: low half', 'traffic=sine&rate=200&depth=100&period=60', [30, 60, 73]],
    ['flappy: on', 'traffic=flappy&rate=200&period=20', [0, 10, 200]],
    ['flappy: off', 'traffic=flappy&rate=200&period=20', [10, 20, 0]],
    ['hog: before', 'traffic=hog&rate=200&clients=10&factor=11', [0, 15, 200]],
    ['hog: active', 'traffic=hog&rate=200&clients=10&factor=11', [15, 45, 400]],
  ] as const)('%s: the expected rate', (_, link, [from, to, expected]) => {
    const rate = between(callsOf(link), from, to);
    expect(Math.abs(rate - expected)).toBeLessThanOrEqual(0.1 * expected);
  });

  test('hog: the first client sends its multiple, the others the same each', () => {
    const calls = callsOf('traffic=hog&rate=200&clients=10&factor=11');
    const active = calls.filter(({ at }) => at >= 15_000 && at < 45_000);
    const by = Array.from(
      { length: 10 },
      (_, n) => active.filter(({ client }) => client === n).length,
    );
    expect(by[0] / active.length).toBeCloseTo(11 / 20, 1);
    for (const other of by.slice(1)) expect(other / active.length).toBeCloseTo(1 / 20, 1);
  });

  test('the same seed gives the same calls, another one others', () => {
    expect(callsOf('rate=5', 3)).toEqual(callsOf('rate=5', 3));
    expect(callsOf('rate=5', 4)).not.toEqual(callsOf('rate=5', 3));
  });

  test('rateAt never exceeds the peak from which calls are drawn', () => {
    for (const traffic of ['poisson', 'spike', 'sine', 'flappy', 'hog']) {
      const { settings } = readLink(`traffic=${traffic}&rate=10`);
      const peak = 10 * Math.max(2, Number(settings.factor ?? 0));
      const rates = Array.from({ length: 600 }, (_, n) => rateAt(settings, 100 * n));
      expect(Math.max(...rates)).toBeLessThanOrEqual(peak);
    }
  });
});
