import { describe, expect, test } from 'vitest';
import { checkExpectations } from './expectations.ts';
import { figuresOf, type ScenarioFigures } from './figures.ts';
import { readScenario } from './read.ts';
import { runScenario, type ScenarioRun } from './run.ts';

const BUCKET = { bucket: { rate: '10/s', burst: 10 } };

const run = (value: object): Promise<ScenarioRun> =>
  runScenario(readScenario({ duration: '20s', limits: { api: BUCKET }, ...value }, 'test'));

const figures = (
  made: ScenarioRun,
  of?: string,
  fromMs = 0,
  toMs = made.scenario.durationMs,
): ScenarioFigures => figuresOf(made, { of, fromMs, toMs });

const at = (made: ScenarioRun): number[] => [...made.decisions.at.slice(0, made.decisions.length)];

describe('scenario: limits', () => {
  test('a bucket allows its burst and its rate, whatever the demand', async () => {
    const { allowed, denied, overshoot, utilisation } = figures(
      await run({ clients: { caller: { rate: '50/s' } } }),
    );
    expect(allowed).toBeGreaterThanOrEqual(208);
    expect(allowed).toBeLessThanOrEqual(210);
    expect(denied).toBe(1000 - allowed);
    expect(overshoot).toBe(0);
    expect(utilisation).toBeCloseTo(1.05, 1);
  });

  test('the same seed gives the same run, another seed another one', async () => {
    const made = (seed: number) => run({ seed, clients: { a: { rate: '9/s', shape: 'poisson' } } });
    const [one, same, other] = await Promise.all([made(1), made(1), made(2)]);
    expect(at(one)).toEqual(at(same));
    expect(at(one)).not.toEqual(at(other));
  });

  test('several limits: each client has its own, all together have one', async () => {
    const made = await run({
      limits: { own: BUCKET, total: { bucket: { rate: '15/s', burst: 15 }, key: 'total' } },
      clients: { one: { rate: '30/s' }, other: { rate: '30/s' } },
    });
    const { allowed } = figures(made);
    expect(allowed).toBeGreaterThanOrEqual(312);
    expect(allowed).toBeLessThanOrEqual(315);
  });

  test('waiting calls get their permit when it is due, and no call is refused', async () => {
    const made = await run({
      limits: { api: { spacing: { every: '1s' } } },
      clients: { worker: { shape: 'hog', wait: true } },
    });
    expect(at(made).map(Math.round)).toEqual(Array.from({ length: 20 }, (_, n) => n * 1000));
    expect(figures(made).denied).toBe(0);
  });

  test('a call that would wait too long is refused', async () => {
    const made = await run({
      limits: { api: { spacing: { every: '1s' } } },
      clients: { caller: { rate: '5/s', wait: '3s' } },
    });
    expect(figures(made).denied).toBeGreaterThan(50);
    expect(figures(made).waitMax).toBeLessThanOrEqual(3001);
  });
});

describe('scenario: backends', () => {
  const twice = { nodes: 2, balancer: 'round-robin', clients: { caller: { rate: '60/s' } } };

  test.each([
    ['local', {}, 420, 4],
    ['redis', { redis: true }, 210, 2],
    ['peers', { peers: true }, 210, 8],
    ['pool', { pool: true }, 210, 12],
    ['groups', { groups: true }, 210, 12],
  ] as const)('%s: two nodes allow what they share', async (_name, backend, allowed, error) => {
    const made = await run({ ...twice, limits: { api: { ...BUCKET, ...backend } } });
    expect(Math.abs(figures(made).allowed - allowed)).toBeLessThanOrEqual(error);
  });

  test('redis: every decision takes a round trip', async () => {
    const made = await run({ ...twice, limits: { api: { ...BUCKET, redis: { rtt: '40ms' } } } });
    expect(figures(made).waitP50).toBeCloseTo(40, 1);
  });

  test.each([['deny', 0] as const, ['allow', 60] as const])(
    'redis: while it is unavailable, onUnavailable decides: %s',
    async (onUnavailable, perSecond) => {
      const made = await run({
        ...twice,
        limits: { api: { ...BUCKET, redis: { deadline: '50ms', onUnavailable } } },
        faults: [{ at: '5s', outage: true, for: '10s' }],
      });
      expect(figures(made, undefined, 6000, 15_000).allowedPerSecond).toBeCloseTo(perSecond, 0);
      expect(figures(made, undefined, 16_000).allowedPerSecond).toBeLessThan(14);
    },
  );

  test('pool: a node that is cut off stops when its part has become stale', async () => {
    const made = await run({
      ...twice,
      duration: '30s',
      limits: { api: { ...BUCKET, pool: { staleFor: '2s' } } },
      faults: [{ at: '5s', partition: [1, 2] }],
    });
    expect(figures(made, undefined, 0, 5000).allowed).toBeGreaterThan(45);
    expect(figures(made, undefined, 15_000).allowed).toBe(0);
  });
});

describe('scenario: faults', () => {
  const CALLER = { clients: { caller: { rate: '10/s' } }, limits: { api: { concurrency: 1000 } } };

  test('crash: calls fail until the balancer notices, and then reach the other node', async () => {
    const made = await run({
      ...{ ...CALLER, nodes: 2, balancer: { order: 'round-robin', detects: '2s' } },
      faults: [{ at: '5s', crash: 1, for: '10s' }],
    });
    expect(figures(made, undefined, 5000, 7000).failed).toBe(10);
    expect(figures(made, undefined, 7000).failed).toBe(0);
  });

  test('crash: a node that returns has forgotten what it had counted', async () => {
    const crash = { at: '10s', crash: 1, for: '100ms' };
    const made = await run({ clients: { caller: { rate: '50/s' } }, faults: [crash] });
    expect(figures(made).overshoot).toBeGreaterThan(7);
  });

  test('crash of the only node: calls fail for good', async () => {
    const made = await run({ ...CALLER, faults: [{ at: '5s', crash: 1 }] });
    expect(figures(made).failed).toBe(150);
  });

  test('freeze: calls wait until the node goes on, without a balancer that notices', async () => {
    const made = await run({
      ...{ ...CALLER, balancer: { detects: Number.POSITIVE_INFINITY } },
      faults: [{ at: '5s', freeze: 1, for: '4s' }],
    });
    expect(figures(made, undefined, 5000, 9000).allowed).toBe(0);
    expect(figures(made).allowed).toBe(200);
    expect(figures(made).waitMax).toBeGreaterThan(3800);
  });

  test('slow: calls take longer, and end', async () => {
    const made = await run({
      ...CALLER,
      server: { workers: 100, time: '20ms', distribution: 'constant', rtt: '0ms' },
      faults: [{ at: '5s', slow: 10, for: '5s' }],
    });
    expect(figures(made, undefined, 0, 5000).latencyP95).toBeCloseTo(20, 1);
    expect(figures(made, undefined, 6000, 10_000).latencyP50).toBeCloseTo(200, 1);
    expect(figures(made, undefined, 11_000).latencyP95).toBeCloseTo(20, 1);
  });
});

describe('scenario: clients', () => {
  test('a refused call is retried after its back-off, and at the earliest when it fits', async () => {
    const limits = { api: { spacing: { every: '1s' } } };
    const once = await run({ limits, clients: { caller: { rate: '1/2s', count: 2 } } });
    const often = await run({
      limits,
      clients: { caller: { rate: '1/2s', count: 2, key: 'one', retries: 3, backoff: '10ms' } },
    });
    expect(figures(once).denied).toBe(0);
    expect(figures(often).denied).toBeGreaterThan(0);
    expect(figures(often).allowed).toBe(20);
  });

  test('a call without a reply times out, and its permit is free again', async () => {
    const made = await run({
      limits: { api: { concurrency: 2 } },
      clients: { caller: { shape: 'hog', parallel: 2, wait: true, timeout: '1s' } },
      server: { workers: 1, time: '10s', distribution: 'constant' },
    });
    expect(figures(made).timeouts).toBeGreaterThan(30);
    expect(figures(made).maxInFlight).toBe(2);
  });

  test('calls beyond the queue and the quota of a server are busy', async () => {
    const clients = { caller: { rate: '100/s' } };
    const limits = { api: { concurrency: 1000 } };
    const full = await run({ clients, limits, server: { workers: 1, time: '100ms', queue: 2 } });
    expect(figures(full).busy).toBeGreaterThan(1500);
    expect(figures(full).maxInFlight).toBeLessThan(10);
    const quota = await run({
      clients,
      limits,
      server: { workers: 9, time: '1ms', quota: '40/s' },
    });
    expect(figures(quota).ok).toBeCloseTo(800, -2);
  });

  test('calls are spread over the keys of a client', async () => {
    const made = await run({ clients: { caller: { rate: '100/s', keys: 5 } } });
    expect(made.keys).toBe(5);
    expect(figures(made).allowed).toBeGreaterThan(900);
  });

  test.each(['sticky', 'round-robin', 'random', 'least'])(
    'balancer %s: every node gets its part',
    async (balancer) => {
      const made = await run({
        ...{ nodes: 2, balancer, limits: { api: { bucket: { rate: '1/s', burst: 20 } } } },
        clients: { one: { rate: '20/s', key: 'k' }, other: { rate: '20/s', key: 'k' } },
      });
      expect(figures(made).allowed).toBeGreaterThanOrEqual(78);
      expect(figures(made).allowed).toBeLessThanOrEqual(80);
    },
  );
});

test('scenario: an expectation that is missed is told with its value', async () => {
  const made = await run({
    clients: { caller: { rate: '50/s' } },
    expect: [{ allowed: [208, 210] }, { denied: 0, of: 'caller', from: '10s' }],
  });
  expect(checkExpectations(made).map(({ isMet, value }) => [isMet, value])).toEqual([
    [true, figures(made).allowed],
    [false, figures(made, 'caller', 10_000).denied],
  ]);
});
