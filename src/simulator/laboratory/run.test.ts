import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { CATALOGUE } from './catalogue.ts';
import { fixedRule, policyRule, type Rule } from './rule.ts';
import { runSink } from './run.ts';
import { durationOf, type Sink } from './sink.ts';

const sinkOf = (name: string): Sink => {
  const found = CATALOGUE.find((sink) => sink.name === name);
  if (!found) throw new Error(`expected a sink ${name}`);
  return found;
};

const ruleOf = (limit: unknown): Rule => policyRule(createPolicy(limit, seededRandom(1)), 0);

describe('runSink', () => {
  test('the same seed gives the same run, another seed another one', () => {
    const [a, b, c] = [7, 7, 8].map((seed) =>
      runSink(sinkOf('clients-8'), () => ruleOf({ adaptive: {} }), seed),
    );
    expect(b).toEqual(a);
    expect(c.figures.goodput).not.toBe(a.figures.goodput);
  });

  test('a concurrency policy runs as the fixed limit of the same number', () => {
    const policy = runSink(sinkOf('quota'), () => ruleOf({ concurrency: 6 }), 1);
    expect(policy).toEqual(runSink(sinkOf('quota'), () => fixedRule(6), 1));
  });

  test('a policy that says when to retry is asked again then', () => {
    const { figures } = runSink(
      sinkOf('mm20'),
      () => ruleOf({ bucket: { rate: '50/s', burst: 1 } }),
      1,
    );
    expect(figures.goodput).toBeGreaterThan(49);
    expect(figures.goodput).toBeLessThan(51);
  });

  test('a policy with reservations is rejected', () => {
    expect(() => ruleOf({ spacing: { every: '10ms', reserve: 2 } })).toThrow(
      'expected a rule without reservations, got spacing',
    );
  });

  test('calls without a reply end with the timeout, and are counted in the spell', () => {
    const { figures, course } = runSink(sinkOf('timeouts'), () => fixedRule(20), 1);
    expect(figures.sentInSpell).toBeGreaterThanOrEqual(200);
    expect(figures.sentInSpell).toBeLessThan(230);
    expect(figures.refused).toBeGreaterThan(0.02);
    expect(course.completed.slice(311, 400).every((count) => count === 0)).toBe(true);
    expect(course.inFlight.every((calls) => calls <= 20)).toBe(true);
    const timedOut = (from: number, to: number): number =>
      course.dropped.slice(from, to).reduce((total, count) => total + count, 0);
    expect(timedOut(300, 420)).toBeGreaterThanOrEqual(200);
    expect(timedOut(0, 300)).toBeLessThan(10); // a few calls take longer than the timeout
  });

  test('fast refusals: a client starts at most 20 calls in a millisecond', () => {
    const { figures } = runSink(sinkOf('outage'), () => fixedRule(1000), 1);
    expect(figures.sentInSpell).toBeGreaterThan(150_000);
    expect(figures.sentInSpell).toBeLessThanOrEqual(200_020);
  });

  test('arrivals are the same whatever the rule draws', () => {
    const drawing = (random: () => number): Rule => ({
      ...fixedRule(10),
      settle: () => void random(),
    });
    expect(runSink(sinkOf('light'), drawing, 1)).toEqual(
      runSink(sinkOf('light'), () => fixedRule(10), 1),
    );
  });

  test('a client sends nothing before it joins', () => {
    const { course } = runSink(sinkOf('clients-8'), () => fixedRule(3), 1);
    expect(course.inFlight[25]).toBe(3);
    expect(course.inFlight[35]).toBe(6);
    expect(course.inFlight[250]).toBe(24);
    expect(course.limit[250]).toBe(24);
  });
});

describe('clocks', () => {
  test('a rule sees the clock of its client, from the time at which the client joins', () => {
    const seen = new Map<number, { startedAt: number; rttsMs: number[] }>();
    runSink(
      { ...sinkOf('clients-skewed'), durationMs: 40_000 },
      (_random, startedAt) => {
        const own = { startedAt, rttsMs: [] as number[] };
        seen.set(seen.size, own);
        return {
          ...fixedRule(2),
          settle(_outcome, sentAt, _inFlight, now) {
            if (sentAt < startedAt) throw new Error('sent before the start');
            own.rttsMs.push(now - sentAt);
          },
        };
      },
      1,
    );
    const starts = [...seen.values()].map(({ startedAt }) => startedAt % 3000);
    expect(new Set(starts).size).toBeGreaterThan(2);
    for (const { rttsMs } of seen.values()) {
      expect(Math.min(...rttsMs)).toBeGreaterThan(1);
      expect(Math.max(...rttsMs)).toBeLessThan(2000);
    }
  });
});

describe('catalogue', () => {
  test('names are unique, and every sink is measured for at least 10 s', () => {
    const names = CATALOGUE.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    expect(names.length).toBeGreaterThanOrEqual(36);
    for (const sink of CATALOGUE) {
      expect(durationOf(sink) - (sink.measureFromMs ?? 15_000)).toBeGreaterThanOrEqual(10_000);
    }
  });

  test.each(CATALOGUE.filter(({ name }) => !/mm200|fast|cold|outage/.test(name)))(
    '$name: calls succeed under a limit of 4',
    (sink) => {
      expect(runSink(sink, () => fixedRule(4), 1).figures.goodput).toBeGreaterThan(1);
    },
  );
});
