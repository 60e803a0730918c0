import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { CATALOGUE } from './catalogue.ts';
import { type CreateRule, fixedRule, policyRule, type Rule } from './rule.ts';
import { runSink } from './run.ts';
import { constant } from './service-times.ts';
import { durationOf, SINK_CLASSES, type Sink } from './sink.ts';
import { queue } from './sinks.ts';

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
      { ...sinkOf('clients-8'), durationMs: 40_000 },
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
    // One more client every 3 s: with equal clocks all would start at the same phase.
    const phases = [...seen.values()].map(({ startedAt }) => Math.round(startedAt % 3000));
    expect(new Set(phases).size).toBe(8);
    for (const { rttsMs } of seen.values()) {
      expect(Math.min(...rttsMs)).toBeGreaterThan(1);
      expect(Math.max(...rttsMs)).toBeLessThan(2000);
    }
  });

  test('clocks of two seeds differ, those of one seed do not', () => {
    const startOf = (seed: number): number => {
      let startedAt = -1;
      const sink = { ...sinkOf('mm20'), durationMs: 100 };
      const create: CreateRule = (_random, now) => {
        startedAt = now;
        return fixedRule(1);
      };
      runSink(sink, create, seed);
      return startedAt;
    };
    expect(startOf(1)).toBe(startOf(1));
    expect(Math.abs(startOf(1) - startOf(2))).toBeGreaterThan(1);
  });
});

describe('terms of a client', () => {
  /** Two clients with a limit of 10 each on servers that take exactly 100 ms. */
  const twoClients = (client: Sink['client'], rule: CreateRule = () => fixedRule(10)) => {
    const sink: Sink = {
      name: 'test',
      kind: 'shared',
      description: '',
      server: queue(Infinity, constant(100)),
      roundTrip: constant(10),
      clients: 2,
      ...(client && { client }),
      durationMs: 60_000,
      measureFromMs: 10_000,
    };
    return runSink(sink, rule, 1);
  };
  /** Successes a second of one client. */
  const NEAR = (1000 * 10) / 110;

  test('roundTrip: a client that is 100 ms farther away has half of the calls', () => {
    const { figures } = twoClients((n) => (n === 1 ? { roundTrip: constant(120) } : {}));
    expect(figures.goodput).toBeCloseTo(NEAR * (1 + 110 / 220), 0);
    expect(figures.fairness).toBeCloseTo(1.5 ** 2 / (2 * (1 + 0.5 ** 2)), 2);
  });

  test('arrivals: a client has those of its terms, and counts no more for fairness', () => {
    const few = (n: number) => (n === 1 ? { arrivals: () => ({ waitMs: 1000, count: 5 }) } : {});
    const { figures } = twoClients(few);
    expect(figures.goodput).toBeCloseTo(NEAR + 5, 0);
    expect(figures.fairness).toBe(1);
  });

  test('leavesAtMs: from then on a client sends nothing, and its limit is 0', () => {
    const { course, figures } = twoClients((n) => (n === 1 ? { leavesAtMs: 30_000 } : {}));
    expect([course.inFlight[299], course.limit[299]]).toEqual([20, 20]);
    expect([course.inFlight[302], course.limit[302]]).toEqual([10, 10]); // what was in flight has ended
    expect(figures.goodput).toBeCloseTo(NEAR * 1.4, 0);
    expect(figures.fairness).toBe(1);
  });

  test('joinsAtMs: a client sends nothing before', () => {
    const { course } = twoClients((n) => ({ joinsAtMs: 5000 * n }));
    expect(course.inFlight[49]).toBe(10);
    expect(course.inFlight[51]).toBe(20);
  });

  test('neighbour: follows its own rule, uses the server and is not measured', () => {
    let created = 0;
    const rule: CreateRule = () => {
      created++;
      return fixedRule(10);
    };
    const terms = (n: number) => (n === 0 ? { neighbour: () => fixedRule(30) } : {});
    const { figures, course } = twoClients(terms, rule);
    expect(created).toBe(1);
    expect(figures.goodput).toBeCloseTo(NEAR, 0);
    expect(figures.inFlight).toBeCloseTo(10, 5);
    expect([course.limit[100], course.inFlight[100]]).toEqual([10, 10]);
    expect(figures.fairness).toBe(1);

    const [alone, beside] = [{}, { neighbour: () => fixedRule(20) }].map((other) =>
      runSink(
        { ...sinkOf('mm20'), clients: 2, client: (n) => (n === 0 ? other : {}) },
        () => fixedRule(20),
        1,
      ),
    );
    expect(beside.figures.meanRttMs).toBeGreaterThan(1.8 * 100);
    expect(beside.figures.goodput).toBeLessThan(0.6 * alone.figures.goodput);
  });
});

describe('spell', () => {
  const SPELL = { fromMs: 30_000, toMs: 40_000 };
  /** A limit of 20, from a time after the start on another one. */
  const changing =
    (atMs: number, limit: number): CreateRule =>
    (_random, startedAt) => ({
      ...fixedRule(20),
      start: (now, inFlight) => (inFlight < (now - startedAt < atMs ? 20 : limit) ? 0 : Infinity),
    });
  const measure = (rule: CreateRule) =>
    runSink({ ...sinkOf('timeouts'), timeoutMs: 2000, spell: SPELL }, rule, 1).figures;

  test('peakInSpell: the most calls in flight as a multiple of those before', () => {
    expect(measure(() => fixedRule(20)).peakInSpell).toBe(1);
    expect(measure(changing(32_000, 60)).peakInSpell).toBe(3);
    expect(measure(changing(20_000, 60)).peakInSpell).toBe(1);
    expect(measure(changing(41_000, 60)).peakInSpell).toBe(1);
  });

  test('sentInSpell: calls that were sent in it, and no others', () => {
    const before = measure(changing(29_000, 0));
    expect(before).toMatchObject({ sentInSpell: 0 });
    const { sentInSpell } = measure(() => fixedRule(20));
    expect(sentInSpell).toBeGreaterThanOrEqual(5 * 20);
    expect(sentInSpell).toBeLessThanOrEqual(6 * 20);
  });

  test('without a spell both are 0', () => {
    const { figures } = runSink(sinkOf('mm20'), () => fixedRule(20), 1);
    expect(figures).toMatchObject({ sentInSpell: 0, peakInSpell: 0 });
  });
});

describe('catalogue', () => {
  test('names are unique, and every sink is measured for at least 10 s', () => {
    const names = CATALOGUE.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    expect(names.length).toBeGreaterThanOrEqual(90);
    expect(new Set(CATALOGUE.map(({ kind }) => kind))).toEqual(new Set(SINK_CLASSES));
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
