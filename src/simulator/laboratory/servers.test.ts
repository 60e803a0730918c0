import { describe, expect, test } from 'vitest';
import type { Millis } from '../../core/clock.ts';
import { exponentialVariate, seededRandom } from '../../core/random.ts';
import { Timeline } from '../timeline.ts';
import type { Figures } from './recorder.ts';
import { fixedRule } from './rule.ts';
import { runSink } from './run.ts';
import {
  autoscaled,
  dropping,
  failing,
  holding,
  losing,
  onCores,
  quadraticContention,
  queueServer,
  quota,
  refuse,
  type Server,
  type Simulation,
  sharingServer,
  universalScalability,
} from './servers.ts';
import { constant, exponential, logNormal, mixture, pausing } from './service-times.ts';
import type { CreateServer, Sink } from './sink.ts';

/** A fixed limit on a server without a network, measured for three minutes. */
function figuresOf(limit: number, server: CreateServer, details: Partial<Sink> = {}): Figures {
  const sink: Sink = {
    name: 'test',
    kind: 'other',
    description: '',
    server,
    roundTrip: constant(0),
    durationMs: 190_000,
    measureFromMs: 10_000,
    ...details,
  };
  return runSink(sink, () => fixedRule(limit), 1).figures;
}

const poisson = (perSecond: number): Partial<Sink> => ({
  arrivals: (random) => ({ waitMs: (1000 * exponentialVariate(random)) / perSecond, count: 1 }),
});

/** Within a part of the expected value. */
function expectNear(value: number, expected: number, part: number): void {
  expect(value).toBeGreaterThan(expected * (1 - part));
  expect(value).toBeLessThan(expected * (1 + part));
}

describe('queueServer', () => {
  test.each([5, 20, 60])('M/M/20 with %i calls in flight: throughput min(n, 20) / 100 ms', (n) => {
    const { goodput, meanRttMs, inFlight } = figuresOf(n, (simulation) =>
      queueServer(simulation, { workers: 20, service: exponential(100) }),
    );
    expectNear(goodput, 10 * Math.min(n, 20), 0.02);
    expectNear((goodput * meanRttMs) / 1000, n, 0.01); // Little's law
    expectNear(inFlight, n, 1e-6);
  });

  test('M/M/1 with 30 calls/s of 20 ms: mean time in the system 20 ms / (1 - 0.6)', () => {
    const { goodput, meanRttMs } = figuresOf(
      1000,
      (simulation) => queueServer(simulation, { workers: 1, service: exponential(20) }),
      poisson(30),
    );
    expectNear(goodput, 30, 0.02);
    expectNear(meanRttMs, 50, 0.08);
  });

  test('M/D/1 waits half as long as M/M/1', () => {
    const { meanRttMs } = figuresOf(
      1000,
      (simulation) => queueServer(simulation, { workers: 1, service: constant(20) }),
      poisson(30),
    );
    expectNear(meanRttMs, 20 + 15, 0.05);
  });

  test('a bounded queue refuses the calls beyond workers and queue', () => {
    const server: CreateServer = (simulation) =>
      queueServer(simulation, { workers: 20, service: exponential(100), maxQueue: 5 });
    expect(figuresOf(25, server).refused).toBe(0);
    const { goodput, refused } = figuresOf(26, server);
    expectNear(goodput, 200, 0.02);
    expect(refused).toBeGreaterThan(0.1);
  });

  test('workers that come back take waiting calls at once', () => {
    const { course } = runSink(
      {
        name: 'test',
        kind: 'changing',
        description: '',
        server: (simulation) =>
          queueServer(simulation, {
            workers: (now) => (now < 10_000 ? 0 : 10),
            service: constant(100),
          }),
        durationMs: 20_000,
      },
      () => fixedRule(10),
      1,
    );
    expect(course.completed.slice(0, 100).every((count) => count === 0)).toBe(true);
    expect(course.completed.slice(101, 111).reduce((a, b) => a + b)).toBeGreaterThanOrEqual(90);
  });

  test('autoscaled workers grow under load up to their bound', () => {
    const { goodput } = figuresOf(
      100,
      (simulation) =>
        queueServer(simulation, { workers: autoscaled(10, 60), service: exponential(100) }),
      { durationMs: 90_000, measureFromMs: 30_000 },
    );
    expectNear(goodput, 600, 0.05);
  });
});

describe('sharingServer', () => {
  test('one core with 30 calls/s of 20 ms: mean time 20 ms / (1 - 0.6), whatever the distribution', () => {
    for (const service of [constant(20), exponential(20), logNormal(20, 1)]) {
      const { meanRttMs } = figuresOf(
        1000,
        (simulation) => sharingServer(simulation, { service, speed: onCores(1) }),
        poisson(30),
      );
      expectNear(meanRttMs, 50, 0.12);
    }
  });

  test('Universal Scalability Law: throughput n / (1 + sigma (n - 1) + kappa n (n - 1)) / 20 ms', () => {
    for (const n of [1, 44, 100]) {
      const { goodput } = figuresOf(
        n,
        (simulation) =>
          sharingServer(simulation, {
            service: exponential(20),
            speed: universalScalability(0.02, 0.0005),
          }),
        { durationMs: 50_000 },
      );
      expectNear(goodput, (50 * n) / (1 + 0.02 * (n - 1) + 0.0005 * n * (n - 1)), 0.04);
    }
  });

  test('contention beyond the knee lowers the throughput', () => {
    const server: CreateServer = (simulation) =>
      sharingServer(simulation, { service: exponential(100), speed: quadraticContention(20, 4) });
    expectNear(figuresOf(20, server).goodput, 200, 0.02);
    expectNear(figuresOf(40, server).goodput, 80, 0.03);
  });
});

describe('losing, failing, holding, dropping', () => {
  interface Answer {
    readonly sentAt: Millis;
    readonly at: Millis;
    readonly reply: string;
  }
  /** Sends a call every `everyMs`, `count` in all, to a server whose calls take 100 ms. */
  function answers(
    count: number,
    everyMs: Millis,
    wrap: (simulation: Simulation, inner: Server) => Server,
  ): Answer[] {
    const simulation = { timeline: new Timeline(), random: seededRandom(3) };
    const options = { workers: Infinity, service: constant(100) };
    const server = wrap(simulation, queueServer(simulation, options));
    const replies: Answer[] = [];
    for (let n = 0; n < count; n++) {
      const sentAt = n * everyMs;
      simulation.timeline.scheduleAt(sentAt, () =>
        server((reply) => replies.push({ sentAt, at: simulation.timeline.now, reply })),
      );
    }
    while (simulation.timeline.runNextInstant());
    return replies;
  }

  test('losing: calls that arrive while it holds get no reply, all others theirs', () => {
    const replies = answers(100, 10, (simulation, inner) =>
      losing(simulation, (_random, now) => now >= 300 && now < 600, inner),
    );
    expect(replies).toHaveLength(70);
    expect(replies.some(({ sentAt }) => sentAt >= 300 && sentAt < 600)).toBe(false);
    expect(replies.every(({ sentAt, at }) => at === sentAt + 100)).toBe(true);
    const chance = answers(10_000, 1, (simulation, inner) =>
      losing(simulation, (random) => random() < 0.05, inner),
    );
    expectNear(10_000 - chance.length, 500, 0.1);
  });

  test('losing: the call ends with the timeout of its client, and counts as not successful', () => {
    const server: CreateServer = (simulation) =>
      losing(simulation, () => true, queueServer(simulation, { workers: 1, service: constant(1) }));
    const { goodput, refused } = figuresOf(10, server, { timeoutMs: 1000, durationMs: 20_000 });
    expect({ goodput, refused }).toEqual({ goodput: 0, refused: 1 });
  });

  test('failing: a part of the replies is `failed`, when the call is done; refusals stay', () => {
    const replies = answers(10_000, 1, (simulation, inner) => failing(simulation, 0.1, inner));
    expect(replies).toHaveLength(10_000);
    expectNear(replies.filter(({ reply }) => reply === 'failed').length, 1000, 0.1);
    expect(replies.every(({ sentAt, at }) => at === sentAt + 100)).toBe(true);
    const refused = answers(10, 1, (simulation) =>
      failing(simulation, 1, (onReply) => refuse(simulation.timeline, onReply)),
    );
    expect(refused.map(({ reply }) => reply)).toEqual(new Array(10).fill('busy'));
  });

  test('failing: a failed call is no success', () => {
    const server: CreateServer = (simulation) =>
      failing(
        simulation,
        0.1,
        queueServer(simulation, { workers: Infinity, service: constant(100) }),
      );
    const { goodput, meanRttMs } = figuresOf(10, server);
    expectNear(goodput, 90, 0.02);
    expect(meanRttMs).toBeCloseTo(100);
  });

  test('holding: replies of the time come at its end, all others at theirs', () => {
    const replies = answers(100, 10, (simulation, inner) => holding(simulation, 300, 600, inner));
    expect(replies).toHaveLength(100);
    for (const { sentAt, at } of replies) {
      const doneAt = sentAt + 100;
      expect(at).toBe(doneAt >= 300 && doneAt < 600 ? 600 : doneAt);
    }
  });

  test('dropping: calls beyond the bound get no reply; one that ends makes room', () => {
    const replies = answers(96, 9, (_simulation, inner) => dropping(5, inner));
    expect(replies.slice(0, 7).map(({ sentAt }) => sentAt)).toEqual([0, 9, 18, 27, 36, 108, 117]);
    expect(replies).toHaveLength(40); // 5 of 12
    expect(replies.every(({ sentAt, at }) => at === sentAt + 100)).toBe(true);
  });
});

describe('quota', () => {
  /** The times of accepted calls when `count` calls come at random over ten seconds. */
  function accepted(count: number, countsRefused: boolean): Millis[] {
    const timeline = new Timeline();
    const random = seededRandom(5);
    const times: Millis[] = [];
    const server = quota({ timeline, random }, { perSecond: 80, countsRefused }, () =>
      times.push(timeline.now),
    );
    for (let n = 0; n < count; n++)
      timeline.scheduleAfter(10_000 * random(), () => server(() => {}));
    while (timeline.runNextInstant());
    return times;
  }

  test('lets no more than 80 calls through in any second, and 80 in most', () => {
    const times = accepted(2000, false);
    times.forEach((at, n) => {
      if (n >= 80) expect(at - times[n - 80]).toBeGreaterThanOrEqual(1000);
    });
    expect(times.length).toBeGreaterThan(780);
  });

  test('lets nothing through while refused calls count and exceed it', () => {
    expect(accepted(2000, true)).toHaveLength(80);
  });
});

describe('service times', () => {
  const meanOf = (service: ReturnType<typeof exponential>): number => {
    const random = seededRandom(3);
    let total = 0;
    for (let n = 0; n < 200_000; n++) total += service(random, 0);
    return total / 200_000;
  };

  test('distributions have the mean they are given', () => {
    expectNear(meanOf(exponential(100)), 100, 0.01);
    expectNear(meanOf(logNormal(100, 1)), 100, 0.02);
    expectNear(meanOf(mixture(0.9, exponential(30), exponential(500))), 77, 0.03);
  });

  test('a pause delays a call that starts in it or reaches it', () => {
    const service = pausing(8000, 800, constant(100));
    const random = seededRandom(1);
    expect(service(random, 8000)).toBe(900);
    expect(service(random, 8700)).toBe(200);
    expect(service(random, 12_000)).toBe(100);
    expect(service(random, 15_950)).toBe(900);
  });
});
