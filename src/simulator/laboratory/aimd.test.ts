import { describe, expect, test } from 'vitest';
import type { Millis } from '../../core/clock.ts';
import { createPolicy } from '../../policies/limit.ts';
import { policyRule } from './rule.ts';
import { runSink } from './run.ts';
import { losing, queueServer, type Workers } from './servers.ts';
import { exponential } from './service-times.ts';
import type { CreateServer, Sink } from './sink.ts';

const MS_100 = exponential(100);

function run(server: CreateServer, options: object, details: Partial<Sink>, seed = 1) {
  const sink = { name: 'own', kind: 'other', description: '', server, ...details } as const;
  const limit = { adaptive: { rule: 'aimd', ...options } };
  return runSink(sink, (random, now) => policyRule(createPolicy(limit, random), now), seed);
}

const queue =
  (workers: number | Workers): CreateServer =>
  (simulation) =>
    queueServer(simulation, { workers, service: MS_100 });

/** The service answers nothing from one instant on. */
const hung =
  (fromMs: Millis): CreateServer =>
  (simulation) =>
    losing(simulation, (_random, now) => now >= fromMs, queue(20)(simulation));

const median = (values: readonly number[]): number =>
  [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const SEEDS = [1, 2, 3, 4, 5];

describe('aimd: a service that hangs', () => {
  // The client asks when a call ends and when one arrives: a hundred a second, as from a busy server.
  const arrivals = () => ({ waitMs: 10, count: 10 });
  const cases: readonly (readonly [string, Millis, object])[] = [
    ['that answered before', 30_000, {}],
    ['that has never answered', 0, { initial: 50 }],
  ];
  for (const [which, hangsAt, options] of cases)
    test.for([1_000, 5_000, 30_000])(`${which}, timeout %d ms`, (timeoutMs) => {
      const details = { timeoutMs, arrivals, durationMs: hangsAt + 70_000 };
      const { limit, inFlight } = run(hung(hangsAt), options, details).course;
      const from = hangsAt / 100 + 1; // the calls in service at the start still end
      expect(limit.subarray(from + 50).every((calls) => calls === 1)).toBe(true);
      expect(Math.max(...inFlight.subarray(from))).toBeLessThanOrEqual(inFlight[from]);
    });

  test('decreaseOnSilence false: the limit falls by one step for each round of timeouts', () => {
    const options = { initial: 50, decreaseOnSilence: false };
    const details = { timeoutMs: 5_000, arrivals, durationMs: 60_000 };
    expect(run(hung(0), options, details).course.limit[550]).toBeGreaterThan(5);
  });
});

test('aimd: streams do not decrease the limit while other calls succeed', () => {
  const streams: CreateServer = (simulation) => {
    const server = queue(20)(simulation);
    let calls = 0;
    return (finish) => {
      if (calls++ % 100 === 50 && simulation.timeline.now < 60_000)
        simulation.timeline.scheduleAfter(200_000, () => finish('ok'));
      else server(finish);
    };
  };
  const goodput = (options: object) =>
    run(streams, options, { durationMs: 40_000 }).figures.goodput;
  expect(goodput({})).toBe(goodput({ decreaseOnSilence: false }));
});

describe('aimd: the capacity falls from 26 workers to one within a minute', () => {
  const falling: Workers = (now) =>
    Math.max(1, Math.ceil(26 - (25 * Math.max(0, now - 40_000)) / 60_000));

  test('the limit falls along with it', () => {
    const runs = SEEDS.map(
      (seed) => run(queue(falling), {}, { durationMs: 110_000 }, seed).course.limit,
    );
    expect(median(runs.map((limit) => limit[400]))).toBeGreaterThan(26);
    expect(median(runs.map((limit) => limit[999]))).toBeLessThan(10);
    expect(median(runs.map((limit) => Math.min(...limit.subarray(999))))).toBeLessThanOrEqual(5);
  });
});

test("aimd: random variation alone decreases no more than Vector's rule does", () => {
  // Goodput of Vector's rule alone, measured before the limit knew rises: 610 of 2,000 calls a second.
  const goodput = SEEDS.map((seed) => run(queue(200), {}, {}, seed).figures.goodput);
  expect(median(goodput)).toBeGreaterThan(590);
});
