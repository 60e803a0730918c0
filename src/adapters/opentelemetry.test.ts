import { createNoopMeter, metrics } from '@opentelemetry/api';
import { DataPointType, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/limiter-interface.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { instrument } from './opentelemetry.ts';

/** Collects on demand, like a scraper. */
class PullReader extends MetricReader {
  protected override async onForceFlush(): Promise<void> {}
  protected override async onShutdown(): Promise<void> {}
}

/** The real SDK, and the values of a collection by name and labels. */
function sdk() {
  const reader = new PullReader();
  const provider = new MeterProvider({ readers: [reader] });
  const collect = async (): Promise<Record<string, unknown>> => {
    const { resourceMetrics, errors } = await reader.collect();
    expect(errors).toEqual([]);
    const found = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    return Object.fromEntries(
      found.flatMap(({ descriptor, dataPoints }) =>
        dataPoints.map(({ attributes, value }) => [
          [descriptor.name, ...Object.values(attributes)].join(' '),
          value,
        ]),
      ),
    );
  };
  /** Name, unit and kind of each instrument. */
  const kinds = async (): Promise<string[]> => {
    const { resourceMetrics } = await reader.collect();
    const found = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    return found
      .map(({ descriptor: { name, unit }, dataPointType }) =>
        [name, unit, DataPointType[dataPointType]].join(' '),
      )
      .sort();
  };
  return { provider, meter: provider.getMeter('test'), collect, kinds };
}

const bucket = { bucket: { rate: '10/s', burst: 3 } } as const;

async function sampleTraffic(api: Limiter, clock: VirtualClock): Promise<void> {
  api.check('alice', 3);
  api.check('alice');
  const late = api.acquire('alice', 2);
  await clock.advanceAsync(200);
  const permit = await late;
  await clock.advanceAsync(30);
  if (permit.verdict === 'allow') permit.settle();
  api.tryAcquire('bob');
  api.settle('carol', { outcome: 'busy', rttMs: 5 });
}

describe('instrument', () => {
  afterEach(() => metrics.disable());

  test('exports the counters of a limiter on collection', async () => {
    const clock = new VirtualClock();
    const api = limiter({ name: 'api', limit: bucket, clock });
    const { meter, collect } = sdk();
    instrument(api, { meter });
    await sampleTraffic(api, clock);
    const { bytes, keys } = api.stats();
    expect(await collect()).toMatchObject({
      'sluice.decisions api allow': 2,
      'sluice.decisions api wait': 1,
      'sluice.decisions api deny': 1,
      'sluice.limited api': 2,
      'sluice.cancelled api': 0,
      'sluice.expired_permits api': 0,
      'sluice.settled api ok': 1,
      'sluice.settled api busy': 1,
      'sluice.in_flight api': 1,
      'sluice.waiting api': 0,
      'sluice.keys api': keys,
      'sluice.evicted_keys api': 0,
      'sluice.memory api': bytes,
      'sluice.wait.duration api': { count: 1, sum: 0.2 },
      'sluice.rtt.duration api ok': { count: 1, sum: 0.03 },
      'sluice.rtt.duration api busy': { count: 1, sum: 0.005 },
    });
  });

  test('exports the same histograms as the limiter, bucket by bucket', async () => {
    const api = limiter({ name: 'api', limit: { adaptive: {} }, clock: new VirtualClock() });
    const { meter, collect } = sdk();
    instrument(api, { meter });
    for (const rttMs of [0.4, 1, 1.1, 99, 70_000]) api.settle('db', { rttMs });
    const { boundsMs, counts } = api.stats().rttMs;
    expect((await collect())['sluice.rtt.duration api ok']).toMatchObject({
      buckets: { boundaries: boundsMs.map((ms) => ms / 1000), counts },
    });
  });

  test('records a reserved slot as a wait', async () => {
    const limit = { spacing: { every: '6s', reserve: 5 } } as const;
    const api = limiter({ name: 'job', limit, clock: new VirtualClock() });
    const { meter, collect } = sdk();
    instrument(api, { meter });
    api.check('a');
    api.check('a');
    expect(await collect()).toMatchObject({
      'sluice.decisions job wait': 1,
      'sluice.wait.duration job': { count: 1, sum: 6 },
    });
  });

  test('does not record the wait of a call that was denied in the end', async () => {
    const clock = new VirtualClock();
    const api = limiter({ name: 'one', limit: { concurrency: 1 }, clock });
    const { meter, collect } = sdk();
    instrument(api, { meter });
    api.check('db', 1, { willSettle: true });
    const vain = api.acquire('db', 1, { wait: 100 });
    await clock.advanceAsync(100);
    expect((await vain).verdict).toBe('deny');
    const found = await collect();
    expect(found).toMatchObject({ 'sluice.decisions one deny': 1 });
    expect(found).not.toHaveProperty(['sluice.wait.duration one']);
  });

  test('exports a limit that learns for each key, up to maxKeys', async () => {
    const clock = new VirtualClock();
    const sink = limiter({ name: 'sink', limit: { adaptive: { initial: 4 } }, clock });
    const { meter, collect } = sdk();
    instrument(sink, { meter, maxKeys: 1 });
    for (const key of ['db', 'cache']) {
      sink.check(key, 1, { willSettle: true });
      sink.check(key, 1, { willSettle: true });
      sink.settle(key, { rttMs: 10 });
    }
    const found = await collect();
    expect(found).toMatchObject({ 'sluice.limit sink db': 4, 'sluice.in_flight sink db': 1 });
    expect(Object.keys(found).filter((name) => name.includes('cache'))).toEqual([]);
  });

  test('uses the documented names, units and kinds', async () => {
    const clock = new VirtualClock();
    const sink = limiter({ name: 'sink', limit: { adaptive: {} }, clock });
    const { meter, kinds } = sdk();
    instrument(sink, { meter });
    const [first, second] = [sink.acquire('db'), sink.acquire('db')];
    await clock.advanceAsync(5);
    for (const entry of [first, second]) {
      const permit = await entry;
      if (permit.verdict === 'allow') permit.settle();
    }
    expect(await kinds()).toEqual([
      'sluice.cancelled  SUM',
      'sluice.concurrency.in_flight  HISTOGRAM',
      'sluice.concurrency.limit  HISTOGRAM',
      'sluice.decisions  SUM',
      'sluice.evicted_keys  SUM',
      'sluice.expired_permits  SUM',
      'sluice.in_flight  GAUGE',
      'sluice.keys  GAUGE',
      'sluice.limit  GAUGE',
      'sluice.limited  SUM',
      'sluice.memory By GAUGE',
      'sluice.reserved  SUM',
      'sluice.rtt.duration s HISTOGRAM',
      'sluice.settled  SUM',
      'sluice.wait.duration s HISTOGRAM',
      'sluice.waiting  GAUGE',
    ]);
  });

  test('uses the registered provider by default', async () => {
    const { provider, collect } = sdk();
    metrics.setGlobalMeterProvider(provider);
    const api = limiter({ name: 'api', limit: bucket, clock: new VirtualClock() });
    instrument([api]);
    api.check('alice');
    expect(await collect()).toMatchObject({ 'sluice.decisions api allow': 1 });
  });

  test('exports limiters of several calls together', async () => {
    const { meter, collect } = sdk();
    for (const name of ['one', 'other']) {
      instrument(limiter({ name, limit: bucket, clock: new VirtualClock() }), { meter });
    }
    const none = { 'sluice.decisions one allow': 0, 'sluice.decisions other allow': 0 };
    expect(await collect()).toMatchObject(none);
  });

  test('attaches nothing without an SDK', () => {
    for (const limit of [bucket, { adaptive: {} }]) {
      const api = limiter({ limit, clock: new VirtualClock() });
      const on = vi.spyOn(api, 'on');
      instrument(api)();
      instrument(api, { meter: createNoopMeter() })();
      expect(on).not.toHaveBeenCalled();
    }
  });

  test('reads each limiter once per collection, and not in between', async () => {
    const { meter, collect } = sdk();
    const api = limiter({ limit: bucket, clock: new VirtualClock() });
    const stats = vi.spyOn(api, 'stats');
    instrument(api, { meter });
    api.check('alice');
    expect(stats).not.toHaveBeenCalled();
    await collect();
    expect(stats).toHaveBeenCalledTimes(1);
  });

  test('stop: ends reading and detaches listeners', async () => {
    const { meter, collect } = sdk();
    const api = limiter({ limit: { adaptive: {} }, clock: new VirtualClock() });
    const stops: ReturnType<typeof vi.fn>[] = [];
    const [stats, on] = [vi.spyOn(api, 'stats'), api.on.bind(api)];
    vi.spyOn(api, 'on').mockImplementation((listener) => {
      const stop = vi.fn(on(listener));
      stops.push(stop);
      return stop;
    });
    const [add, remove] = [
      vi.spyOn(meter, 'addBatchObservableCallback'),
      vi.spyOn(meter, 'removeBatchObservableCallback'),
    ];
    const stop = instrument(api, { meter });
    stop();
    stop();
    expect(remove.mock.calls).toEqual(add.mock.calls);
    api.settle('db', { rttMs: 5 });
    expect(Object.keys(await collect())).toEqual([]);
    expect(stats).not.toHaveBeenCalled();
    expect(stops.map((stop) => stop.mock.calls.length)).toEqual([1, 1]);
  });

  test.each([
    [
      'two limiters of one name',
      ['a', 'a'],
      {},
      /`limiters\[1\]\.name` to be a name that no other/,
    ],
    ['a meter that is none', ['a'], { meter: {} }, /`meter` to be a meter/],
    ['a misspelt option', ['a'], { metre: 1 }, /`metre` to be one of meter, maxKeys/],
  ])('refuses %s, with an SDK or without', (_what, names, options, message) => {
    const limiters = names.map((name) => limiter({ name, limit: bucket }));
    expect(() => instrument(limiters, options as never)).toThrow(ConfigError);
    expect(() => instrument(limiters, { meter: sdk().meter, ...options } as never)).toThrow(
      message,
    );
  });
});
