import { describe, expect, test } from 'vitest';
import type { Millis } from '../../core/clock.ts';
import { bestFixed } from './best-fixed.ts';
import { CATALOGUE } from './catalogue.ts';
import { type CreateRule, fixedRule } from './rule.ts';
import { runSink } from './run.ts';
import { evaluate, meanScore } from './score.ts';
import { settlingTimes } from './settling.ts';
import type { Sink } from './sink.ts';

const sinkOf = (name: string): Sink => {
  const found = CATALOGUE.find((sink) => sink.name === name);
  if (!found) throw new Error(`expected a sink ${name}`);
  return found;
};

describe('bestFixed', () => {
  test.each([
    ['mm1', 1, 1],
    ['mm20', 19, 21],
    ['sharing', 19, 21],
    ['far', 56, 66], // 20 workers are busy with 60 calls on the way or in service
    ['clients-8', 5, 5],
  ])('%s: finds the limit that fills the server without a queue', (name, min, max) => {
    const { limit } = bestFixed(sinkOf(name));
    expect(limit).toBeGreaterThanOrEqual(min);
    expect(limit).toBeLessThanOrEqual(max);
  });
});

test('bestFixed: a limit that starves the server is not best', () => {
  const sink = { ...sinkOf('usl'), durationMs: 30_000 };
  const { figures } = bestFixed(sink);
  const most = runSink(sink, () => fixedRule(44), 1).figures;
  expect(figures.goodput).toBeGreaterThan(0.9 * most.goodput);
  expect(figures.meanRttMs).toBeLessThan(0.8 * most.meanRttMs);
});

describe('evaluate', () => {
  const fixed = (limit: number) => ({ name: `fixed:${limit}`, create: () => fixedRule(limit) });

  test('the best fixed limit has a score of 1 on every seed', () => {
    const sink = sinkOf('mm20');
    const { median, worstScore } = evaluate(fixed(bestFixed(sink).limit), sink, [1, 2, 3]);
    expect(median).toMatchObject({ score: 1, goodput: 1, meanRtt: 1, p99Rtt: 1, inFlight: 1 });
    expect(worstScore).toBe(1);
  });

  test('half of it loses half of the goodput, twice as much doubles the round trip', () => {
    const [half, twice] = [10, 40].map((limit) => evaluate(fixed(limit), sinkOf('mm20'), [1, 2]));
    expect(half.median.goodput).toBeCloseTo(0.5, 1);
    expect(half.median.meanRtt).toBeCloseTo(1, 1);
    expect(twice.median.goodput).toBeCloseTo(1, 1);
    expect(twice.median.meanRtt).toBeCloseTo(2, 1);
    for (const { median } of [half, twice]) expect(median.score).toBeCloseTo(0.5, 1);
  });

  test('without a success the score is 0', () => {
    const { median } = evaluate(fixed(20), sinkOf('quota-strict'), [1]);
    expect(median).toMatchObject({ score: 0, goodput: 0, meanRtt: Infinity });
  });

  test('a mean counts a score above 1 as 1', () => {
    const better = evaluate(fixed(1), sinkOf('mm20'), [1]);
    const { median } = better;
    const scores = [2, 0.5].map((score) => ({ ...better, median: { ...median, score } }));
    expect(meanScore(scores)).toBe(0.75);
  });
});

describe('settlingTimes', () => {
  /** Halved at 25 s, restored at 45 s: the limit follows after some time. */
  const following =
    (downAt: Millis, upAt: Millis): CreateRule =>
    (_random, startedAt) => ({
      ...fixedRule(20),
      start: (now, inFlight) => {
        const time = now - startedAt;
        return inFlight < (time >= downAt && time < upAt ? 10 : 20) ? 0 : Number.POSITIVE_INFINITY;
      },
    });
  const settle = (createRule: CreateRule): Millis[] => {
    const { course } = runSink(sinkOf('halved'), createRule, 1);
    return settlingTimes(sinkOf('halved'), course);
  };

  test('a limit that follows at once has settled when the queue is served', () => {
    const [down, up] = settle(following(25_000, 45_000));
    expect(down).toBeLessThan(2500);
    expect(up).toBeLessThan(1500);
  });

  test('a limit that follows 6 s later has settled 6 s later', () => {
    const [down, up] = settle(following(31_000, 51_000));
    expect(down).toBeGreaterThanOrEqual(5000);
    expect(down).toBeLessThan(8000);
    expect(up).toBeGreaterThanOrEqual(5000);
    expect(up).toBeLessThan(8000);
  });

  test('a limit that does not follow never settles', () => {
    expect(settle(() => fixedRule(40))).toEqual([Infinity, Infinity]);
    expect(settle(() => fixedRule(10))).toEqual([expect.any(Number), Infinity]);
  });
});
