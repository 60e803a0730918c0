import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { Timeline } from '../timeline.ts';
import { EXAMPLES } from './examples.ts';
import { type PlaygroundResult, simulatePlayground } from './run.ts';
import { kneeServer } from './server.ts';
import { readLink } from './settings.ts';

async function simulate(link: string): Promise<PlaygroundResult & { steps: number }> {
  const { settings, problems } = readLink(link);
  expect(problems).toEqual([]);
  const run = simulatePlayground(settings);
  for (let steps = 0; ; steps++) {
    const { done, value } = await run.next();
    if (done) return { ...value, steps };
    expect(value).toBeGreaterThanOrEqual(0);
    expect(value).toBeLessThan(1);
  }
}

describe('playground server', () => {
  /** Mean time of a call with constantly `inFlight` calls in flight. */
  function timeWith(inFlight: number, link: string): number {
    const timeline = new Timeline();
    const simulation = { timeline, random: seededRandom(1) };
    const server = kneeServer(simulation, readLink(`spread=constant&${link}`).settings);
    const times: number[] = [];
    const call = (): void => {
      const sentAt = timeline.now;
      server(() => {
        times.push(timeline.now - sentAt);
        call();
      });
    };
    for (let n = 0; n < inFlight; n++) call();
    while (times.length < 400) timeline.runNextInstant();
    return times.at(-1) ?? 0;
  }

  test('a call takes its service time up to the knee; at twice the knee twice as long', () => {
    expect(timeWith(1, 'service=20&knee=8&contention=0')).toBeCloseTo(20);
    expect(timeWith(8, 'service=20&knee=8&contention=0')).toBeCloseTo(20);
    expect(timeWith(16, 'service=20&knee=8&contention=0')).toBeCloseTo(40);
  });

  test('contention: at twice the knee that part of the capacity is lost', () => {
    expect(timeWith(16, 'service=20&knee=8&contention=50')).toBeCloseTo(80);
  });

  test('refuses calls above its bound', async () => {
    const { b } = await simulate('rate=300&knee=5&refuseAbove=10&seconds=20');
    expect(b.totals.refusedByServer).toBeGreaterThan(1000);
    expect(b.totals.rttP95).toBeLessThan(400); // 10 calls at half speed, exponential
  });
});

describe('playground run', () => {
  test('many calls at once: a step has few of them, so that the page draws between', async () => {
    // 1,000 calls in 50 ms of virtual time for each limit, some of them waiting.
    const link = 'traffic=spike&rate=1000&factor=20&a.wait=1000&b=window&b.wait=1000&seconds=10';
    const { a, steps } = await simulate(link);
    expect(a.totals.offered).toBeGreaterThan(20_000);
    expect(steps).toBeGreaterThan((2 * a.totals.offered) / 8);
  });

  test('bucket: allows its burst and its rate, of the calls that the other limit sees too', async () => {
    const { a, b } = await simulate('rate=100&a.scope=all&a.rate=40&a.burst=30&seconds=60');
    expect(a.totals.offered).toBe(b.totals.offered);
    expect(a.totals.allowed).toBeGreaterThanOrEqual(40 * 60 + 30 - 5);
    expect(a.totals.allowed).toBeLessThanOrEqual(40 * 60 + 30);
    expect(a.totals.allowed + a.totals.refused).toBe(a.totals.offered);
    expect(b.totals).toMatchObject({ allowed: b.totals.offered, refused: 0 });
    const steady = a.series.allowed.slice(20).map(Number);
    expect(steady.reduce((sum, rate) => sum + rate, 0) / steady.length).toBeCloseTo(40, 0);
  });

  test('wait: calls wait in the queue instead of being refused, and no longer than allowed', async () => {
    const { a, b } = await simulate(
      'traffic=steady&rate=60&a=spacing&a.every=20&a.scope=all&a.wait=3000&b=spacing&b.every=20&b.scope=all&seconds=20',
    );
    expect(b.totals).toMatchObject({ waitP95: 0 });
    expect(b.totals.refused).toBeGreaterThan(150);
    expect(a.totals.allowed).toBeGreaterThan(0.97 * 50 * 20); // waits end at whole milliseconds
    expect(a.totals.waitP95).toBeGreaterThan(2500);
    expect(a.totals.waitP95).toBeLessThanOrEqual(3000);
    expect(a.totals.refused).toBeLessThan(b.totals.refused);
  });

  test('concurrency: never more calls in flight than its limit', async () => {
    const { a, b } = await simulate(
      'rate=400&a=concurrency&a.inFlight=10&a.scope=all&a.wait=200&seconds=20',
    );
    expect(a.totals.inFlightMax).toBe(10);
    expect(b.totals.inFlightMax).toBeGreaterThan(100);
    expect(a.totals.completed).toBeGreaterThan(b.totals.completed);
  });

  test('adaptive: finds the knee of the server, and its limit is recorded', async () => {
    const { a } = await simulate('rate=400&a=adaptive&a.scope=all&a.wait=200&seconds=60');
    const learnt = Number(a.series.learnt?.at(-1));
    expect(learnt).toBeGreaterThan(6);
    expect(learnt).toBeLessThan(25);
    expect(a.totals.completed / 60).toBeGreaterThan(150); // of a capacity of 200
  });

  test('hog: a limit for each client keeps it from the calls of the others', async () => {
    const { a, b } = await simulate(
      'traffic=hog&rate=50&clients=10&factor=50&a.rate=10&a.burst=10&b=bucket&b.rate=100&b.burst=10&b.scope=all',
    );
    const others = ({ totals: { offeredBy, allowedBy } }: typeof a): number =>
      allowedBy.slice(1).reduce((x, y) => x + y) / offeredBy.slice(1).reduce((x, y) => x + y);
    expect(others(a)).toBeGreaterThan(0.98);
    expect(others(b)).toBeLessThan(0.85);
    expect(a.totals.allowedBy[0]).toBeLessThan(a.totals.offeredBy[0] / 2);
    expect(a.totals.fairness).toBeGreaterThan(b.totals.fairness);
  });

  test('every kind of limit runs, with and without waiting', async () => {
    for (const [a, b] of [
      ...[['window', 'quota'] as const, ['ramp', 'busy'] as const, ['both', 'lockout'] as const],
      ['written', 'concurrency'] as const,
    ]) {
      const { a: one, b: other } = await simulate(
        `a=${a}&b=${b}&a.wait=100&rate=200&refuseAbove=20&seconds=10&a.scope=all&b.scope=all`,
      );
      for (const { totals, series } of [one, other]) {
        expect(totals.allowed).toBeGreaterThan(0);
        expect(totals.refused + totals.refusedByServer).toBeGreaterThan(0);
        expect(series.allowed).toHaveLength(120);
      }
    }
  });

  test('the same settings give the same result', async () => {
    const link = 'traffic=spike&a=adaptive&a.wait=500&seconds=10&seed=5';
    expect(await simulate(link)).toEqual(await simulate(link));
    expect((await simulate(link)).a).not.toEqual((await simulate(`${link}5`)).a);
  });

  test('a limit that is invalid: an error that names it', async () => {
    const written = (json: string): string => `a=written&a.json=${encodeURIComponent(json)}`;
    await expect(simulate(written('{"bucket":{"rate":0}}'))).rejects.toThrow(
      /^expected `a\.bucket\.rate` to be a rate above 0/,
    );
    await expect(simulate(written('{'))).rejects.toThrow(/^expected a limit as JSON/);
    await expect(simulate(written('[]'))).rejects.toThrow(/^expected a limit: an object/);
    await expect(simulate(written('{"concurrency":1e99}'))).rejects.toThrow(
      /^expected `a\.concurrency`/,
    );
  });

  test('steps are short and calls are bounded, whatever the settings', async () => {
    const { steps, isCut, a } = await simulate(
      'traffic=spike&rate=1000&factor=20&seconds=120&a.rate=1&b=bucket&b.rate=1',
    );
    expect(steps).toBeGreaterThan(40_000); // eight instants each
    expect(isCut).toBe(true);
    expect(a.totals.offered).toBe(200_000);
  });

  test.each(EXAMPLES)('example "$title": the two limits differ', async ({ link }) => {
    const { a, b } = await simulate(link);
    const figures = ({ totals: { completed, rttP95, waitP95, fairness } }: typeof a): number[] =>
      [completed, rttP95 ?? 0, waitP95 ?? 0, fairness].map((value) => value + 1e-9);
    const other = figures(b);
    const ratios = figures(a).map((value, n) => Math.max(value / other[n], other[n] / value));
    expect(Math.max(...ratios)).toBeGreaterThan(1.2);
  });
});
